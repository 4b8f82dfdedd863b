"""What is known of a model before it is loaded: its size, its contents, its windows."""

import shutil

import pytest

from memloc.errors import ModelError, SettingsError
from memloc.models.load import load_model
from memloc.protocol import preset
from memloc.study.config import ControlBlock
from memloc.study.sizes import Shape, model_fingerprint, planted_windows, shape_of
from support import FAMILIES


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shape_is_that_of_the_loaded_model(tiny_model, family):
    folder = str(tiny_model(family, depth=3))
    stack = load_model(folder, ("a", "b")).stack
    shape = shape_of(folder)
    assert (shape.depth, shape.width) == (stack.depth, stack.width)


def test_a_shape_says_how_many_parameters_there_are():
    shape = Shape(2, 10, 7)
    assert shape.parameters == 12 * 2 * 10**2 + 7 * 10
    assert shape.bytes == 4 * shape.parameters
    assert shape.name == "2x10"


def test_known_models_are_not_asked_for_on_the_hub():
    assert shape_of("facebook/opt-125m").depth == 12
    assert shape_of("facebook/opt-125m", 3).depth == 3
    with pytest.raises(SettingsError, match="A depth of 13 was asked for; this model has 1 to 12"):
        shape_of("facebook/opt-125m", 13)


def test_a_configuration_that_says_too_little_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="does not say how many layers"):
        shape_of(str(tmp_path))


@pytest.mark.parametrize("size", ["[[]]", "null", '"x"', "true", "-1", "1.5", "{}"])
def test_a_configuration_whose_sizes_are_no_numbers_is_refused(tmp_path, size):
    (tmp_path / "config.json").write_text(f'{{"num_hidden_layers": {size}, "hidden_size": 4}}')
    with pytest.raises(ModelError, match="does not say how many layers"):
        shape_of(str(tmp_path))


@pytest.mark.parametrize("text", ["3", "null", "[1]", "{"])
def test_a_configuration_that_is_no_record_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match="is not a model"):
        shape_of(str(tmp_path))


def test_a_model_is_known_by_its_contents_wherever_it_is(tiny_model, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(tiny_model("opt", depth=3), tmp_path / name / "model")
    one, two = (model_fingerprint(str(tmp_path / name / "model")) for name in ("one", "two"))
    assert one == two
    (tmp_path / "two" / "model" / "config.json").write_text("{}")
    assert model_fingerprint(str(tmp_path / "two" / "model")) != one
    assert model_fingerprint("tiny-opt") == "tiny-opt"


@pytest.mark.parametrize(
    ("block", "windows"),
    [
        ({}, ["1-2", "6-7", "11-12"]),
        ({"windows": ["6-7", "3"]}, ["6-7", "3-3"]),
        ({"windows": ["9+2", "2-3/9-10"]}, ["2+9", "2-3/9-10"]),
        ({"every": [11]}, ["1-11", "2-12"]),
        ({"windows": ["1-11", "2-3"], "every": [11]}, ["1-11", "2-3", "2-12"]),
    ],
    ids=["usual", "named", "separate layers, groups", "every", "overlapping, each once"],
)
def test_planted_windows(block, windows):
    assert planted_windows(ControlBlock(**block), 12, preset("paper")) == windows


def test_all_layers_cannot_be_planted():
    with pytest.raises(SettingsError, match="12 of 12 layers: plant in some, not in all"):
        planted_windows(ControlBlock(windows=["1-12"]), 12, preset("paper"))
