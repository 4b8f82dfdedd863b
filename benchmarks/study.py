"""What studies cost besides their steps: planning the paper's, and starting a step."""

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.harness import Measured
from memloc.store import paths
from memloc.study.config import init_study
from memloc.study.execute import open_study
from memloc.study.executors import LocalExecutor
from memloc.study.plan import Step, open_plan
from memloc.study.records import Store, study_states

SHORT = """\
preset: demo
models: [tiny-opt]
tasks: [tiny-topic]
methods: [swapping, gradients]
analyses: []
report: false
overrides: {finetune.epochs: 2, finetune.near_ceiling: 0.01, verdict.noisy_at_least: 0.001}
"""
"""A study whose shortest step is as short as real ones get: gradients of an embedded model."""


def measure(repeats: int) -> Measured:
    """Time the start of a step as a copy of a loaded process, and as a fresh process."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        planning, steps = _planning(folder / "paper", repeats)
        shortest = _shortest_step(folder / "short")
        ours = _copied(folder / "short", repeats)
        fresh = _timed(lambda: _fresh(folder / "short"), repeats)
    details = {
        "planning_seconds": planning,
        "planned_steps": steps,
        "shortest_step_seconds": shortest,
        "start_share_of_shortest": ours / shortest,
    }
    return Measured(
        stage="study",
        hidden=64,
        ratio=fresh / ours,
        seconds=ours,
        baseline_seconds=fresh,
        baseline="a fresh process for each step",
        difference=0.0,
        peak_mb=0.0,
        baseline_peak_mb=0.0,
        threads=1,
        details=details,
    )


def _planning(folder: Path, repeats: int) -> tuple[float, int]:
    init_study("paper", folder)
    seconds = _timed(lambda: study_states(open_plan(folder)), repeats)
    return seconds, len(open_plan(folder).steps)


def _shortest_step(folder: Path) -> float:
    folder.mkdir()
    (folder / paths.STUDY).write_text(SHORT, encoding="utf-8")
    open_study(folder, jobs=1).run()
    records = [Store(folder).record(name) for name in open_plan(folder).steps]
    return min(record.seconds for record in records if record)


def _refused(folder: Path) -> Step:
    """Return a step that is refused after everything a step does before its work begins."""
    steps = open_plan(folder).steps.values()
    step = next(step for step in steps if step.action == "localise")
    return step.model_copy(update={"folder": "no such run", "name": "no such step"})


def _copied(folder: Path, repeats: int) -> float:
    executor, step = LocalExecutor(folder, 1, 1, ["opt"]), _refused(folder)
    executor.start()

    def once() -> None:
        executor.submit(step)
        while not executor.wait(60):
            pass

    once()  # waits until everything is loaded
    seconds = _timed(once, repeats)
    executor.stop()
    return seconds


def _fresh(folder: Path) -> None:
    """Load what a step's work loads, as the refusal comes before that."""
    code = "import memloc.study.step; from memloc.study.step import main; main"
    command = [sys.executable, "-c", code, _refused(folder).model_dump_json()]
    subprocess.run(command, check=True, capture_output=True)


def _timed(work: Callable[[], object], repeats: int) -> float:
    seconds = []
    for _ in range(repeats):
        began = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - began)
    return statistics.median(seconds)
