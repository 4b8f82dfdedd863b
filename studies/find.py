"""How well wrong labels are found: `python -m studies.find --data DIR [--encoder MODEL]`.

With an encoder, on news texts whose labels the crowd got wrong, and on questions with flipped
labels; without one, an embedded model on an embedded task with flipped labels. Compares memloc's
models on halves with the loss and the training dynamics of one run, and with cleanlab's scores.
Writes find.json and the tables of the documentation. Models are kept in the folder `--out`, so that
an interrupted comparison continues.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from scipy.stats import rankdata

from memloc.arrays import BoolArray, FloatArray, IntArray
from memloc.engine.fit import fit_all
from memloc.engine.learner import Learner, Watch
from memloc.engine.passes import Trained
from memloc.labels.find import WRONG, suspects_table
from memloc.methods.halves import (
    Half,
    Pool,
    half_models,
    mean_chances,
)
from memloc.methods.protocol import preset
from memloc.model.load import load_model
from memloc.reporting.tables import markdown
from memloc.seeds import generator
from memloc.stats.intervals import bootstrap
from memloc.store.files import whole_file
from studies.crowd import (
    KINDS,
    Crowd,
    embedded,
    flipped_questions,
    missing,
    parser_of,
    sample,
)
from studies.pages import DOCS, STORED, put

HERE = STORED / "find.json"
PAGE = DOCS / "explanation" / "wrong_labels.md"
OURS, PLAIN = "doubt", "held-out probability"
"""The two orders of `memloc find`; other scores are compared with the first."""
RESAMPLES = 1000


@dataclass(frozen=True)
class Setting:
    """A model, the number of texts it learns, and how it is trained."""

    model: str
    texts: int
    tokens: int
    models: int
    epochs: int
    learning_rate: float

    @property
    def name(self) -> str:
        """For people."""
        return Path(self.model).name

    def pool(self, crowd: Crowd, labels: IntArray, folder: Path) -> Pool:
        """What models on halves are made of."""
        start = load_model(self.model, crowd.names, seed=1)
        own = {"learning_rate": self.learning_rate, "epochs": self.epochs}
        return Pool(
            name=folder.name,
            examples=crowd.examples(labels),
            label_names=crowd.names,
            load=lambda seed: load_model(self.model, crowd.names, seed=seed),
            weights_hash=start.weights_hash,
            training=preset("demo").finetune.replace(own),
            max_tokens=self.tokens,
            share=0.5,
            seed=1,
            folder=folder,
            device="cpu",
        )


EMBEDDED = Setting("tiny-opt", 400, 32, 12, 10, 4e-4)
TASK = "tiny-sentiment"
"""One whose words the embedded models know."""
ENCODER = Setting("", 400, 32, 8, 4, 1e-4)
QUESTIONS: dict[str, Any] = {"tokens": 24, "epochs": 5}
"""How the encoder learns questions, which are shorter."""
FLIPPED = 60
"""Questions of which the label is wrong."""


def main() -> None:
    """Measure missing results, and write the tables."""
    import torch

    options = parser_of(__doc__).parse_args()
    torch.set_num_threads(1)
    if options.encoder is None:
        keep(measured(EMBEDDED, embedded(TASK), f"flips in {TASK}", options.out))
    elif why := missing(options.data):
        print(why)
    else:
        news = replace(ENCODER, model=str(options.encoder))
        keep(measured(news, sample(options.data, news.texts), KINDS[0], options.out))
        questions = flipped_questions(options.data, news.texts, FLIPPED)
        keep(measured(replace(news, **QUESTIONS), questions, "flips in TREC", options.out))
    show()


def measured(setting: Setting, crowd: Crowd, kind: str, out: Path) -> dict[str, Any]:
    """Return all scores of one model and one kind of labels."""
    labels = crowd.labels(kind) if kind in KINDS else crowd.given
    folder = out / f"{setting.name} · {kind}".replace(" ", "-")
    pool = setting.pool(crowd, labels, folder)
    halves = half_models(pool, setting.models)
    epochs = watched(pool)
    is_wrong = labels != crowd.original
    held_out = out_of_sample(halves)
    found, judged = suspects_table(halves, pool.examples, crowd.names)
    found = found.sort_values("row")
    scores = {**ours(found), **of_one_run(epochs, labels), **cleanlab(held_out, labels)}
    sets = {"memloc, likely wrong": (found["group"] == WRONG).to_numpy()}
    sets["cleanlab, find_label_issues"] = issues(held_out, labels)
    return {
        "model": setting.name,
        "labels": kind,
        **{k: v for k, v in asdict(setting).items() if k != "model"},
        "texts": len(labels),
        "wrong": int(is_wrong.sum()),
        "random_errors": [round(number, 1) for number in judged.random],
        "ordered_by": OURS if judged.by_class else PLAIN,
        "held_out_accuracy": round(float((held_out.argmax(1) == crowd.original).mean()), 3),
        "scores": rates(scores, is_wrong),
        "sets": [{"set": name, **set_rates(chosen, is_wrong)} for name, chosen in sets.items()],
    }


def watched(pool: Pool) -> FloatArray:
    """Train one model on all texts; return its probabilities after each epoch, (epochs, texts,
    classes).

    Its updates are those of two models on halves.
    """
    from memloc.model.predict import encode_for

    path = pool.folder / "whole.npy"
    if not path.is_file():
        model = pool.load(pool.seed)
        texts = encode_for(model, pool.examples, pool.max_tokens)
        said: list[FloatArray] = []
        nobody = np.zeros(len(texts), dtype=bool)

        def look(trained: Trained) -> None:
            said.append(Half(nobody, trained.predict(texts)).chances)

        learner = Learner("whole", lambda: model, pool.examples.labels, pool.seed)
        fit_all([learner], texts, pool.training, Watch(after_epoch=look))
        with whole_file(path) as draft, draft.open("wb") as file:
            np.save(file, np.stack(said), allow_pickle=False)
    return np.asarray(np.load(path, allow_pickle=False), dtype=np.float64)


def out_of_sample(halves: Sequence[Half]) -> FloatArray:
    """Return mean probabilities by models that held a text out; equal ones if there is none."""
    means = mean_chances(halves, trained=False)
    return np.where(np.isnan(means), 1 / means.shape[1], means)


def ours(found: pd.DataFrame) -> dict[str, FloatArray]:
    """Return the scores of `memloc find` from models on halves; the higher, the more suspect."""
    columns = found.sort_values("row").fillna({"doubt": 0.0, "held_out": 0.5, "counterfactual": 0})
    return {
        OURS: columns["doubt"].to_numpy(),
        PLAIN: -columns["held_out"].to_numpy(),
        "counterfactual memorisation": columns["counterfactual"].to_numpy(),
    }


def of_one_run(epochs: FloatArray, labels: IntArray) -> dict[str, FloatArray]:
    """Return scores of a model that learns all texts: its final loss, and its course over
    epochs.
    """
    given = epochs[:, np.arange(len(labels)), labels]
    return {
        "one run, loss at the end": -np.log(np.maximum(given[-1], 1e-12)),
        "one run, confidence": -given.mean(0),
        "one run, variability": given.std(0),
    }


def cleanlab(chances: FloatArray, labels: IntArray) -> dict[str, FloatArray]:
    """Return cleanlab's label quality scores from the same held-out probabilities, reversed."""
    from cleanlab.rank import get_label_quality_scores as quality

    ways: dict[str, dict[str, Any]] = {
        "self-confidence": {"method": "self_confidence"},
        "normalised margin": {"method": "normalized_margin"},
        "weighted entropy": {"method": "confidence_weighted_entropy"},
        "margin, adjusted by class": {"method": "normalized_margin", "adjust_pred_probs": True},
    }
    return {f"cleanlab, {name}": -quality(labels, chances, **way) for name, way in ways.items()}


def issues(chances: FloatArray, labels: IntArray) -> BoolArray:
    """Return the labels that cleanlab's confident learning calls wrong."""
    from cleanlab.filter import find_label_issues

    return np.asarray(find_label_issues(labels, chances, n_jobs=1))


def rates(scores: Mapping[str, FloatArray], is_wrong: BoolArray) -> list[dict[str, Any]]:
    """Return AUROC with intervals over texts, its difference to memloc's, and precision at k."""
    table = np.stack([is_wrong, *scores.values()], axis=1)
    place = 1 + list(scores).index(OURS)
    both = bootstrap(
        table.astype(np.float64),
        rng=generator(0, "bootstrap", "find"),
        statistic=lambda rows: aurocs(rows, place),
        n_resamples=RESAMPLES,
    )
    areas, above = np.stack([both.estimate, both.low, both.high], axis=-1)
    n_wrong, rows = int(is_wrong.sum()), []
    for name, values, area, more in zip(scores, scores.values(), areas, above, strict=True):
        first = np.argsort(-values, kind="stable")
        rows.append(
            {
                "score": name,
                **_rounded("auroc", *area),
                **_rounded("above_ours", *more),
                "at_half": round(float(is_wrong[first[: n_wrong // 2]].mean()), 3),
                "at_all": round(float(is_wrong[first[:n_wrong]].mean()), 3),
            }
        )
    return rows


def aurocs(rows: FloatArray, ours_at: int) -> FloatArray:
    """Return (2, scores): areas of the scores, and their excess over memloc's; column 0 marks wrong
    labels.
    """
    wrong = rows[:, 0] > 0
    n, pairs = int(wrong.sum()), int(wrong.sum() * (~wrong).sum())
    ranks = rankdata(rows[:, 1:], axis=0)
    area = (ranks[wrong].sum(0) - n * (n + 1) / 2) / (pairs or np.nan)
    return np.stack([area, area - area[ours_at - 1]])


def set_rates(chosen: BoolArray, is_wrong: BoolArray) -> dict[str, Any]:
    """Return how many labels are called wrong, with precision and recall."""
    hits = int((chosen & is_wrong).sum())
    n = int(chosen.sum())
    return {
        "called": n,
        "precision": round(hits / n, 3) if n else None,
        "recall": round(hits / int(is_wrong.sum()), 3),
    }


def _rounded(name: str, value: float, low: float, high: float) -> dict[str, float]:
    return {name: round(value, 3), f"{name}_low": round(low, 3), f"{name}_high": round(high, 3)}


def keep(found: Mapping[str, Any]) -> None:
    """Store a result in find.json, in place of the one of the same model and labels."""
    same = (found["model"], found["labels"])
    rows = [row for row in kept() if (row["model"], row["labels"]) != same]
    HERE.write_text(json.dumps([*rows, found], indent=1) + "\n", encoding="utf-8")
    print(*same, flush=True)


def kept() -> list[dict[str, Any]]:
    """Return the stored results."""
    return list(json.loads(HERE.read_text(encoding="utf-8"))) if HERE.is_file() else []


def show() -> None:
    """Write the tables into the documentation."""
    for name, make in TABLES.items():
        put(name, make(), PAGE)


def samples() -> str:
    """Return which models learnt which samples."""
    titles = {
        "model": "model",
        "labels": "labels",
        "texts": "texts",
        "wrong": "wrong",
        "tokens": "tokens at most",
        "models": "models",
        "epochs": "epochs",
        "learning_rate": "rate",
        "held_out_accuracy": "truth said, held out",
    }
    rows = [{title: row[name] for name, title in titles.items()} for row in kept()]
    return markdown(pd.DataFrame(rows))


def areas() -> str:
    """Return one row per score for each model: area and precision for each kind of labels."""
    tables = []
    for model in dict.fromkeys(part["model"] for part in kept()):
        rows: dict[str, dict[str, str]] = {}
        for part in (part for part in kept() if part["model"] == model):
            for row in part["scores"]:
                cells = rows.setdefault(row["score"], {"score": row["score"]})
                cells[part["labels"]] = f"{_area(row)}, {row['at_all']:.2f}"
        cells_of = pd.DataFrame(list(rows.values())).fillna("–")
        tables.append(f"\n**{model}**\n\n{markdown(cells_of)}")
    return "".join(tables)


def _area(row: Mapping[str, Any]) -> str:
    """Return the area as text; bold if surely above memloc's, in brackets if surely below."""
    text = f"{row['auroc']:.3f}"
    if row["above_ours_low"] > 0:
        return f"**{text}**"
    return f"({text})" if row["above_ours_high"] < 0 else text


def sets_table() -> str:
    """Return the table of labels that are called wrong outright."""
    rows = [
        {
            "model": part["model"],
            "labels": part["labels"],
            "called wrong by": row["set"],
            **{"labels called": row["called"], "of these wrong": _or_dash(row["precision"])},
            "of the wrong ones": f"{row['recall']:.2f}",
        }
        for part in kept()
        for row in part["sets"]
    ]
    return markdown(pd.DataFrame(rows))


def _or_dash(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


TABLES: dict[str, Callable[[], str]] = {
    "samples": samples,
    "areas": areas,
    "sets": sets_table,
}
"""The tables of the documentation by the names of their marks."""


if __name__ == "__main__":
    main()
