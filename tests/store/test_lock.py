"""One process at a time in a study and in a run; a dead process keeps nothing."""

import os
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from memloc.errors import StoreError
from memloc.store import lock as locks
from memloc.store.lock import (
    RUN,
    SILENT,
    STUDY,
    locked,
    patient,
    refuse_if_busy,
    who_runs,
)
from memloc.store.records import read_json, write_json

HOLDING = """
import os, sys, time
from pathlib import Path
from memloc.store import lock
with lock.locked(Path(sys.argv[1]), getattr(lock, sys.argv[2])):
    if "child" in sys.argv and not os.fork():
        while not Path(sys.argv[1], "go").exists():  # a step that is there without its runner
            time.sleep(0.01)
        os._exit(0)
    print("held", flush=True)
    time.sleep(float(sys.argv[3]))
"""


@pytest.fixture
def holder(tmp_path):
    """Starts a process that holds a lock of `tmp_path`."""
    started = []

    def start(kind, *words, seconds=60):
        name = "STUDY" if kind is STUDY else "RUN"
        command = [sys.executable, "-c", HOLDING, str(tmp_path), name, str(seconds), *words]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        started.append(process)
        assert process.stdout.readline() == "held\n"
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()
        process.stdout.close()


def record(folder, kind):
    return (folder / kind.place).with_suffix(".json")


both = pytest.mark.parametrize("kind", [STUDY, RUN], ids=["study", "run"])


@pytest.mark.parametrize(
    ("kind", "doing", "hint"),
    [(STUDY, "run", "memloc status"), (RUN, "trained", "another folder")],
    ids=["study", "run"],
)
def test_a_second_one_says_who_is_there(tmp_path, holder, kind, doing, hint):
    process = holder(kind)
    said = f"is being {doing} by process {process.pid} on "
    for take in (
        lambda: locked(tmp_path, kind).__enter__(),
        lambda: refuse_if_busy(tmp_path, kind),
    ):
        with pytest.raises(StoreError, match=said) as error:
            take()
        assert hint in str(error.value)
    assert who_runs(tmp_path, kind)["pid"] == process.pid


@both
def test_the_lock_of_a_killed_process_is_taken_over(tmp_path, holder, kind):
    process = holder(kind)
    process.kill()
    process.wait()
    assert record(tmp_path, kind).is_file()
    assert who_runs(tmp_path, kind) is None
    refuse_if_busy(tmp_path, kind)
    with locked(tmp_path, kind):
        assert read_json(record(tmp_path, kind))["pid"] == os.getpid()
    assert not record(tmp_path, kind).exists()


@both
def test_a_process_that_has_the_number_of_a_dead_one_does_not_block(tmp_path, kind):
    here = os.uname().nodename
    write_json(record(tmp_path, kind), {"pid": os.getppid(), "host": here, "beat": time.time()})
    refuse_if_busy(tmp_path, kind)
    with locked(tmp_path, kind):
        pass


@both
def test_a_place_that_cannot_be_made_is_named_at_once(kind):
    began = time.monotonic()
    with pytest.raises(StoreError, match="Cannot write /proc/nothing"):
        locked(Path("/proc/nothing"), kind).__enter__()
    assert time.monotonic() - began < 5


@both
def test_a_damaged_record_does_not_block(tmp_path, kind):
    write_json(record(tmp_path, kind), {"pid": 1})
    with locked(tmp_path, kind):
        assert read_json(record(tmp_path, kind))["pid"] == os.getpid()


def test_a_study_is_taken_over_when_its_last_step_is_gone(tmp_path, holder):
    process = holder(STUDY, "child")
    process.kill()
    process.wait()
    end_it = threading.Timer(0.3, (tmp_path / "go").touch)
    end_it.start()
    with patient(60), locked(tmp_path, STUDY):
        assert (tmp_path / "go").exists()
    end_it.join()


class Machines:
    """Stands for `time` on this machine, and for a process of another one that holds a lock.

    Nothing is waited for: sleeping moves both clocks, and the other process beats meanwhile.
    """

    def __init__(self, path, ahead, *, dies_at):
        self.path, self.ahead, self.dies_at = path, ahead, dies_at
        self.now, self.next_beat = 1e6, 1e6
        self.sleep(0)

    def monotonic(self):
        return self.now

    def time(self):
        return self.now + 1e9

    def sleep(self, seconds):
        self.now += seconds
        while self.next_beat <= min(self.now, 1e6 + self.dies_at):
            about = {"pid": 1, "host": "elsewhere", "beat": self.next_beat + 1e9 + self.ahead}
            write_json(self.path, about)
            self.next_beat += locks.BEAT

    @property
    def slept(self):
        return self.now - 1e6


clocks = pytest.mark.parametrize("ahead", [-600, 600], ids=["behind", "ahead"])


@both
@clocks
@pytest.mark.parametrize("patience", [0, 1000])
def test_a_live_process_on_another_machine_never_loses_its_lock(
    tmp_path, monkeypatch, kind, ahead, patience
):
    machines = Machines(record(tmp_path, kind), ahead, dies_at=1e9)
    monkeypatch.setattr(locks, "time", machines)
    with patient(patience), pytest.raises(StoreError, match="process 1 on elsewhere"):
        locked(tmp_path, kind).__enter__()
    assert machines.slept >= patience
    assert machines.slept <= max(patience, 2 * locks.BEAT) + 1  # a beat that is seen decides
    assert who_runs(tmp_path, kind)["host"] == "elsewhere"


@both
@clocks
@pytest.mark.parametrize("dies_at", [0, 92])
def test_the_lock_of_a_dead_process_on_another_machine_is_taken_after_the_wait(
    tmp_path, monkeypatch, kind, ahead, dies_at
):
    machines = Machines(record(tmp_path, kind), ahead, dies_at=dies_at)
    monkeypatch.setattr(locks, "time", machines)
    with patient(1000), locked(tmp_path, kind):
        assert SILENT <= machines.slept - dies_at // locks.BEAT * locks.BEAT <= SILENT + 1
        assert read_json(record(tmp_path, kind))["pid"] == os.getpid()


@clocks
def test_a_study_is_taken_over_from_a_dead_machine_without_being_told_to_wait(
    tmp_path, monkeypatch, ahead
):
    machines = Machines(record(tmp_path, STUDY), ahead, dies_at=0)
    monkeypatch.setattr(locks, "time", machines)
    with locked(tmp_path, STUDY):
        assert SILENT <= machines.slept <= SILENT + 1


@clocks
def test_a_run_of_a_machine_that_may_be_dead_is_refused_at_once_with_a_way_on(
    tmp_path, monkeypatch, ahead
):
    machines = Machines(record(tmp_path, RUN), ahead, dies_at=0)
    monkeypatch.setattr(locks, "time", machines)
    machines.sleep(10 * SILENT)  # nobody has watched
    for take in (lambda: locked(tmp_path, RUN).__enter__(), lambda: refuse_if_busy(tmp_path, RUN)):
        with pytest.raises(StoreError, match="process 1 on elsewhere") as error:
            take()
        assert f"delete {record(tmp_path, RUN)} and repeat" in str(error.value)
    assert machines.slept == 10 * SILENT
    record(tmp_path, RUN).unlink()
    with locked(tmp_path, RUN):
        pass


def test_a_clock_that_is_set_back_does_not_stop_the_heart(tmp_path, monkeypatch):
    with locked(tmp_path, STUDY) as beat:
        first = read_json(record(tmp_path, STUDY))["beat"]
        machines = Machines(tmp_path / "other", 0, dies_at=-1)
        machines.now = time.monotonic() + 2 * locks.BEAT
        machines.time = lambda: first - 3600
        monkeypatch.setattr(locks, "time", machines)
        beat({})
        assert read_json(record(tmp_path, STUDY))["beat"] == first - 3600


def test_the_record_says_how_far_it_is(tmp_path):
    with locked(tmp_path, STUDY) as beat:
        beat({"running": {"train/x": 1.0}})  # too soon after the first
        assert "running" not in read_json(record(tmp_path, STUDY))
        beat({"running": {"train/x": 1.0}}, now=True)
        about = read_json(record(tmp_path, STUDY))
        assert about["running"] == {"train/x": 1.0}
        assert about["pid"] == os.getpid()


def test_a_run_gives_signs_of_life_by_itself_and_leaves_nothing(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "BEAT", 0.02)
    with locked(tmp_path, RUN):
        first = read_json(record(tmp_path, RUN))["beat"]
        until = time.monotonic() + 10
        while read_json(record(tmp_path, RUN))["beat"] == first and time.monotonic() < until:
            time.sleep(0.01)
        assert read_json(record(tmp_path, RUN))["beat"] > first
    assert list(tmp_path.iterdir()) == []


def test_a_process_may_take_its_own_lock_again(tmp_path, holder):
    with locked(tmp_path, RUN):
        with locked(tmp_path, RUN):
            pass
        assert record(tmp_path, RUN).is_file()
    holder(RUN)  # it is free now


def test_a_step_of_a_study_waits_for_the_one_before_it(tmp_path, holder):
    holder(RUN, seconds=1)
    with patient(30), locked(tmp_path, RUN):
        assert read_json(record(tmp_path, RUN))["pid"] == os.getpid()


def test_of_many_that_wait_one_at_a_time_has_it(tmp_path):
    taking = """
import sys, os, time
from pathlib import Path
from memloc.store.lock import RUN, locked, patient
folder = Path(sys.argv[1])
for _ in range(15):
    with patient(60), locked(folder, RUN):
        os.mkdir(folder / "alone")  # fails where another one is there
        os.rmdir(folder / "alone")
"""
    command = [sys.executable, "-c", taking, str(tmp_path)]
    started = [subprocess.Popen(command, stderr=subprocess.PIPE, text=True) for _ in range(3)]
    for process in started:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "damage",
    [{"beat": "x"}, {"beat": [1]}, {"pid": None}, {"pid": [], "host": None}],
)
@pytest.mark.parametrize("host", ["here", "elsewhere"])
def test_a_damaged_record_of_a_process_is_nobody(tmp_path, damage, host):
    name = socket.gethostname() if host == "here" else host
    about = {"pid": os.getpid(), "host": name, "beat": 0.0}
    write_json(tmp_path / "running.json", {**about, **damage})
    assert who_runs(tmp_path, RUN) is None


def test_a_number_that_no_process_has_is_nobody(tmp_path):
    about = {"pid": 2**70, "host": socket.gethostname(), "beat": 0.0}
    write_json(tmp_path / "running.json", about)
    assert who_runs(tmp_path, RUN) is None
