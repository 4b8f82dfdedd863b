"""Memory and time of `memloc find` by the number of rows: `python -m studies.many_rows`.

Each number of rows has a process of its own, which writes a file of made-up texts and looks for
wrong labels with two models, one pass over the data each. Writes many_rows.json and the table of
the documentation.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pandas as pd

from memloc.labels.find import find
from memloc.progress import announcing
from memloc.reporting.tables import markdown
from memloc.seeds import generator
from pretraining.language import vocabulary
from studies.pages import DOCS, STORED, put

HERE = STORED / "many_rows.json"
PAGE = DOCS / "explanation" / "wrong_labels.md"
ROWS = (1_000, 10_000, 100_000)
WORDS, CLASSES = 20, 4
SETTINGS = {
    "generalisation.models": 2,
    "generalisation.epochs": 1,
    "finetune.batch_size": 64,
}


def main() -> None:
    """Measure each number of rows, or one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, help="measure this number here and print it")
    options = parser.parse_args()
    if options.rows is not None:
        print(json.dumps(measured(options.rows)))
        return
    found = []
    for rows in ROWS:
        again = [sys.executable, "-m", "studies.many_rows", "--rows", str(rows)]
        done = subprocess.run(again, stdout=subprocess.PIPE, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(found[-1], flush=True)
    HERE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    put("rows", table(), PAGE)


def measured(rows: int) -> dict[str, Any]:
    """Peak memory when the estimate is made, and at the end; seconds of the processor."""
    began, seen = time.process_time(), dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "rows.csv"
        write(data, rows)
        written = peak_mb()

        def estimate(*_: Any) -> None:
            seen.update(planned_mb=peak_mb(), planned_s=round(time.process_time() - began, 1))

        with announcing("halves", estimate):
            found = find(data, "tiny-opt", folder, settings=SETTINGS)
        size = data.stat().st_size / 1e6
    return {
        "rows": len(found.table),
        "file_mb": round(size, 1),
        "before_mb": written,
        **seen,
        "peak_mb": peak_mb(),
        "seconds": round(time.process_time() - began),
    }


def write(path: Path, rows: int) -> None:
    """Texts of words that the embedded models know, each with a label at random."""
    rng, words = generator(rows, "many rows"), sorted(vocabulary())
    with path.open("w", encoding="utf-8") as file:
        file.write("text,label\n")
        for _ in range(rows):
            text = " ".join(words[i] for i in rng.integers(len(words), size=WORDS))
            file.write(f"{text.replace(',', '.')},class {rng.integers(CLASSES)}\n")


def peak_mb() -> int:
    """The most memory that this process has had."""
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3)


def table() -> str:
    """Return the measurements as a table for people."""
    titles = {
        "rows": "rows",
        "file_mb": "file (MB)",
        "before_mb": "memory before (MB)",
        "planned_mb": "at the estimate (MB)",
        "peak_mb": "at most (MB)",
        "planned_s": "estimate after (s)",
        "seconds": "in all (s)",
    }
    found = pd.DataFrame(json.loads(HERE.read_text(encoding="utf-8")))
    return markdown(found.rename(columns=titles)[[*titles.values()]].map(lambda v: f"{v:,}"))


if __name__ == "__main__":
    main()
