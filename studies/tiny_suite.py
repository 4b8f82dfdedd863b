"""Results of the embedded suite: `python -m studies.tiny_suite [--out DIR] [--jobs N]`.

Trains every embedded model on every embedded task, with original and with noisy labels, swaps all
windows, and prints the table of docs/reference/tiny.md. Runs are kept in the folder, so that it
continues where it was.
"""

import argparse
import json
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from memloc.data.tasks import EMBEDDED_TASKS
from memloc.model.known import TINY
from studies.pages import DOCS, put

PAGE = DOCS / "reference" / "tiny.md"


def main() -> None:
    """Measure missing results, print the table, and write it into docs/reference/tiny.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/tiny-suite"))
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--models", nargs="*", default=TINY, help="Default: all four.")
    options = parser.parse_args()
    pairs = [(model, task, options.out) for task in EMBEDDED_TASKS for model in options.models]
    context = get_context("spawn")
    with ProcessPoolExecutor(options.jobs, mp_context=context) as pool:
        rows = []
        for row in pool.map(_measure, *zip(*pairs, strict=True)):
            print(json.dumps(row), flush=True)
            rows.append(row)
    table = as_table(rows)
    print(table)
    if len(options.models) < len(TINY):
        return
    put("measured", f"{table}\n", PAGE)


def _measure(model: str, task_name: str, out: Path) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    import memloc
    from memloc.data.encode import encode
    from memloc.model.predict import predict

    task = memloc.load_task(task_name)
    folder = out / task_name / model
    run = memloc.train(model, memloc.add_noise(task), folder, checkpoints=["final", "reference"])
    reference = run.load("reference")
    encoded = encode(task.test.parts, reference.tokenizer, reference.separator)
    right = predict(reference.stack, encoded).argmax(1) == task.test.labels
    curve = run.training()
    noisy = curve[curve["training"] == "noisy"]
    reached = noisy[noisy["accuracy"] > run.settings.finetune.near_ceiling]["epoch"]
    outcomes = memloc.localise(folder, ["swapping"], force=True)["swapping"].outcomes
    assert outcomes is not None
    errors = outcomes.errors
    single = max(e for e, w in zip(errors, outcomes.windows, strict=True) if len(w) == 1)
    return {
        "model": model,
        "task": task_name,
        "test_accuracy": float(right.mean()),
        "near_ceiling_epoch": int(reached.min()) if len(reached) else None,
        "training_accuracy": float(noisy["accuracy"].iloc[-1]),
        "noisy_accuracy": float(noisy["noisy_accuracy"].iloc[-1]),
        "seconds": float(noisy["seconds"].sum()),
        "largest_single_swap": float(single),
        "full_swap": float(errors[-1]),
        "clean_error": float(outcomes.clean_errors.mean()),
    }


def as_table(rows: list[dict[str, Any]]) -> str:
    """Return the rows as Markdown."""
    columns = (
        *("task", "model", "test", "epoch", "training", "noisy"),
        *("seconds", "one layer", "all layers", "clean error"),
    )
    lines = [f"| {' | '.join(columns)} |", "|" + "---|" * len(columns)]
    for r in rows:
        lines.append(
            f"| {r['task']} | {r['model']} | {r['test_accuracy']:.2f} | "
            f"{r['near_ceiling_epoch'] or 'never'} | {r['training_accuracy']:.3f} | "
            f"{r['noisy_accuracy']:.2f} | {r['seconds']:.0f} | {r['largest_single_swap']:.2f} | "
            f"{r['full_swap']:.2f} | {r['clean_error']:.3f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    main()
