"""Models and tasks that a study names: they exist and fit, are counted, and known by content."""

import shutil

import datasets
import pytest

from fixtures.commands import rows_of, write_csv
from fixtures.models import FAMILIES
from fixtures.plans import RUN, finish_all, not_done, plan_of, write_rows
from memloc.data.sources import load_task
from memloc.errors import ModelError, SettingsError
from memloc.model.load import load_model
from memloc.model.shape import Shape
from memloc.run.spec import RunSpec
from memloc.study.config import parse_study
from memloc.study.estimate import Calibration, estimate
from memloc.study.inputs import (
    data_folder,
    few_sentence,
    model_contents,
    noise_sentence,
    shape_of,
    task_spec,
    training_examples,
)
from memloc.study.plan import open_plan, protocol_for


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"[tiny-opt]": "[tiny-optt]"}, "line 2, models[0]: .*Did you mean 'tiny-opt'?"),
        ({"[tiny-opt]": "[./nowhere]"}, "line 2, models[0]: There is no folder"),
        ({"[tiny-sentiment]": "[tiny-sentimant]"}, "line 3, tasks[0]: .*'tiny-sentiment'?"),
        ({"[swapping, retraining": "[swaping, retraining"}, "methods[0]: No method is called"),
        (
            {"centroids, label_probes": "centroids, label_prob"},
            "analyses[1]: No analysis is called",
        ),
        ({"depth: 2": "depth: 13"}, "A depth of 13 was asked for; this model has 1 to 12 layers."),
        ({'windows: ["1"]': "windows: [2-3]"}, "2-3 is outside the model, which has layers 1-2"),
        ({"device: cpu": "device: gpu"}, "device: No device is called 'gpu'"),
        ({"control: {": "control: {tasks: [tiny-entailment], "}, "is the auxiliary task"),
        ({"[tiny-sentiment]": "[tiny-entailment]"}, "is the auxiliary task; plant another"),
        ({"[tiny-opt]": "[tiny-opt, ./x/tiny-opt]"}, "There is no folder"),
    ],
)
def test_names_that_do_not_exist_are_refused(micro, changes, message):
    folder = micro(changes=changes)
    with pytest.raises(
        SettingsError, match=message.replace("[0]", r"\[0\]").replace("[1]", r"\[1\]")
    ):
        plan_of(folder)


def test_two_models_of_one_name_are_refused(micro, tmp_path, tiny_model):
    for name in ("a", "b"):
        shutil.copytree(tiny_model("opt", depth=3), tmp_path / "study" / name / "model")
    with pytest.raises(SettingsError, match="would share the folder model-depth-2"):
        plan_of(micro(changes={"[tiny-opt]": "[./a/model, ./b/model]"}))
    with pytest.raises(SettingsError, match="would share the folder model-depth-2"):
        plan_of(micro(changes={"control: {": "control: {models: [./a/model, ./b/model], "}))


DATA = "models: [tiny-opt]\ntasks: [tiny-topic]\n"


@pytest.mark.parametrize(
    ("lines", "line", "key", "message"),
    [
        ("data:\n  mine: {file: no.csv, flip: 0.1}\n", 4, "data.mine.file", "there is no file"),
        (
            "data:\n  mine: {file: mine.csv, flip: 0.1, held_out: no.csv}\n",
            4,
            "data.mine.held_out",
            "there is no file",
        ),
        ("data:\n  mine: {file: mine.csv}\n", 4, "data.mine", "say in one way which labels"),
        (
            "data:\n  mine: {file: mine.csv, flip: 0.1, flag: wrong}\n",
            4,
            "data.mine",
            "say in one way which labels",
        ),
        ("data:\n  mine: {file: mine.csv, flip: 2}\n", 4, "data.mine.flip", "less than 1"),
        ("data:\n  mine:\n    flip: 0.1\n", 4, "data.mine.file", "it is missing"),
        (
            "data:\n  mine:\n    file: mine.csv\n    txt: review\n",
            6,
            "data.mine.txt",
            "No key is called 'txt'. Did you mean 'text'?",
        ),
        ("data:\n  rte: {file: mine.csv, flip: 0.1}\n", 4, "data.rte", "has this name already"),
        ("data:\n  ../x: {file: mine.csv, flip: 0.1}\n", 4, "data.../x", "it names a folder"),
        ("data:\n  steps: {file: mine.csv, flip: 0.1}\n", 4, "data.steps", "it names a folder"),
        ("also: [{tasks: [mein]}]\n", 3, "also[0].tasks[0]", "No task is called 'mein'"),
        (
            "data: {mine: {file: mine.csv, flag: wrong}}\ncontrol: {tasks: [mine]}\n",
            4,
            "control",
            "mine has noise of its own; plant a task whose labels are flipped",
        ),
        # Only when the file is read:
        (
            "data:\n  mine: {file: mine.csv, flip: 0.1, text: txt}\n",
            4,
            "data.mine",
            "has no column 'txt'",
        ),
        (
            "data:\n  mine: {file: mine.csv, original: text}\n",
            4,
            "data.mine",
            "all have an assigned label that differs from the original one",
        ),
    ],
)
def test_files_that_cannot_be_used_are_refused(tmp_path, lines, line, key, message):
    rows = [(text, label, "2") for text, label in rows_of(30)]
    write_csv(tmp_path / "mine.csv", rows, ("text", "label", "wrong"))
    (tmp_path / "study.yaml").write_text(DATA + lines)
    with pytest.raises(SettingsError) as error:
        open_plan(tmp_path)
    said = str(error.value)
    assert said.startswith(f"{tmp_path}/study.yaml, line {line}, {key}: ")
    assert message in said
    assert "\n" not in said


def test_a_file_may_be_named_by_tasks(tmp_path):
    write_csv(tmp_path / "mine.csv", rows_of(30), ("text", "label"))
    lines = "data: {mine: {file: mine.csv, flip: 0.1}}\n"
    (tmp_path / "study.yaml").write_text(DATA.replace("tiny-topic", "mine") + lines)
    assert "train/mine/tiny-opt/seed-1" in open_plan(tmp_path).steps


LEAST = "models: [tiny-opt]\ntasks: [tiny-topic]\n"
OWN = "tiny-sentiment, mine]\ndata:\n  mine: {file: mine.csv, flip: 0.2}"


def own(folder, line, more=""):
    write_rows(folder)
    return parse_study(f"{LEAST}data:\n  mine: {{file: mine.csv, {line}}}\n{more}", folder)


@pytest.mark.parametrize("line", ["original: before", "flag: wrong"])
def test_a_file_says_which_labels_are_wrong(tmp_path, line):
    found = task_spec(own(tmp_path, line), "mine", None).load(1)
    assert found.noise is not None
    assert found.name == "mine"
    original = [found.label_names[i] for i in found.labels.original]
    by_text = {text: before for text, _, before, _ in map(tuple, read(tmp_path))}
    assert original == [by_text[parts[0]] for parts in found.train.parts]
    assert 0 < found.labels.is_noisy.sum() < 24
    assert (found.labels.is_noisy == (found.labels.original != found.labels.assigned)).all()


def read(folder):
    import csv

    with (folder / "mine.csv").open(encoding="utf-8") as file:
        return list(csv.reader(file))[1:]


def test_labels_that_are_flipped_are_flipped_at_the_file_s_own_rate(tmp_path):
    file = own(tmp_path, "flip: 0.25")
    assert task_spec(file, "mine", None).load(1).noise is None
    assert protocol_for(file.study, "mine").noise.rate == 0.25
    assert protocol_for(file.study, "tiny-topic").noise.rate == file.study.protocol.noise.rate


@pytest.mark.parametrize(
    ("more", "examples"),
    [
        ({}, 48),  # a fifth is held out
        ({"held_out": "unseen.csv"}, 60),
        ({"examples": 20}, 20),
        ({"examples": 1000}, 48),
    ],
)
@pytest.mark.parametrize("noise", ["flip: 0.2", "flag: wrong"])
def test_the_rows_of_a_file_are_counted(tmp_path, more, examples, noise):
    write_rows(tmp_path, 20, "unseen.csv")
    held = f", held_out: {more['held_out']}" if "held_out" in more else ""
    few = f"examples: {more['examples']}\n" if "examples" in more else ""
    file = own(tmp_path, f"{noise}{held}", few)
    assert training_examples(task_spec(file, "mine", file.study.examples)) == examples


def test_known_tasks_are_counted_without_their_data(tmp_path):
    file = parse_study(LEAST, tmp_path)
    assert training_examples(task_spec(file, "tiny-topic", None)) == len(
        load_task("tiny-topic").train
    )
    assert training_examples(task_spec(file, "sst2", None)) > 1000


def test_estimates_count_a_file_s_rows(micro):
    folder = micro(changes={"tiny-sentiment]": OWN, "examples: 30\n": ""})
    write_rows(folder, 100)
    plan = plan_of(folder)
    speed = {
        "update": 0.8,
        "predict": 0.0,
        "layer": 1e-3,
        "last_layer": 5e-4,
        "probe": 0.001,
        "batch": 8,
        "length": 20,
    }
    measured = Calibration(machine="here", speeds={"2x64": speed})
    found = estimate(plan, measured, dict.fromkeys(plan.steps, 1))
    # 4 epochs of 80 examples, a tenth of a second each, two trainings and a tenth.
    name = "train/mine/tiny-opt-depth-2/seed-1"
    assert found.seconds[name] == pytest.approx(2.1 * 4 * 80 * 0.1)


def test_a_changed_file_makes_exactly_its_runs_stale(micro):
    folder = micro(
        changes={
            "tiny-sentiment]": OWN,
            'windows: ["1"]': 'tasks: [tiny-sentiment], windows: ["1"]',
        }
    )
    data = write_rows(folder)
    finish_all(plan_of(folder))
    assert not not_done(plan_of(folder))
    data.write_text(data.read_text().replace("good", "fine"))
    found = not_done(plan_of(folder))
    assert {name.split("/")[1] for name in found} == {"mine"}
    assert {state.name for state in found.values()} == {"stale"}
    assert len(found) == 8  # training, four methods, three analyses
    assert f"train/{RUN}" not in found


@pytest.mark.parametrize("change", ["flip: 0.3", "flip: 0.2, label: before"])
def test_another_reading_of_a_file_is_another_task(tmp_path, change):
    before = task_spec(own(tmp_path, "flip: 0.2"), "mine", None).deciding()
    assert task_spec(own(tmp_path, "flip: 0.2"), "mine", None).deciding() == before
    assert task_spec(own(tmp_path, change), "mine", None).deciding() != before


def test_classes_renamed_in_a_folder_of_datasets_make_another_task(tmp_path):
    classes = datasets.ClassLabel(names=["bad", "good"])
    rows = {"text": ["a", "b"], "label": [0, 1]}
    features = datasets.Features({"text": datasets.Value("string"), "label": classes})
    datasets.Dataset.from_dict(rows, features=features).save_to_disk(tmp_path / "mine")
    file = parse_study(f"{LEAST}data:\n  mine: {{file: mine, flip: 0.2}}\n", tmp_path)
    before = task_spec(file, "mine", None).deciding()
    (tmp_path / "mine" / "cache-1.arrow").write_bytes(b"of datasets alone")
    assert task_spec(file, "mine", None).deciding() == before
    about = tmp_path / "mine" / "dataset_info.json"
    about.write_text(about.read_text("utf-8").replace("good", "fine"), encoding="utf-8")
    assert task_spec(file, "mine", None).deciding() != before


def test_a_held_out_file_counts_and_its_place_does_not(tmp_path):
    files = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_rows(tmp_path / name, 20, "unseen.csv")
        files.append(own(tmp_path / name, "flip: 0.2, held_out: unseen.csv"))
    one, two = (task_spec(file, "mine", None).deciding() for file in files)
    assert one == two
    write_rows(tmp_path / "two", 21, "unseen.csv")
    assert task_spec(files[1], "mine", None).deciding() != one


def test_the_paper_s_tasks_are_what_is_in_their_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("MEMLOC_DATA", raising=False)
    file = parse_study(LEAST + "data_folder: ./data\n", tmp_path)
    assert data_folder(file) == tmp_path / "data"
    assert data_folder(parse_study(LEAST, tmp_path)) is None
    (tmp_path / "data" / "rte").mkdir(parents=True)
    (tmp_path / "data" / "rte" / "meta.json").write_text("{}")
    before = task_spec(file, "rte", None).deciding()
    assert task_spec(file, "tiny-topic", None).deciding() == "tiny-topic"
    (tmp_path / "data" / "rte" / "meta.json").write_text("{ }")
    assert task_spec(file, "rte", None).deciding() != before


KNOWN = "labels flipped by memloc (a share of 0.15 of each class)."


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "original: before",
            "mine: {} noisy of 48 examples, column 'before' read as original labels.",
        ),
        ("flag: wrong", "mine: {} noisy of 48 examples, column 'wrong' read as flags."),
        (
            "flip: 0.2",
            "mine: {} noisy of 48 examples, labels flipped by memloc (a share of 0.2 of each "
            "class); which labels of the file itself are wrong is not known.",
        ),
    ],
)
def test_it_is_said_how_many_labels_are_wrong_and_how_that_is_known(tmp_path, line, said):
    file = own(tmp_path, line)
    found = spec_of(file, "mine")
    wrong = found.load_task().labels.is_noisy.sum()
    assert noise_sentence(found) == said.format(wrong)


def spec_of(file, name):
    """A run of a study's task."""
    task, protocol = task_spec(file, name, file.study.examples), protocol_for(file.study, name)
    return RunSpec(model="tiny-opt", task=task, seed=1, settings=protocol.for_run())


def test_a_known_task_is_read_where_it_is_here_and_never_fetched(tmp_path, monkeypatch):
    monkeypatch.delenv("MEMLOC_DATA", raising=False)
    file = parse_study(LEAST, tmp_path)
    known = spec_of(file, "tiny-topic")
    many = known.load_task().labels.summary()
    assert noise_sentence(known) == f"tiny-topic: {many}"
    assert many.endswith(KNOWN)
    monkeypatch.setattr("memloc.run.spec.load_task", lambda *_, **__: 1 / 0)
    said = noise_sentence(spec_of(file, "sst2"))
    assert said == "sst2: memloc will flip a share of 0.15 of each class's labels."


def test_too_few_noisy_examples_are_said_without_fetching_a_task(tmp_path, monkeypatch):
    monkeypatch.delenv("MEMLOC_DATA", raising=False)
    file = parse_study(f"{LEAST}\nexamples: 60\n", tmp_path)
    for name in ("tiny-topic", "sst2"):
        said = few_sentence(spec_of(file, name))
        assert said.startswith(f"{name}: NO ANSWER WILL BE POSSIBLE: ")
        assert "of 60 and 20 noisy ones are needed" in said
    enough = parse_study(f"{LEAST}\nexamples: 400\n", tmp_path)
    assert [few_sentence(spec_of(enough, name)) for name in ("tiny-topic", "sst2")] == ["", ""]


@pytest.mark.parametrize("family", FAMILIES)
def test_a_shape_is_that_of_the_loaded_model(tiny_model, family):
    folder = str(tiny_model(family, depth=3))
    stack = load_model(folder, ("a", "b")).stack
    shape = shape_of(folder)
    assert (shape.depth, shape.width) == (stack.depth, stack.width)


def test_a_shape_says_how_many_parameters_there_are():
    shape = Shape(2, 10, 7)
    assert shape.parameters == 12 * 2 * 10**2 + 7 * 10
    assert shape.bytes == 4 * shape.parameters
    assert shape.name == "2x10"


def test_known_models_are_not_asked_for_on_the_hub():
    assert shape_of("facebook/opt-125m").depth == 12
    assert shape_of("facebook/opt-125m", 3).depth == 3
    with pytest.raises(SettingsError, match="A depth of 13 was asked for; this model has 1 to 12"):
        shape_of("facebook/opt-125m", 13)


def test_a_configuration_that_says_too_little_is_refused(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="does not say how many layers"):
        shape_of(str(tmp_path))


@pytest.mark.parametrize("size", ["[[]]", "null", '"x"', "true", "-1", "1.5", "{}"])
def test_a_configuration_whose_sizes_are_no_numbers_is_refused(tmp_path, size):
    (tmp_path / "config.json").write_text(f'{{"num_hidden_layers": {size}, "hidden_size": 4}}')
    with pytest.raises(ModelError, match="does not say how many layers"):
        shape_of(str(tmp_path))


@pytest.mark.parametrize("text", ["3", "null", "[1]", "{"])
def test_a_configuration_that_is_no_record_is_refused(tmp_path, text):
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(ModelError, match="is not a model"):
        shape_of(str(tmp_path))


def test_a_model_is_known_by_its_contents_wherever_it_is(tiny_model, tmp_path):
    for name in ("one", "two"):
        shutil.copytree(tiny_model("opt", depth=3), tmp_path / name / "model")
    one, two = (model_contents(str(tmp_path / name / "model")) for name in ("one", "two"))
    assert one == two
    (tmp_path / "two" / "model" / "config.json").write_text("{}")
    assert model_contents(str(tmp_path / "two" / "model")) != one
    assert model_contents("tiny-opt") == ""
