"""Steps in processes of this machine: copied or fresh, they tell how they ended, and end."""

import os
import signal
import time
import warnings
from pathlib import Path

import pytest

from fixtures.plans import make_step
from memloc.study import executors, step
from memloc.study.executors import (
    Child,
    LocalExecutor,
    started_fresh,
)

STEP = "localise/none/swapping"
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


@pytest.mark.skipif(not executors.can_copy(), reason="processes are copied on Linux only")
def test_a_copy_tells_how_it_went_and_logs_what_it_said(executor, capsys):
    with capsys.disabled():  # a copy of this process has its streams
        executor.submit(make_step(home=str(executor.folder)))
        (outcome,) = wait_for(executor)
    assert outcome.step == STEP
    assert "is not a run" in outcome.reason
    assert "is not a run" in (executor.folder / f"logs/{STEP}.log").read_text()


@pytest.mark.skipif(not executors.can_copy(), reason="processes are copied on Linux only")
def test_a_warning_of_newer_pythons_about_copies_is_not_passed_on(executor, capsys, monkeypatch):
    fork = os.fork
    monkeypatch.setattr(
        os, "fork", lambda: warnings.warn("threads", DeprecationWarning, stacklevel=1) or fork()
    )
    with capsys.disabled():
        executor.submit(make_step(home=str(executor.folder)))
        assert len(wait_for(executor)) == 1


@pytest.mark.skipif(not executors.can_copy(), reason="processes are copied on Linux only")
def test_a_step_that_is_ended_says_by_what_and_others_go_on(executor, capsys, monkeypatch):
    monkeypatch.setattr("memloc.study.step.do", lambda *_: time.sleep(60))
    with capsys.disabled():
        executor.submit(make_step(home=str(executor.folder)))
        (child,) = executor._children.values()
        os.kill(child.pid, signal.SIGKILL)
        (ended,) = wait_for(executor)
    assert (ended.step, "by SIGKILL" in ended.reason) == (STEP, True)
    monkeypatch.undo()
    with capsys.disabled():
        executor.submit(make_step(home=str(executor.folder)))
        assert [outcome.step for outcome in wait_for(executor)] == [STEP]


def test_stopping_ends_steps_with_all_that_they_started_and_stopping_twice_is_fine(executor):
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
    statuses = []
    executor._children[read] = Child(
        STEP, 1, pid, read, lambda: statuses.append(os.waitpid(pid, 0)[1]) or 0
    )
    executor.stop()
    assert statuses == [signal.SIGKILL]
    until = time.monotonic() + 120
    while is_running(inner) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_running(inner) or "Z" in Path(f"/proc/{inner}/stat").read_text()
    executor.stop()


@pytest.mark.skipif(not executors.can_copy(), reason="Linux ends processes with their parents")
def test_a_copy_whose_origin_is_gone_already_ends_at_once():
    pid = os.fork()
    if not pid:
        step.die_with(os.getpid())  # which is not its parent
        os._exit(0)  # not reached
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1


def test_a_fresh_process_tells_how_it_went(micro):
    folder = micro()
    outcome = started_fresh(make_step(home=str(folder))).end()
    assert "is not a run" in outcome.reason
    assert "memloc: " in (folder / f"logs/{STEP}.log").read_text()
