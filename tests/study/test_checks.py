"""What a study's file names has to exist and to fit; else line and key are said."""

import shutil

import pytest

from command_support import rows_of, write_csv
from memloc.errors import SettingsError
from memloc.study.manage import open_plan
from planning_support import plan_of


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"[tiny-opt]": "[tiny-optt]"}, "line 2, models[0]: .*Did you mean 'tiny-opt'?"),
        ({"[tiny-opt]": "[./nowhere]"}, "line 2, models[0]: There is no folder"),
        ({"[tiny-sentiment]": "[tiny-sentimant]"}, "line 3, tasks[0]: .*'tiny-sentiment'?"),
        ({"[swapping, retraining": "[swaping, retraining"}, "methods[0]: there is no method"),
        ({"centroids, label_probes": "centroids, label_prob"}, "analyses[1]: there is no analysis"),
        ({"depth: 2": "depth: 13"}, "A depth of 13 was asked for; this model has 1 to 12 layers."),
        ({'windows: ["1"]': "windows: [2-3]"}, "2-3 is outside the model, which has layers 1-2"),
        ({"device: cpu": "device: gpu"}, "device: there is no device 'gpu'"),
        ({"control: {": "control: {tasks: [tiny-entailment], "}, "is the auxiliary task"),
        ({"[tiny-sentiment]": "[tiny-entailment]"}, "the only task is the auxiliary one"),
        ({"[tiny-opt]": "[tiny-opt, ./x/tiny-opt]"}, "There is no folder"),
    ],
)
def test_names_that_do_not_exist_are_refused(micro, changes, message):
    folder = micro(changes=changes)
    with pytest.raises(
        SettingsError, match=message.replace("[0]", r"\[0\]").replace("[1]", r"\[1\]")
    ):
        plan_of(folder)


def test_two_models_of_one_name_are_refused(micro, tmp_path, tiny_model):
    for name in ("a", "b"):
        shutil.copytree(tiny_model("opt", depth=3), tmp_path / "study" / name / "model")
    with pytest.raises(SettingsError, match="would share the folder model-depth-2"):
        plan_of(micro(changes={"[tiny-opt]": "[./a/model, ./b/model]"}))
    with pytest.raises(SettingsError, match="would share the folder model-depth-2"):
        plan_of(micro(changes={"control: {": "control: {models: [./a/model, ./b/model], "}))


DATA = "models: [tiny-opt]\ntasks: [tiny-topic]\n"


@pytest.mark.parametrize(
    ("lines", "line", "key", "message"),
    [
        ("data:\n  mine: {file: no.csv, flip: 0.1}\n", 4, "data.mine.file", "there is no file"),
        (
            "data:\n  mine: {file: mine.csv, flip: 0.1, held_out: no.csv}\n",
            4,
            "data.mine.held_out",
            "there is no file",
        ),
        ("data:\n  mine: {file: mine.csv}\n", 4, "data.mine", "say in one way which labels"),
        (
            "data:\n  mine: {file: mine.csv, flip: 0.1, flag: wrong}\n",
            4,
            "data.mine",
            "say in one way which labels",
        ),
        ("data:\n  mine: {file: mine.csv, flip: 2}\n", 4, "data.mine.flip", "less than 1"),
        ("data:\n  mine:\n    flip: 0.1\n", 4, "data.mine.file", "it is missing"),
        (
            "data:\n  mine:\n    file: mine.csv\n    txt: review\n",
            6,
            "data.mine.txt",
            "unknown key. Did you mean 'text'?",
        ),
        ("data:\n  rte: {file: mine.csv, flip: 0.1}\n", 4, "data.rte", "has this name already"),
        ("data:\n  ../x: {file: mine.csv, flip: 0.1}\n", 4, "data.../x", "it names a folder"),
        ("data:\n  steps: {file: mine.csv, flip: 0.1}\n", 4, "data.steps", "it names a folder"),
        ("also: [{tasks: [mein]}]\n", 3, "also[0].tasks[0]", "there is no task 'mein'"),
        (
            "examples: 9\ndata: {mine: {file: mine.csv, flag: wrong}}\n",
            3,
            "examples",
            "mine has noise of its own: shorten the file instead",
        ),
        (
            "data: {mine: {file: mine.csv, flag: wrong}}\ncontrol: {tasks: [mine]}\n",
            4,
            "control",
            "mine has noise of its own; plant a task whose labels are flipped",
        ),
        # Only when the file is read:
        (
            "data:\n  mine: {file: mine.csv, flip: 0.1, text: txt}\n",
            4,
            "data.mine",
            "has no column 'txt'",
        ),
        (
            "data:\n  mine: {file: mine.csv, original: text}\n",
            4,
            "data.mine",
            "all have an assigned label that differs from the original one",
        ),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path, lines, line, key, message):
    rows = [(text, label, "2") for text, label in rows_of(30)]
    write_csv(tmp_path / "mine.csv", rows, ("text", "label", "wrong"))
    (tmp_path / "study.yaml").write_text(DATA + lines)
    with pytest.raises(SettingsError) as error:
        open_plan(tmp_path)
    said = str(error.value)
    assert said.startswith(f"{tmp_path}/study.yaml, line {line}, {key}: ")
    assert message in said
    assert "\n" not in said


def test_a_file_may_be_named_by_tasks(tmp_path):
    write_csv(tmp_path / "mine.csv", rows_of(30), ("text", "label"))
    lines = "data: {mine: {file: mine.csv, flip: 0.1}}\n"
    (tmp_path / "study.yaml").write_text(DATA.replace("tiny-topic", "mine") + lines)
    assert "train/mine/tiny-opt/seed-1" in open_plan(tmp_path).steps
