"""What is wrong with a command is said before torch is loaded, which takes many seconds."""

import json
import subprocess
import sys

import pytest

from command_support import rows_of, write_csv
from memloc.records import write_json
from study_support import identity

FIRST = ("--final=model", "--data=mine.csv")
COLUMNS = ("--text=review", "--label=stars", "--noisy=stars")
STUDY = "models: [tiny-opt]\ntasks: [tiny-topik]\nmethods: [swapping]\nseeds: [1]\n"
WRONG = [
    (("train", "tiny-opt", "tiny-topic", "--preset=demmo"), "Did you mean 'demo'?"),
    (("train", "tiny-opt", "tiny-topik"), "Did you mean 'tiny-topic'?"),
    (("train", "tiny-opd", "tiny-topic"), "Did you mean 'tiny-opt'?"),
    (("train", "./nowhere", "tiny-topic"), "There is no folder ./nowhere"),
    (("train", "facebok/opt-125m", "tiny-topic"), "Did you mean 'facebook/opt-125m'?"),
    (("train", "tiny-opt", "tiny-topic", "--depth=13"), "1 to 12 layers"),
    (("train", "tiny-opt", "tiny-topic", "--weights=fnal"), "Did you mean 'final'?"),
    (("train", "tiny-opt", "tiny-topic", "--device=gpu"), "No device is called 'gpu'"),
    (("train", "tiny-opt", "tiny-topic", "--set=finetune.epoch=3"), "'finetune.epochs'"),
    (("train", "tiny-opt", "tiny-topic", "--examples=9999"), "9,999 training examples"),
    (("train", "tiny-opt", "--data=my.csv"), "my.csv is not there"),
    (("train", "tiny-opt", "--data=mine.csv", "--text=reviews"), "Did you mean 'review'?"),
    (("train", "tiny-opt", "rte", "--data-folder=nowhere"), "nowhere/rte/meta.json is not there"),
    (("check", "tiny-opd"), "Did you mean 'tiny-opt'?"),
    (("localise", "runs"), "runs is not a run"),
    (("localise", "run", "swaping"), "Did you mean 'swapping'?"),
    (("localise", "weak", "swapping"), "not memorised"),
    (("localise", "run", "swapping", "--device=gpu"), "No device is called 'gpu'"),
    (("localise", "swaping", *FIRST), "Did you mean 'swapping'?"),
    (("localise", "--final=modle", "--data=mine.csv"), "There is no folder modle"),
    (("localise", *FIRST, "--reference=modle"), "There is no folder modle"),
    (("localise", *FIRST, "--pretrained=tiny-opd"), "Did you mean 'tiny-opt'?"),
    (("localise", *FIRST, "--text=reviews"), "Did you mean 'review'?"),
    (("localise", *FIRST, *COLUMNS, "--pair=second"), "no column 'second'"),
    (("analyse", "runs"), "runs is not a run"),
    (("analyse", "run", "centroid"), "Did you mean 'centroids'?"),
    (("analyse", "run", "--window=5-9"), "Window 5-9 is outside the model"),
    (("analyse", "run", "--window=x"), "no window of layers"),
    (("analyse", "run", "--set=probes.epoch=3"), "'probes.epochs'"),
    (("control", "--model=tiny-opd", "--task=tiny-topic"), "Did you mean 'tiny-opt'?"),
    (("control", "--model=tiny-opt", "--task=tiny-topik"), "Did you mean 'tiny-topic'?"),
    (("control", "--model=tiny-opt", "--task=rte", "--method=x"), "No method is called 'x'"),
    (("control", "--model=tiny-opt", "--task=rte", "--nulls=some"), "No value of --nulls"),
    (("control", "--model=tiny-opt", "--task=rte", "--window=7-6"), "Window 7-6 is empty"),
    (("control", "--model=tiny-opt", "--task=rte", "--preset=x"), "No preset is called 'x'"),
    (("plan", "study"), "there is no task 'tiny-topik'"),
    (("plan", "nowhere"), "nowhere"),
    (("run", "study"), "there is no task 'tiny-topik'"),
]
COMMANDS = """
import json, sys, time
from typer.testing import CliRunner
from memloc.cli import app

for command in json.loads(sys.argv[1]):
    result = CliRunner().invoke(app, command)
    said = [result.exit_code, result.stderr, "torch" in sys.modules, repr(result.exception)]
    print(json.dumps(said), flush=True)
    if "torch" in sys.modules:
        break
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory):
    """What is said to each command, by one process that runs them all until torch is loaded."""
    desk = tmp_path_factory.mktemp("desk")
    write_csv(desk / "mine.csv", rows_of())
    (desk / "model").mkdir()
    (desk / "model" / "config.json").write_text("{}", encoding="utf-8")
    (desk / "study").mkdir()
    (desk / "study" / "study.yaml").write_text(STUDY, encoding="utf-8")
    for name, memorised in (("run", True), ("weak", False)):
        verdict = {"memorised": memorised, "noisy_accuracy": 0.5, "needed": 0.95}
        facts = {"task": {"name": "x"}, "verdict": verdict}
        write_json(desk / name / "run.json", {**identity("tiny-opt", 1, 4), **facts})
    words = json.dumps([command for command, _ in WRONG])
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, words],
        capture_output=True,
        text=True,
        check=True,
        cwd=desk,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip((command for command, _ in WRONG), lines, strict=False))


@pytest.mark.parametrize(("command", "said"), WRONG, ids=lambda value: " ".join(value)[:60])
def test_what_is_wrong_is_said_before_torch_is_loaded(answers, command, said):
    code, stderr, loaded, exception = answers[command]
    assert not loaded
    assert code == 1, exception
    assert said in stderr
    assert stderr.count("\n") == 1


def test_a_process_that_refuses_never_loads_torch():
    script = "import sys\nsys.argv[1:] = ['train', 'tiny-opt', 'x']\nimport runpy\n"
    script += "try: runpy.run_module('memloc', run_name='__main__')\n"
    script += "except SystemExit as end: print(end.code, 'torch' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "1 False\n"
    assert done.stderr.startswith("memloc: No task is called 'x'.")


def test_the_package_is_a_program():
    done = subprocess.run(
        [sys.executable, "-m", "memloc", "tasks", "--json"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "tiny-topic" in {row["name"] for row in json.loads(done.stdout)}
