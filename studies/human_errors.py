"""Are human errors memorised in other layers than flips? `python -m studies.human_errors`.

A model learns news texts with the labels of the crowd, and the same texts with flipped labels
where the crowd was wrong; a reference learns the true labels. All have the same head, order and
dropout. Shares of pairs of layers then say which of them hold the wrong labels. Takes --data and
--encoder as studies.find does; without an encoder, an embedded model learns. Writes
human_errors.csv, a figure and a table of the documentation; trained models are kept in --out, so
that it goes on where it was left.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from memloc.arrays import IntArray
from memloc.data.perturb import OWN, given_noise
from memloc.data.task import Examples, Task
from memloc.engine import learner as engine
from memloc.engine.fit import fit_all
from memloc.methods.protocol import Protocol, preset
from memloc.methods.result import Result
from memloc.methods.shares import Shares
from memloc.model.checkpoints import load_checkpoint, save_checkpoint
from memloc.model.load import load_model
from memloc.model.predict import encode_for, predict
from memloc.reporting.figures import save_spec
from memloc.reporting.tables import markdown
from memloc.run.begin import begin
from memloc.run.folder import Run
from memloc.run.records import Accuracies, RunRecord, RunStatus, TaskRecord
from memloc.run.spec import RunSpec
from memloc.store import paths
from studies.crowd import KINDS, Crowd, missing, parser_of, sample
from studies.find import PAGE
from studies.layer_shares import (
    NO_DIFFERENCE,
    by_example,
    cells,
    difference,
    figure,
    interval,
    keep,
)
from studies.pages import IMAGES, STORED, put

HERE = STORED / "human_errors.csv"
PICTURE = IMAGES / "human_errors.svg"
SEEDS = (1, 2)
HUMAN, FLIPS = KINDS[:2]
NO_EXAMPLES = Examples((), np.zeros(0, dtype=np.int64))


EMBEDDED = "tiny-gpt-neox"
TOKENS = 32
"""The most of each text."""


class How(NamedTuple):
    """The texts of a seed, and how they are learnt."""

    texts: int
    epochs: int
    rate: float
    batch: int


LEARNT = {True: How(80, 30, 1e-3, 16), False: How(80, 18, 2e-4, 8)}
"""By whether the model is embedded."""


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
        """Settings of the training."""
        return LEARNT[self.model == EMBEDDED]

    @property
    def folder(self) -> Path:
        """Where its weights are."""
        return self.home / self.name / f"seed-{self.seed}"

    def labels(self, kind: str) -> IntArray:
        """Labels to learn; the reference learns the true ones."""
        return self.crowd.original if kind == "reference" else self.crowd.labels(kind, self.seed)

    @property
    def protocol(self) -> Protocol:
        """The demo's with other constants."""
        how, group = self.how, "finetune"
        own = {f"{group}.epochs": how.epochs, f"{group}.learning_rate": how.rate}
        own |= {f"{group}.batch_size": how.batch, "text.max_tokens": TOKENS}
        return preset("demo").replace(own)

    def train(self, kinds: Sequence[str]) -> None:
        """Make the weights that learn these labels, if they are missing."""
        if all(self.weights(kind).is_dir() for kind in kinds):
            return
        start = partial(load_model, self.model, self.crowd.names, seed=self.seed)
        learners = [engine.Learner(kind, start, self.labels(kind), self.seed) for kind in kinds]
        texts = encode_for(start(), self.crowd.examples(self.crowd.original), TOKENS)
        for trained in fit_all(learners, texts, self.protocol.finetune):
            save_checkpoint(self.weights(trained.name), trained.model, {"labels": trained.name})

    def weights(self, kind: str) -> Path:
        """Return the weights of the model that learnt these labels."""
        return self.folder / f"weights-{kind}".replace(" ", "-").replace(",", "")

    def run(self, kind: str) -> Run:
        """Final and reference weights as a run."""
        folder = self.folder / kind.replace(" ", "-").replace(",", "")
        if not (folder / paths.RUN).is_file():
            self._begin(folder, kind)
        return Run.open(folder)

    def _begin(self, folder: Path, kind: str) -> None:
        texts = self.crowd.examples(self.crowd.original)
        noisy = given_noise(self.crowd.original, self.labels(kind), kind)
        parts = (texts, NO_EXAMPLES, NO_EXAMPLES)
        task = Task("noisyagnews", OWN, self.crowd.names, *parts, kind, noisy)
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
            spec=RunSpec.of(self.model, task, self.seed, self.protocol.for_run()),
            weights_hash=load_model(self.model, self.crowd.names, seed=self.seed).weights_hash,
            depth=model.stack.depth,
            width=model.stack.width,
            task=TaskRecord.of(task),
            command="python -m studies.human_errors",
        )
        status = RunStatus(
            final=Accuracies(**{k: float(v) for k, v in shares.items()}, training=known.mean()),
            reference=float((reference == self.crowd.original).mean()),
        )
        begin(folder, task, record, status)


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
        keep(HERE, asked(learner), ("model", "seed", "labels"))
    show()


def part(crowd: Crowd, n: int) -> Crowd:
    """The last `n` texts: each seed has its own."""
    return Crowd(crowd.names, crowd.texts[-n:], crowd.original[-n:], crowd.given[-n:])


def asked(learner: Learner) -> list[dict[str, Any]]:
    """Return the shares of both kinds of labels, and by how much the flips' centre is later."""
    found = {kind: _shares(learner.run(kind)) for kind in (HUMAN, FLIPS)}
    lost = {kind: by_example(scores) for kind, scores in found.items()}
    rows = []
    for kind, scores in found.items():
        run, later = learner.run(kind), NO_DIFFERENCE
        assert run.status.final is not None
        if kind == FLIPS:
            later = difference(lost[HUMAN], lost[FLIPS])
        rows.append(
            {
                "model": learner.name,
                "seed": learner.seed,
                "labels": kind,
                "texts": len(learner.crowd.texts),
                "noisy": len(run.noisy_rows),
                "known": round(run.status.final.noisy, 3),
                "reference_known": round(run.status.reference or np.nan, 3),
                "undone": round(float(lost[kind].sum(1).mean()), 3),
                **cells(scores, later),
            }
        )
    return rows


def _shares(run: Run) -> Result:
    method = Shares(clean_examples=20)
    place = paths.result(run.folder, method.name)
    if (place / paths.ABOUT).is_file():
        found = Result.read(place)
    else:
        found = method.run(run).with_answer(n_classes=len(run.task.label_names))
        found.write(place)
    return found


def show() -> None:
    """The figure, and the table of the page."""
    save_spec(figure(pd.read_csv(HERE), "labels"), PICTURE)
    for name, make in TABLES.items():
        put(name, make(), PAGE)


def tables() -> str:
    """Return one row per seed and kind of labels."""
    rows = []
    for row in pd.read_csv(HERE).to_dict("records"):
        said = {"model": row["model"], "seed": row["seed"], "labels": row["labels"]}
        said |= {"wrong labels": row["noisy"], "reference": f"{row['reference_known']:.2f}"}
        said |= {"learnt": f"{row['known']:.2f}", "undone": f"{row['undone']:.2f}"}
        said |= {"centre": interval(row, "centre")}
        rows.append({**said, "later by": interval(row, "later")})
    return markdown(pd.DataFrame(rows))


TABLES: dict[str, Callable[[], str]] = {"human errors": tables}
"""The tables of the page by the names of their marks."""


if __name__ == "__main__":
    main()
