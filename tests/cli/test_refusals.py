"""What people get wrong: one line, exit code 1, nothing left behind."""

import json
import shutil

import pytest

from fixtures.commands import COLUMNS, FAST, NAMED, printed, rows_of, write_csv
from fixtures.models import WORDS, make_tokenizer


def test_an_unknown_task_suggests_the_nearest(bad, model):
    assert "Did you mean 'tiny-topic'?" in bad("train", model, "tiny-topics")


def test_an_unknown_model_suggests_the_nearest(bad, mine):
    assert "Did you mean 'tiny-bert'?" in bad("check", "tiny-brt")
    assert "Did you mean 'tiny-opt'?" in bad("train", "tiny-opd", "--data", mine, *COLUMNS)
    assert "Did you mean 'facebook/opt-125m'?" in bad("check", "facebok/opt-125m")


def test_without_the_hub_a_model_can_come_from_a_folder(bad):
    assert "give the path of a folder" in bad("check", "EleutherAI/gpt-neo-125m")


def test_without_the_hub_a_task_can_come_from_a_folder(bad, model):
    assert "MEMLOC_DATA" in bad("train", model, "rte")


def test_a_task_and_a_file_are_too_much_and_neither_too_little(bad, model, mine):
    assert "one of the two" in bad("train", model, "tiny-topic", "--data", mine)
    assert "one of the two" in bad("train", model)


def test_a_missing_file_is_named(bad, model):
    assert "nowhere.csv is not there" in bad("train", model, "--data", "nowhere.csv", *COLUMNS)


@pytest.mark.parametrize("command", ["localise", "tables", "report", "plan"])
def test_a_name_that_no_file_can_have_is_refused(bad, command):
    assert "cannot be used: File name too long. Check the path" in bad(command, "x" * 3000)


def test_a_column_that_is_not_there_suggests_the_nearest(bad, model, mine):
    assert "Did you mean 'review'?" in bad(
        "train", model, "--data", mine, "--text=reviews", "--label=stars", "--flip=0.1"
    )


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([*rows_of(20), ("", "good")], "1 empty text, the first in row 21"),
        ([*rows_of(20), ("a cat", "")], "1 empty label, the first in row 21"),
        ([(text, "good") for text, _ in rows_of(20)], "only the label 'good'"),
        (rows_of(10), "the largest class has 4 training examples"),
        (rows_of(1), "only the label 'good'"),
        (rows_of(4), "give at least two, or six in all"),
        ([], "no rows"),
    ],
    ids=[
        "empty text",
        "missing label",
        "one class",
        "all classes too small",
        "one row",
        "few rows",
        "no rows",
    ],
)
def test_a_file_that_cannot_be_used_is_refused(bad, model, tmp_path, rows, said):
    path = write_csv(tmp_path / "bad.csv", rows)
    assert said in bad("train", model, "--data", path, *COLUMNS)


@pytest.mark.parametrize("rate", ["0", "1", "1.5", "-0.1", "much"])
def test_a_noise_share_outside_its_limits_is_refused(bad, model, mine, rate):
    assert "noise.rate" in bad("train", model, "tiny-topic", f"--set=noise.rate={rate}")


@pytest.mark.parametrize("share", ["0", "1", "1.5", "-0.1", "nan"])
def test_a_share_to_flip_outside_its_limits_is_refused(bad, model, mine, share):
    said = f"--flip {share}: a share above 0 and below 1 is needed"
    assert said in bad("train", model, "--data", mine, *NAMED, f"--flip={share}")


@pytest.mark.parametrize(
    "ways",
    [[], ["--flip=0.1", "--flag=stars"], ["--original=stars", "--flag=stars"]],
    ids=["none", "flip and flag", "original and flag"],
)
def test_which_labels_of_a_file_are_wrong_is_said_in_one_way(bad, model, mine, ways):
    line = bad("train", model, "--data", mine, *NAMED, *ways)
    for way in ("--flip 0.15", "--original COLUMN", "--flag COLUMN"):
        assert way in line


def test_a_share_is_given_once(bad, model, mine):
    line = bad("train", model, "--data", mine, *COLUMNS, "--set=noise.rate=0.2")
    assert "--flip and --set noise.rate say the same thing" in line


@pytest.mark.parametrize("way", ["--flip=0.1", "--original=x", "--flag=x"])
def test_a_named_task_has_no_columns_of_noise(bad, model, way):
    assert "is for a file given with --data" in bad("train", model, "tiny-topic", way)


@pytest.mark.parametrize(
    ("way", "said"),
    [
        ("--original=wrong", "if these are flags, use --flag wrong"),
        ("--flag=before", "if it holds the labels before noise, use --original before"),
    ],
)
def test_flags_and_original_labels_are_not_taken_for_each_other(bad, model, tmp_path, way, said):
    rows = [(text, y, "yes" if i % 5 else "no", y) for i, (text, y) in enumerate(rows_of())]
    path = write_csv(tmp_path / "m.csv", rows, ("review", "stars", "wrong", "before"))
    assert said in bad("train", model, "--data", path, *NAMED, way)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("finetune.epoch=3", "Did you mean 'finetune.epochs'?"),
        ("finetune.epochs", "--set finetune.epochs=VALUE"),
        ("finetune.epochs=[1", "--set finetune.epochs"),
        ("finetune.epochs=", "finetune.epochs"),
        ("finetune.epochs=2024-13-45", "--set finetune.epochs"),
        ("finetune.epochs=&x [*x]", "--set finetune.epochs"),
        ("control.ks=x", "control.ks does not decide the weights of a run"),
        ("finetune.autocast=fp8", "finetune.autocast"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(bad, model, mine, change, said):
    assert said in bad("train", model, "--data", mine, *COLUMNS, f"--set={change}")


@pytest.mark.parametrize("depth", [0, 3, -2])
def test_a_depth_that_the_model_does_not_have_is_refused(bad, model, mine, depth):
    said = f"A depth of {depth} was asked for; this model has 1 to 2 layers."
    assert said in bad("train", model, "--data", mine, *COLUMNS, f"--depth={depth}")
    assert said in bad("check", model, f"--depth={depth}")


def test_a_device_that_is_not_there_is_refused(bad, model, mine):
    line = bad("train", model, "--data", mine, *COLUMNS, "--device=tpu")
    assert "No device is called 'tpu'. Did you mean 'cpu'? Known: auto, cpu, cuda, mps." in line


def test_weights_that_do_not_exist_are_refused(bad, model, mine):
    assert "Did you mean 'frozen'?" in bad(
        "train", model, "--data", mine, *COLUMNS, "--checkpoints=froze"
    )


def test_more_examples_than_there_are_are_refused(bad, model, mine):
    assert "1,000 training examples" in bad(
        "train", model, "--data", mine, *COLUMNS, "--examples=1000"
    )


def test_a_place_that_cannot_be_written_to_is_refused(bad, model, mine):
    assert "Cannot write" in bad("train", model, "--data", mine, *COLUMNS, *FAST, "--out", mine)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        ("truncated", "it may be damaged"),
        ("other tokenizer", "do not belong to each other"),
        ("adapter", "adapter_config.json is damaged"),
        ("no weights", "no file named model.safetensors"),
    ],
)
def test_a_damaged_model_folder_is_refused(bad, model, mine, tmp_path, damage, said):
    folder = shutil.copytree(model, tmp_path / "copy")
    weights = folder / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-50])
    elif damage == "other tokenizer":
        tokenizer = make_tokenizer("bert")
        tokenizer.add_tokens([f"{word}s" for word in WORDS])
        tokenizer.save_pretrained(folder)
    elif damage == "adapter":
        (folder / "adapter_config.json").write_text("{}")
    else:
        weights.unlink()
    assert said in bad("check", folder)
    assert said in bad("train", folder, "--data", mine, *COLUMNS)


def test_a_run_folder_of_other_settings_is_refused(bad, run, model, mine):
    words = ("train", model, "--data", mine, *COLUMNS, *FAST, "--checkpoints=frozen")
    printed(run(*words))
    line = bad(*words, "--set=finetune.clip=2.0")
    assert "belongs to other settings: finetune.clip is 1.0 there and 2.0 here" in line


def test_a_message_is_one_line_even_where_a_name_has_two(bad, model, tmp_path):
    path = write_csv(tmp_path / "odd.csv", rows_of(20), header=("re\nview", "stars"))
    assert "It has: re view, stars" in bad("train", model, "--data", path, *COLUMNS)


@pytest.mark.parametrize("value", ["2020-13-45", "!!int abc"])
def test_a_value_that_yaml_itself_stumbles_over_is_refused(bad, model, mine, value):
    said = bad("train", model, "--data", mine, *COLUMNS, f"--set=finetune.epochs={value}")
    assert "--set finetune.epochs cannot read" in said


def test_a_tokenizer_without_a_length_is_refused(bad, model, tmp_path):
    folder = shutil.copytree(model, tmp_path / "copy")
    path = folder / "tokenizer_config.json"
    settings = {**json.loads(path.read_text()), "model_max_length": []}
    path.write_text(json.dumps(settings))
    assert "model_max_length of its tokenizer is []" in bad("check", folder)


def test_a_name_that_the_system_does_not_take_is_refused(bad):
    assert "xxx cannot be used: File name too long. Check the path" in bad("check", "x" * 5000)
