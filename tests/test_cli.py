import csv
import json
import shutil
import subprocess
import sys
import time

import pytest
import torch
from typer.testing import CliRunner

from memloc import cli
from memloc.models import tiny
from support import WORDS
from tasks_support import make_examples

COMMANDS = [command.callback.__name__ for command in cli.app.registered_commands]
FAST = [
    "--set=finetune.epochs=2",
    "--set=finetune.learning_rate=1e-2",
    "--set=finetune.batch_size=8",
    "--device=cpu",
]


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEMLOC_DATA", raising=False)
    runner = CliRunner()
    return lambda *words: runner.invoke(cli.app, [str(word) for word in words])


@pytest.fixture
def model(tiny_model):
    return tiny_model("opt", depth=2, dropout=0.1)


def write_csv(path, rows, header=("review", "stars")):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def rows_of(n=60, labels=("good", "bad")):
    examples = make_examples(n, len(labels), 3)
    return [
        (text, labels[label])
        for (text,), label in zip(examples.parts, examples.labels, strict=True)
    ]


@pytest.fixture
def mine(tmp_path):
    return write_csv(tmp_path / "mine.csv", rows_of())


COLUMNS = ["--text=review", "--label=stars"]


def printed(result):
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(result):
    """The one line on stderr."""
    assert result.exit_code == 1, (result.exit_code, result.output, result.exception)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("memloc: ")
    assert "Traceback" not in lines[0]
    return lines[0]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example(run, command):
    shown = printed(run(command, "--help"))
    assert f"memloc {command}" in shown
    assert "Example" in shown


def test_help_lists_the_commands(run):
    shown = printed(run("--help"))
    assert {"tasks", "models", "check", "protocol", "train"} <= set(COMMANDS)
    assert all(command in shown for command in COMMANDS)


def test_tasks_lists_the_suite_and_the_twelve(run):
    rows = json.loads(printed(run("tasks", "--json")))
    names = [row["name"] for row in rows]
    assert {"tiny-topic", "rte", "trec", "reuters", "wic"} <= set(names)
    shown = printed(run("tasks"))
    assert all(name in shown for name in names)
    nlu = json.loads(printed(run("tasks", "--category", "nlu", "--json")))
    assert 0 < len(nlu) < len(rows)
    assert {row["category"] for row in nlu} == {"nlu"}


def test_an_unknown_category_is_refused(run):
    assert "No category is called 'nlx'. Did you mean 'nlu'?" in refused(
        run("tasks", "--category", "nlx")
    )


def test_models_lists_the_embedded_and_the_paper_s(run):
    rows = json.loads(printed(run("models", "--json")))
    names = [row["name"] for row in rows]
    assert names[:4] == list(tiny.NAMES)
    assert "EleutherAI/pythia-160m-deduped" in names
    assert {row["layers"] for row in rows} == {"12", "24"}
    assert "facebook/opt-1.3b" in printed(run("models"))


def test_check_prints_what_was_found(run, model):
    report = json.loads(printed(run("check", model, "--json")))
    assert (report["depth"], report["architecture"]) == (2, "OPTForSequenceClassification")
    assert report["parity"] < 1e-4
    shown = printed(run("check", model))
    for name in ("depth", "width", "block", "readout", "parity", "batch invariance", "shared"):
        assert name in shown
    assert json.loads(printed(run("check", model, "--depth", 1, "--json")))["depth"] == 1


def test_protocol_prints_every_setting_with_its_source(run):
    rows = json.loads(printed(run("protocol", "--json")))
    assert len(rows) > 60
    assert {"setting", "value", "source", "meaning"} == set(rows[0])
    shown = printed(run("protocol", "demo"))
    assert "finetune.near_ceiling" in shown
    assert "paper, appendix D" in shown


def test_protocol_shows_two_presets_side_by_side(run):
    rows = json.loads(printed(run("protocol", "paper", "--diff", "reference", "--json")))
    assert len(rows) == 9
    assert {"setting", "paper", "paper from", "reference", "reference from"} == set(rows[0])
    assert "gradients.objective" in printed(run("protocol", "paper", "--diff", "reference"))


def test_an_unknown_preset_is_refused(run):
    assert "Did you mean 'reference'?" in refused(run("protocol", "referense"))
    assert "Did you mean 'paper'?" in refused(run("protocol", "paper", "--diff", "papers"))


def test_train_makes_everything_from_a_file_with_string_labels(run, model, mine, tmp_path):
    command = ("train", model, "--data", mine, *COLUMNS, *FAST)
    shown = run(*command)
    folder = tmp_path / "runs" / "mine" / model.name / "seed-1"
    assert "unseen examples" in printed(shown)
    assert "NOT MEMORISED" in shown.stdout
    assert "noisy" in shown.stderr  # progress
    assert sorted(p.name for p in folder.iterdir()) == [
        "checkpoints",
        "labels.parquet",
        "run.json",
        "training.parquet",
        "training.png",
    ]
    about = json.loads((folder / "run.json").read_text())
    assert about["task"]["label_names"] == ["bad", "good"]
    assert about["changes"]["finetune.learning_rate"] == 0.01
    config = json.loads((folder / "checkpoints" / "final" / "config.json").read_text())
    assert config["id2label"] == {"0": "bad", "1": "good"}

    before = {p: p.read_bytes() for p in (folder / "checkpoints").rglob("*") if p.is_file()}
    began = time.perf_counter()
    again = json.loads(printed(run(*command, "--json")))
    assert time.perf_counter() - began < 10
    assert again["weights"] == ["final", "reference", "frozen"]
    assert again["verdict"]["memorised"] is False
    assert "memorised" in again["without"]
    assert {p: p.read_bytes() for p in before} == before


def test_train_makes_only_the_weights_asked_for(run, model, mine):
    command = ("train", model, "--data", mine, *COLUMNS, *FAST, "--json")
    first = json.loads(printed(run(*command, "--weights", "frozen")))
    assert first["weights"] == ["frozen"]
    assert first["verdict"] == {}
    second = json.loads(printed(run(*command, "--weights", "reference", "--weights", "frozen")))
    assert second["weights"] == ["reference", "frozen"]


def test_train_says_what_there_is_when_nothing_was_memorised_yet(run, model, mine):
    shown = printed(run("train", model, "--data", mine, *COLUMNS, *FAST, "--weights", "frozen"))
    assert "seed-1: frozen" in shown


def test_train_goes_on_where_it_was(run, model, mine, monkeypatch):
    from memloc.train import training

    plain, count = training.save_state, []

    def interrupted(*args):
        plain(*args)
        count.append(1)
        if len(count) == 1:
            raise KeyboardInterrupt

    command = ("train", model, "--data", mine, *COLUMNS, *FAST)
    monkeypatch.setattr(training, "save_state", interrupted)
    stopped = run(*command)
    assert stopped.exit_code == 130
    assert "interrupted; the same command goes on from here." in stopped.stderr
    assert json.loads(printed(run(*command, "--json")))["weights"][0] == "final"
    assert len(count) == 6  # three trainings of two epochs, none of them twice


def test_train_keeps_the_noise_that_a_file_brings(run, model, tmp_path):
    rows = rows_of(60)
    wrong = {"good": "bad", "bad": "good"}
    noisy = [(text, wrong[y] if i % 10 == 0 else y, y) for i, (text, y) in enumerate(rows)]
    path = write_csv(tmp_path / "real.csv", noisy, ("review", "stars", "true"))
    words = ("--data", path, *COLUMNS, "--original=true", *FAST, "--weights=frozen", "--json")
    folder = tmp_path / json.loads(printed(run("train", model, *words)))["folder"]
    about = json.loads((folder / "run.json").read_text())
    assert 0 < about["task"]["noisy"] <= 6
    assert "--examples" in refused(run("train", model, *words, "--examples=20"))


def test_train_can_take_fewer_examples_layers_and_another_seed(run, model, mine, tmp_path):
    words = ("--data", mine, *COLUMNS, *FAST, "--weights=frozen", "--json")
    found = json.loads(
        printed(run("train", model, *words, "--examples=20", "--depth=1", "--seed=7"))
    )
    assert found["folder"].endswith(f"{model.name}-depth-1/seed-7")
    about = json.loads((tmp_path / found["folder"] / "run.json").read_text())
    assert (about["task"]["train"], about["depth"], about["seed"]) == (20, 1, 7)


# What people get wrong: one line, exit code 1, nothing left behind.


@pytest.fixture
def bad(run, model, mine, tmp_path):
    """Refused, and the folder looks as before."""

    def check(*words):
        before = sorted(tmp_path.rglob("*"))
        line = refused(run(*words))
        assert sorted(tmp_path.rglob("*")) == before
        return line

    return check


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
    assert "nowhere.csv is not there" in bad("train", model, "--data", "nowhere.csv")


def test_a_column_that_is_not_there_suggests_the_nearest(bad, model, mine):
    assert "Did you mean 'review'?" in bad(
        "train", model, "--data", mine, "--text=reviews", "--label=stars"
    )


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([*rows_of(20), ("", "good")], "1 empty texts, the first in row 21"),
        ([*rows_of(20), ("a cat", "")], "1 empty labels, the first in row 21"),
        ([(text, "good") for text, _ in rows_of(20)], "the one label 'good'"),
        ([*rows_of(40), *[("the fox", "odd")] * 4], "odd"),
        (rows_of(1), "the one label 'good'"),
        (rows_of(4), "give at least two, or six in all"),
        ([], "no rows"),
    ],
    ids=[
        "empty text",
        "missing label",
        "one class",
        "class too small",
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
    assert "noise.rate" in bad("train", model, "--data", mine, *COLUMNS, f"--set=noise.rate={rate}")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("finetune.epoch=3", "Did you mean 'finetune.epochs'?"),
        ("finetune.epochs", "--set finetune.epochs=VALUE"),
        ("finetune.epochs=[1", "--set finetune.epochs"),
        ("finetune.epochs=", "finetune.epochs"),
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
    assert "not on this machine" in bad("train", model, "--data", mine, *COLUMNS, "--device=tpu")


def test_weights_that_do_not_exist_are_refused(bad, model, mine):
    assert "Did you mean 'frozen'?" in bad(
        "train", model, "--data", mine, *COLUMNS, "--weights=froze"
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
        ("other tokenizer", "do not belong together"),
        ("adapter", "merge it into its base model"),
        ("no weights", "no file named model.safetensors"),
    ],
)
def test_a_damaged_model_folder_is_refused(bad, model, mine, tmp_path, damage, said):
    folder = shutil.copytree(model, tmp_path / "copy")
    weights = folder / "model.safetensors"
    if damage == "truncated":
        weights.write_bytes(weights.read_bytes()[:-50])
    elif damage == "other tokenizer":
        from support import make_tokenizer

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
    words = ("train", model, "--data", mine, *COLUMNS, *FAST, "--weights=frozen")
    printed(run(*words))
    line = bad(*words, "--set=finetune.clip=2.0")
    assert "belongs to other settings: finetune.clip is 1.0 there and 2.0 here" in line


def test_out_of_memory_suggests_pieces_and_loses_nothing(run, model, mine, monkeypatch):
    from memloc.models.stack import Stack

    def fail(*_):
        raise torch.OutOfMemoryError("CUDA out of memory.")

    words = ("train", model, "--data", mine, *COLUMNS, *FAST, "--weights=final")
    with monkeypatch.context() as patch:
        patch.setattr(Stack, "logits", fail)
        result = run(*words)
    assert result.exit_code == 1
    last = result.stderr.splitlines()[-1]
    assert last.startswith("memloc: Out of memory with batches of 8")
    assert "finetune.accumulate=2" in last
    assert "Traceback" not in result.stderr
    printed(run(*words, "--set=finetune.accumulate=2"))


def test_a_process_ends_with_the_right_code_and_one_line(tmp_path):
    command = [sys.executable, "-c", "from memloc.cli import main; main()"]
    good = subprocess.run(
        [*command, "protocol", "--json"], capture_output=True, text=True, check=False
    )
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)
    bad = subprocess.run(
        [*command, "protocol", "papr"], capture_output=True, text=True, check=False
    )
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.count("\n") == 1
    assert bad.stderr.startswith("memloc: No preset is called 'papr'.")
    usage = subprocess.run([*command, "train"], capture_output=True, text=True, check=False)
    assert usage.returncode == 2
