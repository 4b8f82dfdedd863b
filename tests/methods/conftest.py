"""Runs to look at: one of three classes, and quick ones of any depth."""

import shutil

import pytest

from fixtures.tasks import fast_protocol, make_recipe, make_task
from memloc.run.folder import Run
from memloc.run.train import train_run


@pytest.fixture(scope="session")
def trained(once, tiny_model):
    """`trained("bert", depth=24, epochs=1)`: the folder of a run, made once; not to be changed."""

    def get(family="opt", depth=4, epochs=20):
        model = str(tiny_model(family, depth=depth, dropout=0.1))
        protocol = fast_protocol(finetune__learning_rate=5e-3, finetune__epochs=epochs)
        recipe = make_recipe(model, make_task(60, n_classes=3), 1, protocol)
        needed = ["final", "reference"]
        return once(f"{family}-{depth}-{epochs}", lambda folder: train_run(recipe, folder, needed))

    return get


@pytest.fixture
def run_folder(trained, tmp_path):
    """A copy of the run of three classes, which memorised."""
    return shutil.copytree(trained(), tmp_path / "run")


@pytest.fixture
def run(run_folder):
    return Run.open(run_folder, "cpu")
