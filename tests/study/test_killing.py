"""A study is killed again and again, all its processes at once, and ends with the same results."""

import os
import shutil
import subprocess
import sys

import pytest

from memloc import paths
from memloc.results import load_results
from memloc.study.plan import open_plan
from memloc.study.records import study_states
from same_results import assert_same_results

KILLS = 30
KILLER = """
import os, random, shutil, signal, sys, time
from pathlib import Path
import memloc.study.step  # what takes long to load is loaded once for all attempts
from memloc.study.execute import Options, run_study

folder, kills = Path(sys.argv[1]), int(sys.argv[2])
rng, killed, ended, at_work = random.Random(7), 0, False, 0

def is_at_work(since):
    records = (p for p in (folder / "steps").rglob("*.json") if p.stat().st_mtime > since)
    return any('"begun"' in path.read_text() for path in records)

while killed < kills or not ended:
    since = time.time()
    child = os.fork()
    if not child:
        os.setsid()
        progress = run_study(folder, Options(jobs=1), lambda *_: None)
        os._exit(progress.count("failed"))
    # Every second time in the midst of a step, however slow the machine is.
    waits = killed % 2 == 1
    until = time.monotonic() + rng.uniform(0.05, 1.5)
    ended = False
    while killed >= kills or waits or time.monotonic() < until:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            assert status == 0, status
            ended = True
            break
        if waits and is_at_work(since):
            waits, until = False, time.monotonic() + rng.uniform(0, 0.5)
        time.sleep(0.01)
    if not ended:
        at_work += is_at_work(since)
        os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)
        killed += 1
    elif killed < kills:  # on a fast machine: from the start again
        for path in folder.iterdir():
            if path.is_dir():
                shutil.rmtree(path)
print(killed, at_work, flush=True)
"""


def copy_of(finished, folder):
    """The same study, not begun; what was measured of this machine is kept."""
    folder.mkdir(parents=True)
    for name in (paths.STUDY, paths.CALIBRATION):
        shutil.copy(finished / name, folder / name)
    return folder


@pytest.mark.slow
def test_killed_at_random_moments_it_ends_with_the_same_results(finished, tmp_path):
    folder = copy_of(finished, tmp_path / "killed")
    done = subprocess.run(
        [sys.executable, "-c", KILLER, str(folder), str(KILLS)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    killed, at_work = map(int, done.stdout.split())
    assert killed == KILLS
    assert at_work >= KILLS // 4
    assert {state.name for state in study_states(open_plan(folder)).values()} == {"done"}
    assert not list(folder.rglob("*.part"))
    assert not list(folder.rglob("*.state"))
    assert_same_results(finished, folder)
    assert len(load_results(folder).control) == 2  # swapping, k = 1 and 2
