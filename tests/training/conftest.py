"""A small task, and recipes for it."""

from pathlib import Path

import pytest

from memloc.records import Task
from memloc.training.recipe import Recipe
from tasks_support import fast_protocol, make_task


@pytest.fixture
def task() -> Task:
    return make_task()


@pytest.fixture
def recipe_of(tiny_model):
    """`recipe_of("opt", seed=2, finetune__epochs=3)`."""

    def make(family: str = "opt", *, seed: int = 1, task: Task | None = None, **changes) -> Recipe:
        folder: Path = tiny_model(family, depth=2, dropout=0.1)
        return Recipe(
            str(folder), task or make_task(), seed, fast_protocol(**changes), device="cpu"
        )

    return make
