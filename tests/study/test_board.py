"""The board is a study of plants, for any method."""

import os

import pytest

from memloc.errors import ModelError, UnknownName
from memloc.methods import protocol as protocols
from memloc.methods.registry import GIVEN, find_method
from memloc.study.board import RECIPES, board_plan, cost
from memloc.study.config import read_study

MINE = """
import memloc

class Mine(memloc.Method):
    \"\"\"All layers alike.\"\"\"
    name = "mine"
    needs = ("final",)

    def run(self, run):
        return [1.0] * run.depth
"""


@pytest.fixture
def known(tmp_path, monkeypatch):
    """A folder with a module of one's own; the method is forgotten at the end."""
    (tmp_path / "my_module.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv(GIVEN, "")
    yield tmp_path
    os.environ.pop(GIVEN)
    protocols.forget()


def test_the_board_has_easy_and_hard_plants_in_four_models_and_nulls(tmp_path):
    plan = board_plan(tmp_path, ["shares"])
    steps = plan.steps.values()
    assert len(plan.steps) == 72
    assert sum(bool(step.null) for step in steps) == 36
    assert {step.spec.plant.difficulty for step in steps} == {"easy", "decoy", "loud"}
    assert len({step.spec.model for step in steps}) == 4
    begun = list(steps)[:12]  # what is finished first has all of them
    assert {step.spec.plant.difficulty for step in begun} == {"easy", "decoy", "loud"}
    assert len({(step.spec.model, step.spec.task.name) for step in begun}) == 12
    assert all("weight_distance" in step.methods and "shares" in step.methods for step in steps)
    assert read_study(tmp_path).study.control.windows == tuple(
        RECIPES["full"]["control"]["windows"]
    )


def test_the_small_board_has_six_plants(tmp_path):
    assert len(board_plan(tmp_path, ["swapping"], small=True).steps) == 6


def test_a_method_of_one_s_own_is_one_argument(known):
    plan = board_plan(known / "board", ["my_module:Mine"], small=True)
    assert all("mine" in step.methods for step in plan.steps.values())
    assert find_method("mine").name == "mine"
    assert os.environ[GIVEN] == "my_module:Mine"  # child processes find it, too


@pytest.mark.parametrize(
    ("name", "error", "match"),
    [
        ("nowhere:Mine", ModelError, "nowhere:Mine.*module:Class"),
        ("my_module:Other", ModelError, "my_module:Other"),
        ("sharez", UnknownName, "shares"),
    ],
)
def test_a_method_that_is_not_there_is_refused(known, name, error, match):
    with pytest.raises(error, match=match):
        board_plan(known / "board", [name])
    assert not (known / "board").exists()


def test_costs_are_in_forward_passes():
    assert cost("logit_lens") == 1
    assert cost("shares") > 100
