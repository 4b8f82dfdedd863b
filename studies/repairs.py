"""How often a repair's verdict is right, and which repair works: `python -m studies.repairs`.

Embedded models memorise flipped labels of several tasks and are repaired in every way. Models of
which it is known whether the labels are in them are judged as if they were repairs: some learnt the
clean examples alone, or the original labels, so the noisy labels are not in them; from others, the
shams, nothing was removed. Every model that was judged is kept in --out, so that the script
continues where it stopped. Writes repairs.csv, relearning.csv, a figure and the tables of the
documentation; without --out, the figure and the tables from the two files.
"""

import argparse
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, get_args

import pandas as pd
import torch

from memloc.arrays import IntArray
from memloc.data.perturb import add_noise
from memloc.data.sources import load_task, subsample
from memloc.data.task import Task
from memloc.engine.fit import fit_all
from memloc.engine.learner import Learner, Part
from memloc.labels.repair import (
    Workshop,
    _smallest,
    relearnt_at,
)
from memloc.labels.repaired import (
    AGAIN,
    BEFORE,
    HEAD,
    LAYERS,
    OTHERS,
    RANDOM,
    REFERENCE,
    RETRAINED,
    YARDSTICK,
    Judgement,
    Repaired,
    RepairSettings,
    geometric_mean,
    relative,
)
from memloc.methods.apply import localise
from memloc.model.load import Classifier, LoadOptions
from memloc.model.parts import find_parts
from memloc.model.predict import to_batch
from memloc.protocol import FineTuneSettings
from memloc.reporting.figures import save_spec
from memloc.reporting.tables import markdown
from memloc.run.folder import Run
from memloc.run.train import train
from memloc.seeds import number
from memloc.stats.intervals import wilson
from memloc.store.records import read_json, write_json
from studies.pages import DOCS, IMAGES, STORED, put

HERE = STORED / "repairs.csv"
LEARNT_AGAIN = STORED / "relearning.csv"
"""Means over runs and orders, by model and update."""
PAGE = DOCS / "explanation" / "repairs.md"
PICTURE = IMAGES / "relearning.svg"
EXAMPLES, RATE = 60, 0.2
LEARNT = {"finetune.measure_every": 10, "finetune.learning_rate": 1e-3}
RUNS = (
    ("tiny-opt", "tiny-topic", 12, 4),
    ("tiny-bert", "tiny-sentiment", 12, 4),
    ("tiny-gpt-neox", "tiny-topic", 13, 4),
    ("tiny-gpt-neo", "tiny-politeness", 13, 4),
    ("tiny-opt", "tiny-sentiment", 14, 4),
    ("tiny-bert", "tiny-topic", 15, 4),
    ("tiny-gpt-neox", "tiny-sentiment", 16, 4),
    ("tiny-gpt-neo", "tiny-topic", 17, 4),
    ("tiny-opt", "tiny-acceptability", 18, 4),
    ("tiny-opt", "tiny-topic", 12, 12),
    ("tiny-opt", "tiny-topic", 13, 12),
)
"""Model, task, seed and layers, in an order in which the first ones are of every kind."""
SCRATCH = "retrained without the texts"
SLOWER = "retrained, half the rate"
SCALED, NOISE, ASCENT = "head divided by ten", "small noise", "gradient ascent"
LAST, RELABELLED = "last layer on original labels", "all layers on original labels"
WITHOUT = (SCRATCH, SLOWER, REFERENCE)
SHAMS = (SCALED, NOISE, ASCENT, LAST, RELABELLED)
FORGOTTEN = 0.1
"""Share of noisy labels that are still predicted when gradient ascent ends."""


WAYS = (BEFORE, REFERENCE, LAYERS, RETRAINED, RANDOM, OTHERS, HEAD, AGAIN)
DRAWN = [YARDSTICK, REFERENCE, LAYERS, RETRAINED, ASCENT, LAST]


class Case(NamedTuple):
    """Models that are judged: their names, and how they are made."""

    names: list[str]
    make: Callable[[], list[Classifier]]


class Bench:
    """A run and the models that are made from it."""

    def __init__(self, run: Run) -> None:
        layers = _smallest(localise(run, ["shares"])["shares"])
        self.run, self.workshop = run, Workshop(run, RepairSettings(), layers)
        self.usual = run.settings.finetune

    def cases(self) -> Iterator[Case]:
        """Yardsticks first, then every model to judge."""
        for kind, numbers in (
            (YARDSTICK, range(1, RepairSettings().yardsticks + 1)),
            (SCRATCH, range(101, 105)),
        ):
            names = [f"{kind} {number}" for number in numbers]
            yield Case(names, partial(self.without_labels, names))
        half = self.usual.replace({"learning_rate": self.usual.learning_rate / 2})
        yield Case([SLOWER], lambda: [self.retrained(half)])
        for name, make in self.shams.items():
            yield Case([name], partial(_alone, make))
        for way, (_, make) in self.workshop.ways.items():
            yield Case([way], partial(_alone, make))

    def without_labels(self, names: list[str]) -> list[Classifier]:
        """Models that learnt the clean examples alone."""
        ready = self.workshop.without_labels(names)
        return [trained.model for some in ready for trained in some]

    def retrained(self, how: FineTuneSettings) -> Classifier:
        """A model that learnt the clean examples alone in another way than the yardsticks."""
        seed = number(self.run.seed, "another recipe")
        model = self.run.load_pretrained(seed)
        part = Part(self.run.clean_rows)
        learner = Learner("other", lambda: model, self.run.noisy.assigned, seed, (part,))
        fit_all([learner], self.run.encode(model), how)
        return model

    @property
    def shams(self) -> dict[str, Callable[[], Classifier]]:
        """By name: models from which no label was removed."""
        few = self.usual.replace({"epochs": RepairSettings().epochs})
        return {
            SCALED: self.scaled,
            ASCENT: self.ascended,
            RELABELLED: lambda: self.relabelled(few, None),
            LAST: lambda: self.relabelled(self.usual, [self.run.depth - 1]),
            NOISE: self.noisy,
        }

    @torch.no_grad()
    def scaled(self) -> Classifier:
        """The final model, whose head says the same, less surely."""
        model = self.run.load("final")
        for name, values in model.model.named_parameters():
            if name in find_parts(model.stack).after:
                values.div_(10)
        return model

    @torch.no_grad()
    def noisy(self) -> Classifier:
        """The final model with a little noise in every matrix."""
        model, draw = self.run.load("final"), torch.Generator().manual_seed(self.run.seed)
        for values in model.model.parameters():
            if values.ndim > 1:
                values.add_(0.1 * values.std() * torch.randn(values.shape, generator=draw))
        return model

    def ascended(self) -> Classifier:
        """The final model after gradient ascent on the noisy labels, until it predicts few.

        The loss of the clean examples goes down at the same time, so that they are not forgotten.
        """
        run, model = self.run, self.run.load("final")
        texts, labels = run.encode(model), torch.from_numpy(run.noisy.assigned)
        blocks = find_parts(model.stack).blocks
        learns = [p for n, p in model.model.named_parameters() if any(n in b for b in blocks)]
        optimiser = torch.optim.AdamW(learns, lr=self.usual.learning_rate / 5)

        def loss_of(rows: IntArray) -> tuple[torch.Tensor, float]:
            logits = model.stack.logits(to_batch(texts, rows, model.stack.device))
            hits = logits.argmax(1) == labels[rows]
            loss = torch.nn.functional.cross_entropy(logits, labels[rows])
            return loss, float(hits.float().mean())

        for _ in range(60):
            up, predicted = loss_of(run.noisy_rows)
            if predicted <= FORGOTTEN:
                break
            down, _ = loss_of(run.clean_rows)
            optimiser.zero_grad()
            torch.autograd.backward(down - up)
            optimiser.step()
        return model

    def relabelled(self, how: FineTuneSettings, layers: list[int] | None) -> Classifier:
        """The final model after some or all layers learnt the original labels."""
        model, labels = self.run.load("final"), self.run.noisy.original
        part = Part(layers=None if layers is None else tuple(layers))
        learner = Learner("relabelled", lambda: model, labels, self.run.seed, (part,))
        fit_all([learner], self.run.encode(model), how.replace({"frozen_dropout": True}))
        return model


def _alone(make: Callable[[], Classifier]) -> list[Classifier]:
    return [make()]


def noisy_task(name: str) -> Task:
    """The same texts and flipped labels for all seeds."""
    return add_noise(subsample(load_task(name), EXAMPLES, 1), RATE, 1)


def judge_all(model: str, name: str, seed: int, depth: int, out: Path) -> None:
    """Train a run, and measure its yardsticks and the models to judge that are not kept yet."""
    folder = out / f"{model}-{name}-{seed}-{depth}"
    kept = folder / "judged"
    run = train(
        model,
        noisy_task(name),
        folder,
        seed=seed,
        settings=LEARNT,
        checkpoints=("final", "reference"),
        options=LoadOptions(depth=depth),
    )
    bench = Bench(run)
    for case in bench.cases():
        left = [each for each in case.names if not (kept / f"{each}.json").is_file()]
        for each, made in zip(case.names, case.make() if left else [], strict=False):
            if each in left:
                layers, _ = bench.workshop.ways.get(each, (None, None))
                row, curve = bench.workshop.measure(each, made, layers)
                facts = {"level": bench.workshop.level}
                write_json(
                    kept / f"{each}.json", {"row": row | facts, "curve": curve.to_dict("list")}
                )
                print(
                    model,
                    name,
                    seed,
                    depth,
                    each,
                    row["noisy_predicted"],
                    row["relearnt_updates"],
                    flush=True,
                )


def judged(folder: Path) -> pd.DataFrame:
    """The models of one run with their verdicts."""
    found = [read_json(path) for path in sorted((folder / "judged").glob("*.json"))]
    rows = []
    for each in found:
        updates = relearnt_at(pd.DataFrame(each["curve"]), each["row"]["level"])
        rows.append({**each["row"], "relearnt_updates": geometric_mean(updates)})
    curves = pd.concat([pd.DataFrame(each["curve"]) for each in found], ignore_index=True)
    level, table = float(rows[0]["level"]), relative(pd.DataFrame(rows))
    whole = Repaired(folder, table, curves, LAYERS, RepairSettings(), level)
    record = Run.open(folder).record
    return table.assign(
        model=Path(record.spec.model).name,
        task=record.task.name,
        seed=record.spec.seed,
        depth=record.depth,
        **dict(zip(("hidden_below", "removed_from"), whole.limits, strict=True)),
        may_predict=whole.may_predict,
        verdict=[whole.judge(way) for way in table["way"]],
    )


def courses(out: Path) -> pd.DataFrame:
    """Labels predicted by update: means over runs and orders, and where nine in ten of them are.

    A curve that ended keeps its last value.
    """
    curves = []
    for place in sorted(out.glob("*/judged/*.json")):
        way, course = family(place.stem), pd.DataFrame(read_json(place)["curve"])
        for _, part in course.groupby("order") if way in DRAWN else ():
            curves.append(part.set_index("update")["predicted"].rename(way))
    filled = pd.concat(curves, axis=1).sort_index().ffill()
    rows = []
    for way in dict.fromkeys(filled.columns):
        part = filled[[way]]
        ends = part.quantile(0.05, axis=1), part.quantile(0.95, axis=1)
        columns = {"mean": part.mean(axis=1), "low": ends[0], "high": ends[1]}
        rows.append(pd.DataFrame(columns).round(3).assign(way=way).reset_index())
    return pd.concat(rows, ignore_index=True)


def family(way: str) -> str:
    """The name of a model without its number: that of all models that were made alike."""
    name, _, last = way.rpartition(" ")
    return name if last.isdigit() else way


def show() -> None:
    """Write tables and figure from what was kept."""
    for name, make in TABLES.items():
        put(name, make(), PAGE)
    save_spec(figure(pd.read_csv(LEARNT_AGAIN)), PICTURE)


def kept() -> pd.DataFrame:
    """Every judged model; those that were made alike have one name."""
    found = pd.read_csv(HERE)
    return found.assign(way=found["way"].map(family))


def errors(found: pd.DataFrame) -> pd.DataFrame:
    """Return the verdicts on models for which it is known whether the labels are in them."""
    cases = [(way, [way], False) for way in WITHOUT] + [(way, [way], True) for way in SHAMS]
    cases += [("all without the labels", [*WITHOUT], False), ("all shams", [*SHAMS], True)]
    rows = []
    for case, ways, are_there in cases:
        verdicts = found.loc[found["way"].isin(ways), "verdict"]
        if not len(verdicts):
            continue
        wrong = verdicts.isin(["removed"] if are_there else ["hidden", "still there"])
        rate = wilson(float(wrong.mean()), len(wrong))
        counts = verdicts.value_counts()
        rows.append(
            {
                "model": case,
                "labels in it": "yes" if are_there else "no",
                "judged": len(verdicts),
                **{verdict: int(counts.get(verdict, 0)) for verdict in get_args(Judgement)},
                "wrong": f"{rate.estimate:.2f} [{rate.low:.2f}, {rate.high:.2f}]",
            }
        )
    return pd.DataFrame(rows)


def by_way(found: pd.DataFrame) -> pd.DataFrame:
    """Means over runs of each way to repair, and how its verdicts fall."""
    rows = []
    for way in WAYS:
        part = found[found["way"] == way]
        counts = part["verdict"].value_counts()
        several = part["relearning"]
        verdicts = [str(counts.get(verdict, 0)) for verdict in get_args(Judgement)]
        rows.append(
            {
                "way": way,
                "noisy predicted": f"{part['noisy_predicted'].mean():.2f}",
                "clean": f"{part['clean_accuracy'].mean():.3f}",
                "test": f"{part['test_accuracy'].mean():.3f}",
                "relearning": f"{several.mean():.2f} ({several.min():.2f}–{several.max():.2f})",
                "verdicts": ", ".join(verdicts),
            }
        )
    return pd.DataFrame(rows)


def runs_table(found: pd.DataFrame) -> pd.DataFrame:
    """The runs: how the yardsticks differ, and from where on a model is called hidden."""
    rows = []
    for (model, task, depth, seed), part in found.groupby(["model", "task", "depth", "seed"]):
        own = part[part["way"] == YARDSTICK]
        rows.append(
            {
                "model": model,
                "task": task,
                "layers": depth,
                "seed": seed,
                "yardsticks' updates": f"{geometric_mean(own['relearnt_updates'].to_numpy()):.1f}",
                "from": f"{own['relearning'].min():.2f}",
                "to": f"{own['relearning'].max():.2f}",
                "hidden below": f"{part['hidden_below'].iloc[0]:.2f}",
                "removed from": f"{part['removed_from'].iloc[0]:.2f}",
            }
        )
    return pd.DataFrame(rows)


def figure(curves: pd.DataFrame) -> dict[str, Any]:
    """Curves of learning the noisy labels again over the range of the yardsticks'."""
    band = curves[curves["way"] == YARDSTICK].to_dict("records")
    lines = curves[curves["way"].isin(DRAWN)].to_dict("records")
    share = {"type": "quantitative", "title": "noisy labels predicted", "axis": {"format": "%"}}
    update = {"field": "update", "type": "quantitative", "title": "updates on the noisy examples"}
    area = {"x": update, "y": {**share, "field": "low"}, "y2": {"field": "high"}}
    color = {"field": "way", "type": "nominal", "title": None, "sort": DRAWN}
    line = {"x": update, "y": {**share, "field": "mean"}, "color": color}
    return {
        "$schema": "https://vega.github.io/schema/vega-lite/v5.json",
        "width": 460,
        "height": 280,
        "layer": [
            {"data": {"values": band}, "mark": {"type": "area", "opacity": 0.2}, "encoding": area},
            {"data": {"values": lines}, "mark": "line", "encoding": line},
        ],
    }


TABLES: dict[str, Callable[[], str]] = {
    "errors": lambda: markdown(errors(kept())),
    "yardsticks": lambda: markdown(runs_table(kept())),
    "repairs": lambda: markdown(by_way(kept())),
}
"""The tables of the documentation by the names of their marks."""


def main() -> None:
    """Judge what is missing, and write the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--judged", action="store_true", help="Only what is judged already.")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.out:
        for model, name, seed, depth in () if options.judged else RUNS:
            judge_all(model, name, seed, depth, options.out)
        done = sorted(options.out.glob(f"*/judged/{AGAIN}.json"))  # the last of a run
        found = pd.concat([judged(path.parents[1]) for path in done], ignore_index=True)
        found.drop(columns=["seconds", "block_passes"]).round(4).to_csv(HERE, index=False)
        courses(options.out).to_csv(LEARNT_AGAIN, index=False)
    show()


if __name__ == "__main__":
    main()
