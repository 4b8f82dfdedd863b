"""Are human errors memorised in other layers than flips? `python -m benchmarks.human_errors`.

An encoder learns news texts with the labels of the crowd, and the same texts with flipped labels
where the crowd was wrong; a reference learns the true labels. All have the same head, order and
dropout. Exact shares then say which layers hold the wrong labels. Takes --data and --encoder as
benchmarks.find does. Writes human_errors.csv, a figure and a table of the documentation; trained
models are kept in --out, so that it goes on where it was left.
"""

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.crowd import KINDS, Crowd, missing, parser_of, sample
from benchmarks.findings import PAGE, put
from memloc import paths
from memloc.data.perturb import OWN, given_noise
from memloc.identity import hash_loaded
from memloc.methods.halves import fit
from memloc.methods.result import LayerScores
from memloc.methods.shares import Shares
from memloc.models.load import load_checkpoint, load_model
from memloc.protocol import Protocol, preset
from memloc.records import Examples, FloatArray, IntArray, Task
from memloc.reporting.figures import save_spec
from memloc.reporting.tables import markdown
from memloc.run import Accuracies, Run, RunRecord, TaskRecord, begin
from memloc.seeds import generator
from memloc.stats.depth import centres_of_gravity
from memloc.training.checkpoints import save_checkpoint
from memloc.training.predict import encode_for, predict

HERE = Path(__file__).with_suffix(".csv")
PICTURE = PAGE.parents[1] / "images" / "human_errors.svg"
SEEDS = (1, 2)
HUMAN, FLIPS = KINDS[:2]
RESAMPLES = 1000
NO_EXAMPLES = Examples((), np.zeros(0, dtype=np.int64))


TEXTS, TOKENS, EPOCHS, RATE = 160, 32, 24, 2e-4
"""The texts of a seed, the most tokens of each, and how they are learnt."""
GROUPS = 6
"""Pairs of neighbouring layers that are swapped together."""


@dataclass(frozen=True)
class Learner:
    """A model with a seed, which learns its own texts with several labels."""

    model: str
    seed: int
    crowd: Crowd
    home: Path

    @property
    def name(self) -> str:
        """For people."""
        return Path(self.model).name

    @property
    def folder(self) -> Path:
        """Where its weights are."""
        return self.home / self.name / f"seed-{self.seed}"

    def labels(self, kind: str) -> IntArray:
        """What is learnt; the reference learns the truth."""
        return self.crowd.original if kind == "reference" else self.crowd.labels(kind, self.seed)

    @property
    def protocol(self) -> Protocol:
        """The demo's with other constants."""
        own = {"finetune.epochs": EPOCHS, "finetune.learning_rate": RATE}
        return preset("demo").replace({**own, "text.max_tokens": TOKENS})

    def train(self, kind: str) -> None:
        """Make the weights that learn these labels, if they are missing."""
        if self.weights(kind).is_dir():
            return
        model, labels = load_model(self.model, self.crowd.names, seed=self.seed), self.labels(kind)
        texts = encode_for(model, self.crowd.examples(labels), TOKENS)
        how = self.protocol.finetune, [self.seed]
        fit([model], texts, np.arange(len(texts))[None], labels, how)
        known = predict(model.stack, texts).argmax(1) == labels
        save_checkpoint(self.weights(kind), model, {"accuracy": float(known.mean())})

    def weights(self, kind: str) -> Path:
        """Of the model that learnt these labels."""
        return self.folder / f"weights-{kind}".replace(" ", "-").replace(",", "")

    def run(self, kind: str) -> Run:
        """Final and reference weights as a run."""
        folder = self.folder / kind.replace(" ", "-").replace(",", "")
        if not (folder / paths.RUN).is_file():
            self._begin(folder, kind)
        return Run.open(folder)

    def _begin(self, folder: Path, kind: str) -> None:
        texts = self.crowd.examples(self.crowd.original)
        task = Task("noisyagnews", OWN, self.crowd.names, texts, NO_EXAMPLES, NO_EXAMPLES, kind)
        noisy = given_noise(self.crowd.original, self.labels(kind), kind)
        for weights, source in (("final", kind), ("reference", "reference")):
            link = paths.checkpoint(folder, weights)
            link.parent.mkdir(parents=True, exist_ok=True)
            link.unlink(missing_ok=True)
            link.symlink_to(self.weights(source).resolve(), target_is_directory=True)
        model = load_checkpoint(self.weights(kind))
        encoded = encode_for(model, texts, TOKENS)
        known = predict(model.stack, encoded).argmax(1) == noisy.assigned
        reference = predict(load_checkpoint(self.weights("reference")).stack, encoded).argmax(1)
        shares = {"noisy": known[noisy.is_noisy].mean(), "clean": known[~noisy.is_noisy].mean()}
        record = RunRecord(
            model=self.model,
            weights_hash=hash_loaded(load_model(self.model, self.crowd.names, seed=self.seed)),
            depth=model.stack.depth,
            width=model.stack.width,
            seed=self.seed,
            task=TaskRecord.of(task, noisy),
            settings=self.protocol.for_run(),
            command="python -m benchmarks.human_errors",
            final=Accuracies(**{k: float(v) for k, v in shares.items()}, training=known.mean()),
            reference=float((reference == self.crowd.original).mean()),
        )
        begin(folder, task, noisy, record)


def main() -> None:
    """Train what is missing, ask shares, write the table, the figure and the page."""
    import torch

    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options = parser.parse_args()
    if why := missing(options.data):
        print(why)
        return
    if options.encoder is None:
        parser.error("give the folder of a pre-trained encoder with --encoder")
    torch.set_num_threads(1)
    for seed in options.seeds:
        crowd = part(sample(options.data, seed * TEXTS), TEXTS)
        learner = Learner(str(options.encoder), seed, crowd, options.out)
        for kind in ("reference", HUMAN, FLIPS):
            learner.train(kind)
        keep(asked(learner))
    show()


def part(crowd: Crowd, n: int) -> Crowd:
    """The last `n` texts: each seed has its own."""
    return Crowd(crowd.names, crowd.texts[-n:], crowd.original[-n:], crowd.given[-n:])


def asked(learner: Learner) -> list[dict[str, Any]]:
    """What shares say of both kinds of labels, and by how much the flips' centre is later."""
    found = {kind: _shares(learner.run(kind)) for kind in (HUMAN, FLIPS)}
    lost = {kind: by_example(scores) for kind, scores in found.items()}
    rows = []
    for kind, scores in found.items():
        run, more = learner.run(kind), (np.nan, np.nan, np.nan)
        assert run.record.final is not None
        if kind == FLIPS:
            more = difference(lost[HUMAN], lost[FLIPS])
        rows.append(
            {
                "model": learner.name,
                "seed": learner.seed,
                "labels": kind,
                "texts": len(learner.crowd.texts),
                "noisy": len(run.noisy_rows),
                "known": round(run.record.final.noisy, 3),
                "reference_known": round(run.record.reference or np.nan, 3),
                "undone": round(float(lost[kind].sum(1).mean()), 3),
                "outcome": scores.verdict.outcome,
                "layers": " ".join(map(str, scores.verdict.layers)),
                **_ends("centre", scores.mcog.estimate, scores.mcog.low, scores.mcog.high),
                **_ends("later", *more),
                **{f"share_{i}": round(float(s), 4) for i, s in enumerate(scores.weights, 1)},
                **{f"low_{i}": round(float(s), 4) for i, s in enumerate(scores.low, 1)},
                **{f"high_{i}": round(float(s), 4) for i, s in enumerate(scores.high, 1)},
            }
        )
    return rows


def _shares(run: Run) -> LayerScores:
    method = Shares(clean_examples=20, groups=GROUPS)
    place = paths.result(run.folder, method.name)
    if (place / paths.ABOUT).is_file():
        found = LayerScores.read(place)
    else:
        found = method.run(run).with_verdict(n_classes=len(run.task.label_names))
        found.write(place)
    assert isinstance(found, LayerScores)
    return found


def by_example(scores: LayerScores) -> FloatArray:
    """(wrong labels, layers): what each layer holds of each; a group's is spread evenly."""
    evidence = scores._evidence()
    assert evidence is not None
    return evidence.shares


def difference(human: FloatArray, flips: FloatArray) -> tuple[float, float, float]:
    """By how much the flips' centre is later than the human errors', with a 95 % interval.

    Texts are resampled, each with both of its wrong labels.
    """
    rng, later = generator(0, "bootstrap", "human errors"), []
    for _ in range(RESAMPLES):
        rows = rng.integers(len(human), size=len(human))
        later.append(_centre(flips[rows]) - _centre(human[rows]))
    low, high = np.nanquantile(later, [0.025, 0.975])
    return float(_centre(flips) - _centre(human)), float(low), float(high)


def _centre(lost: FloatArray) -> FloatArray:
    return centres_of_gravity(np.maximum(0, lost.mean(0)))


def _ends(name: str, value: float, low: float, high: float) -> dict[str, float]:
    return {name: round(value, 3), f"{name}_low": round(low, 3), f"{name}_high": round(high, 3)}


def keep(rows: list[dict[str, Any]]) -> None:
    """Put them into the table, in place of the same model and seed."""
    table = pd.DataFrame(rows)
    if HERE.is_file():
        old = pd.read_csv(HERE)
        same = (old["model"] == rows[0]["model"]) & (old["seed"] == rows[0]["seed"])
        table = pd.concat([old[~same], table], ignore_index=True)
    table.to_csv(HERE, index=False)
    print(rows[0]["model"], rows[0]["seed"], [row["centre"] for row in rows], flush=True)


def show() -> None:
    """The figure, and the table of the page."""
    save_spec(figure(pd.read_csv(HERE)), PICTURE)
    put("human errors", tables())


def tables() -> str:
    """One row per seed and kind of labels."""
    rows = []
    for row in pd.read_csv(HERE).to_dict("records"):
        cells = {"seed": row["seed"], "labels": row["labels"], "wrong labels": row["noisy"]}
        cells |= {"learnt": f"{row['known']:.2f}", "undone": f"{row['undone']:.2f}"}
        cells |= {"verdict": row["outcome"], "centre": _interval(row, "centre")}
        rows.append({**cells, "later than human errors": _interval(row, "later")})
    return markdown(pd.DataFrame(rows))


def _interval(row: Mapping[Hashable, Any], name: str) -> str:
    if pd.isna(row[name]):
        return "–"
    return f"{row[name]:.2f} [{row[f'{name}_low']:.2f}, {row[f'{name}_high']:.2f}]"


def figure(table: pd.DataFrame) -> dict[str, Any]:
    """Shares of layers by kind of labels and seed, with intervals over texts."""
    rows = []
    for row in table.to_dict("records"):
        for layer in range(1, sum(str(name).startswith("share_") for name in row) + 1):
            ends = {end: row[f"{end}_{layer}"] for end in ("share", "low", "high")}
            rows.append({"seed": f"seed {row['seed']}", "labels": row["labels"], **ends})
            rows[-1]["layer"] = layer
    x = {"field": "layer", "type": "quantitative", "axis": {"tickMinStep": 1}}
    share = {"type": "quantitative", "title": "share of the wrong labels"}
    color = {"field": "labels", "title": None}
    band = {"x": x, "y": {**share, "field": "low"}, "y2": {"field": "high"}, "color": color}
    line = {"x": x, "y": {**share, "field": "share"}, "color": color}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": rows},
        "facet": {"column": {"field": "seed", "title": None}},
        "spec": {
            "width": 300,
            "height": 220,
            "layer": [
                {"mark": {"type": "area", "opacity": 0.2}, "encoding": band},
                {"mark": "line", "encoding": line},
            ],
        },
    }


if __name__ == "__main__":
    main()
