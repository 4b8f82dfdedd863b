"""Commands as processes: several at once, and ended from outside."""

import os
import shutil
import signal
import time

import pytest

from fixtures.commands import COLUMNS, FAST, refused
from fixtures.forked import ended, forked
from fixtures.same_results import assert_same_results
from fixtures.tasks import fast_protocol, make_recipe, make_task, train_run
from memloc.cli import main
from memloc.engine.state import STATE
from memloc.store.lock import RUN, who_runs

PATIENCE = 300
"""Seconds after which something that has to happen has not."""


def begun(words, said):
    return forked(lambda: main([str(word) for word in words]), said)


def at_once(folder, *commands):
    """The exit codes of commands that run at the same time, and what each said."""
    said = [folder / f"said-{number}" for number in range(len(commands))]
    running = [begun(words, path) for words, path in zip(commands, said, strict=True)]
    return [ended(pid) for pid in running], [path.read_text(encoding="utf-8") for path in said]


def wait_for(happened):
    until = time.monotonic() + PATIENCE
    while not happened():
        assert time.monotonic() < until
        time.sleep(0.01)


@pytest.fixture
def train(model, mine, tmp_path, monkeypatch):
    """A training that takes minutes, in the folder of the test."""
    monkeypatch.chdir(tmp_path)
    return ["train", model, "--data", mine, *COLUMNS, *FAST, "--set=finetune.epochs=20000"]


@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda n: n.name
)
def test_a_training_that_is_ended_says_what_is_kept_and_goes_on(train, tmp_path, number):
    ignored = signal.signal(signal.SIGHUP, signal.SIG_DFL)  # as it is where tests run by `nohup`
    child = begun([*train, "--checkpoints=final"], tmp_path / "said")
    signal.signal(signal.SIGHUP, ignored)
    wait_for(lambda: list(tmp_path.rglob("noisy.state")))
    os.kill(child, number)
    code, said = ended(child), (tmp_path / "said").read_text(encoding="utf-8")
    assert code == 128 + number, said
    assert "· noisy  begins" in said
    assert "Traceback" not in said
    assert said.splitlines()[-1] == (
        "memloc: interrupted; what is finished is kept, and the same command continues from there."
    )
    (state,) = tmp_path.rglob("noisy.state")
    (note, _), _ = STATE.read(state)
    assert note["curves"]["noisy"]
    assert not list(tmp_path.rglob("running*"))


def test_of_two_trainings_in_one_folder_one_says_who_the_other_is(train, run, model, tmp_path):
    folder = tmp_path / "runs" / "mine" / model.name / "seed-1"
    child = begun(train, tmp_path / "said")
    try:
        wait_for(lambda: who_runs(folder, RUN))
        assert f"is being trained by process {child} on " in refused(run(*train))
    finally:
        os.kill(child, signal.SIGTERM)
        ended(child)
    assert not list(folder.rglob("running*"))


def test_methods_and_analyses_of_one_run_may_run_at_once(model, tmp_path):
    """Twice the same, and others beside them: pieces of work are whole and may be shared."""
    recipe = make_recipe(model, make_task(48), 1, fast_protocol())
    memorised = train_run(recipe, tmp_path / "run", ["final", "reference"]).folder
    alone = shutil.copytree(memorised, tmp_path / "alone")
    few = ["--set=generalisation.models=4", "--set=generalisation.epochs=2", "--device=cpu"]
    looks = [
        ["localise", "retraining", "swapping", few[-1], "--set=retraining.epochs=2"],
        ["analyse", "generalisation", "centroids", *few],
    ]
    one, other = ([look[0], memorised, *look[1:]] for look in looks)
    codes, said = at_once(tmp_path, one, one, other, other)
    assert codes == [0, 0, 0, 0], said
    assert said[0].splitlines()[-1] == said[1].splitlines()[-1]
    for look in looks:
        assert ended(begun([look[0], alone, *look[1:]], tmp_path / "said")) == 0
    assert_same_results(memorised, alone)
    assert not list(memorised.rglob("*.part"))
