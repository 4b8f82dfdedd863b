"""A run whose model really memorised, made once."""

import pytest

from memloc.training.recipe import Recipe, train_run
from tasks_support import fast_protocol, make_task


@pytest.fixture(scope="session")
def memorised_run(tmp_path_factory, tiny_model):
    model = str(tiny_model("opt", depth=3, dropout=0.1))
    changes = {
        "finetune__near_ceiling": 0.9,
        "retraining__epochs": 1,
        "probes__epochs": 3,
        "probes__first_epoch": 0,
    }
    recipe = Recipe(model, make_task(48), 1, fast_protocol(**changes), device="cpu")
    run = train_run(recipe, tmp_path_factory.mktemp("runs") / "run")
    assert run.verdict()["memorised"]
    return run
