"""Steps in processes of this machine: copied or fresh, they tell how they ended, and end."""

import os
import signal
import time
from pathlib import Path

import pytest

from memloc.study import processes
from memloc.study.execute import Needs
from memloc.study.processes import Child, LocalExecutor, end_all, started_fresh
from memloc.study.step import Order

NOTHING = Order("no such step", "", "")
"""It is refused when its process has begun."""


@pytest.fixture
def executor(micro):
    made = LocalExecutor(micro(), jobs=2, cores=2)
    yield made
    made.stop()


def wait_for(executor, seconds=120):
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if found := executor.wait(1.0):
            return found
    return []


def is_running(pid):
    return Path(f"/proc/{pid}").exists()


@pytest.mark.skipif(not processes.CAN_COPY, reason="processes are copied on Linux only")
def test_a_copy_tells_how_it_went_and_logs_what_it_said(executor, capsys):
    with capsys.disabled():  # a copy of this process has its streams
        executor.submit(NOTHING, Needs())
        (outcome,) = wait_for(executor)
    assert outcome.step == "no such step"
    assert "was changed while it ran" in outcome.reason
    assert "was changed while it ran" in (executor.folder / "logs/no such step.log").read_text()


def test_the_starter_that_is_ended_loses_its_steps_and_another_one_is_made(executor):
    executor.start()
    executor._running.add("x")
    os.kill(executor._pid, signal.SIGKILL)
    (lost,) = wait_for(executor)
    assert (lost.step, lost.reason) == ("x", "its process was ended from outside")
    executor.submit(NOTHING, Needs())
    assert [outcome.step for outcome in wait_for(executor)] == ["no such step"]


def test_stopping_ends_the_starter_and_stopping_twice_is_fine(executor):
    executor.start()
    pid = executor._pid
    executor.stop()
    assert not is_running(pid)
    executor.stop()


def test_a_fresh_process_tells_how_it_went(micro):
    folder = micro()
    outcome = started_fresh(folder, NOTHING).outcome()
    assert "was changed while it ran" in outcome.reason
    assert "memloc: " in (folder / "logs/no such step.log").read_text()


def test_a_step_is_ended_with_all_that_it_started():
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        os.setsid()
        inner = os.fork()
        if inner:
            os.write(write, str(inner).encode())
        time.sleep(60)
        os._exit(0)
    inner = int(os.read(read, 20))
    os.close(write)
    child = Child("x", pid, read)
    end_all([child])
    assert "its process was ended by SIGKILL" in child.outcome().reason
    until = time.monotonic() + 10
    while is_running(inner) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_running(inner) or "Z" in Path(f"/proc/{inner}/stat").read_text()
