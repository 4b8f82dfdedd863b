"""One run of a study at a time; a dead process keeps nothing."""

import os
import subprocess
import sys
import time

import pytest

from memloc.errors import StoreError
from memloc.experiment.lock import SILENT, StudyLock, who_runs
from memloc.records import write_json

HOLDING = """
import os, sys, time
from pathlib import Path
from memloc.experiment.lock import StudyLock
with StudyLock(Path(sys.argv[1])):
    if "child" in sys.argv and not os.fork():
        time.sleep(1.5)  # a step that is still there when its runner is gone
        os._exit(0)
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Starts a process that holds the lock of `tmp_path`."""
    started = []

    def start(*words):
        command = [sys.executable, "-c", HOLDING, str(tmp_path), *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def test_a_second_one_says_who_is_there(tmp_path, holder):
    process = holder()
    with pytest.raises(StoreError, match=f"is being run by process {process.pid} on ") as error:
        StudyLock(tmp_path).__enter__()
    assert "memloc status" in str(error.value)
    assert who_runs(tmp_path)["pid"] == process.pid


def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, holder):
    process = holder()
    process.kill()
    process.wait()
    assert who_runs(tmp_path) is None
    with StudyLock(tmp_path):
        assert (tmp_path / "steps" / "running.json").is_file()
    assert not (tmp_path / "steps" / "running.json").exists()


def test_it_is_taken_over_when_the_last_step_is_gone(tmp_path, holder):
    process = holder("child")
    process.kill()
    process.wait()
    began = time.monotonic()
    with StudyLock(tmp_path):
        assert time.monotonic() - began > 0.5


@pytest.mark.parametrize(("age", "runs"), [(0, True), (2 * SILENT, False)])
def test_on_another_machine_the_heartbeat_counts(tmp_path, age, runs):
    about = {"pid": 1, "host": "elsewhere", "beat": time.time() - age}
    write_json(tmp_path / "steps" / "running.json", about)
    if runs:
        with pytest.raises(StoreError, match="process 1 on elsewhere"):
            StudyLock(tmp_path).__enter__()
    else:
        with StudyLock(tmp_path):
            pass


def test_the_record_says_how_far_it_is(tmp_path):
    with StudyLock(tmp_path) as lock:
        lock.beat({"running": {"train/x": 1.0}})  # too soon after the first
        assert "running" not in _record(tmp_path)
        lock.beat({"running": {"train/x": 1.0}}, now=True)
        assert _record(tmp_path)["running"] == {"train/x": 1.0}
        assert _record(tmp_path)["pid"] == os.getpid()


def _record(folder):
    from memloc.records import read_json

    return read_json(folder / "steps" / "running.json")


@pytest.mark.parametrize(
    "about",
    [{}, {"host": 3}, {"host": "x", "beat": "now"}, {"host": os.uname().nodename, "pid": 10**40}],
)
def test_a_damaged_heartbeat_is_nobody_s(tmp_path, about):
    write_json(tmp_path / "steps" / "running.json", about)
    assert who_runs(tmp_path) is None
