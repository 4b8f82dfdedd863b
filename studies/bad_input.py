"""Over 10,000 generated cases of bad input: none may end in a traceback, a hang or an untruth.

`python -m studies.bad_input` tries all of them and writes how many into bad_input.json.
The cases are in tests/bad_input; `make test` tries some of each kind. Each batch has a process of
its own: what libraries keep of thousands of commands in one process would fill the memory.
"""

import argparse
import collections
import faulthandler
import importlib
import json
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from studies.pages import STORED

RESULTS = STORED / "bad_input.json"
TESTS = Path(__file__).parents[1] / "tests"
STUCK = 300
"""Seconds after which even code that cannot be interrupted is given up."""
BATCH = 250
"""Cases of a process."""


@dataclass
class Tried:
    """Results of the cases tried of one kind."""

    cases: int = 0
    refused: int = 0
    failures: int = 0
    seconds: float = 0.0
    peak_mb: float = 0.0
    """The most memory that a process took."""

    def add(self, other: "Tried") -> None:
        """Count these, too."""
        self.cases += other.cases
        self.refused += other.refused
        self.failures += other.failures
        self.seconds = round(self.seconds + other.seconds, 1)
        self.peak_mb = max(self.peak_mb, other.peak_mb)


def main() -> None:
    """Try all cases of the named kinds, or of all kinds."""
    sys.path.insert(0, str(TESTS))
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.pop("MEMLOC_DATA", None)
    kinds = importlib.import_module("bad_input.kinds").KINDS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", help=f"Some of {', '.join(kinds)}; default: all.")
    parser.add_argument("--share", type=float, default=1.0, help="of the cases")
    parser.add_argument("--jobs", type=int, default=1, help="processes at once")
    parser.add_argument("--batch", nargs=3, help="of the kind: seed, cases and the material")
    given = parser.parse_args()
    if given.batch:
        seed, cases, home = given.batch
        _print_batch(given.kinds[0], int(seed), int(cases), Path(home))
    else:
        names = given.kinds or list(kinds)
        wanted = {name: max(1, round(kinds[name].all * given.share)) for name in names}
        found = _try_all(wanted, given.jobs, keep=not given.kinds and given.share == 1)
        for name, row in found.items():
            print(f"{name}: {row.cases} cases, {row.refused} refused, {row.failures} failures")
        sys.exit(any(row.failures for row in found.values()))


def _try_all(wanted: dict[str, int], jobs: int, *, keep: bool) -> dict[str, Tried]:
    """All batches, some of each kind by turns; what is known so far is kept after each."""
    found = {name: Tried() for name in wanted}
    batches = [
        (name, seed, min(BATCH, cases - start))
        for name, cases in wanted.items()
        for seed, start in enumerate(range(0, cases, BATCH), 1)
    ]
    with tempfile.TemporaryDirectory() as place, ThreadPoolExecutor(jobs) as pool:
        home = Path(place) / "material"
        importlib.import_module("bad_input.material").make_material(home)
        in_turn = sorted(batches, key=lambda batch: batch[1])
        rows = pool.map(lambda batch: _try_batch(batch, home), in_turn)
        for (name, *_), row in zip(in_turn, rows, strict=True):
            found[name].add(row)
            if keep:
                _keep(found)
    return found


def _try_batch(batch: tuple[str, int, int], home: Path) -> Tried:
    """In a process of its own; one that ends without an answer is a failure."""
    name, seed, cases = batch
    command = [sys.executable, "-m", "studies.bad_input", name]
    done = subprocess.run(
        [*command, "--batch", str(seed), str(cases), str(home)],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    if done.returncode:
        print(f"{name}: batch {seed} ended with status {done.returncode}", file=sys.stderr)
        return Tried(failures=1)
    return Tried(**json.loads(done.stdout.splitlines()[-1]))


def _print_batch(name: str, seed: int, cases: int, home: Path) -> None:
    import hypothesis

    kind = importlib.import_module("bad_input.kinds").KINDS[name]
    made = importlib.import_module("bad_input.material").Material(home)
    began, tried, failures = time.perf_counter(), Tried(), collections.Counter[str]()

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=cases,
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(kind.cases)
    def try_one(case: Any) -> None:
        tried.cases += 1
        faulthandler.dump_traceback_later(STUCK, exit=True)
        with tempfile.TemporaryDirectory(dir=made.home.parent) as place:
            try:
                tried.refused += case.check(made, Path(place)) != 0
            except AssertionError as error:
                told = str(error).replace(place, "…")
                failures[told] += 1
                if failures[told] == 1:
                    print(f"{name}: {told}\n    {repr(case)[:1500]}", file=sys.stderr)

    logging.disable(logging.WARNING)
    try_one()
    faulthandler.cancel_dump_traceback_later()
    tried.failures = failures.total()
    tried.seconds = round(time.perf_counter() - began, 1)
    tried.peak_mb = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)
    print(json.dumps(asdict(tried)))


def _keep(found: dict[str, Tried]) -> None:
    total = Tried()
    for row in found.values():
        total.add(row)
    rows = {"all": asdict(total), **{name: asdict(row) for name, row in found.items()}}
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
