"""The hub's code path, on local folders that look like its branches; nothing here goes online."""

import socket
import time
from collections import Counter

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import ClassLabel, Dataset
from huggingface_hub import constants, errors

from memloc.data import sources
from memloc.data.sources import load_task
from memloc.data.tasks import PAPER_TASKS
from memloc.errors import DataError, MemlocError
from memloc.model.load import load_model
from memloc.study.inputs import config_of


@pytest.fixture(autouse=True)
def _no_folder_in_the_environment(monkeypatch):
    monkeypatch.delenv("MEMLOC_DATA", raising=False)


@pytest.fixture
def load(tmp_path, monkeypatch):
    """Loads a task from a repository that is a local folder, through the hub's code path."""

    def load_from(name, repository):
        spec = PAPER_TASKS[name]
        local = spec.replace({"hub.repository": str(repository)})
        monkeypatch.setattr(sources, "PAPER_TASKS", {**PAPER_TASKS, name: local})
        return load_task(name, cache_dir=tmp_path / "cache")

    return load_from


def write_parquet_branch(folder, **splits):
    for split, rows in splits.items():
        (folder / split).mkdir(parents=True)
        pq.write_table(pa.Table.from_pylist(rows), folder / split / "0000.parquet")


def both(task, split):
    part = getattr(task, split)
    return [
        (*parts, task.label_names[label])
        for parts, label in zip(part.parts, part.labels, strict=True)
    ]


def held_out(task):
    return Counter(both(task, "validation") + both(task, "test"))


def test_a_configuration_of_the_parquet_branch_is_read_from_its_folder(tmp_path, load):
    rows = [
        {"word": f"w{i}", "sentence1": f"a{i}", "sentence2": f"b{i}", "idx": i, "label": i % 2}
        for i in range(8)
    ]
    hidden = [{**row, "label": -1} for row in rows]
    write_parquet_branch(
        tmp_path / "repo" / "wic", train=rows[:4], validation=rows[4:], test=hidden
    )
    write_parquet_branch(tmp_path / "repo" / "boolq", train=[{"question": "q"}])
    task = load("wic", tmp_path / "repo")
    assert both(task, "train")[1] == ("w1", "a1", "b1", "True")
    assert len(task.train) == 4
    assert held_out(task).keys() == {
        (f"w{i}", f"a{i}", f"b{i}", "True" if i % 2 else "False") for i in range(4, 8)
    }
    assert len(task.validation) == len(task.test) == 2


def test_a_named_configuration_is_read_as_its_repository_describes_it(tmp_path, load):
    repository = tmp_path / "repo"
    rows = [{"sentence1": "a", "sentence2": "b", "label": i % 2, "idx": i} for i in range(4)]
    write_parquet_branch(repository / "rte", train=rows, validation=rows[:2])
    write_parquet_branch(repository / "other", train=[{"x": 1}])
    (repository / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: other\n  data_files:\n  - {split: train, path: other/train/*}\n"
        "- config_name: rte\n  data_files:\n  - {split: train, path: rte/train/*}\n"
        "  - {split: validation, path: rte/validation/*}\n---\n",
        encoding="utf-8",
    )
    task = load("rte", repository)
    assert both(task, "train")[1] == ("a", "b", "not_entailment")
    assert len(task.train) == 4
    assert "rte" in task.source


def test_plain_json_files_are_read_and_dev_is_the_validation_split(tmp_path, load):
    repository = tmp_path / "repo"
    repository.mkdir()
    for split in ("train", "dev", "test"):
        lines = [f'{{"text": "{split} {i}", "label": {i}, "label_text": "x"}}' for i in range(5)]
        (repository / f"{split}.jsonl").write_text("\n".join(lines), encoding="utf-8")
    task = load("sst5", repository)
    assert task.train.labels.tolist() == [0, 1, 2, 3, 4]
    assert {text.split()[0] for (text,) in (*task.validation.parts, *task.test.parts)} == {"dev"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_implicit_hate_is_read_from_csv_with_named_classes_and_split_80_to_20(tmp_path, load):
    """Older versions of datasets leave the file open, which is no fault of memloc's."""
    repository = tmp_path / "repo"
    repository.mkdir()
    names = PAPER_TASKS["implicithate"].label_names
    lines = [f'"post, {i}",{names[i % 7]},' for i in range(21)]
    header = "post,implicit_class,extra_implicit_class"
    (repository / "implicit_hate.csv").write_text("\n".join([header, *lines]), encoding="utf-8")
    task = load("implicithate", repository)
    assert (len(task.train), len(task.validation), len(task.test)) == (16, 2, 3)
    found = Counter(both(task, "train")) + held_out(task)
    assert found == Counter((f"post, {i}", names[i % 7]) for i in range(21))


def test_labels_are_matched_by_name_where_the_hub_numbers_them_otherwise(tmp_path, load):
    hub_order = ["LOC", "ABBR", "ENTY", "DESC", "HUM", "NUM"]
    rows = Dataset.from_dict({"text": ["where", "short"], "coarse_label": [0, 1]})
    rows = rows.cast_column("coarse_label", ClassLabel(names=hub_order))
    for split in ("train", "test"):
        (tmp_path / "repo" / "default" / split).mkdir(parents=True)
        rows.to_parquet(tmp_path / "repo" / "default" / split / "0000.parquet")
    task = load("trec", tmp_path / "repo")
    assert both(task, "train") == [("where", "LOC"), ("short", "ABBR")]


def test_stormfront_keeps_hate_and_no_hate_only(tmp_path, load):
    names = ["noHate", "hate", "idk/skip", "relation"]
    rows = Dataset.from_dict({"text": [f"t{i}" for i in range(40)], "label": [*range(4)] * 10})
    (tmp_path / "repo" / "default" / "train").mkdir(parents=True)
    rows.cast_column("label", ClassLabel(names=names)).to_parquet(
        tmp_path / "repo" / "default" / "train" / "0000.parquet"
    )
    task = load("stormfront", tmp_path / "repo")
    assert (len(task.train), len(task.validation), len(task.test)) == (16, 2, 2)
    found = Counter(both(task, "train")) + held_out(task)
    assert found == Counter((f"t{i}", names[i % 4]) for i in range(40) if i % 4 < 2)


TOPICS = PAPER_TASKS["reuters"].label_names


def document(text, *topics):
    return {"text": text, "topics": list(topics), "title": "T"}


def frequent_topics(start):
    return [document(f"{t} {start + i}", t) for t in TOPICS for i in range(2)]


def test_reuters_keeps_first_texts_with_exactly_one_of_the_eight_frequent_topics(tmp_path, load):
    train = [
        document("two topics", "earn", "acq"),
        document("no topic"),
        document("rare", "cocoa"),
        *frequent_topics(0),
        document("earn 0", "earn"),  # a duplicate
        document("two topics", "acq"),  # a duplicate of a text that is left out itself
        document("", "ship"),
    ]
    test = [document("earn 0", "earn"), document("held out", "trade"), document("x", "cocoa")]
    write_parquet_branch(tmp_path / "repo" / "ModApte", train=train, test=test, unused=train)
    task = load("reuters", tmp_path / "repo")
    expected = [(d["text"], d["topics"][0]) for d in frequent_topics(0)]
    assert both(task, "train") == [*expected, ("", "ship")]
    assert held_out(task).keys() == {("earn 0", "earn"), ("held out", "trade")}


def test_reuters_with_other_frequent_topics_is_refused(tmp_path, load):
    train = [*frequent_topics(0), *(document(f"c{i}", "cocoa") for i in range(3))]
    write_parquet_branch(tmp_path / "repo" / "ModApte", train=train, test=train)
    with pytest.raises(
        DataError, match=r"most frequent topics of .* are acq.*cocoa.*from a folder"
    ):
        load("reuters", tmp_path / "repo")


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        ({"text": ["a", "b"], "label": [0, 1]}, "has no column 'coarse_label', only text, label"),
        (
            {"text": ["a", "b"], "coarse_label": [0, 6]},
            "has the label 6, but those of 'trec' are ABBR",
        ),
        ({"text": ["a", "b"], "coarse_label": [0, None]}, "has the label None"),
        ({"text": ["a", None], "coarse_label": [0, 1]}, "lacks the text of 1 row,"),
    ],
)
def test_hub_data_that_changed_are_refused(tmp_path, load, rows, sentence):
    table = pa.Table.from_pydict(rows).to_pylist()
    write_parquet_branch(tmp_path / "repo" / "default", train=table, test=table)
    with pytest.raises(DataError, match=sentence):
        load("trec", tmp_path / "repo")


def test_a_hub_without_the_held_out_split_is_refused(tmp_path, load):
    write_parquet_branch(tmp_path / "repo" / "default", train=[{"text": "a", "coarse_label": 0}])
    with pytest.raises(DataError, match="has no split 'test', only train"):
        load("trec", tmp_path / "repo")


def test_offline_the_error_says_how_to_give_a_folder(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    with pytest.raises(DataError) as caught:
        load_task("wic", cache_dir=tmp_path)
    assert isinstance(caught.value.__cause__, ConnectionError)
    said = str(caught.value)
    assert said.startswith("Task 'wic' could not be read from the hub (aps/super_glue, wic,")
    assert "give a folder that has wic/train.jsonl.gz" in said
    assert "MEMLOC_DATA" in said
    assert "\n" not in said


@pytest.fixture
def no_network(monkeypatch):
    def unknown(*_args, **_options):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    for place in (constants, datasets.config):
        monkeypatch.setattr(place, "HF_HUB_OFFLINE", False)


@pytest.mark.parametrize(
    "asked",
    [
        lambda home: load_task("wic", cache_dir=home),
        lambda _home: config_of("some/model"),
        lambda _home: load_model("some/model", ["no", "yes"]),
    ],
    ids=["task", "configuration", "model"],
)
@pytest.mark.usefixtures("no_network")
def test_a_hub_that_does_not_answer_is_not_asked_again_and_again(tmp_path, capfd, asked):
    began = time.monotonic()
    with pytest.raises(MemlocError, match="cannot be reached"):
        asked(tmp_path)
    assert time.monotonic() - began < 15  # alone, the hub's libraries take 24 seconds
    assert "Retry" not in capfd.readouterr().err
    assert not constants.HF_HUB_OFFLINE
    assert not datasets.config.HF_HUB_OFFLINE


@pytest.mark.parametrize(
    "error",
    [
        ConnectionError("no route"),
        TimeoutError(),
        errors.HTTPError("reset by peer"),
        errors.OfflineModeIsEnabled("offline"),
        datasets.exceptions.DatasetNotFoundError("gone"),
        RuntimeError("Dataset scripts are no longer supported\nsecond line"),
        ValueError("BuilderConfig 'rte' not found"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_whatever_the_hub_raises_becomes_one_sentence(monkeypatch, error):
    def unreachable(*args, **kwargs):
        raise error

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    with pytest.raises(DataError, match=r"from the hub .*folder") as caught:
        load_task("rte")
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is error
