"""Commands as processes: two at once, and ended from outside."""

import shutil
import signal
import subprocess
import sys

import pytest

from command_support import COLUMNS, FAST
from memloc.training.checkpoints import epochs_kept
from memloc.training.recipe import Recipe, train_run
from same_results import assert_same_results
from tasks_support import fast_protocol, make_task

TWO = """
import contextlib, os, sys
from pathlib import Path
import memloc.study.step  # what takes long to load is loaded once for both
from memloc.cli import main

children = []
for number, words in enumerate(eval(sys.argv[1])):
    child = os.fork()
    if not child:
        said = os.open(f"said-{number}", os.O_WRONLY | os.O_CREAT)
        os.dup2(said, 1), os.dup2(said, 2)
        try:
            main(words)
        except SystemExit as end:
            os._exit(end.code or 0)
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(99)
    children.append(child)
print([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children])
"""


def at_once(folder, *commands):
    """The exit codes of commands that run at the same time, and what each said."""
    words = repr([[str(word) for word in command] for command in commands])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TWO, words],
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
    )
    said = [(folder / f"said-{i}").read_text(encoding="utf-8") for i in range(len(commands))]
    return eval(done.stdout), said


ENDED = """
import os, signal, sys, time
from pathlib import Path
import memloc.study.step
from memloc.cli import main

child = os.fork()
if not child:
    said = os.open("said", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1), os.dup2(said, 2)
    try:
        # A shell starts what runs in the background with Ctrl-C switched off.
        signal.signal(signal.SIGINT, signal.default_int_handler)
        main(eval(sys.argv[1]))
    except SystemExit as end:
        os._exit(end.code or 0)
until = time.monotonic() + 60
while not list(Path("runs").rglob("noisy.state")) and time.monotonic() < until:
    time.sleep(0.01)
os.kill(child, int(sys.argv[2]))
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda n: n.name)
def test_a_training_that_is_ended_says_what_is_kept_and_goes_on(model, mine, tmp_path, number):
    command = ["train", model, "--data", mine, *COLUMNS, *FAST, "--weights=final"]
    words = repr([str(word) for word in [*command, "--set=finetune.epochs=2000"]])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", ENDED, words, str(int(number))],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    said = (tmp_path / "said").read_text(encoding="utf-8")
    assert done.stdout == f"{128 + number}\n", said
    assert "· noisy  begins" in said
    assert "Traceback" not in said
    assert said.splitlines()[-1] == (
        "memloc: interrupted; what is finished is kept, and the same command continues from there."
    )
    (state,) = tmp_path.rglob("noisy.state")
    assert epochs_kept(state) > 0
    assert not list(tmp_path.rglob("running*"))


def test_of_two_trainings_in_one_folder_one_says_who_the_other_is(model, mine, tmp_path):
    command = ["train", model, "--data", mine, *COLUMNS, *FAST, "--set=finetune.epochs=40"]
    codes, said = at_once(tmp_path, command, command)
    assert sorted(codes) == [0, 1], said
    (refusal,) = (text for code, text in zip(codes, said, strict=True) if code)
    assert refusal.count("\n") == 1
    assert "is being trained by process " in refusal
    folder = tmp_path / "runs" / "mine" / model.name / "seed-1"
    assert not list(folder.rglob("running*"))


def test_methods_and_analyses_of_one_run_may_run_at_once(memorised, tmp_path):
    """Twice the same, and others beside them: pieces of work are whole and may be shared."""
    few = ["--set=generalisation.models=4", "--set=generalisation.epochs=2", "--device=cpu"]
    localise = [
        "localise",
        memorised,
        "retraining",
        "swapping",
        few[-1],
        "--set=retraining.epochs=2",
    ]
    analyse = ["analyse", memorised, "generalisation", "centroids", *few]
    codes, said = at_once(tmp_path, localise, localise, analyse, analyse)
    assert codes == [0, 0, 0, 0], said
    assert said[0].splitlines()[-1] == said[1].splitlines()[-1]
    alone = shutil.copytree(memorised, tmp_path / "alone")
    for folder in ("results", "work"):
        shutil.rmtree(alone / folder, ignore_errors=True)
    codes, said = at_once(
        tmp_path, *([command[0], alone, *command[2:]] for command in (localise, analyse))
    )
    assert codes == [0, 0], said
    assert_same_results(memorised, alone)
    assert not list(memorised.rglob("*.part"))


@pytest.fixture
def memorised(model, tmp_path):
    """The folder of a run that memorised."""
    recipe = Recipe(str(model), make_task(48), 1, fast_protocol(), device="cpu")
    run = train_run(recipe, tmp_path / "run", ["final", "reference"])
    assert run.verdict(0.95).memorised
    return run.folder
