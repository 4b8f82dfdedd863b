"""A study is killed again and again, all its processes at once, and ends with the same results."""

import os
import random
import shutil
import signal
import time

import pytest

from fixtures.forked import ended, forked
from fixtures.power import THOROUGH
from fixtures.same_results import assert_same_results
from memloc.reporting.results import load_results
from memloc.store import paths
from memloc.study.execute import open_study
from memloc.study.executors import LocalExecutor
from memloc.study.plan import open_plan
from memloc.study.records import study_states

KILLS = 30 if THOROUGH else 8


def copy_of(finished, folder):
    """The same study, not begun; what was measured of this machine is kept."""
    folder.mkdir(parents=True)
    for name in (paths.STUDY, paths.CALIBRATION):
        shutil.copy(finished / name, folder / name)
    return folder


def started(folder):
    def work():
        progress = open_study(folder, jobs=1).run()
        raise SystemExit(progress.count("failed"))

    return forked(work)


def is_at_work(folder, since):
    """Whether an attempt that began then has a step at work."""
    records = (p for p in (folder / "steps").rglob("*.json") if p.stat().st_mtime > since)
    return any('"begun"' in path.read_text() for path in records)


def killed(folder, rng, *, at_work):
    """Run it and kill it: at a random moment, or in a step. Whether it was; None: it had ended."""
    since, child = time.time(), started(folder)
    until = time.monotonic() + rng.uniform(0.05, 0.8)
    while at_work or time.monotonic() < until:
        if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            assert ended(child) == 0
            return None
        if at_work and is_at_work(folder, since):
            at_work, until = False, time.monotonic() + rng.uniform(0, 0.3)
        time.sleep(0.01)
    was_at_work = is_at_work(folder, since)
    os.killpg(child, signal.SIGKILL)
    ended(child)
    return was_at_work


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_results(finished, tmp_path):
    folder, rng, found = copy_of(finished, tmp_path / "killed"), random.Random(7), []
    LocalExecutor(folder, 1, 1, ["opt"]).start()  # loads once what every copy needs
    while len(found) < KILLS:
        # Every second time in the midst of a step, however slow the machine is.
        was_at_work = killed(folder, rng, at_work=len(found) % 2 == 1)
        if was_at_work is not None:
            found.append(was_at_work)
        elif len(found) < KILLS:  # on a fast machine: from the start again
            shutil.rmtree(folder)
            copy_of(finished, folder)
    assert sum(found) >= KILLS // 4
    assert ended(started(folder)) == 0
    assert {state.name for state in study_states(open_plan(folder)).values()} == {"done"}
    assert not list(folder.rglob("*.part"))
    assert not list(folder.rglob("*.state"))
    assert_same_results(finished, folder)
    control = load_results(folder).control
    assert control.loc[control["method"] == "swapping", "k"].tolist() == [1, 2]
