"""A whole small study, really carried out: by the command, with faults, by two at once."""

import json
import os
import resource
import shutil
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest
from typer.testing import CliRunner

import memloc as memloc_api
from fixtures.forked import ended, forked
from fixtures.plans import RUN
from memloc.cli import app, main
from memloc.errors import StoreError
from memloc.methods.result import Result
from memloc.run.folder import Run
from memloc.store import paths
from memloc.store.lock import STUDY, who_runs
from memloc.study.execute import open_study
from memloc.study.executors import LocalExecutor
from memloc.study.plan import open_plan
from memloc.study.records import Store, study_states
from memloc.study.view import study_status

pytestmark = pytest.mark.slow
PATIENCE = 300
"""Seconds after which something that has to happen has not."""


def memloc(*words):
    """The command line in this process; each step is a copy of it."""
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.fixture
def copied(finished, tmp_path):
    """A copy of the finished study, to be changed."""
    return shutil.copytree(finished, tmp_path / "study")


@pytest.fixture
def fresh(finished, tmp_path):
    """The same study, not begun; what was measured of this machine is kept."""
    folder = tmp_path / "fresh"
    folder.mkdir()
    for name in (paths.STUDY, paths.CALIBRATION):
        shutil.copy(finished / name, folder / name)
    return folder


def change(folder, old, new):
    text = (folder / paths.STUDY).read_text()
    assert old in text
    (folder / paths.STUDY).write_text(text.replace(old, new))


def bytes_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


def test_when_the_memorised_weights_are_kept_changes_no_other_weights(copied):
    run = copied / RUN
    before = bytes_of(run / "checkpoints" / "final")["model.safetensors"]
    others = [run / "checkpoints/reference/model.safetensors", run / "results/swapping/about.json"]
    when = [path.stat().st_mtime_ns for path in others]
    change(copied, "near_ceiling: 0.01", "near_ceiling: 0.02")
    progress = open_study(copied, only=["train", "localise"]).run()
    assert set(progress.ended) >= {f"train/{RUN}", f"localise/{RUN}/gradients"}
    assert f"localise/{RUN}/swapping" not in progress.ended
    assert bytes_of(run / "checkpoints" / "final")["model.safetensors"] == before
    assert [path.stat().st_mtime_ns for path in others] == when
    assert Run.open(run).settings.finetune.near_ceiling == 0.02


def test_another_bar_is_judged_anew_and_trains_nothing(copied):
    run, step = copied / RUN, f"localise/{RUN}/swapping"
    weights = (run / "checkpoints/final/model.safetensors").stat().st_mtime_ns
    change(copied, "noisy_at_least: 0.001", "noisy_at_least: 1.0")
    shutil.rmtree(run / "results/swapping")
    progress = open_study(copied, only=[step]).run()
    assert "`not memorised`" in progress.states[step].why
    assert not memloc_api.load_results(copied).runs["memorised"].any()
    again = open_study(copied, only=[step]).run()
    assert not again.ended  # what failed is not tried again
    change(copied, "noisy_at_least: 1.0", "noisy_at_least: 0.001")
    progress = open_study(copied, only=[step]).run()
    assert progress.states[step].name == "done"
    assert (run / "checkpoints/final/model.safetensors").stat().st_mtime_ns == weights


def test_everything_is_there_when_it_is_done(finished):
    assert {state.name for state in study_states(open_plan(finished)).values()} == {"done"}
    status = study_status(finished)
    assert (status["done"], status["running"]) == (status["steps"], None)
    records = [Store(finished).record(name) for name in open_plan(finished).steps]
    assert status["seconds"] == pytest.approx(sum(r.seconds for r in records))
    assert status["memory"] == 1e6 * max(r.peak_mb for r in records)
    assert status["disk"] == sum(p.stat().st_size for p in finished.rglob("*") if p.is_file())
    assert memloc_api.load_results(finished).runs["task"].tolist() == ["tiny-sentiment"]
    record = Store(finished).record(f"train/{RUN}")
    assert record.seconds > 0
    assert 50 < record.peak_mb < 5000
    assert record.versions["memloc"]
    said = memloc("logs", finished, f"train/{RUN}")
    assert "tiny-opt · noisy and original  begins" in said.stdout


def test_done_again_it_changes_nothing(copied):
    before = {p: p.stat().st_mtime_ns for p in copied.rglob("*.parquet")}
    done = memloc("run", copied, "--json")
    assert json.loads(done.stdout)["done"] == {}
    assert {p: p.stat().st_mtime_ns for p in copied.rglob("*.parquet")} == before


def test_a_changed_setting_makes_anew_what_depends_on_it(copied):
    weights = copied / RUN / "checkpoints" / "final" / "model.safetensors"
    before = weights.stat().st_mtime_ns
    change(copied, "  probing.epochs: 3", "  probing.epochs: 2")
    done = json.loads(memloc("run", copied, "--jobs", 1, "--json").stdout)
    assert set(done["done"]) == {f"localise/{RUN}/probing"}
    assert weights.stat().st_mtime_ns == before
    assert Result.read(copied / RUN / "results" / "probing").about["settings"]["epochs"] == 2


def test_a_step_that_fails_says_why_and_is_tried_again_if_asked(copied):
    """A file where a folder should be: a fault that has nothing to do with the study."""
    shutil.rmtree(copied / RUN / "results")
    (copied / RUN / "results").write_text("in the way")
    done = memloc("run", copied, "--jobs", 1)
    assert done.exit_code == 1
    assert f"FAILED localise/{RUN}/swapping: Cannot write" in done.stdout
    assert "--retry` tries again" in done.stdout
    (copied / RUN / "results").unlink()
    assert memloc("run", copied, "--jobs", 1).exit_code == 1  # not asked to
    assert "FAILED" in memloc("status", copied).stdout
    assert memloc("run", copied, "--jobs", 1, "--retry").exit_code == 0


def test_a_full_disk_is_one_sentence_and_loses_nothing(fresh):
    """With a limit on file sizes that the system itself enforces."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        done = memloc("run", fresh, "--only", "train")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert done.exit_code == 1
    (line,) = [x for x in done.stdout.splitlines() if x.startswith("FAILED")]
    assert "Cannot write" in line
    assert "Free space or choose another folder." in line
    assert not list(fresh.rglob("*.part"))
    assert memloc("run", fresh, "--only", "train", "--retry").exit_code == 0
    assert study_states(open_plan(fresh))[f"train/{RUN}"].name == "done"


def test_a_folder_that_cannot_be_written_is_one_sentence(fresh, tmp_path):
    place = tmp_path / "read-only"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "--bind", "-o", "ro", fresh, place], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs a read-only folder, which takes the right to mount one")
    try:
        done = memloc("run", place)
    finally:
        subprocess.run(["umount", place], check=True)
    assert done.exit_code == 1
    assert done.stderr.startswith("memloc: Cannot write")
    assert len(done.stderr.splitlines()) == 1


@pytest.fixture
def long(fresh):
    """Its training is not done before a test is."""
    change(fresh, "finetune.epochs: 4", "finetune.epochs: 2000")


@pytest.fixture
def runner(fresh):
    """A process that runs the study, in a group of its own; its first step has begun."""
    LocalExecutor(fresh, 1, 1, ["opt"]).start()  # loads here what a copy needs
    process = forked(lambda: main(["run", str(fresh), "--jobs", "1"]))
    wait_for(lambda: Store(fresh).record(f"train/{RUN}"))
    yield process
    with suppress(ChildProcessError, ProcessLookupError):
        os.killpg(process, signal.SIGKILL)
        ended(process)


def wait_for(happened):
    until = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.02)


def test_two_at_once_one_says_that_the_other_is_running(fresh, long, runner):
    step = Store(fresh).record(f"train/{RUN}").pid  # before it is done
    with pytest.raises(StoreError, match=f"is being run by process {runner}"):
        open_study(fresh, jobs=1).run()
    assert f"Process {runner}" in memloc("status", fresh).stdout
    # A step that lost its runner ends, too: its process does not go on alone.
    os.kill(runner, signal.SIGKILL)
    ended(runner)
    wait_for(lambda: not Path(f"/proc/{step}").exists())
    assert who_runs(fresh, STUDY) is None


def test_a_study_that_is_asked_to_end_ends_with_its_steps(fresh, long, runner):
    step = Store(fresh).record(f"train/{RUN}").pid
    os.kill(runner, signal.SIGTERM)
    assert ended(runner) == 128 + signal.SIGTERM
    wait_for(lambda: not Path(f"/proc/{step}").exists())
    assert not (fresh / "steps" / "running.json").exists()


def test_a_study_that_changes_while_it_runs_is_not_mixed(fresh, runner):
    change(fresh, "finetune.epochs: 4", "finetune.epochs: 3")
    ended(runner)
    states = study_states(open_plan(fresh))
    assert states[f"localise/{RUN}/swapping"].name != "done"
    assert Run.open(fresh / RUN).settings.finetune.epochs == 4  # as when it began
