"""A study's tasks: files of one's own are read as the study says, counted, and known by content."""

import pytest

from memloc.data.sources import load_task
from memloc.records import NoisyTask
from memloc.study.asked import protocol_for
from memloc.study.config import parse_study
from memloc.study.estimate import estimate
from memloc.study.tasks import (
    data_folder,
    load_noisy_task,
    load_study_task,
    noise_sentence,
    task_fingerprint,
    training_examples,
)
from planning_support import RUN, finish_all, not_done, plan_of, write_rows

LEAST = "models: [tiny-opt]\ntasks: [tiny-topic]\n"
OWN = "tiny-sentiment, mine]\ndata:\n  mine: {file: mine.csv, flip: 0.2}"


def own(folder, line, more=""):
    write_rows(folder)
    return parse_study(f"{LEAST}data:\n  mine: {{file: mine.csv, {line}}}\n{more}", folder)


@pytest.mark.parametrize("line", ["original: before", "flag: wrong"])
def test_a_file_says_which_labels_are_wrong(tmp_path, line):
    found = load_study_task(own(tmp_path, line), "mine", 1)
    assert isinstance(found, NoisyTask)
    assert found.task.name == "mine"
    original = [found.task.label_names[i] for i in found.labels.original]
    by_text = {text: before for text, _, before, _ in map(tuple, read(tmp_path))}
    assert original == [by_text[parts[0]] for parts in found.task.train.parts]
    assert 0 < found.labels.is_noisy.sum() < 24
    assert (found.labels.is_noisy == (found.labels.original != found.labels.assigned)).all()


def read(folder):
    import csv

    with (folder / "mine.csv").open(encoding="utf-8") as file:
        return list(csv.reader(file))[1:]


def test_labels_that_are_flipped_are_flipped_at_the_file_s_own_rate(tmp_path):
    file = own(tmp_path, "flip: 0.25")
    assert not isinstance(load_study_task(file, "mine", 1), NoisyTask)
    assert protocol_for(file, "mine", {}).noise.rate == 0.25
    assert protocol_for(file, "tiny-topic", {}).noise.rate == file.study.protocol.noise.rate


@pytest.mark.parametrize(
    ("more", "examples"),
    [
        ({}, 48),  # a fifth is held out
        ({"held_out": "unseen.csv"}, 60),
        ({"examples": 20}, 20),
        ({"examples": 1000}, 48),
    ],
)
def test_the_rows_of_a_file_are_counted(tmp_path, more, examples):
    write_rows(tmp_path, 20, "unseen.csv")
    held = f", held_out: {more['held_out']}" if "held_out" in more else ""
    few = f"examples: {more['examples']}\n" if "examples" in more else ""
    assert training_examples(own(tmp_path, f"flip: 0.2{held}", few), "mine") == examples


def test_known_tasks_are_counted_without_their_data(tmp_path):
    file = parse_study(LEAST, tmp_path)
    assert training_examples(file, "tiny-topic") == len(load_task("tiny-topic").train)
    assert training_examples(file, "sst2") > 1000


def test_estimates_count_a_file_s_rows(micro):
    folder = micro(changes={"tiny-sentiment]": OWN, "examples: 30\n": ""})
    write_rows(folder, 100)
    plan = plan_of(folder)
    speed = {"update": 0.8, "predict": 0.0, "probe_epoch": 0.001, "batch": 8, "length": 20}
    measured = {"tokens": {}, "length": 20, "start": 0.0, "speeds": {"2x64": speed}}
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
    store = finish_all(plan_of(folder))
    assert not not_done(store, plan_of(folder))
    data.write_text(data.read_text().replace("good", "fine"))
    found = not_done(store, plan_of(folder))
    assert {name.split("/")[1] for name in found} == {"mine"}
    assert {state.name for state in found.values()} == {"stale"}
    assert len(found) == 8  # training, four methods, three analyses
    assert f"train/{RUN}" not in found


@pytest.mark.parametrize("change", ["flip: 0.3", "flip: 0.2, label: before"])
def test_another_reading_of_a_file_is_another_task(tmp_path, change):
    before = task_fingerprint(own(tmp_path, "flip: 0.2"), "mine")
    assert task_fingerprint(own(tmp_path, "flip: 0.2"), "mine") == before
    assert task_fingerprint(own(tmp_path, change), "mine") != before


def test_a_held_out_file_counts_and_its_place_does_not(tmp_path):
    files = []
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        write_rows(tmp_path / name, 20, "unseen.csv")
        files.append(own(tmp_path / name, "flip: 0.2, held_out: unseen.csv"))
    one, two = (task_fingerprint(file, "mine") for file in files)
    assert one == two
    write_rows(tmp_path / "two", 21, "unseen.csv")
    assert task_fingerprint(files[1], "mine") != one


def test_the_paper_s_tasks_are_what_is_in_their_folder(tmp_path, monkeypatch):
    monkeypatch.delenv("MEMLOC_DATA", raising=False)
    file = parse_study(LEAST + "data_folder: ./data\n", tmp_path)
    assert data_folder(file) == tmp_path / "data"
    assert data_folder(parse_study(LEAST, tmp_path)) is None
    (tmp_path / "data" / "rte").mkdir(parents=True)
    (tmp_path / "data" / "rte" / "meta.json").write_text("{}")
    before = task_fingerprint(file, "rte")
    assert task_fingerprint(file, "tiny-topic") == "tiny-topic"
    (tmp_path / "data" / "rte" / "meta.json").write_text("{ }")
    assert task_fingerprint(file, "rte") != before


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
    protocol = protocol_for(file, "mine", {})
    wrong = load_noisy_task(file, "mine", protocol).labels.is_noisy.sum()
    assert noise_sentence(file, "mine", protocol) == said.format(wrong)


def test_a_known_task_is_read_where_it_is_here_and_never_fetched(tmp_path, monkeypatch):
    monkeypatch.delenv("MEMLOC_DATA", raising=False)
    file = parse_study(LEAST, tmp_path)
    protocol = file.study.protocol
    many = load_noisy_task(file, "tiny-topic", protocol).labels.summary()
    assert noise_sentence(file, "tiny-topic", protocol) == f"tiny-topic: {many}"
    assert many.endswith(KNOWN)
    monkeypatch.setattr("memloc.study.tasks.load_task", lambda *_, **__: 1 / 0)
    said = noise_sentence(file, "sst2", protocol)
    assert said == "sst2: memloc will flip a share of 0.15 of each class's labels."
