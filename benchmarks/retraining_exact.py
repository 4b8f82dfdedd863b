"""Does fast retraining give the same picture as the plain way?

`python -m benchmarks.retraining_exact RUN` retrains all windows of a run three times: fast (frozen
blocks without dropout, their states kept), fast with another seed, and the plain way (dropout
everywhere, nothing kept), and compares the layer weights.
"""

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from memloc.localise.retraining import Retraining
from memloc.localise.subjects import run_subject
from memloc.records import FloatArray
from memloc.score.agreement import correlation
from memloc.train.run import Run

WAYS: dict[str, dict[str, Any]] = {
    "fast": {},
    "fast, seed 43": {"retraining.seed": 43},
    "plain": {"retraining.frozen_dropout": True},
}


def main() -> None:
    """Print weights, seconds, Spearman's ρ with the fast way, and the largest differences."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    run = Run.open(parser.parse_args().run)
    torch.set_num_threads(1)
    weights: dict[str, FloatArray] = {}
    for way, changes in WAYS.items():
        subject = run_subject(run, "cpu")
        subject = replace(
            subject,
            protocol=subject.protocol.replace(changes),
            work=run.folder / "exact" / way.replace(", ", "-").replace(" ", "-"),
        )
        start = time.perf_counter()
        scores = Retraining().score_layers(subject)
        weights[way] = scores.weights
        agreement = correlation(weights["fast"], scores.weights)
        facts = {
            "way": way,
            "seconds": round(time.perf_counter() - start),
            "mcog": round(scores.mcog.estimate, 3),
            "rho_with_fast": round(agreement.rho, 3),
            "largest_difference": float(np.abs(weights["fast"] - scores.weights).max().round(4)),
            "mean_difference": float(np.abs(weights["fast"] - scores.weights).mean().round(4)),
            "weights": scores.weights.round(3).tolist(),
        }
        print(json.dumps(facts), flush=True)


if __name__ == "__main__":
    main()
