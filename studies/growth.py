"""How a study's time, memory and disk grow: `python -m studies.growth`.

One study with every method, analysis and a planted window, cut short, with one thing changed at a
time: steps at once, seeds, layers. The models are random ones, since time does not depend on what
they know. Needs a quiet machine.
"""

import shutil
import sys
import tempfile
import time
from pathlib import Path

from memloc.model.known import tiny_folder
from memloc.store import paths
from memloc.study.execute import estimate_study, open_study
from memloc.study.plan import open_plan
from memloc.study.records import Store

STUDY = """\
preset: demo
models: [../layers-{depth}]
tasks: [tiny-topic, tiny-sentiment]
seeds: {seeds}
examples: 80
force: true
control: {{tasks: [tiny-topic], windows: [1-2], nulls: none}}
overrides:
  finetune.epochs: 6
  finetune.near_ceiling: 0.01
  verdict.noisy_at_least: 0.001
  retraining.epochs: 1
  generalisation.models: 4
  control.epochs: 6
  control.accuracy_above: 0.01
  probing.epochs: 40
  label_probes.epochs: 40
"""
HEAD = ("at once", "seeds", "layers", "steps", "time", "sum of steps", "memory of a step", "disk")
USUAL = {"jobs": 2, "seeds": 1, "depth": 12}
CHANGES: tuple[dict[str, int], ...] = ({}, {"jobs": 1}, {"seeds": 2}, {"depth": 6}, {"depth": 24})


def main() -> None:
    """Run every variant and print the table."""
    with tempfile.TemporaryDirectory() as place:
        rows = [measure(Path(place), **{**USUAL, **change}) for change in CHANGES]
    usual = rows[0]
    lines = [f"| {' | '.join(HEAD)} |", "|---" * len(HEAD) + "|"]
    for row in rows:
        cells = [f"{row[name]:.0f}" for name in ("jobs", "seeds", "depth", "steps")]
        for name, unit in (("wall", "s"), ("seconds", "s"), ("memory", "MB"), ("disk", "MB")):
            cells.append(f"{row[name]:.0f} {unit} ({row[name] / usual[name]:.2f})")
        lines.append(f"| {' | '.join(cells)} |")
    sys.stdout.write("\n".join([*lines, ""]))


def measure(place: Path, jobs: int, seeds: int, depth: int) -> dict[str, float]:
    """One variant from nothing; measuring the machine for the estimate does not count."""
    make_model(place / f"layers-{depth}", depth)
    folder = place / f"{jobs}-{seeds}-{depth}"
    folder.mkdir()
    text = STUDY.format(depth=depth, seeds=list(range(1, seeds + 1)))
    (folder / paths.STUDY).write_text(text, encoding="utf-8")
    estimate_study(open_plan(folder), jobs)
    began = time.perf_counter()
    progress = open_study(folder, jobs=jobs).run()
    wall = time.perf_counter() - began
    if progress.count("failed"):
        raise SystemExit(f"{progress.states}")
    names = open_plan(folder).steps
    records = [record for name in names if (record := Store(folder).record(name))]
    return {
        "jobs": jobs,
        "seeds": seeds,
        "depth": depth,
        "steps": len(names),
        "wall": wall,
        "seconds": sum(record.seconds for record in records),
        "memory": max(record.peak_mb for record in records),
        "disk": sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) / 1e6,
    }


def make_model(folder: Path, depth: int, width: int = 64) -> None:
    """A random model like tiny-opt with so many layers of this width."""
    if folder.is_dir():
        return
    from transformers import AutoConfig, AutoModel

    start = tiny_folder("tiny-opt")
    config = AutoConfig.from_pretrained(start)
    config.num_hidden_layers = depth
    config.hidden_size = config.word_embed_proj_dim = width
    config.ffn_dim = 4 * width
    AutoModel.from_config(config).save_pretrained(folder)
    for path in start.glob("tokenizer*"):
        shutil.copy(path, folder)


if __name__ == "__main__":
    main()
