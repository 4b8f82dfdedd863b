"""What is wrong with a command is said before torch is loaded, which takes many seconds."""

import json
import subprocess
import sys

import pytest

from fixtures.commands import rows_of, write_csv
from fixtures.studies import Study
from memloc.run.records import Accuracies

ADOPT = ("adopt", "new", "--final=model", "--data=mine.csv", "--text=review", "--label=stars")
CONTROL = ("control", "--model=tiny-opt", "--task=tiny-topic")
STUDY = "models: [tiny-opt]\ntasks: [tiny-topik]\nmethods: [swapping]\nseeds: [1]\n"
WRONG = [
    (("train", "tiny-opt", "tiny-topic", "--preset=demmo"), "Did you mean 'demo'?"),
    (("train", "tiny-opt", "tiny-topik"), "Did you mean 'tiny-topic'?"),
    (("train", "tiny-opd", "tiny-topic"), "Did you mean 'tiny-opt'?"),
    (("train", "./nowhere", "tiny-topic"), "There is no folder ./nowhere"),
    (("train", "facebok/opt-125m", "tiny-topic"), "Did you mean 'facebook/opt-125m'?"),
    (("train", "tiny-opt", "tiny-topic", "--depth=13"), "1 to 12 layers"),
    (("train", "tiny-opt", "tiny-topic", "--checkpoints=fnal"), "Did you mean 'final'?"),
    (("train", "tiny-opt", "tiny-topic", "--device=gpu"), "No device is called 'gpu'"),
    (("train", "tiny-opt", "tiny-topic", "--set=finetune.epoch=3"), "'finetune.epochs'"),
    (("train", "tiny-opt", "tiny-topic", "--set=epochs=3"), "'finetune.epochs'"),
    (("train", "tiny-opt", "tiny-topic", "--set=no.such=3"), "lists all settings"),
    (("train", "tiny-opt", "tiny-topic", "--out=/proc/nothing"), "Cannot write /proc/nothing"),
    (("train", "tiny-opt", "tiny-topic", "--examples=9999"), "9,999 training examples"),
    (("train", "tiny-opt", "--data=my.csv", "--flip=0.1"), "my.csv is not there"),
    (
        ("train", "tiny-opt", "--data=mine.csv", "--text=reviews", "--flag=x"),
        "Did you mean 'review'?",
    ),
    (("train", "tiny-opt", "rte", "--data-folder=nowhere"), "nowhere/rte/meta.json is not there"),
    (("check", "tiny-opd"), "Did you mean 'tiny-opt'?"),
    (("check", "converted"), "llama.cpp's format GGUF"),
    (("init", "mystudy"), "memloc init demo mystudy"),
    (("init", "dmo"), "Did you mean 'demo'?"),
    (("localise", "runs"), "runs is not a run"),
    (("localise", "."), "holds 5 runs: give one of them, such as bare, begun and damaged"),
    (("localise", "run", "swaping"), "Did you mean 'swapping'?"),
    (("localise", "weak", "swapping"), "marked `not memorised`"),
    (("localise", "run", "swapping", "--device=gpu"), "No device is called 'gpu'"),
    (("localise", "run", "centroids"), "centroids is not a localiser: use `memloc analyse`"),
    (("localise", "run", "--set=gradients.norms=L2"), "Did you mean 'gradients.norm'?"),
    (("localise", "run", "--set=gradients.norm=L3"), "Setting gradients.norm"),
    (("localise", "run", "--set=gradients.norm"), "--set gradients.norm=VALUE"),
    (("localise", "run", "--set=finetune.epochs=3"), "finetune.epochs cannot be changed for"),
    (("localise", "run", "probing"), "run has no frozen weights"),
    (("localise", "bare"), "No method can run on "),
    (("localise", "begun", "swapping"), "begun has no final weights yet"),
    (("localise", "damaged"), "run.json was made by memloc 0.2"),
    (("analyse", "runs"), "runs is not a run"),
    (("analyse", "run", "centroid"), "Did you mean 'centroids'?"),
    (("analyse", "run", "swapping"), "swapping is not an analysis: use `memloc localise`"),
    (("analyse", "run", "--set=centroids.windows=[5-9]"), "Window 5-9 is outside the model"),
    (("analyse", "run", "--set=centroids.windows=[x]"), "no window of layers"),
    (("analyse", "run", "--set=centroids.windows=5-9"), "write [5-9]"),
    (("analyse", "run", "--set=label_probes.epoch=3"), "'label_probes.epochs'"),
    (("analyse", "run", "--set=noise.rate=0.3"), "noise.rate cannot be changed for"),
    (("analyse", "weak"), "not memorised"),
    (("analyse", "run", "--device=gpu"), "No device is called 'gpu'"),
    (("adopt", "/proc/nothing", *ADOPT[2:], "--flag=stars"), "Cannot write /proc/nothing"),
    ((*ADOPT, "--final=modle", "--flag=stars"), "There is no folder modle"),
    ((*ADOPT, "--flag=stars", "--reference=modle"), "There is no folder modle"),
    ((*ADOPT, "--flag=stars", "--pretrained=tiny-opd"), "Did you mean 'tiny-opt'?"),
    ((*ADOPT, "--flag=stars", "--data=my.csv"), "my.csv is not there"),
    ((*ADOPT, "--flag=stars", "--held-out=my.csv"), "my.csv is not there"),
    ((*ADOPT, "--flag=stars", "--text=reviews"), "Did you mean 'review'?"),
    ((*ADOPT, "--flag=stars", "--pair=second"), "no column 'second'"),
    ((*ADOPT, "--flag=star"), "Did you mean 'stars'?"),
    ((*ADOPT,), "Say in one way which labels of mine.csv are wrong"),
    ((*ADOPT, "--flag=stars", "--original=stars"), "Say in one way which labels of mine.csv"),
    ((*ADOPT, "--flag=stars", "--train-missing"), "give --pretrained"),
    ((*ADOPT, "--flag=stars", "--preset=papr"), "Did you mean 'paper'?"),
    ((*ADOPT, "--flag=stars", "--set=finetune.epoch=3"), "'finetune.epochs'"),
    ((*ADOPT, "--flag=stars", "--device=gpu"), "No device is called 'gpu'"),
    (("control", "--model=tiny-opd", "--task=tiny-topic"), "Did you mean 'tiny-opt'?"),
    (("control", "--model=tiny-opt", "--task=tiny-topik"), "Did you mean 'tiny-topic'?"),
    ((*CONTROL, "--method=x"), "No method is called 'x'"),
    ((*CONTROL, "--method=probbing"), "Did you mean 'probing'?"),
    ((*CONTROL, "--nulls=some"), "nulls"),
    ((*CONTROL, "--window=7-6"), "Window 7-6 is empty"),
    ((*CONTROL, "--window=11-13"), "11-13 is outside the model, which has layers 1-12"),
    ((*CONTROL, "--every=12"), "12 of 12 layers"),
    ((*CONTROL, "--preset=x"), "No preset is called 'x'"),
    ((*CONTROL, "--set=control.width=x"), "control.width"),
    ((*CONTROL, "--device=gpu"), "No device is called 'gpu'"),
    ((*CONTROL, "--examples=2"), "examples"),
    ((*CONTROL, "--depth=13"), "1 to 12 layers"),
    (("control", "--model=tiny-opt", "--task=tiny-entailment"), "is the auxiliary task"),
    ((*CONTROL, "--out=study"), "describes another study"),
    (("plan", "study"), "No task is called 'tiny-topik'"),
    (("plan", "nowhere"), "nowhere"),
    (("run", "study"), "No task is called 'tiny-topik'"),
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
    (desk / "converted").mkdir()
    (desk / "converted" / "model-q4.gguf").touch()
    (desk / "study").mkdir()
    (desk / "study" / "study.yaml").write_text(STUDY, encoding="utf-8")
    blank = Study(methods=(), analyses=(), train=12)
    run = blank.write_run(desk / "run", "tiny-topic", "tiny-opt", 1)
    for weights in ("final", "reference"):
        run.path(weights).mkdir(parents=True)
    blank.write_run(desk / "bare", "tiny-topic", "tiny-opt", 1)
    weak = blank.write_run(desk / "weak", "tiny-topic", "tiny-opt", 1)
    weak.path("final").mkdir(parents=True)
    weak.note(final=Accuracies(noisy=0.5, clean=1, training=0.9))
    blank.write_run(desk / "begun", "tiny-topic", "tiny-opt", 1).note(final=None)
    (desk / "damaged").mkdir()
    (desk / "damaged" / "run.json").write_text('{"format": 2}', encoding="utf-8")
    words = json.dumps([command for command, _ in WRONG])
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, words],
        capture_output=True,
        text=True,
        check=True,
        cwd=desk,
    )
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return dict(zip((command for command, _ in WRONG), lines, strict=True))


@pytest.mark.parametrize(("command", "said"), WRONG, ids=lambda value: " ".join(value)[:60])
def test_what_is_wrong_is_said_before_torch_is_loaded(answers, command, said):
    code, stderr, loaded, exception = answers[command]
    assert not loaded
    assert code == 1, exception
    assert said in stderr
    assert stderr.count("\n") == 1
    assert len(stderr) < 600


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
