"""What a study's file names has to exist and to fit; else line and key are said."""

import shutil

import pytest

from memloc.errors import SettingsError
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
