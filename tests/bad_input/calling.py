"""Calls a command in this process, within a time limit, and checks what holds for any answer."""

import json
import os
import re
import signal
import traceback
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from typer.testing import CliRunner

from bad_input.machine import measured_at_once
from memloc.cli import app

SECONDS = 120
"""Longest that a case may take; the slowest good ones take less than one on an idle machine."""
LONGEST = 2000
"""Characters of a message that can still be called a sentence."""


class Wrong(AssertionError):
    """A traceback, a hang, or an answer that is not true."""


class TimeUp(BaseException):
    """Not an Exception: nothing that is called may take it for a failure of its own."""


@dataclass(frozen=True)
class Answer:
    """What a command said."""

    code: int
    stdout: str
    stderr: str


def call(folder: Path, *words: object) -> Answer:
    """The answer of `memloc WORDS` in a folder; what no answer may be is raised as Wrong."""
    texts = [str(word) for word in words]
    with inside(folder), limited(SECONDS), measured_at_once(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = CliRunner().invoke(app, texts)
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise Wrong(f"traceback: {told(result.exception)}")
    answer = Answer(result.exit_code, result.stdout, result.stderr)
    check_answer(answer, as_json="--json" in texts)
    return answer


def check_answer(answer: Answer, *, as_json: bool) -> None:
    """What holds for every answer."""
    if "Traceback" in answer.stdout + answer.stderr:
        raise Wrong("a traceback was printed")
    if answer.code not in {0, 1, 2}:
        raise Wrong(f"exit code {answer.code}")
    if answer.code == 1:
        check_refusal(answer)
    if answer.code == 2 and "Error" not in answer.stderr:
        raise Wrong(f"exit code 2 without a reason: {answer.stderr[:200]!r}")
    if answer.code == 0 and as_json and "Usage:" not in answer.stdout:
        check_json(answer.stdout)


def check_json(text: str) -> None:
    """What is printed for machines is JSON; --help is for people."""

    def no_number(name: str) -> None:
        raise Wrong(f"{name} was printed as JSON, which has no such number")

    try:
        json.loads(text, parse_constant=no_number)
    except ValueError as error:
        raise Wrong(f"no JSON was printed ({error}): {text[:200]!r}") from None


def check_refusal(answer: Answer) -> None:
    """One sentence, the last line on standard error; whatever stands before it is progress."""
    lines = answer.stderr.splitlines()
    said = [line for line in lines if line.startswith("memloc: ")]
    if len(said) != 1 or said[0] != lines[-1]:
        raise Wrong(f"exit code 1 without one last line: {answer.stderr[-500:]!r}")
    if len(said[0]) > LONGEST:
        raise Wrong(f"a message of {len(said[0])} characters: {said[0][:200]}")
    if not re.search(r"\w{2}.* .*\w{2}", said[0].removeprefix("memloc: ")):
        raise Wrong(f"a message without a sentence: {said[0]!r}")


def told(error: BaseException) -> str:
    """An exception as one line, with the last of our own places in it."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/memloc/" in f.filename] or frames
    where = f"{Path(ours[-1].filename).name}:{ours[-1].lineno}" if ours else "nowhere"
    return f"{type(error).__name__} at {where}: {' '.join(str(error).split())[:200]}"


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise Wrong where the block takes longer than this."""

    def stop(*_: object) -> None:
        raise TimeUp

    before = signal.signal(signal.SIGALRM, stop)
    # Again and again: an exception that is raised while memory is cleared up is lost.
    signal.setitimer(signal.ITIMER_REAL, seconds, 1)
    try:
        yield
    except TimeUp as up:
        raise Wrong(f"hang: no answer within {seconds} s, {told(up)}") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def inside(folder: Path) -> Iterator[None]:
    """Work in a folder, as far as relative paths are concerned."""
    before = Path.cwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)
