"""A small synthetic study, written once."""

import pytest

from fixtures.studies import METHODS, Study
from memloc.reporting.results import load_results

TASKS = ("tiny-topic", "tiny-acceptability", "tiny-entailment", "tiny-topic-binary")


@pytest.fixture(scope="session")
def study(tmp_path_factory):
    return Study(tasks=TASKS, methods=(*METHODS, "shares")).write(
        tmp_path_factory.mktemp("studies") / "small"
    )


@pytest.fixture(scope="session")
def results(study):
    return load_results(study)


@pytest.fixture(scope="session")
def nothing(tmp_path_factory):
    """The results of an empty folder."""
    return load_results(tmp_path_factory.mktemp("empty"))
