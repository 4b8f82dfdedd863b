"""Over 10,000 generated cases of bad input: none may end in a traceback, a hang or an untruth.

`python -m benchmarks.bad_input` tries all of them and writes how many into bad_input.json.
The cases are in tests/bad_input; `make test` tries some of each kind.
"""

import argparse
import collections
import faulthandler
import importlib
import json
import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).with_suffix(".json")
TESTS = Path(__file__).parents[1] / "tests"
STUCK = 300
"""Seconds after which even code that cannot be interrupted is given up."""


def main() -> None:
    """Try all cases of the kinds that were named, or of all kinds."""
    sys.path.insert(0, str(TESTS))
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ.pop("MEMLOC_DATA", None)
    kinds = importlib.import_module("bad_input.kinds").KINDS
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kinds", nargs="*", help=f"of {', '.join(kinds)}; left out: all")
    parser.add_argument("--share", type=float, default=1.0, help="of the cases")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        made = importlib.import_module("bad_input.material").make_material(Path(place) / "material")
        names = given.kinds or list(kinds)
        found = {name: _try_all(name, kinds[name], made, given.share) for name in names}
    if names == list(kinds) and given.share == 1:
        _keep(found)
    for name, row in found.items():
        print(f"{name}: {row['cases']} cases, {row['refused']} refused, {row['failures']} failures")
    sys.exit(any(row["failures"] for row in found.values()))


def _try_all(name: str, kind: Any, made: Any, share: float) -> dict[str, Any]:
    import hypothesis

    began, counts = time.perf_counter(), collections.Counter[str]()
    failures: dict[str, str] = {}

    @hypothesis.seed(1)
    @hypothesis.settings(
        max_examples=max(1, round(kind.all * share)),
        phases=[hypothesis.Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(kind.cases)
    def try_one(case: Any) -> None:
        counts["cases"] += 1
        faulthandler.dump_traceback_later(STUCK, exit=True)
        with tempfile.TemporaryDirectory(dir=made.home.parent) as place:
            try:
                counts["refused"] += case.check(made, Path(place)) != 0
            except AssertionError as error:
                counts["failures"] += 1
                told = str(error).replace(place, "…")
                if told not in failures:
                    failures[told] = repr(case)
                    print(f"{name}: {told}\n    {repr(case)[:1500]}", file=sys.stderr)

    logging.disable(logging.WARNING)
    try_one()
    faulthandler.cancel_dump_traceback_later()
    facts = {key: counts[key] for key in ("cases", "refused", "failures")}
    return {**facts, "seconds": round(time.perf_counter() - began, 1)}


def _keep(found: dict[str, dict[str, Any]]) -> None:
    keys = ("cases", "refused", "failures", "seconds")
    total = {key: round(sum(row[key] for row in found.values()), 1) for key in keys}
    RESULTS.write_text(json.dumps({"all": total, **found}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
