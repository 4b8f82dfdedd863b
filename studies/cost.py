"""Costs of a run's steps, estimated and measured.

`python -m studies.cost STUDY RUN FILE` writes the table, on the machine that ran the study:
estimates are from a calibration of that machine alone. Records count the last attempt at a step, so
the run must not have been interrupted.
"""

import argparse
import tempfile
from pathlib import Path

import pandas as pd

from memloc.store import paths
from memloc.study.estimate import Estimate, estimate, measured_here
from memloc.study.plan import Plan, Step, open_plan
from memloc.study.records import Store

MEGA = 1e6


def main() -> None:
    """Store the measured costs of a study's finished steps."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("study", type=Path, help="folder of a study")
    parser.add_argument("run", help="a run in that folder, such as rte/tiny-opt/seed-1")
    parser.add_argument("file", type=Path, help="a csv file")
    options = parser.parse_args()
    costs(options.study, options.run).to_csv(options.file, index=False)


def costs(folder: Path, run: str) -> pd.DataFrame:
    """Return one row per finished step: minutes of one thread, memory and disk in megabytes."""
    plan, store = open_plan(folder), Store(folder)
    before, rows = _before(plan), []
    for step in plan.steps.values():
        record = store.record(step.name)
        belongs = f"{step.name}/".startswith(f"{step.action}/{run}/")
        if not belongs or record is None or record.processor is None:
            continue  # it is of another run, or not done
        name = step.name
        rows.append(
            {
                "step": f"{step.action} {method_of(step)}".strip(),
                "minutes, estimated": round(before.seconds[name] / 60, 1),
                "minutes": round(record.processor / 60, 1),
                "memory, estimated": round(before.memory[name] / MEGA),
                "memory": round(record.peak_mb),
                "disk, estimated": round(before.disk[name] / MEGA, 1),
                "disk": round(_bytes(folder, step) / MEGA, 1),
            }
        )
    return pd.DataFrame(rows)


def _before(plan: Plan) -> Estimate:
    """Return the expected cost of every step on one thread, before any step was done."""
    threads = dict.fromkeys(plan.steps, 1)
    measured = measured_here(plan.file.folder)
    with tempfile.TemporaryDirectory() as empty:
        for path in plan.file.folder.iterdir():
            if path.is_symlink() or path.is_file():  # the study's file, and what it may name
                Path(empty, path.name).symlink_to(path.resolve())
        return estimate(open_plan(empty), measured, threads)


def method_of(step: Step) -> str:
    """Return the method of a step that analyses a run."""
    return "" if step.action == "plant" else "".join(step.methods)


def _bytes(folder: Path, step: Step) -> int:
    runs = [folder / run for run in (step.folder, step.null) if run]
    method = method_of(step)
    made = [paths.result(r, method) if method else r / paths.CHECKPOINTS for r in runs]
    files = (path for place in made for path in place.rglob("*") if path.is_file())
    return sum(path.stat().st_size for path in files)


if __name__ == "__main__":
    main()
