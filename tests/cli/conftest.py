"""A command run in an empty folder, and something to run it on."""

import pytest
from typer.testing import CliRunner

from fixtures.commands import refused, rows_of, write_csv
from memloc.cli import app


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a command in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MEMLOC_DATA", raising=False)
    runner = CliRunner()
    return lambda *words: runner.invoke(app, [str(word) for word in words])


@pytest.fixture
def model(tiny_model):
    return tiny_model("opt", depth=2, dropout=0.1)


@pytest.fixture
def mine(tmp_path):
    return write_csv(tmp_path / "mine.csv", rows_of())


@pytest.fixture
def bad(run, model, mine, tmp_path):
    """Refused, and the folder looks as before."""

    def check(*words):
        before = sorted(tmp_path.rglob("*"))
        line = refused(run(*words))
        assert sorted(tmp_path.rglob("*")) == before
        return line

    return check
