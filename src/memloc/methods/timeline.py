"""Shows when and where labels were learnt: shares of the layers against successive epochs.

The shares of the layers against a donor sum to what exchanging all layers undoes. An early epoch as
donor undoes nearly all labels, and the last epochs undo nothing, so the difference between the
shares against two successive epochs is what each layer learnt between them. These differences are a
map of layers and epochs, and they sum to what the first donor undoes.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

from memloc.arrays import BoolArray, FloatArray, IntArray, Table
from memloc.errors import ScoreError
from memloc.methods import Method, Sizes, views
from memloc.methods.result import Result
from memloc.methods.shares import Shares
from memloc.run.folder import Run
from memloc.seeds import generator
from memloc.settings import ours, packaged
from memloc.stats.depth import centres_of_gravity
from memloc.stats.intervals import bootstrap, permutation_p
from memloc.stats.windows import layer_ranges
from memloc.store import paths
from memloc.store.memo import ARRAYS, Maker, memo, unfinished_key
from memloc.store.records import as_table

_REPORT = packaged(__file__)
ALPHA = 0.025
"""Level of each of the two tests that compare noisy and clean examples: .05 in all."""
TEXTS = {
    "noisy or clean labels": "memorised or ordinary texts",
    "Noisy labels": "Memorised texts",
    "noisy labels": "memorised texts",
    "clean ones": "ordinary ones",
}
"""Words for labels, and the words that replace them in a task of texts."""
USUAL_EPOCHS = 12
"""Number of kept epochs assumed in cost estimates."""


class _AgainstEpoch(Shares):
    """Shares of the layers against one epoch; unfinished work is kept with the timeline's."""

    name = "timeline"


class Timeline(Method):
    """Shows in which epochs and layers noisy and clean labels were learnt."""

    name = "timeline"
    version = 3
    kind = "analysis"
    needs = ("final",)
    by_default = False
    scratch = True
    shows = {"map": "timeline", "summary": "timeline_summary"}
    report = {**_REPORT, "rows": {"timeline": views.timeline}}

    epochs: tuple[int, ...] = ours(())
    """Kept epochs to compare the final weights with; all by default."""
    noisy_examples: int | None = ours(100, ge=1)
    """Number of noisy examples, drawn at random; `null`: all."""
    clean_examples: int | None = ours(None, ge=1)
    """Number of clean examples; by default as many as noisy ones."""

    @classmethod
    def told(cls, found: Result) -> str:
        """Return a sentence on whether noisy labels were learnt later than clean ones, and in which
        layers.
        """
        return str(found.about["sentence"])

    @classmethod
    def picture(cls, found: Result) -> str:
        """Draw what each layer learnt, one line per epoch."""
        return views.timeline_picture(found["map"])

    def check(self, run: Run) -> None:
        """Refuse a run without early checkpoints, and epochs that were not kept."""
        for epoch in self.epochs or run.epochs() or (1,):
            run.require(paths.epoch(epoch))

    def used(self, run: Run) -> list[str]:
        """Return the names of the final weights and of all donors."""
        return ["final", *self.donors(run).values()]

    def donors(self, run: Run) -> dict[int, str]:
        """Return the names of the donors' weights by their epochs; 0 is the pre-trained model."""
        start = {0: "pretrained"} if run.has("pretrained") and not self.epochs else {}
        return start | {n: paths.epoch(n) for n in sorted(self.epochs or run.epochs())}

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds: the cost of shares for each donor."""
        return (len(self.epochs) or USUAL_EPOCHS) * self._against("pretrained").cost(sizes)

    def run(self, run: Run) -> Result:
        """Return the tables `map` (layer by epoch), `learnt` (by example) and `summary`."""
        self.check(run)
        donors = self.donors(run)
        shares_by_donor = [self._shares(run, donor) for donor in donors.values()]
        known = shares_by_donor[0]["wrong"] == 0  # labels that the final model predicts
        noisy = run.noisy.is_noisy[shares_by_donor[0]["rows"]][known]
        if not noisy.any() or noisy.all():
            raise ScoreError(f"{run.name} needs noisy and clean labels that its model predicts.")
        shares = np.stack([by_donor["shares"][known] for by_donor in shares_by_donor])
        wrong = np.stack([by_donor["says_other"][known] for by_donor in shares_by_donor])
        epochs = np.array([*donors, _last_epoch(run, max(donors))])
        learnt = _learnt_table(shares_by_donor[0]["rows"][known], noisy, epochs, wrong, shares)
        summary, sentence = _compared(learnt, shares, noisy)
        tables = {"map": _map(run, epochs, shares, noisy), "learnt": learnt, "summary": summary}
        if run.task.is_texts:
            for labels, texts in TEXTS.items():
                sentence = sentence.replace(labels, texts)
        return Result(self.name, tables, {"sentence": sentence, "remarks": []})

    def _against(self, donor: str) -> Shares:
        counts = self.model_dump(include={"noisy_examples", "clean_examples"})
        return _AgainstEpoch(donor=donor, **counts)

    def _shares(self, run: Run, donor: str) -> dict[str, Any]:
        """Return shares (examples, layers) against a donor, and which labels it does not
        predict.
        """
        game = self._against(donor)
        rows = np.concatenate(game.examples(run))
        decided_by = {
            "run": run.identity(game.needs),
            "files": run.files(game.needs),
            "settings": game.model_dump(mode="json"),
            "rows": rows.tolist(),
            "shares": game.version,
        }

        def make() -> dict[str, Any]:
            from memloc.model.predict import predicted

            played = game.play(run)
            (shares, _), _ = played.design.shares(played.values)  # type: ignore[attr-defined]
            loaded = run.load(donor)
            predictions = predicted(loaded.stack, run.encode(loaded))[rows]
            says_other = predictions != run.noisy.assigned[rows]
            wrong = played.values[0][:, 0]
            return {"rows": rows, "shares": shares, "wrong": wrong, "says_other": says_other}

        key = unfinished_key(Maker(self.name, self.version), decided_by)
        path = paths.kept_donor(run.work(self.name), donor)
        arrays: dict[str, Any] = memo(path, key, make, ARRAYS)
        return arrays


def differences(shares: FloatArray) -> FloatArray:
    """Return what each layer learnt after each donor: its shares minus those of the next donor.

    `shares` are (donors, ...). Shares against the final weights are 0, so the differences sum to
    the first shares.
    """
    return np.asarray(shares - np.concatenate([shares[1:], np.zeros_like(shares[:1])]))


def learnt_after(wrong: BoolArray) -> IntArray:
    """Return, for each label, the number of checkpoints before it was learnt.

    `wrong` (checkpoints, examples) says which checkpoints do not predict the label. Training
    forgets and learns again, and a model that knows nothing is right by chance. So a label counts
    as learnt at the step that best separates wrong from right checkpoints: with the fewest right
    ones before the step and wrong ones after it, and the latest of equal steps. The number is 0 for
    labels that all checkpoints predict.
    """
    steps = np.where(wrong, -1, 1).cumsum(0)
    disagree = np.concatenate([np.zeros_like(steps[:1]), steps])
    return np.asarray(len(wrong) - disagree[::-1].argmin(0), dtype=np.int64)


def _last_epoch(run: Run, kept: int) -> int:
    """Return the number of the final epoch; if unknown, the one after the last kept epoch."""
    table = run.training()
    noisy = table[table["training"] == "noisy"]
    return max(int(noisy["epoch"].max()) if len(noisy) else 0, kept + 1)


def _map(run: Run, epochs: IntArray, shares: FloatArray, noisy: BoolArray) -> Table:
    """Return what each layer learnt in each epoch of noisy and clean labels, with intervals."""
    curve = _accuracies(run, int(epochs[-1]))
    steps = differences(shares).round(12)  # what cancels out leaves float noise
    n_steps, _, depth = steps.shape
    rng = generator(0, "bootstrap", Timeline.name)
    parts = []
    for examples, picked in (("noisy", noisy), ("clean", ~noisy)):
        band = bootstrap(steps[:, picked].transpose(1, 0, 2), rng=rng)
        ends = np.repeat(epochs[1:], depth)
        known = {kind: [values.get(int(e), np.nan) for e in ends] for kind, values in curve.items()}
        parts.append(
            {
                "examples": examples,
                "after": np.repeat(epochs[:-1], depth),
                "epoch": ends,
                "layer": np.tile(np.arange(1, depth + 1), n_steps),
                "share": np.ravel(band.estimate),
                "low": np.ravel(band.low),
                "high": np.ravel(band.high),
                **known,
            }
        )
    return as_table(*parts)


def _accuracies(run: Run, last: int) -> Mapping[str, Mapping[int, float]]:
    """Return accuracies on noisy and clean examples by epoch, as far as they were measured."""
    table = run.training()
    noisy = table[table["training"] == "noisy"]
    final = run.status.final
    accuracies: dict[str, dict[int, float]] = {}
    for kind in ("noisy", "clean"):
        column = f"{kind}_accuracy"
        accuracies[column] = dict(zip(noisy["epoch"].tolist(), noisy[column].tolist(), strict=True))
        if final is not None:
            accuracies[column][last] = getattr(final, kind)
    return accuracies


def _learnt_table(
    rows: IntArray, noisy: BoolArray, epochs: IntArray, wrong: BoolArray, shares: FloatArray
) -> Table:
    """Return, by example, the kept epoch at which its label was learnt, and the layers that learnt
    it.

    The epoch is based on what the checkpoints themselves predict: exchanging all layers would keep
    the final head, which was trained with other layers. `layer` holds most of what the last donor
    before that epoch undoes, and `centre` is the centre of gravity of all layers; both are missing
    where every checkpoint predicts the label or where no layer holds it.
    """
    after = learnt_after(wrong)
    held = np.maximum(0, shares[np.maximum(0, after - 1), np.arange(len(rows))])
    held[after == 0] = np.nan
    layer = np.where(held.sum(1) > 0, np.nan_to_num(held).argmax(1) + 1.0, np.nan)
    return as_table(
        {
            "example": rows,
            "is_noisy": noisy,
            "epoch": epochs[after],
            "layer": layer,
            "centre": centres_of_gravity(held),
        }
    )


def _compared(learnt: Table, shares: FloatArray, noisy: BoolArray) -> tuple[Table, str]:
    """Compare noisy with clean labels: when they were learnt, and in which layers."""
    rng = generator(0, "permutations", Timeline.name)
    is_noisy = learnt["is_noisy"].to_numpy()
    middles: dict[str, tuple[float, float]] = {}
    tests = {}
    for what in ("epoch", "centre"):
        values = learnt[what].to_numpy(float)
        one, other = (values[mask & ~np.isnan(values)] for mask in (is_noisy, ~is_noisy))
        middle = np.median if what == "epoch" else np.mean
        middles[what] = tuple(float(middle(v)) if len(v) else np.nan for v in (one, other))  # type: ignore[assignment]
        tests[what] = permutation_p(one, other, rng)
    rows = [
        {
            "examples": kind,
            "labels": int(mask.sum()),
            "undone": float(shares[0, mask].sum(1).mean()),
            "epoch": middles["epoch"][place],
            "centre": middles["centre"][place],
            "top_layers": layer_ranges(_top(shares[0, mask].mean(0))),
            "p_epoch": tests["epoch"],
            "p_centre": tests["centre"],
        }
        for place, (kind, mask) in enumerate((("noisy", noisy), ("clean", ~noisy)))
    ]
    return as_table(rows), _sentence(rows)


def _top(weights: FloatArray) -> list[int]:
    """Return the fewest layers, from 1, that hold half of the positive weights."""
    positive = np.maximum(0, weights)
    order = np.argsort(-positive, kind="stable")
    needed = int(np.searchsorted(positive[order].cumsum(), positive.sum() / 2)) + 1
    return sorted(int(layer) + 1 for layer in order[:needed])


def _sentence(records: list[dict[str, Any]]) -> str:
    noisy, clean = records
    word = "later" if noisy["epoch"] >= clean["epoch"] else "earlier"
    when = f"half of the noisy labels by epoch {noisy['epoch']:g}, of the clean ones by epoch "
    when += f"{clean['epoch']:g}"
    if noisy["p_epoch"] < ALPHA:
        first = f"Noisy labels were learnt {word} than clean ones: {when}."
    else:
        first = f"It cannot be told whether noisy or clean labels were learnt first: {when}."
    where = f"Half of the noisy labels are in {noisy['top_layers']}, half of the clean ones in "
    where += str(clean["top_layers"])
    if noisy["p_centre"] < ALPHA:
        deep = "deeper" if noisy["centre"] > clean["centre"] else "less deep"
        return f"{first} {where}; noisy labels are {deep}."
    return f"{first} {where}; no difference in depth can be told."
