"""Are human errors memorised in other layers than flips? `python -m benchmarks.human_errors`.

A model learns news texts with the labels of the crowd, and the same texts with flipped labels
where the crowd was wrong; a reference learns the true labels. All have the same head, order and
dropout. Shares of pairs of layers then say which of them hold the wrong labels. Takes --data and
--encoder as benchmarks.find does; without an encoder, an embedded model learns. Writes
human_errors.csv, a figure and a table of the documentation; trained models are kept in --out, so
that it goes on where it was left.
"""

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.crowd import KINDS, Crowd, missing, parser_of, sample
from benchmarks.find import PAGE
from benchmarks.findings import put
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


EMBEDDED = "tiny-gpt-neox"
TOKENS = 32
"""The most of each text."""


class How(NamedTuple):
    """The texts of a seed, and how they are learnt."""

    texts: int
    epochs: int
    rate: float


LEARNT = {True: How(80, 30, 1e-3), False: How(160, 24, 2e-4)}
"""By whether the model is embedded."""
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
    def how(self) -> How:
        """How it learns."""
        return LEARNT[self.model == EMBEDDED]

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
        own = {"finetune.epochs": self.how.epochs, "finetune.learning_rate": self.how.rate}
        return preset("demo").replace({**own, "text.max_tokens": TOKENS})

    def train(self, kinds: Sequence[str]) -> None:
        """Make the weights that learn these labels, as one, if they are missing."""
        if all(self.weights(kind).is_dir() for kind in kinds):
            return
        n, several = len(self.crowd.texts), len(kinds)
        models = [load_model(self.model, self.crowd.names, seed=self.seed) for _ in kinds]
        labels = np.concatenate([self.labels(kind) for kind in kinds])
        copies = Examples(tuple((text,) for text in self.crowd.texts * several), labels)
        rows, how = np.arange(n * several), (self.protocol.finetune, [self.seed] * several)
        fit(models, encode_for(models[0], copies, TOKENS), rows.reshape(several, n), labels, how)
        for model, kind in zip(models, kinds, strict=True):
            save_checkpoint(self.weights(kind), model, {"labels": kind})

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
    torch.set_num_threads(1)
    model = str(options.encoder or EMBEDDED)
    kinds = ("reference", HUMAN, FLIPS)
    stacks = [kinds] if model == EMBEDDED else [(kind,) for kind in kinds]
    n = LEARNT[model == EMBEDDED].texts
    for seed in options.seeds:
        learner = Learner(model, seed, part(sample(options.data, seed * n), n), options.out)
        for together in stacks:
            learner.train(together)
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
    for name, make in TABLES.items():
        put(name, make(), PAGE)


def tables() -> str:
    """One row per seed and kind of labels."""
    rows = []
    for row in pd.read_csv(HERE).to_dict("records"):
        cells = {"model": row["model"], "seed": row["seed"], "labels": row["labels"]}
        cells |= {"wrong labels": row["noisy"], "reference": f"{row['reference_known']:.2f}"}
        cells |= {"learnt": f"{row['known']:.2f}", "undone": f"{row['undone']:.2f}"}
        cells |= {"centre": _interval(row, "centre")}
        rows.append({**cells, "later by": _interval(row, "later")})
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
            seed = f"{row['model']}, seed {row['seed']}"
            rows.append({"seed": seed, "labels": row["labels"], **ends})
            rows[-1]["layer"] = layer
    x = {"field": "layer", "type": "quantitative", "axis": {"tickMinStep": 1}}
    share = {"type": "quantitative", "title": "share of the wrong labels"}
    color = {"field": "labels", "title": None}
    band = {"x": x, "y": {**share, "field": "low"}, "y2": {"field": "high"}, "color": color}
    line = {"x": x, "y": {**share, "field": "share"}, "color": color}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "data": {"values": rows},
        "facet": {"field": "seed", "title": None},
        "columns": 2,
        "spec": {
            "width": 300,
            "height": 180,
            "layer": [
                {"mark": {"type": "area", "opacity": 0.2}, "encoding": band},
                {"mark": "line", "encoding": line},
            ],
        },
    }


TABLES: dict[str, Callable[[], str]] = {"human errors": tables}
"""The tables of the page by the names of their marks."""


if __name__ == "__main__":
    main()
