"""The twelve tasks of the paper as a table of values, and a list of every task memloc knows."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

from memloc.data import tiny

PARQUET = "refs/convert/parquet"
"""The hub's own Parquet copy of data sets whose main branch is a loading script."""

Rows = Literal["all", "listed labels", "single topic"]
"""Which rows of the hub's data belong to a task; local folders hold the right rows already."""


@dataclass(frozen=True)
class HubSource:
    """Where the hub keeps a task, or a local folder with the same files.

    The hub cannot be reached in tests: repositories, branches and columns below are taken from
    documentation.
    """

    repository: str
    parts: tuple[str, ...]
    """Columns of the text's parts, in the order in which they are joined."""
    label: str = "label"
    config: str | None = None
    """Named configuration, on branches that describe their configurations."""
    subfolder: str | None = None
    """On the Parquet branch, which describes none, a configuration is a folder."""
    revision: str = "main"
    rows: Rows = "all"


@dataclass(frozen=True)
class TaskSpec:
    """One row of the paper's Table 1, and where its texts come from."""

    name: str
    category: str
    """One of nlu, sentiment, hate, topic."""
    description: str
    domain: str
    label_names: tuple[str, ...]
    train_size: str
    """Training examples as the paper prints them."""
    held_out: str | None
    """The split that is halved into validation and test; None: 20 % of the only split."""
    hub: HubSource

    @property
    def folder_columns(self) -> tuple[str, ...]:
        """Columns of the text's parts in a local folder."""
        return {1: ("text",), 2: ("text_a", "text_b"), 3: ("word", "text_a", "text_b")}[
            len(self.hub.parts)
        ]


@dataclass(frozen=True)
class TaskRow:
    """What a person wants to see of a task before choosing it."""

    name: str
    category: str
    description: str
    train_size: str
    n_classes: int
    label_names: tuple[str, ...]
    """Empty where only the data can tell which classes are the two most frequent."""
    source: str


def known_tasks() -> Mapping[str, TaskRow]:
    """Every name that `load_task` understands: embedded, the twelve, and their binary variants."""
    whole = [*map(_tiny_row, tiny.SUITE.values()), *map(_paper_row, PAPER_TASKS.values())]
    rows = [*whole, *(_binary_row(row) for row in whole if row.n_classes > 2)]
    return MappingProxyType({row.name: row for row in rows})


def binary_name(name: str) -> str:
    """The name of a task's variant with its two most frequent classes."""
    return f"{name}-binary"


def _tiny_row(task: tiny.TinyTask) -> TaskRow:
    return TaskRow(
        name=task.name,
        category=task.category,
        description=task.description,
        train_size=str(tiny.DEFAULT_SIZES["train"]),
        n_classes=len(task.label_names),
        label_names=tuple(task.label_names),
        source="embedded",
    )


def _paper_row(spec: TaskSpec) -> TaskRow:
    return TaskRow(
        name=spec.name,
        category=spec.category,
        description=f"{spec.description} ({spec.domain})",
        train_size=spec.train_size,
        n_classes=len(spec.label_names),
        label_names=spec.label_names,
        source=spec.hub.repository,
    )


def _binary_row(row: TaskRow) -> TaskRow:
    return replace(
        row,
        name=binary_name(row.name),
        description=f"the two most frequent classes of {row.name}",
        train_size=f"part of {row.train_size}",
        n_classes=2,
        label_names=(),
    )


_TASKS = [
    TaskSpec(
        name="wic",
        category="nlu",
        description="word sense disambiguation",
        domain="Word-/Verb-net, Wiktionary",
        label_names=("False", "True"),
        train_size="5.4k",
        held_out="validation",
        hub=HubSource(
            "aps/super_glue",
            ("word", "sentence1", "sentence2"),
            subfolder="wic",
            revision=PARQUET,
        ),
    ),
    TaskSpec(
        name="rte",
        category="nlu",
        description="textual entailment",
        domain="news, Wikipedia",
        label_names=("entailment", "not_entailment"),
        train_size="2.5k",
        held_out="validation",
        hub=HubSource("nyu-mll/glue", ("sentence1", "sentence2"), config="rte"),
    ),
    TaskSpec(
        name="mrpc",
        category="nlu",
        description="paraphrase classification",
        domain="news",
        label_names=("not_equivalent", "equivalent"),
        train_size="3.7k",
        held_out="validation",
        hub=HubSource("nyu-mll/glue", ("sentence1", "sentence2"), config="mrpc"),
    ),
    TaskSpec(
        name="cola",
        category="nlu",
        description="labelling grammaticality",
        domain="linguistic theory books",
        label_names=("unacceptable", "acceptable"),
        train_size="8.5k",
        held_out="validation",
        hub=HubSource("nyu-mll/glue", ("sentence",), config="cola"),
    ),
    TaskSpec(
        name="boolq",
        category="nlu",
        description="question answering given a context",
        domain="search queries, Wikipedia",
        label_names=("False", "True"),
        train_size="9.4k",
        held_out="validation",
        hub=HubSource(
            "aps/super_glue", ("question", "passage"), subfolder="boolq", revision=PARQUET
        ),
    ),
    TaskSpec(
        name="sst2",
        category="sentiment",
        description="sentiment classification",
        domain="movie reviews",
        label_names=("negative", "positive"),
        train_size="6.9k",
        held_out="validation",
        hub=HubSource("SetFit/sst2", ("text",)),
    ),
    TaskSpec(
        name="sst5",
        category="sentiment",
        description="sentiment classification",
        domain="movie reviews",
        label_names=("very negative", "negative", "neutral", "positive", "very positive"),
        train_size="8.5k",
        held_out="validation",
        hub=HubSource("SetFit/sst5", ("text",)),
    ),
    TaskSpec(
        name="emotion",
        category="sentiment",
        description="emotion classification",
        domain="tweets",
        label_names=("sadness", "joy", "love", "anger", "fear", "surprise"),
        train_size="16k",
        held_out="validation",
        hub=HubSource("dair-ai/emotion", ("text",), config="split"),
    ),
    TaskSpec(
        name="implicithate",
        category="hate",
        description="hate speech classification",
        domain="tweets",
        label_names=(
            "incitement",
            "inferiority",
            "irony",
            "other",
            "stereotypical",
            "threatening",
            "white_grievance",
        ),
        train_size="5.1k",
        held_out=None,
        hub=HubSource("SALT-NLP/ImplicitHate", ("post",), label="implicit_class"),
    ),
    TaskSpec(
        name="stormfront",
        category="hate",
        description="hate speech classification",
        domain="social media",
        label_names=("noHate", "hate"),
        train_size="8.6k",
        held_out=None,
        hub=HubSource(
            "odegiber/hate_speech18",
            ("text",),
            subfolder="default",
            revision=PARQUET,
            rows="listed labels",
        ),
    ),
    TaskSpec(
        name="reuters",
        category="topic",
        description="topic classification",
        domain="news",
        label_names=(
            "acq",
            "crude",
            "earn",
            "interest",
            "money-fx",
            "money-supply",
            "ship",
            "trade",
        ),
        train_size="5k",
        held_out="test",
        hub=HubSource(
            "ucirvine/reuters21578",
            ("text",),
            label="topics",
            subfolder="ModApte",
            revision=PARQUET,
            rows="single topic",
        ),
    ),
    TaskSpec(
        name="trec",
        category="topic",
        description="topic classification of questions",
        domain="news, misc.",
        label_names=("ABBR", "ENTY", "DESC", "HUM", "LOC", "NUM"),
        train_size="5.5k",
        held_out="test",
        hub=HubSource(
            "CogComp/trec",
            ("text",),
            label="coarse_label",
            subfolder="default",
            revision=PARQUET,
        ),
    ),
]

PAPER_TASKS: Mapping[str, TaskSpec] = MappingProxyType({spec.name: spec for spec in _TASKS})
"""The twelve tasks, in the order of the paper's Table 1."""
