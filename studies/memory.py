"""Memory of fine-tuning and of swapping by the number of layers: `python -m studies.memory`.

Each measurement is a process of its own, whose most resident memory the system knows, and how much
of what it has at the end are pages of files. The models are random ones like an embedded model,
wider and deeper. Writes memory.json and the table of the documentation.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from memloc.data.perturb import OWN, add_noise
from memloc.data.task import Examples, Task
from memloc.methods.apply import localise
from memloc.reporting.tables import markdown
from memloc.run.folder import Run
from memloc.run.train import train
from memloc.seeds import generator
from pretraining.language import vocabulary
from studies.growth import make_model
from studies.many_rows import peak_mb
from studies.pages import DOCS, STORED, put

HERE = STORED / "memory.json"
PAGE = DOCS / "guides" / "models.md"
DEPTHS, WIDTH = (12, 30), 384
TEXTS, WORDS = 16, 16
"""All texts are one batch."""
LEARNT = {"finetune.epochs": 1, "finetune.batch_size": TEXTS}


def main() -> None:
    """Measure each step and depth, or one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--one", nargs=3, metavar=("STEP", "DEPTH", "FOLDER"))
    options = parser.parse_args()
    if options.one is not None:
        step, depth, folder = options.one
        print(json.dumps(measured(step, int(depth), Path(folder))))
        return
    found = []
    for depth in DEPTHS:
        with tempfile.TemporaryDirectory() as folder:
            for step in STEPS:
                one = ["-m", "studies.memory", "--one", step, str(depth), folder]
                done = subprocess.run([sys.executable, *one], stdout=subprocess.PIPE, check=True)
                found.append(json.loads(done.stdout.splitlines()[-1]))
                print(found[-1], flush=True)
    HERE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    put("memory", table(), PAGE)


def measured(step: str, depth: int, home: Path) -> dict[str, Any]:
    """The most memory before and after a step, and the pages of files that it added."""
    before, files = peak_mb(), file_mb()
    kept = STEPS[step](home, depth)
    files = file_mb() - files
    del kept
    size = sum(path.stat().st_size for path in (home / "model").glob("*.safetensors")) / 1e6
    facts = {"depth": depth, "step": step, "model_mb": round(size)}
    return {**facts, "before_mb": before, "peak_mb": peak_mb(), "files_mb": files}


def file_mb() -> int:
    """Pages of files that this process has in memory, which the system can drop and read again."""
    status = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    (line,) = (line for line in status if line.startswith("RssFile:"))
    return round(int(line.split()[1]) / 1e3)


def learn(home: Path, depth: int) -> None:
    """Make one update of the final weights, and one of the reference's."""
    make_model(home / "model", depth, WIDTH)
    made = str(home / "model"), texts(), home / "run"
    train(*made, preset="demo", settings=LEARNT, checkpoints=("final", "reference"))


def texts() -> Task:
    """Words at random with labels at random, one of each class wrong."""
    rng, words = generator(1, "memory"), sorted(vocabulary())
    made = (" ".join(words[i] for i in rng.integers(len(words), size=WORDS)) for _ in range(TEXTS))
    examples = Examples(tuple((text,) for text in made), np.arange(TEXTS) % 2)
    none = Examples((), np.zeros(0, dtype=np.int64))
    return add_noise(Task("words", OWN, ("a", "b"), examples, none, none, "made up"), 0.15, 1)


def read(home: Path, _depth: int) -> list[Any]:
    """The two models that swapping works with, and nothing else."""
    run = Run.open(home / "run")
    return [run.load(weights).stack for weights in ("final", "reference")]


def swap(home: Path, _depth: int) -> None:
    """All windows of layers, for two noisy examples and a clean one."""
    run, few = Run.open(home / "run"), {"swapping.clean_examples": 1}
    localise(run, ["swapping"], settings=few, force=True)


STEPS: dict[str, Callable[[Path, int], Any]] = {
    "fine-tuning": learn,
    "reading two models": read,
    "swapping": swap,
}
"""In this order; none in the process that starts them, whose memory they would inherit."""


def table() -> str:
    """Return the measurements for people, in megabytes and in sizes of the model."""
    found = pd.DataFrame(json.loads(HERE.read_text(encoding="utf-8")))
    rows = []
    for depth, step in product(DEPTHS, STEPS):
        (row,) = found[(found["depth"] == depth) & (found["step"] == step)].to_dict("records")
        more = row["peak_mb"] - row["before_mb"]
        said = {"layers": depth, "model (MB)": row["model_mb"], "step": step}
        said |= {"process before (MB)": row["before_mb"], "at most (MB)": row["peak_mb"]}
        said |= {"more, in models": f"{more / row['model_mb']:.1f}"}
        files = f"{row['files_mb'] / row['model_mb']:.1f}" if step == "reading two models" else ""
        rows.append({**said, "of it files": files})
    return markdown(pd.DataFrame(rows))


if __name__ == "__main__":
    main()
