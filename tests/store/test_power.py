"""Power is cut, or the process killed, at every file event of a command: the next one goes on."""

import random
import shutil
from dataclasses import replace

import pandas as pd
import pytest

from bad_input.machine import write_calibration
from fixtures.power import THOROUGH, WHAT, Disk
from fixtures.same_results import assert_same_file, assert_same_results
from fixtures.tasks import make_task, train_run
from memloc.labels import repair as repairing
from memloc.labels.find import find
from memloc.labels.repair import repair
from memloc.methods.apply import localise
from memloc.reporting.page import read_report, write_report
from memloc.reporting.results import load_results
from memloc.run.adopt import adopt
from memloc.run.folder import Run
from memloc.store.files import whole_file, whole_folder
from memloc.store.records import read_json
from memloc.study import step as steps
from memloc.study.execute import open_study

AT_LEAST = 100
"""Cuts of each command."""
SAMPLE = 9
"""Number of states that are tried for each command; all with MEMLOC_THOROUGH=1."""
STUDY = """\
preset: demo
models: [tiny-opt]
tasks: [tiny-sentiment]
methods: [swapping]
analyses: []
report: false
depth: 2
examples: 30
device: cpu
overrides: {finetune.epochs: 2, finetune.batch_size: 8, finetune.near_ceiling: 0.01,
  verdict.noisy_at_least: 0.001}
"""


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
    for when, tree in sampled(disk):
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
        few = {"retraining.epochs": 1, "retraining.widths": [1]}
        localise(run, names, settings=few if "retraining" in names else {})

    localise(disk.root / "run", ["swapping"], settings={"swapping.normalise": False})
    before = read_json(disk.root / "run" / "results" / "swapping" / "about.json")
    with disk.recorded():
        localised(disk.root)  # one result is replaced, and one is new
    assert disk.cuts >= AT_LEAST
    for when, tree in sampled(disk):
        folder = disk.written(tree)
        about = read_json(folder / "run" / "results" / "swapping" / "about.json")
        assert about["tables"] == before["tables"], when  # the old one or the new one is whole
        load_results(folder / "run")
        localised(folder)
        load_results(folder / "run")
        assert_same_results(disk.root, folder)


def sampled(disk):
    """A sample of the states after cuts that is always the same, as many of each kind of loss.

    With MEMLOC_THOROUGH=1 in the environment, all states.
    """
    if THOROUGH:
        return disk.states
    every = [[s for s in disk.states if s[0].startswith(kind)] for kind in WHAT]
    most = -(-SAMPLE // len(WHAT))
    return [s for some in every for s in random.Random(0).sample(some, min(most, len(some)))]


def assert_same_tables(one, other):
    """Where a command writes no weights."""
    tables = [path.relative_to(one) for path in one.rglob("*.parquet")]
    assert tables
    for table in tables:
        assert_same_file(one / table, other / table)


@pytest.mark.slow
def test_adopting_that_loses_power_at_any_file_event_ends_with_the_same(
    disk, memorised_run, write_data
):
    given = {name: memorised_run.path(name) for name in ("final", "reference", "memorised")}
    given |= {"data": write_data(memorised_run), "original": "original", "device": "cpu"}
    with disk.recorded():
        whole = adopt(disk.root / "run", **given)
    for when, tree in sampled(disk):
        folder = disk.written(tree)
        run = adopt(folder / "run", **given)
        assert run.record == whole.record, when
        assert run.status.adopted == whole.status.adopted, when
        assert Run.open(folder / "run", "cpu") == run, when
        assert_same_tables(disk.root, folder)


@pytest.mark.slow
def test_finding_that_loses_power_at_any_file_event_ends_with_the_same(disk, tmp_path, tiny_model):
    task = make_task(24)
    texts = [parts[0] for parts in task.train.parts]
    data = pd.DataFrame({"text": texts, "label": [f"class {y}" for y in task.train.labels]})
    settings = {"generalisation.models": 2, "generalisation.epochs": 1}
    model = str(tiny_model("opt", depth=2))

    def found(folder):
        return find(data, model, folder / "found", settings=settings, device="cpu")

    with disk.recorded():
        whole = found(disk.root)
    for when, tree in sampled(disk):
        folder = disk.written(tree)
        pd.testing.assert_frame_equal(found(folder).table, whole.table, obj=when)
        now, then = (place / "found" / "suspects.csv" for place in (folder, disk.root))
        assert now.read_bytes() == then.read_bytes(), when
        assert_same_tables(disk.root, folder)


@pytest.mark.slow
def test_a_repair_that_loses_power_while_it_is_written_is_the_same_after_the_next(
    disk, memorised_run, monkeypatch
):
    quick = {"epochs": 1, "relearn_epochs": 1, "orders": 1, "yardsticks": 2}
    localise(memorised_run, ["shares"])
    shutil.copytree(memorised_run.folder, disk.root / "run")
    write, kept = repairing._write, []
    monkeypatch.setattr(repairing, "_write", lambda *given: kept.append(given))
    repair(disk.root / "run", disk.root / "repaired", settings=quick, device="cpu")
    [(found, workshop)] = kept

    def written(folder):
        repairing._refuse(workshop.run, folder / "repaired")
        run = replace(workshop.run, folder=folder / "run")
        write(replace(found, folder=folder / "repaired"), replace(workshop, run=run))

    with disk.recorded():
        written(disk.root)
    for _when, tree in sampled(disk):
        folder = disk.written(tree)
        written(folder)
        assert_same_results(disk.root, folder)
        for path in (disk.root / "repaired").iterdir():
            now = folder / "repaired" / path.name
            assert now.read_bytes() == path.read_bytes(), path.name


@pytest.mark.slow
def test_a_report_that_loses_power_at_any_file_event_is_the_same_after_the_next(
    disk, memorised_run
):
    localise(memorised_run, ["swapping"])
    shutil.copytree(memorised_run.folder, disk.root / "run")
    with disk.recorded():
        whole = write_report(disk.root / "run")
    for when, tree in sampled(disk):
        folder = disk.written(tree)
        write_report(folder / "run")
        now, then = (
            (place / "run" / "report" / "index.html").read_text().replace(str(place), "")
            for place in (folder, disk.root)
        )
        assert now == then, when
        assert read_report(folder / "run").summary.lines == whole.summary.lines, when


class InProcess:
    """Does a study's steps in this process, one after another."""

    cores = jobs = 1

    def __init__(self, folder):
        self.folder, self.outcomes = folder, []

    def start(self):
        pass

    def stop(self):
        pass

    def has_room(self, _step):
        return not self.outcomes

    def submit(self, step):
        self.outcomes.append(steps.do(step))

    def is_at_work(self, _step):
        return True

    def wait(self, _seconds):
        outcomes, self.outcomes = self.outcomes, []
        return outcomes


@pytest.mark.slow
def test_a_study_that_loses_power_at_any_file_event_ends_with_the_same(disk, monkeypatch):
    monkeypatch.setattr(steps, "_watch", lambda *_: None)  # it would end this process
    (disk.root / "study.yaml").write_text(STUDY, encoding="utf-8")
    write_calibration(disk.root)

    def studied(folder):
        study = open_study(folder, jobs=1)
        study.executor = InProcess(folder)
        study.run()
        assert not study.count("failed"), study.states
        assert study.count("done") == len(study.states)

    with disk.recorded():
        studied(disk.root)
    assert disk.cuts >= AT_LEAST
    for when, tree in sampled(disk):
        folder = disk.written(tree)
        studied(folder)
        assert not list(folder.rglob("*.part")), when
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
