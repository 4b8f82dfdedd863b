"""Data files as people might have them, whole and damaged; what is read must be what is there."""

import csv
import gzip
import io
import json
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from bad_input.calling import Wrong, call
from bad_input.damage import some_bytes
from bad_input.material import Material
from fixtures.models import WORDS

SUFFIXES = (".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz", ".jsonl.gz")
LABELS: tuple[tuple[Any, ...], ...] = (
    *(("good", "bad"), (0, 1), ("0", "1"), (0, 1, 2), ("a", "b", "c"), (True, False)),
    *(("yes", "no"), ("true", "false"), ("1", "01"), ("NA", "null"), ("a", "A"), (-1, 1)),
)
KNOWN = (("good", "bad"), ("good", "bad"), (0, 1), ("0", "1"))
"""Those of the checkpoint, by name and by number."""
ODD_VALUES: list[Any] = [
    *(None, "", " ", "\n", "a\nb", '"', "a,b", "a;b", "x\ty", "\x00", "NA", "nan", "None", "'"),
    *("\u2028", "\ufeff", "e\u0301", "\U0001f600", "=1+1", "a" * 3000, 3, 2.5, float("nan"), True),
    *([], ["a"], {"a": 1}, 10**30, "\r", "a\r\nb", "#", "\\", '""', 'a"b'),
]
HEADERS = ("review", "stars", "before", "flag", "text", "label", "", " stars", "stars ", "Review")


@dataclass(frozen=True)
class Own:
    """Rows of text, assigned label and original label, and how they are written down."""

    suffix: str
    rows: tuple[tuple[Any, Any, Any], ...]
    header: tuple[str, str, str] = ("review", "stars", "before")
    separator: str = ""
    encoding: str = "utf-8"
    flags: tuple[Any, Any] | None = None
    """Instead of original labels: what stands for clean and for noisy."""
    damage: Any = None

    @property
    def plain(self) -> bool:
        """Whether the rows are what any reader should find in the file."""
        return self.damage is None and self.separator == "" and self.encoding == "utf-8"

    def write(self, folder: Path) -> Path:
        path = folder / f"mine{self.suffix}"
        last = [self._third(row) for row in self.rows]
        rows = [(*row[:2], third) for row, third in zip(self.rows, last, strict=True)]
        path.write_bytes(self._bytes(rows))
        if self.damage is not None:
            self.damage.apply(path, [])
        return path

    def triples(self, columns: dict[str, str]) -> list[tuple[str, str, str]]:
        """Text, assigned and original label of every row, as the columns are called in the file."""
        named = ("--text", "--label", "--original")
        names = [columns.get(n, columns["--label"]) for n in named]
        if any(self.header.count(name) > 1 for name in names) and ".json" not in self.suffix:
            raise Wrong(f"two columns of {self.header} have one name, and one of them was read")
        places = [len(self.header) - 1 - self.header[::-1].index(name) for name in names]
        return [tuple(str(row[i]) for i in places) for row in self.rows]  # type: ignore[misc]

    def _third(self, row: tuple[Any, Any, Any]) -> Any:
        return row[2] if self.flags is None else self.flags[str(row[1]) != str(row[2])]

    def _bytes(self, rows: list[tuple[Any, Any, Any]]) -> bytes:
        if self.suffix == ".parquet":
            return _parquet(self.header, rows)
        if self.suffix.startswith(".jsonl"):
            lines = [json.dumps(dict(zip(self.header, row, strict=True))) for row in rows]
            text = "".join(f"{line}\n" for line in lines)
        else:
            usual = "\t" if self.suffix.startswith(".tsv") else ","
            file = io.StringIO(newline="")
            csv.writer(file, delimiter=self.separator or usual).writerows([self.header, *rows])
            text = file.getvalue()
        raw = text.encode(self.encoding, "replace")
        return gzip.compress(raw) if self.suffix.endswith(".gz") else raw


def _parquet(header: tuple[str, ...], rows: list[tuple[Any, ...]]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = [list(values) for values in zip(*rows, strict=True)] or [[], [], []]
    try:
        arrays = [pa.array(values) for values in columns]
    except (pa.ArrowException, OverflowError):  # mixed types cannot be one column
        arrays = [pa.array([None if v is None else str(v) for v in values]) for values in columns]
    file = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(arrays, names=list(header)), file)
    return file.getvalue()


@dataclass(frozen=True)
class DataCase:
    """A file given to `memloc train` or `memloc adopt`."""

    own: Own
    command: str
    words: tuple[str, ...]

    def check(self, material: Material, place: Path) -> int:
        """The exit code; what is wrong is raised."""
        path = self.own.write(place)
        if self.command == "train":
            return self._train(material, path, place)
        return self._adopt(material, path, place)

    def _train(self, material: Material, path: Path, place: Path) -> int:
        quick = ("--set=finetune.epochs=1", "--checkpoints=frozen", "--device=cpu", "--json")
        answer = call(
            place, "train", material.model, "--data", path, *self.words, *quick, "--out", "out"
        )
        if answer.code == 0 and self.own.plain:
            columns = dict(zip(self.words[::2], self.words[1::2], strict=True))
            check_trained(self.own, columns, next(place.glob("out/*/*/seed-1")))
        return answer.code

    def _adopt(self, material: Material, path: Path, place: Path) -> int:
        final = material.run / "checkpoints" / "final"
        words = ("adopt", "out", "--final", final, "--data", path, *self.words)
        answer = call(place, *words, "--device=cpu", "--json")
        usual = self.words[: len(COLUMNS)] == COLUMNS and self.words[-1:] == ("before",)
        if answer.code == 0 and self.own.plain and usual and self.own.header == NAMES:
            check_adopted(self.own, place / "out")
        return answer.code


def check_trained(own: Own, columns: dict[str, str], run: Path) -> None:
    """The run's examples are those of the file, with the labels that they have there."""
    import pandas as pd

    table = pd.read_parquet(run / "labels.parquet")
    names = json.loads((run / "run.json").read_text("utf-8"))["task"]["label_names"]
    if "--flag" in columns:
        return check_flagged(own, table, names)
    rows = own.triples(columns)
    there = Counter((text, original) for text, _, original in rows)
    pairs = zip(table["parts"], table["original"], strict=True)
    read = Counter((parts[0], names[label]) for parts, label in pairs)
    if there != read:
        raise Wrong(f"read and in the file: {read - there} and {there - read}")
    train = table[table["split"] == "train"]
    labels = zip(train["parts"], train["assigned"], train["original"], strict=True)
    trained = Counter((parts[0], names[a], names[o]) for parts, a, o in labels)
    if "--original" in columns and trained - Counter(rows):
        raise Wrong("training examples have labels that they do not have in the file")
    return None


def check_flagged(own: Own, table: Any, names: list[str]) -> None:
    """Training examples have the labels and the flags that they have in the file."""
    train = table[table["split"] == "train"]
    labels = zip(train["parts"], train["assigned"], train["is_noisy"], strict=True)
    trained = Counter((parts[0], names[a], bool(wrong)) for parts, a, wrong in labels)
    there = Counter((str(t), str(a), str(a) != str(o)) for t, a, o in own.rows)
    if own.header == NAMES and trained - there:
        raise Wrong(f"examples are not flagged as in the file: {trained - there}")


def check_adopted(own: Own, run: Path) -> None:
    """The noisy examples are those whose two labels differ, whichever way the file says so."""
    import pandas as pd

    table = pd.read_parquet(run / "labels.parquet")
    read = table.loc[(table["split"] == "train") & table["is_noisy"], "row"].astype(int).to_list()
    there = [i for i, row in enumerate(own.rows) if str(row[1]) != str(row[2])]
    if read != there:
        raise Wrong(f"rows {there} are noisy in the file and {read} were taken for noisy")


texts = st.builds(" ".join, st.lists(st.sampled_from(WORDS), min_size=1, max_size=4))


FAULTS = ("few rows", "odd values", "header", "separator", "encoding", "damage", "words")


@st.composite
def _rows(draw: Any, labels: tuple[Any, ...], faults: list[str]) -> tuple[tuple[Any, ...], ...]:
    n = draw(st.sampled_from([0, 1, 3, 6, 9] if "few rows" in faults else [24, 30]))
    rows = []
    for i in range(n):
        original = labels[i % len(labels)]
        assigned = labels[(i + 1) % len(labels)] if i % 5 == 0 else original
        rows.append((f"{draw(texts)} {i}", assigned, original))
    for _ in range(draw(st.integers(1, 2)) if rows and "odd values" in faults else 0):
        at, column = draw(st.integers(0, n - 1)), draw(st.integers(0, 2))
        new = list(rows[at])
        new[column] = draw(st.sampled_from(ODD_VALUES))
        rows[at] = tuple(new)
    return tuple(rows)


@st.composite
def _own(draw: Any, faults: list[str], known: bool) -> Own:
    labels = draw(st.sampled_from(KNOWN if known else LABELS))
    marks = [None, None, None, (False, True), ("false", "true"), ("no", "yes"), (0, 1), ("0", "1")]

    def faulty(name: str, bad: Any, usual: Any) -> Any:
        return draw(bad) if name in faults else usual

    return Own(
        suffix=draw(st.sampled_from(SUFFIXES)),
        rows=draw(_rows(labels, faults)),
        header=faulty("header", st.tuples(*[st.sampled_from(HEADERS)] * 3), NAMES),
        separator=faulty("separator", st.sampled_from([";", "|", "\t", ","]), ""),
        encoding=faulty("encoding", st.sampled_from(["utf-16", "latin-1", "utf-8-sig"]), "utf-8"),
        flags=draw(st.sampled_from(marks)),
        damage=faulty("damage", some_bytes, None),
    )


NAMES = ("review", "stars", "before")
COLUMNS = ("--text", "review", "--label", "stars")
OTHER_WORDS = st.sampled_from(
    [
        COLUMNS,
        ("--text", "review", "--label", "review"),
        ("--text", "stars", "--label", "review"),
        (*COLUMNS, "--original", "stars"),
        (*COLUMNS, "--original", "before", "--pair", "review"),
        (*COLUMNS, "--original", "before", "--pair", "before"),
        (*COLUMNS, "--original", "nothing"),
        ("--text", "", "--label", "stars"),
        ("--text", "before", "--label", "stars", "--original", "before"),
        (*COLUMNS, "--flip", "0.2"),
        (*COLUMNS, "--flip", "0.001"),
        (*COLUMNS, "--flip", "nan"),
        (*COLUMNS, "--flag", "stars"),
        (*COLUMNS, "--original", "before", "--flag", "before"),
        (),
    ]
)


@st.composite
def _case(draw: Any) -> DataCase:
    faults = [draw(st.sampled_from(FAULTS)) for _ in range(draw(st.sampled_from([0, 1, 1, 2])))]
    command = draw(st.sampled_from(["train", "adopt"]))
    own = draw(_own(faults, known=command == "adopt"))
    last = "--original" if own.flags is None else "--flag"
    words = draw(OTHER_WORDS) if "words" in faults else (*COLUMNS, last, "before")
    return DataCase(own, command, words)


data_cases = _case()
