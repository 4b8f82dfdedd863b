"""The control set-up as a study: planted, found, and summed up from the runs; real trainings."""

import shutil

import pytest
from typer.testing import CliRunner

from fixtures.commands import rows_of, write_csv
from fixtures.plans import do
from fixtures.studies import Study, training
from memloc.cli import app
from memloc.errors import SettingsError, StoreError
from memloc.methods.registry import trivial_names
from memloc.reporting.results import load_results
from memloc.seeds import generator
from memloc.stats.planted import BASELINE
from memloc.store.records import write_table
from memloc.study.plan import control_plan, open_plan

PLANTED = """\
preset: paper
models: [./model]
tasks: [words]
data: {words: {file: words.csv, text: review, label: stars, flip: 0.15}}
methods: []
analyses: []
control: {windows: ["1"], methods: [swapping, gradients, probing]}
report: false
device: cpu
overrides:
  finetune.epochs: 20
  finetune.learning_rate: 1e-2
  finetune.batch_size: 8
  finetune.weight_decay: 0.0
  finetune.near_ceiling: 0.9
  verdict.noisy_at_least: 0.8
  control.accuracy_above: 0.9
  control.auxiliary: tiny-entailment
  control.auxiliary_examples: 24
  control.auxiliary_learning_rate: 1e-3
  control.validation_tasks: [words]
  probing.epochs: 2
  probing.first_epoch: 0
"""


@pytest.fixture
def planted(tiny_model, tmp_path):
    """A study that does nothing but plant, with changes to its text."""

    def write(changes=None):
        text = PLANTED
        for old, new in (changes or {}).items():
            assert old in text
            text = text.replace(old, new)
        shutil.copytree(tiny_model("opt", depth=3), tmp_path / "model")
        write_csv(tmp_path / "words.csv", rows_of(120))
        (tmp_path / "study.yaml").write_text(text, encoding="utf-8")
        return tmp_path

    return write


def plant_all(folder):
    plan = open_plan(folder)
    assert {step.action for step in plan.steps.values()} == {"plant"}  # no plain run is trained
    for step in plan.steps.values():
        do(step)
    return load_results(folder)


def test_planted_runs_are_summed_up(planted):
    folder = planted()
    found = plant_all(folder)
    assert len(found.runs) == 0
    assert sorted(found.plants["null"]) == [False, True]
    assert found.plants["used"].all()
    scores = found.control
    trivial = {*trivial_names()}  # all of them, as swapping needs the reference anyway
    assert {*scores["method"]} == {"gradients", "probing", "swapping", *trivial}
    assert scores["chance"].tolist() == pytest.approx([1 / 3, 2 / 3] * (3 + len(trivial)))  # by k
    swapping = scores[(scores["method"] == "swapping") & (scores["k"] == 1)]
    assert swapping["accuracy"].tolist() == [1.0]  # the planted layer is the first of three
    shown = {"gradients", "probing", "swapping", BASELINE}
    for table in (found.nulls, found.control_scores):
        assert {*table["method"]} == shown
    best = found.control_scores.query("method == @BASELINE").set_index("k")
    mine = scores[scores["method"].isin(trivial)].groupby("k")
    assert best["accuracy"].to_dict() == mine["accuracy"].max().to_dict()
    assert best["planted_mass"].to_dict() == mine["planted_mass"].max().to_dict()
    assert best["centre_error"].to_dict() == mine["centre_error"].min().to_dict()
    # L1 and L2, two steps on and off.
    assert len(found.post_processing) == 8
    assert (found.post_processing["plants"] == 1).all()
    kinds = {"noisy", "clean", "difference", "frozen noisy", "frozen clean", "frozen difference"}
    assert set(found.control_gradients["kind"]) == kinds
    made = {p: p.stat().st_mtime_ns for p in folder.rglob("*.safetensors")}
    plant_all(folder)
    assert made == {p: p.stat().st_mtime_ns for p in made}  # nothing is made twice


def test_a_plant_that_was_never_memorised_is_reported_and_not_scored(planted):
    hopeless = {"learning_rate: 1e-2": "learning_rate: 1e-8\n  control.tries: 1"}
    found = plant_all(planted(hopeless))
    assert found.plants["used"].tolist() == [False]
    assert len(found.control) == 0


def test_overlapping_windows_are_planted_in_runs_of_their_own(planted):
    changes = {'windows: ["1"], methods: [swapping, gradients, probing]': "every: [2]"}
    plan = open_plan(planted(changes))
    folders = [(step.folder, step.null) for step in plan.steps.values()]
    assert [name.split("/")[-1] for name in plan.steps] == ["1-2", "2-3"]
    assert len({place for places in folders for place in places if place}) == 3  # one null


def test_swapping_is_not_tested_where_the_reference_did_not_learn(tmp_path):
    """Layers of such weights undo anything, the planted labels, too."""
    Study(control=1, models=("tiny-opt",), seeds=()).write(tmp_path)
    before = load_results(tmp_path).control
    place = next((tmp_path / "control").glob("*/*/*/window-1-2"))
    curves = training(5, generator(1))
    weak = curves.assign(accuracy=curves["accuracy"].where(curves["training"] != "original", 0.5))
    for table, left in ((curves, set()), (weak, {"swapping"})):
        write_table(place / "training.parquet", table, {})
        found = load_results(tmp_path).control
        first = found[found["first"] == 1]
        assert set(before["method"]) - set(first["method"]) == left
    assert set(found[found["first"] == 3]["method"]) == set(before["method"])


def test_a_folder_without_plants_has_empty_tables(tmp_path):
    found = load_results(Study(control=0, tasks=("tiny-topic",), seeds=(1,)).write(tmp_path))
    for name in ("control", "control_layers", "plants", "nulls", "post_processing"):
        assert len(getattr(found, name)) == 0
        assert len(getattr(found, name).columns)


ASKED = {"preset": None, "models": ["tiny-opt"], "tasks": ["tiny-topic"], "overrides": {}}


def test_a_control_plan_is_written_once_and_never_over_another_one(tmp_path):
    assert control_plan(tmp_path, ASKED, {"windows": ["1-2"]}).file.folder == tmp_path
    assert set(open_plan(tmp_path).steps) == {"plant/tiny-topic/tiny-opt/seed-1/1-2"}
    assert open_plan(tmp_path).file.study.preset == "demo"
    control_plan(tmp_path, ASKED, {"windows": ["1-2"]})
    with pytest.raises(StoreError, match="describes another study: choose another folder"):
        control_plan(tmp_path, ASKED, {"windows": ["3-4"]})


def test_a_model_is_looked_for_where_the_command_was_given(tmp_path, tiny_model, monkeypatch):
    shutil.copytree(tiny_model("opt", depth=3), tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    out = control_plan(tmp_path / "out", {**ASKED, "models": ["./model"]}, {"windows": ["1"]})
    (step,) = out.steps.values()
    assert open_plan(tmp_path / "out").steps == out.steps  # as its file says
    assert step.spec.model == str(tmp_path / "model")


def test_the_key_is_named_and_no_file_that_nobody_has_seen(tmp_path):
    with pytest.raises(SettingsError) as error:
        control_plan(tmp_path / "out", ASKED, {"nulls": "al"})
    assert str(error.value).startswith("control.nulls: 'al': input should be 'none', 'middle' or")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--window", "11-13"], "11-13 is outside the model, which has layers 1-12"),
        (["--window", "7-6"], "7-6 is empty"),
        (["--window", "1-2", "--window", "1-2"], "'1-2' is there twice"),
        (["--every", "12"], "12 of 12 layers"),
        (["--method", "probbing"], "Did you mean 'probing'?"),
        (["--nulls", "al"], "input should be 'none', 'middle' or 'all'"),
        (["--task", "tiny-entailment"], "tiny-entailment is the auxiliary task; plant another one"),
        (["--set", "control.auxiliary=tiny-topik"], "Did you mean 'tiny-topic'?"),
    ],
)
def test_the_command_refuses_bad_input_in_one_sentence(options, message, tmp_path):
    given = ["--model", "tiny-opt", "--task", "tiny-topic", *options, "--out", str(tmp_path)]
    result = CliRunner().invoke(app, ["control", *given])
    assert result.exit_code == 1
    assert message in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", ["probing", "swapping"])
def test_baselines_look_at_plants_and_ask_for_no_further_weights(method, tmp_path):
    plan = control_plan(tmp_path, ASKED, {"windows": ["1-2"], "methods": [method]})
    (step,) = plan.steps.values()
    assert "pretrained_distance" in step.methods
    asks_for_reference = method == "swapping"
    assert ("reference" in step.checkpoints) == asks_for_reference
    assert ("weight_distance" in step.methods) == asks_for_reference
