"""Study files as people might write or damage them."""

import itertools
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hypothesis import strategies as st

from bad_input.calling import Wrong, call, limited
from bad_input.damage import some_bytes, weighted
from bad_input.machine import write_calibration
from bad_input.material import Material
from memloc.study.config import read_study
from memloc.study.plan import open_plan

MINE = "file: mine.csv, text: review, label: stars, original: before"
FLIPPED = "{mine: {file: mine.csv, text: review, label: stars, flip: 0.2}}"
OTHER_RATE = "[{seeds: [2], overrides: {finetune.learning_rate: 1.0e-3}}]"
FIELDS: dict[str, list[str]] = {
    "preset": ["paper", "reference", "demo"],
    "models": ["[tiny-opt]", "[tiny-bert, tiny-opt]", "[../model]", "[facebook/opt-125m]"],
    "tasks": ["[tiny-topic]", "[tiny-topic, rte]", "[tiny-sentiment]", "[mine]"],
    "seeds": ["[1]", "[1, 2, 3]", "[7]"],
    "methods": ["[]", "[swapping]", "[gradients, probing]"],
    "analyses": ["[]", "[centroids]", "[label_probes, generalisation]"],
    "data": [f"{{mine: {{{MINE}}}}}", f"{{mine: {{{MINE}, held_out: mine.csv}}}}", FLIPPED, "{}"],
    "runs": ["[]", "[adopted]", "[./adopted]"],
    "also": ["[]", "[{seeds: [2]}]", "[{models: [tiny-bert], methods: []}]", OTHER_RATE],
    "control": ["null", "{}", "{windows: [6-7], nulls: none}", "{every: [2], tasks: [tiny-topic]}"],
    "overrides": ["{}", "{finetune.epochs: 3}", "{noise.rate: 0.2}", "{finetune.clip: 1e-2}"],
    "report": ["true", "false", "yes", "off"],
    "examples": ["null", "8", "100"],
    "depth": ["null", "1", "12"],
    "force": ["true", "no"],
    "data_folder": ["null", "./here"],
    "device": ["auto", "cpu"],
    "gpus": ["1", "0.5", "2.0"],
}
ODD = (
    *("", "~", "true", "'3'", "3.7", "-1", "0", "1e400", ".nan", ".inf", "-.inf", "0x1F", "0b2"),
    *("017", "1:30", "1_000", "2020-01-01", "2020-13-45", "2020-01-01T99:99:99Z", "9" * 5000),
    *("!!int abc", "!!float x", "!!timestamp 1", "!!binary x", "!!set {a, b}", "!!omap [a: 1]"),
    *("!!python/object:os.system {}", "!!python/name:os.system", "!x y", "&a [*a]", "*nowhere"),
    *("&a {b: *a}", "[[tiny-opt]]", "[{a: b}]", "{a: {b: {c: d}}}", "? [1, 2]", "{[1]: 2}", "<<"),
    *("[tiny-opt, tiny-opt]", "[1, 1.0]", "[true]", "['1', 1]", "tiny-opt", "[tiny-opd]", "[3-1]"),
    *("[0-0]", "[99-100]", "[-2]", "[6-7, 6-8]", "[null]", "[[]]", "'\\u0000'", '"\\x00"', "@"),
    *("`", "|", ">-", "[", "{", "'", '"', "- a", "\t", "[a,,b]", "{finetune.epoch: 3}", "%"),
    *("{finetune.epochs: true}", "{finetune.epochs: 1e99}", "{finetune: {epochs: 3}}", "{1: 2}"),
    *("{preset: demo}", "{noise.rate: .nan}", "{control.ks: []}", "{null: 1}", "{a: &b 1}"),
    *("[" * 900, "{a: " * 900, "[../..]", "['']", "[' ']", "[/]", "[~]", "[a/b/c]", "['*']"),
    *("{mine: {}}", "{mine: mine.csv}", "{rte: {file: mine.csv, flip: 0.1}}", "{mine: {flip: 2}}"),
    *("{mine: {file: nowhere.csv, flip: 0.1}}", "{../mine: {file: mine.csv, flip: 0.1}}"),
    *("{mine: {file: mine.csv, flip: .nan}}", "{mine: {file: ., flip: 0.1}}", "[.]", "[nowhere]"),
    *("{mine: {file: mine.csv, label: review, flip: 0.1}}", "[{overrides: {verdict: 1}}]"),
    *("[{overrides: {control.seed: 3}}]", "[{overrides: {preset: demo}}]", "[../model/adopted]"),
    "[" + ", ".join(map(str, range(3000))) + "]",
)
BOMB = "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 10))
PARTS = (
    *("models: [tiny-opt]\nmodels: [tiny-bert]\n", "---\n", "...\n", "%YAML 9.9\n", "\tx: 1\n"),
    *("a0: &a0 [1]\n" + BOMB, "? a\n: b\n", "<<: {seeds: [2]}\n", "<<: 3\n", "- a\n", "\ufeff"),
    *("# ümläut\n", "x\n", "modles: [tiny-opt]\n", "seeds:\n  - 1\n  -2\n", "\x07\n", "\x85"),
    "1: 2\n",
)


@dataclass(frozen=True)
class StudyCase:
    """A study's file and what is asked of it."""

    text: str
    encoding: str
    damage: Any
    words: tuple[str, ...]

    def check(self, material: Material, place: Path) -> int:
        """The exit code; what is wrong is raised."""
        folder = place / "study"
        folder.mkdir()
        (place / "model").symlink_to(material.model)
        shutil.copy(material.data, folder / "mine.csv")
        if "adopted" in self.text:
            shutil.copytree(material.adopted, folder / "adopted")
        path = folder / "study.yaml"
        path.write_bytes(self.text.encode(self.encoding, "surrogatepass"))
        if self.damage is not None:
            self.damage.apply(path, [material.planned / "study.yaml"])
        write_calibration(folder)
        answer = call(place, self.words[0], folder, *self.words[1:])
        if answer.code == 0:
            check_true(folder, path)
        return answer.code


def check_true(folder: Path, path: Path) -> None:
    """What was read is what a plain YAML reader reads, and every run of it is planned."""
    with limited(20):
        plain = yaml.safe_load(path.read_text(encoding="utf-8"))
        study = read_study(folder).study.model_dump()
        for key, value in plain.items():
            if not same(value, study[key]):
                raise Wrong(f"{key} is {value!r} in the file and was read as {study[key]!r}")
        trained = {
            (s.spec.model, s.spec.task.name, s.spec.seed)
            for s in open_plan(folder).steps.values()
            if s.action == "train"
        }
    wanted = expected_runs(plain)
    if len(trained) != len(wanted):
        raise Wrong(f"{len(trained)} runs are planned and {len(wanted)} are asked for")


def expected_runs(plain: dict[str, Any]) -> set[tuple[Any, ...]]:
    """Every model, task and seed of the main part and of further ones.

    Where something else is asked for, runs in which nothing is looked for are not made.
    """
    main = {"models": [], "tasks": [], "seeds": [1], "methods": "all", "analyses": "all", **plain}
    keys = ("models", "tasks", "seeds")
    blocks = [main, *(main | {k: v for k, v in b.items() if v is not None} for b in _also(plain))]
    if plain.get("control") is not None or plain.get("runs"):
        blocks = [block for block in blocks if block["methods"] or block["analyses"]]
    # A seed that is written as a text is the number.
    return {(m, t, int(s)) for b in blocks for m, t, s in itertools.product(*(b[k] for k in keys))}


def _also(plain: dict[str, Any]) -> list[dict[str, Any]]:
    return plain.get("also") or []


def same(given: Any, read: Any) -> bool:
    """Whether settings say what the file says; what is not given may be filled in."""
    if isinstance(given, dict) and isinstance(read, dict):
        return all(key in read and same(value, read[key]) for key, value in given.items())
    if isinstance(given, list) and isinstance(read, tuple | list):
        return len(given) == len(read) and all(map(same, given, read))
    if isinstance(given, str) and isinstance(read, int | float) and not isinstance(read, bool):
        return float(given) == read  # YAML takes 1e-2 for a text
    if isinstance(given, bool) and not isinstance(read, bool):
        return False
    return bool(given == read)


ANY_VALUE = weighted(
    (8, st.sampled_from(ODD)),
    (1, st.sampled_from([value for values in FIELDS.values() for value in values])),
    (1, st.text(max_size=12)),
)


@st.composite
def _text(draw: Any) -> str:
    """Up to four settings besides models and tasks, of which one or two may be odd."""
    # Lengths are drawn first: lists of their own accord are empty too often.
    more = [draw(st.sampled_from(sorted(FIELDS))) for _ in range(draw(st.integers(0, 4)))]
    keys = draw(st.permutations(list(dict.fromkeys(["models", "tasks", *more]))))
    odd = [draw(st.sampled_from(keys)) for _ in range(draw(st.sampled_from([0, 1, 1, 1, 2])))]
    values = {key: draw(ANY_VALUE if key in odd else st.sampled_from(FIELDS[key])) for key in keys}
    lines = [f"{key}: {value}\n" for key, value in values.items()]
    if not draw(st.integers(0, 5)):
        lines.insert(draw(st.integers(0, len(lines))), draw(st.sampled_from(PARTS)))
    if not draw(st.integers(0, 9)):
        lines.pop(draw(st.integers(0, len(lines) - 1)))
    return "".join(lines)


def _encodable(case: StudyCase) -> bool:
    try:
        case.text.encode(case.encoding, "surrogatepass")
    except ValueError:
        return False
    return True


asked = st.sampled_from(
    [("status", "--json"), ("status",), ("plan", "--json"), ("plan",), ("logs", "train/x")]
)
study_cases = st.builds(
    StudyCase,
    weighted((15, _text()), (1, st.text(max_size=60))),
    st.sampled_from(["utf-8"] * 12 + ["utf-16", "utf-8-sig", "latin-1"]),
    weighted((8, st.none()), (1, some_bytes)),
    asked,
).filter(_encodable)
