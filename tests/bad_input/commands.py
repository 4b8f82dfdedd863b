"""Command lines put together from words that belong to some command, and words that belong to none.

Nothing here may take long when it is right by chance: every model, file and study that a word can
name is tiny, broken or not there.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from bad_input.calling import Answer, Wrong, call
from bad_input.damage import weighted
from bad_input.material import Material

COMMANDS: dict[str, tuple[str, ...]] = {
    "tasks": ("--category", "--json"),
    "models": ("--json",),
    "check": ("--depth", "--json", "--any-format", "--remote-code"),
    "protocol": ("--diff", "--json"),
    "train": (
        *("--seed", "--out", "--checkpoints", "--preset", "--set", "--examples", "--data-folder"),
        *("--data", "--text", "--pair", "--label", "--original", "--flag", "--flip", "--held-out"),
        *("--depth", "--device", "--remote-code", "--any-format", "--json"),
    ),
    "adopt": (
        *("--final", "--reference", "--pretrained", "--memorised", "--frozen", "--data", "--text"),
        *("--pair", "--label", "--original", "--flag", "--held-out", "--seed", "--train-missing"),
        *("--preset", "--set", "--device", "--json"),
    ),
    "localise": ("--set", "--force", "--device", "--json"),
    "analyse": ("--set", "--force", "--device", "--json"),
    "control": (
        *("--model", "--task", "--window", "--every", "--method", "--nulls", "--out", "--seed"),
        *("--preset", "--set", "--examples", "--data-folder", "--depth", "--device", "--json"),
    ),
    "find": (
        *("--data", "--text", "--pair", "--label", "--models", "--seed", "--out", "--preset"),
        *("--set", "--device", "--json"),
    ),
    "repair": ("--out", "--way", "--set", "--device", "--json"),
    "figures": ("--format", "--only", "--out", "--json"),
    "tables": ("--format", "--only", "--out", "--json"),
    "report": ("--out", "--json"),
    "push": ("--public", "--json"),
    "pull": ("--revision", "--json"),
    "init": (),
    "plan": ("--jobs", "--steps", "--json"),
    "run": ("--jobs", "--only", "--retry", "--on", "--address", "--json"),
    "status": ("--json",),
    "logs": (),
}
FLAGS = {
    *("--json", "--force", "--steps", "--retry", "--remote-code", "--any-format"),
    *("--train-missing", "--public"),
}
PLACES = (
    "MODEL",
    "RUN",
    "MINE.csv",
    "ADOPTED",
    "PLANNED",
    "EMPTY",
    "BROKEN",
    "FINAL",
    "nowhere",
    ".",
    "",
)
WORDS = (
    *("tiny-topics", "tiny-opd", "demo", "paper", "reference", "small", "swapping", "centroids"),
    *("mcog", "layers", "csv", "svg", "nlu", "topic", "final", "frozen", "review", "stars"),
    *(
        "before",
        "0",
        "1",
        "-1",
        "2",
        "99",
        "1e3",
        "1.5",
        "nan",
        "inf",
        "9" * 30,
        "3-6",
        "6-3",
        "0-0",
    ),
    *("auto", "cpu", "cuda", "tpu", "local", "ray", "none", "middle", "all", "finetune.epochs=1"),
    *("finetune.epochs=", "finetune.epochs", "noise.rate=2", "=", "a=b=c", "x=[", "x={a: *b}"),
    *(
        "finetune.epochs=2020-13-45",
        "probing.epochs=!!int x",
        "noise.seed=" + "9" * 5000,
        "preset=x",
    ),
    *(
        "--",
        "-",
        "-h",
        "--help",
        "--version",
        "-x",
        "--no-such",
        "a\nb",
        "a\x00b",
        "ü",
        "*",
        "~",
        "'",
    ),
    *("\U0001f600", "x" * 3000, "$HOME", "report", "..", "con", "a b", "%s", "{}", "{0}", "\\"),
)
LONG = {"train", "adopt", "control", "run", "localise", "analyse", "find", "repair"}
"""Commands whose work takes long; here they only ever get what they must refuse."""


@dataclass(frozen=True)
class CommandCase:
    """Words after `memloc`; some stand for places that the material has."""

    words: tuple[str, ...]

    def check(self, material: Material, place: Path) -> int:
        """The exit code; what is wrong is raised."""
        (place / "EMPTY").mkdir()
        (place / "BROKEN").write_text("models: [", encoding="utf-8")
        known = {
            "MODEL": material.model,
            "RUN": material.run,
            "ADOPTED": material.adopted,
            "MINE.csv": material.data,
            "PLANNED": material.planned,
            "FINAL": material.run / "checkpoints" / "final",
        }
        for word in known.keys() & set(self.words):
            copy = shutil.copy if known[word].is_file() else shutil.copytree
            copy(known[word], place / word)
        answer = call(place, *self.words)
        check_silence(answer, self.words)
        return answer.code


def check_silence(answer: Answer, words: tuple[str, ...]) -> None:
    """What was done is said, and what was not done is not said to be."""
    if answer.code == 0 and not answer.stdout.strip():
        raise Wrong("nothing was said")
    if answer.code == 1 and "--json" in words and answer.stdout.strip().startswith("{"):
        raise Wrong("a result was printed by a command that was refused")


@st.composite
def _words(draw: Any) -> tuple[str, ...]:
    command = draw(st.sampled_from([*COMMANDS, *COMMANDS, "trian", "", "--help", "x"]))
    own = COMMANDS.get(command, ())
    value = weighted(
        (5, st.sampled_from(PLACES)), (4, st.sampled_from(WORDS)), (1, st.text(max_size=8))
    )
    words = [command, *(draw(value) for _ in range(draw(st.integers(0, 2))))]
    every = sorted({option for options in COMMANDS.values() for option in options})
    options = weighted((9, st.sampled_from(own or tuple(every))), (1, st.sampled_from(every)))
    for _ in range(draw(st.integers(0, 4))):
        option = draw(options)
        words.append(option)
        if option not in FLAGS and draw(st.integers(0, 30)):
            words.append(draw(value))
    if command in LONG:
        words += draw(st.sampled_from(REFUSED[command]))
    return tuple(words)


TPU = ("--device", "tpu")
REFUSED: dict[str, list[tuple[str, ...]]] = {
    "train": [("--preset", "papr"), ("--set", "no.such=1"), ("--data", "nowhere.csv")],
    "adopt": [("--final", "EMPTY"), ("--preset", "papr"), TPU],
    "localise": [("--set", "finetune.epochs=3"), ("--set", "no.such=1"), TPU],
    "analyse": [("--set", "finetune.epochs=3"), ("--set", "centroids.windows=[6-3]"), TPU],
    "control": [("--preset", "dem"), ("--task", "tiny-topics"), ("--nulls", "some")],
    "find": [("--models", "0"), ("--set", "no.such=1"), TPU],
    "repair": [("--way", "magic"), ("--set", "no.such=1"), TPU],
    "run": [("--on", "moon"), ("--only", "no such step"), ("--jobs", "99999")],
}
command_cases = _words().map(CommandCase)
