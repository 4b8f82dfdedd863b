"""What steps of a study cost, estimated before anything ran and then measured.

`python -m benchmarks.cost STUDY FILE` keeps it of the steps that are done. The study's folder has
to be on the machine that ran it: estimates are from a calibration of that machine alone.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import pandas as pd

from memloc import paths
from memloc.study.estimate import Estimate, estimate, measured_here
from memloc.study.plan import Plan, Step, open_plan
from memloc.study.records import Store

MEGA = 1e6


def main() -> None:
    """Keep what the finished steps of a study took."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, help="folder of a study")
    parser.add_argument("file", type=Path, help="a csv file")
    options = parser.parse_args()
    costs(options.study).to_csv(options.file, index=False, float_format="%.3g")


def costs(folder: Path) -> pd.DataFrame:
    """One row per finished step: minutes of one thread, memory and disk in megabytes."""
    plan, store = open_plan(folder), Store(folder)
    before, rows = _before(plan), []
    for step in plan.steps.values():
        record = store.record(step.name)
        if record is None or record.state != "done" or record.processor is None:
            continue
        name = step.name
        rows.append(
            {
                "task": step.run.task,
                "step": f"{step.kind} {step.method}".strip(),
                "minutes, estimated": before.seconds[name] / 60,
                "minutes": record.processor / 60,
                "memory, estimated": before.memory[name] / MEGA,
                "memory": record.peak_mb,
                "disk, estimated": before.disk[name] / MEGA,
                "disk": _bytes(folder, step) / MEGA,
            }
        )
    return pd.DataFrame(rows)


def _before(plan: Plan) -> Estimate:
    """What was expected of every step, on one thread, when none was done."""
    threads = dict.fromkeys(plan.steps, 1)
    measured = measured_here(plan.file.folder)
    with tempfile.TemporaryDirectory() as empty:
        for name in plan.file.folder.iterdir():
            if name.is_symlink():  # what the study's file may name
                Path(empty, name.name).symlink_to(name.resolve())
        shutil.copy(plan.file.path, Path(empty, paths.STUDY))
        return estimate(open_plan(empty), measured, threads)


def _bytes(folder: Path, step: Step) -> int:
    run = folder / step.run.folder
    made = paths.result(run, step.method) if step.method else run / paths.CHECKPOINTS
    return sum(path.stat().st_size for path in made.rglob("*") if path.is_file())


if __name__ == "__main__":
    main()
