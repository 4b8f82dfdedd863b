"""The number of models that `memloc find` needs: `python -m studies.find_models --data DIR
--encoder MODEL`.

Sixty trainings of an encoder on each of several samples take days, so linear classifiers on the
mean vectors of an encoder's last layer stand for them. Each learns a random half of 400 texts, and
`memloc find`'s rules judge what the first 8, 30 and 60 of them say. Texts are news with the errors
of the crowd, and questions and news with flipped labels. Writes find_models.csv, a table of the
documentation, and what `memloc find` tells its users about precision and recall.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from memloc.arrays import FloatArray
from memloc.labels import find as package
from memloc.labels.doubts import adjusted_margin, judge, label_issues
from memloc.reporting.tables import markdown
from memloc.seeds import generator
from studies.crowd import KINDS, Crowd, flipped_questions, missing, parser_of, sample
from studies.find import aurocs, set_rates
from studies.pages import DOCS, STORED, put

HERE = STORED / "find_models.csv"
PAGE = DOCS / "explanation" / "wrong_labels.md"
SAYS = Path(package.__file__).with_suffix(".yaml")
MODELS = (8, 30, 60)
TEXTS, SAMPLES, TOKENS = 400, 4, 32
QUESTIONS, FLIPS, PEOPLE = "flips in TREC", "flips in news", "human errors"
SEED = 7
"""Of the questions: others than those of `studies.find`."""
CLASSIFIER: dict[str, Any] = {"C": 0.3, "max_iter": 60}


def main() -> None:
    """Measure all samples, and write the table, the page and the package's sentences."""
    options = parser_of(__doc__).parse_args()
    why = missing(options.data) or ("" if options.encoder else "Give the --encoder.")
    if why:
        print(why)
        return
    rows = []
    for kind, crowd, vectors in _samples(options.data, options.encoder):
        rows += measured(kind, crowd, vectors)
        print(kind, flush=True)
    pd.DataFrame(rows).to_csv(HERE, index=False)
    show()


def _samples(data: Path, encoder: Path) -> Iterator[tuple[str, Crowd, FloatArray]]:
    """Return the samples of each kind of labels, with the vectors of their texts."""
    n = TEXTS * SAMPLES
    questions, news = flipped_questions(data, n, round(0.15 * n), SEED), sample(data, n)
    of_news, of_questions = (_vectors(encoder, crowd.texts) for crowd in (news, questions))
    flipped = Crowd(news.names, news.texts, news.original, news.labels(KINDS[2]))
    kinds = {PEOPLE: (news, of_news), FLIPS: (flipped, of_news)}
    for kind, (crowd, vectors) in {QUESTIONS: (questions, of_questions), **kinds}.items():
        for first in range(0, n, TEXTS):
            part = slice(first, first + TEXTS)
            labels = (crowd.original[part], crowd.given[part])
            yield kind, Crowd(crowd.names, crowd.texts[part], *labels), vectors[part]


def _vectors(encoder: Path, texts: tuple[str, ...]) -> FloatArray:
    """Return (texts, width): standardised means over the tokens of the last layer."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(encoder)
    model = AutoModel.from_pretrained(encoder).eval()
    found = []
    how = {"padding": True, "truncation": True, "max_length": TOKENS, "return_tensors": "pt"}
    for first in range(0, len(texts), 32):
        batch = tokenizer(list(texts[first : first + 32]), **how)
        with torch.no_grad():
            hidden = model(**batch).last_hidden_state
        mask = batch["attention_mask"][..., None]
        found.append(((hidden * mask).sum(1) / mask.sum(1)).numpy())
    vectors = np.concatenate(found).astype(np.float64)
    return np.asarray((vectors - vectors.mean(0)) / vectors.std(0))


def measured(kind: str, crowd: Crowd, vectors: FloatArray) -> list[dict[str, Any]]:
    """Return one row per number of models: both orders, both sets, and the number of random
    errors.
    """
    total, count = np.zeros((len(crowd.texts), len(crowd.names))), np.zeros(len(crowd.texts))
    rows = []
    for number in range(1, max(MODELS) + 1):
        held, chances = _classifier(crowd, vectors, number)
        total[held] += chances
        count[held] += 1
        if number in MODELS:
            seen = count > 0
            means = total[seen] / count[seen, None]
            rows.append({"labels": kind, "models": number, **_rates(means, crowd, seen)})
    return rows


def _classifier(crowd: Crowd, vectors: FloatArray, number: int) -> tuple[Any, FloatArray]:
    """Return the texts that a classifier did not see, and its predictions for them."""
    from sklearn.linear_model import LogisticRegression

    n = len(crowd.texts)
    order = generator(number, "find models").permutation(n)
    half, held = order[: n // 2], order[n // 2 :]
    learnt = LogisticRegression(**CLASSIFIER).fit(vectors[half], crowd.given[half])
    chances = np.zeros((len(held), len(crowd.names)))
    chances[:, learnt.classes_] = learnt.predict_proba(vectors[held])
    return held, chances


def _rates(chances: FloatArray, crowd: Crowd, seen: Any) -> dict[str, Any]:
    labels = crowd.given[seen]
    is_wrong = labels != crowd.original[seen]
    judged = judge(chances, labels)
    given = chances[np.arange(len(labels)), labels]
    table = np.stack([is_wrong, adjusted_margin(chances, labels), -given], axis=1)
    by_class, by_chance = aurocs(table.astype(np.float64), 1)[0]
    ours, theirs = (
        set_rates(found, is_wrong) for found in (judged.wrong, label_issues(chances, labels))
    )
    estimate, low, high = judged.random
    return {
        "wrong": int(is_wrong.sum()),
        "random_errors": estimate,
        "covered": bool(low <= is_wrong.sum() <= high),
        "by_class": judged.by_class,
        "area_by_class": by_class,
        "area_by_chance": by_chance,
        "area": by_class if judged.by_class else by_chance,
        "first_20": is_wrong[judged.order[:20]].mean(),
        **{f"ours_{name}": value for name, value in ours.items()},
        **{f"cleanlab_{name}": value for name, value in theirs.items()},
    }


def show() -> None:
    """Write the table of the page, and the package's own statement of precision and recall."""
    put("models", table(), PAGE)
    before = SAYS.read_text(encoding="utf-8").split(MARK)[0]
    SAYS.write_text(f"{before}{said()}", encoding="utf-8")


MARK = "\nmeasured:"


def said() -> str:
    """Return precision and recall by number of models, as YAML."""
    means = {(row["models"], row["labels"]): row for row in _means()}
    lines = [f"{MARK}  # by number of models; written by studies/find_models.py"]
    for models in MODELS:
        parts = []
        for name, kind in (("flips", QUESTIONS), ("people", PEOPLE)):
            row = means[models, kind]
            rates = f"precision: {row['ours_precision']:.2f}, recall: {row['ours_recall']:.2f}"
            parts.append(f"{name}: {{{rates}}}")
        lines.append(f"  {models}: {{{', '.join(parts)}}}")
    return "\n".join(lines) + "\n"


def table() -> str:
    """Return means over samples, one row per kind of labels and number of models."""
    rows = [
        {
            "labels": row["labels"],
            "models": row["models"],
            "wrong": f"{row['wrong']:.0f}",
            "estimate": f"{row['random_errors']:.0f}",
            "held": f"{row['covered']:.0%}",
            "by doubt": f"{row['area_by_class']:.3f}",
            "by probability": f"{row['area_by_chance']:.3f}",
            "chosen": f"{row['area']:.3f}",
            "first 20": f"{row['first_20']:.2f}",
            "likely wrong": _pair(row, "ours"),
            "cleanlab": _pair(row, "cleanlab"),
        }
        for row in _means()
    ]
    return markdown(pd.DataFrame(rows))


def _means() -> list[dict[str, Any]]:
    """Return means over samples, by kind of labels and number of models."""
    found = pd.read_csv(HERE).groupby(["labels", "models"], sort=False).mean(numeric_only=True)
    return [{str(k): v for k, v in row.items()} for row in found.reset_index().to_dict("records")]


def _pair(row: Any, name: str) -> str:
    return f"{row[f'{name}_precision']:.2f}, {row[f'{name}_recall']:.2f}"


TABLES: dict[str, Callable[[], str]] = {"models": table}
"""The tables of the page by the names of their marks."""


if __name__ == "__main__":
    main()
