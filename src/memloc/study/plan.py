"""A study as a graph of steps: what each one is decided by, needs and leaves behind; pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from memloc.errors import SettingsError
from memloc.identity import hashed
from memloc.study.config import StudyFile
from memloc.study.sizes import Shape

KINDS = ("train", "localise", "analyse", "plant", "report")
"""In the order in which a study needs them."""


@dataclass(frozen=True)
class Product:
    """One thing that a step makes: what decides it, and the files to remove when that changed."""

    settings: Mapping[str, Any]
    removes: tuple[str, ...]

    @property
    def identity(self) -> str:
        """A hash of what decides it."""
        return hashed(self.settings)


@dataclass(frozen=True)
class Step:
    """One piece of work, done by one process."""

    name: str
    kind: str
    what: Mapping[str, Any]
    """What the library function is called with: model, task, seed, method ..."""
    products: Mapping[str, Product]
    outputs: tuple[str, ...]
    """Files and folders, in the study's folder, that are there when it is done."""
    inputs: tuple[str, ...] = ()
    """Names of the steps whose results it reads."""
    reads: tuple[str, ...] = ()
    """The products of its inputs that decide it; none: all."""
    allowed: Mapping[str, Any] = field(default_factory=dict)
    """Settings that decide whether it may be done, and nothing of what comes out."""
    soft: bool = False
    """Whether it makes do with those of its inputs that are there."""
    shape: Shape | None = None
    """Of the model."""

    @property
    def settings(self) -> dict[str, Any]:
        """All that decides it, for people to compare."""
        made = self.products.values()
        return {name: value for product in made for name, value in product.settings.items()}

    def identity(self, inputs: Iterable[str]) -> str:
        """A hash of what decides it, and of the identities of its inputs."""
        own = {name: product.identity for name, product in self.products.items()}
        return hashed({"kind": self.kind, "products": own, "inputs": sorted(inputs)})


@dataclass(frozen=True)
class Plan:
    """The steps of a study by name, each after those that it needs."""

    file: StudyFile
    steps: Mapping[str, Step] = field(default_factory=dict)

    @cached_property
    def identities(self) -> dict[str, str]:
        """Of every step, given that all its inputs are there."""
        found: dict[str, str] = {}
        for step in self.steps.values():
            found[step.name] = step.identity(
                self._read(step, self.steps[name]) or found[name] for name in step.inputs
            )
        return found

    @staticmethod
    def _read(step: Step, need: Step) -> str:
        """A hash of what a step reads of one that it needs, where that is not all of it."""
        own = {name: need.products[name].identity for name in step.reads}
        return hashed({"kind": need.kind, "products": own}) if own else ""

    def chosen(self, only: Sequence[str]) -> set[str]:
        """The steps that the words name, and all that these need; no words: every step.

        The words of one text must all fit a step; several texts are alternatives.
        """
        if not only:
            return set(self.steps)
        found: set[str] = set()
        for text in only:
            fits = {name for name in self.steps if _fits(name, text.split())}
            if not fits:
                command = f"`memloc plan {self.file.folder}`"
                raise SettingsError(f"No step fits --only {text!r}: {command} lists the steps.")
            found |= fits
        return self._with_inputs(found)

    def _with_inputs(self, names: set[str]) -> set[str]:
        waiting, found = list(names), set(names)
        while waiting:
            step = self.steps[waiting.pop()]
            new = set() if step.soft else set(step.inputs) - found
            found |= new
            waiting += new
        return found


def _fits(name: str, words: Sequence[str]) -> bool:
    """Whether each word is one of those in a step's name, or a beginning of the name."""
    there = name.split("/")
    return all(w in there or name == w or name.startswith(f"{w.rstrip('/')}/") for w in words)
