"""Power is cut, or the process killed, at every file event of a command: the next one goes on."""

import shutil

import pytest

from fixtures.power import WHAT, Disk
from fixtures.same_results import assert_same_results
from fixtures.tasks import make_task
from memloc.methods.apply import localise
from memloc.reporting.results import load_results
from memloc.run.folder import Run
from memloc.run.train import train_run
from memloc.store.files import whole_file, whole_folder
from memloc.store.records import read_json

AT_LEAST = 100
"""Cuts of each command."""


@pytest.fixture
def disk(tmp_path):
    (tmp_path / "disk").mkdir()
    return Disk(tmp_path / "disk", tmp_path)


def train(recipe, folder):
    return train_run(recipe, folder / "run", ["final", "memorised"])


@pytest.mark.slow
def test_a_training_that_loses_power_at_any_file_event_ends_with_the_same(disk, recipe_of):
    recipe = recipe_of(task=make_task(24), finetune__epochs=2, finetune__near_ceiling=0.1)
    with disk.recorded():
        train(recipe, disk.root)
    assert disk.cuts >= AT_LEAST
    for when, tree in disk.states:
        folder = disk.written(tree)
        train(recipe, folder)
        assert not list(folder.rglob("*.state")), when
        assert not list((folder / "run" / "checkpoints").rglob("*.part")), when
        assert_same_results(disk.root, folder)


@pytest.mark.slow
@pytest.mark.parametrize(
    "names",
    [
        ["swapping"],
        ["swapping", "retraining"],  # with half-done work
    ],
    ids=len,
)
def test_a_method_that_loses_power_at_any_file_event_ends_with_the_same(disk, memorised_run, names):
    shutil.copytree(memorised_run.folder, disk.root / "run")

    def localised(folder):
        run = Run.open(folder / "run", "cpu")
        settings = {"retraining.epochs": 1, "retraining.widths": [1]}
        localise(run, names, settings=settings)

    localise(disk.root / "run", ["swapping"], settings={"swapping.normalise": False})
    before = read_json(disk.root / "run" / "results" / "swapping" / "about.json")
    with disk.recorded():
        localised(disk.root)  # one result is replaced, and one is new
    assert disk.cuts >= AT_LEAST
    for when, tree in disk.states:
        folder = disk.written(tree)
        about = read_json(folder / "run" / "results" / "swapping" / "about.json")
        assert about["tables"] == before["tables"], when  # the old one or the new one is whole
        load_results(folder / "run")
        localised(folder)
        load_results(folder / "run")
        assert_same_results(disk.root, folder)


def test_what_counts_as_done_outlasts_a_cut(disk):
    with disk.recorded():
        with whole_file(disk.root / "a" / "file") as draft:
            draft.write_text("whole")
        with whole_folder(disk.root / "b" / "folder") as draft:
            (draft / "file").write_text("whole")
        trees = [disk.tree(what) for what in WHAT]
    for tree in trees:
        assert tree["a/file"] == tree["b/folder/file"] == b"whole"


def test_without_syncing_the_simulated_disk_loses_contents(disk, monkeypatch):
    monkeypatch.setattr("memloc.store.files.sync", lambda _path: None)
    with disk.recorded():
        with whole_file(disk.root / "file") as draft:
            draft.write_text("whole")
        trees = [disk.tree(what) for what in WHAT]
    assert trees == [{"file": b"whole"}, {"file": b""}, {}]
