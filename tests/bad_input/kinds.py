"""The kinds of bad input, and how many cases of each are worth their time."""

from dataclasses import dataclass
from typing import Any

from hypothesis import strategies as st

from bad_input.commands import command_cases
from bad_input.stored import cases_of
from bad_input.studies import study_cases
from bad_input.tables import data_cases


@dataclass(frozen=True)
class Kind:
    """Cases that have a method `check(material, place)`."""

    cases: "st.SearchStrategy[Any]"
    quick: int
    """How many are tried by `make test`."""
    all: int
    """How many are tried by `python -m studies.bad_input`."""


KINDS = {
    "study files": Kind(study_cases, 50, 4000),
    "data files": Kind(data_cases, 30, 1200),
    "command lines": Kind(command_cases, 50, 3000),
    "result files": Kind(cases_of("results"), 20, 800),
    "run folders": Kind(cases_of("run"), 15, 600),
    "adopted runs": Kind(cases_of("adopted"), 10, 500),
    "half-done trainings": Kind(cases_of("training"), 6, 200),
    "checkpoints": Kind(cases_of("checkpoint"), 20, 600),
    "half-done studies": Kind(cases_of("study"), 25, 1000),
}
