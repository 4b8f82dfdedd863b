from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from memloc.data.sources import (
    halve,
    load_task,
    split_off,
    subsample,
)
from memloc.data.task import Examples, NoisyLabels, Task
from memloc.data.tasks import EMBEDDED_TASKS, PAPER_TASKS
from memloc.errors import DataError, SettingsError, UnknownName
from memloc.seeds import generator

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "data"
needs_folder = pytest.mark.skipif(not FOLDER.is_dir(), reason="the folder of tasks is not there")

SIZES = {
    "wic": (5428, 638),
    "rte": (2490, 277),
    "mrpc": (3668, 408),
    "cola": (8551, 1043),
    "boolq": (9427, 3270),
    "sst2": (6920, 872),
    "sst5": (8544, 1101),
    "emotion": (16000, 2000),
    "implicithate": (5076, 1270),
    "stormfront": (8562, 2141),
    "reuters": (5032, 2012),
    "trec": (5452, 500),
}


@pytest.fixture(autouse=True)
def _no_folder_in_the_environment(monkeypatch):
    monkeypatch.delenv("MEMLOC_DATA", raising=False)


def numbered(n: int, n_classes: int = 2) -> Examples:
    return Examples(tuple((f"text {i}",) for i in range(n)), np.arange(n) % n_classes)


def texts(examples: Examples) -> Counter[tuple[str, ...]]:
    return Counter(examples.parts)


def same(one: Examples, other: Examples) -> bool:
    return one.parts == other.parts and np.array_equal(one.labels, other.labels)


@needs_folder
@pytest.mark.parametrize("name", PAPER_TASKS)
def test_a_task_from_a_folder_is_the_one_of_table_1(name):
    task = load_task(name, folder=FOLDER)
    n_train, n_held_out = SIZES[name]
    assert len(task.train) == n_train
    assert (len(task.validation), len(task.test)) == (n_held_out // 2, n_held_out - n_held_out // 2)
    assert task.label_names == PAPER_TASKS[name].label_names
    assert set(task.train.labels) == set(range(task.n_classes))
    assert all(len(parts) == len(PAPER_TASKS[name].hub.parts) for parts in task.train.parts)
    assert str(FOLDER) in task.source


@needs_folder
@pytest.mark.parametrize("name", ["rte", "stormfront"])
def test_another_seed_moves_examples_but_loses_none(name):
    one, two = load_task(name, folder=FOLDER, seed=1), load_task(name, folder=FOLDER, seed=2)
    assert not same(one.validation, two.validation)
    assert texts(one.validation) + texts(one.test) + texts(one.train) == (
        texts(two.validation) + texts(two.test) + texts(two.train)
    )
    assert same(one.train, two.train) == (name == "rte")


@needs_folder
def test_the_same_seed_gives_the_same_splits_whatever_ran_before():
    first = load_task("stormfront", folder=FOLDER)
    load_task("trec", folder=FOLDER, seed=7)
    np.random.default_rng().random(3)
    again = load_task("stormfront", folder=FOLDER)
    for split in ("train", "validation", "test"):
        assert same(getattr(first, split), getattr(again, split))


@needs_folder
def test_the_folder_may_be_named_by_the_environment(monkeypatch):
    monkeypatch.setenv("MEMLOC_DATA", str(FOLDER))
    assert same(load_task("rte").train, load_task("rte", folder=FOLDER).train)


@needs_folder
def test_reuters_keeps_its_one_empty_text():
    train = load_task("reuters", folder=FOLDER).train
    assert [i for i, (text,) in enumerate(train.parts) if not text.strip()] == [9]


@needs_folder
@pytest.mark.parametrize(
    ("name", "labels"),
    [
        ("sst5", ("negative", "positive")),
        ("emotion", ("sadness", "joy")),
        ("implicithate", ("incitement", "white_grievance")),
        ("trec", ("ENTY", "HUM")),
        ("reuters", ("acq", "earn")),
    ],
)
def test_a_binary_variant_is_the_same_split_with_its_two_largest_classes(name, labels):
    whole, binary = load_task(name, folder=FOLDER), load_task(f"{name}-binary", folder=FOLDER)
    assert binary.name == f"{name}-binary"
    assert binary.label_names == labels
    for split in ("train", "validation", "test"):
        part, all_of_it = getattr(binary, split), getattr(whole, split)
        wanted = [whole.label_names.index(label) for label in labels]
        rows = np.flatnonzero(np.isin(all_of_it.labels, wanted))
        assert part.parts == all_of_it.take(rows).parts
        assert [labels[i] for i in part.labels] == [
            whole.label_names[i] for i in all_of_it.labels[rows]
        ]


@pytest.mark.parametrize("name", EMBEDDED_TASKS)
def test_an_embedded_task_needs_no_folder_and_is_not_read_from_one(tmp_path, name):
    task = load_task(name, folder=tmp_path)
    assert [len(part) for part in task.splits.values()] == [400, 200, 200]
    assert task.source == "embedded"


def test_the_seed_of_an_embedded_task_changes_its_halves_only():
    one, two = load_task("tiny-topic", seed=1), load_task("tiny-topic", seed=2)
    assert same(one.train, two.train)
    assert not same(one.test, two.test)


def test_an_unknown_task_is_refused_with_the_nearest_name():
    with pytest.raises(UnknownName, match=r"No task is called 'sst-5'\. Did you mean 'sst5'\?"):
        load_task("sst-5")


def test_a_task_with_two_classes_has_no_binary_variant():
    with pytest.raises(UnknownName, match="No task is called 'rte-binary'"):
        load_task("rte-binary", folder=FOLDER)


def test_a_folder_without_the_task_is_refused_and_not_replaced_by_the_hub(tmp_path):
    with pytest.raises(DataError, match=r"rte.meta\.json is not there"):
        load_task("rte", folder=tmp_path)


@pytest.mark.parametrize("name", ["train.jsonl.gz", "validation.jsonl.gz"])
def test_a_folder_that_lacks_a_file_says_what_is_needed_and_what_to_try(tmp_path, name):
    rows = zipped('{"text": "a", "label": 0}', '{"text": "b", "label": 1}')
    write_folder(tmp_path, names='["negative", "positive"]', rows=rows)
    (tmp_path / "sst2" / name).unlink()
    needed = "'sst2' needs sst2/meta.json, sst2/train.jsonl.gz, sst2/validation.jsonl.gz"
    with pytest.raises(DataError, match=f"{name} is not there; {needed}.*none to use the hub"):
        load_task("sst2", folder=tmp_path)


def write_folder(folder: Path, *, names: str, rows: bytes) -> None:
    home = folder / "sst2"
    home.mkdir()
    (home / "meta.json").write_text(f'{{"label_names": {names}}}', encoding="utf-8")
    (home / "train.jsonl.gz").write_bytes(rows)
    (home / "validation.jsonl.gz").write_bytes(rows)


def zipped(*rows: str) -> bytes:
    import gzip

    return gzip.compress("\n".join(rows).encode())


def test_a_folder_may_number_the_labels_in_another_order(tmp_path):
    rows = zipped('{"text": "fine", "label": 0}', '{"text": "bad\u2028ly", "label": 1}')
    write_folder(tmp_path, names='["positive", "negative"]', rows=rows)
    task = load_task("sst2", folder=tmp_path)
    assert task.label_names == ("negative", "positive")
    assert task.train.parts == (("fine",), ("bad\u2028ly",))
    assert task.train.labels.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("names", "rows", "sentence"),
    [
        ('["no", "yes"]', zipped('{"text": "a", "label": 0}'), "does not list the labels"),
        ("[]", zipped('{"text": "a", "label": 0}'), "is damaged"),
        ('["negative", "positive"]', zipped('{"text": "a", "label": -1}'), "is damaged"),
        ('["negative", "positive"]', zipped('{"txt": "a", "label": 1}'), "has no column 'text'"),
        ('["negative", "positive"]', zipped('{"text": null, "label": 1}'), "is damaged"),
        ('["negative", "positive"]', zipped("not JSON"), "could not be read"),
        ('["negative", "positive"]', b"not gzip", "could not be read"),
        ('["negative", "positive"]', zipped("x" * 99)[:-9], "could not be read"),
    ],
    ids=[
        "other labels",
        "no labels",
        "label -1",
        "no column",
        "no text",
        "not JSON",
        "not gzip",
        "cut off",
    ],
)
def test_a_damaged_folder_is_refused(tmp_path, names, rows, sentence):
    write_folder(tmp_path, names=names, rows=rows)
    with pytest.raises(DataError, match=f"sst2.*{sentence}.*fetch the task's data again"):
        load_task("sst2", folder=tmp_path)


@given(st.integers(2, 300), st.integers(0, 99))
def test_halves_are_disjoint_complete_and_in_order(n, seed):
    one, two = halve(numbered(n), generator(seed))
    assert (len(one), len(two)) == (n // 2, n - n // 2)
    assert texts(one) + texts(two) == texts(numbered(n))
    numbers = [int(text.split()[1]) for (text,) in one.parts]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize(("n", "n_train"), [(6346, 5076), (10_703, 8562), (10, 8), (6, 4)])
def test_eighty_percent_are_rounded_down(n, n_train):
    train, held_out = split_off(numbered(n), generator(1))
    assert (len(train), len(held_out)) == (n_train, n - n_train)
    assert texts(train) + texts(held_out) == texts(numbered(n))


def test_a_single_held_out_example_cannot_be_halved():
    with pytest.raises(DataError, match="1 example"):
        halve(numbered(1), generator(1))


def task_of(labels: list[int], n_classes: int) -> Task:
    train = Examples(tuple((f"text {i}",) for i in range(len(labels))), np.array(labels))
    names = tuple(f"class {c}" for c in range(n_classes))
    return Task("mine", "own", names, train, numbered(4), numbered(4), "a test")


@given(st.lists(st.integers(0, 4), min_size=1, max_size=80), st.data())
def test_a_subsample_keeps_every_class_in_its_share(labels, data):
    size = data.draw(st.integers(1, len(labels)))
    task = task_of(labels, 5)
    part = subsample(task, size, seed=1)
    assert len(part.train) == size
    assert set(part.train.parts) <= set(task.train.parts)
    assert len(set(part.train.parts)) == size
    for label in range(5):
        exact = labels.count(label) * size / len(labels)
        assert abs(np.count_nonzero(part.train.labels == label) - exact) < 1


def test_a_subsample_rounds_by_largest_remainder():
    task = task_of([0] * 6 + [1] * 3 + [2] * 1, 3)  # 4 of 10: shares 2.4, 1.2, 0.4
    assert np.bincount(subsample(task, 4, seed=3).train.labels, minlength=3).tolist() == [3, 1, 0]


def test_a_subsample_depends_on_its_seed_and_leaves_small_held_out_data_alone():
    task = task_of([0, 1] * 50, 2)
    one, again, other = (subsample(task, 20, seed=seed) for seed in (1, 1, 2))
    assert same(one.train, again.train)
    assert not same(one.train, other.train)
    assert same(one.validation, task.validation)
    assert same(one.test, task.test)
    assert one.source == "a test, 20 of 100 training examples"


def test_a_subsample_has_no_more_held_out_examples_than_training_examples():
    task = replace(task_of([0, 1] * 50, 2), validation=numbered(30), test=numbered(21))
    part = subsample(task, 20, seed=1)
    assert (len(part.validation), len(part.test)) == (20, 20)
    assert set(part.validation.parts) <= set(task.validation.parts)
    again, other = (subsample(task, 20, seed=seed) for seed in (1, 2))
    assert same(part.validation, again.validation)
    assert not same(part.validation, other.validation)


@given(wrong=st.lists(st.booleans(), min_size=8, max_size=60), data=st.data())
def test_a_subsample_keeps_the_noise_that_a_file_has(wrong, data):
    assigned = np.arange(len(wrong)) % 3
    # In a file with flags, the original label of a wrong one is not known.
    original = np.where(wrong, -1, assigned)
    task = task_of(original.tolist(), 3)
    noisy = replace(task, noise=NoisyLabels(original, assigned, np.array(wrong), "flagged"))
    size = data.draw(st.integers(1, len(wrong)))
    part = subsample(noisy, size, seed=1)
    rows = [task.train.parts.index(parts) for parts in part.train.parts]
    assert len(rows) == size
    assert part.labels.origin == "flagged"
    assert part.labels.is_noisy.tolist() == noisy.labels.is_noisy[rows].tolist()
    assert part.labels.assigned.tolist() == assigned[rows].tolist()
    assert part.labels.original.tolist() == part.train.labels.tolist()
    # Six kinds of examples at most, each rounded.
    assert abs(part.labels.is_noisy.sum() - np.mean(wrong) * size) <= 3


@pytest.mark.parametrize("size", [0, 101])
def test_a_subsample_larger_than_the_task_is_refused(size):
    with pytest.raises(SettingsError, match="'mine' has 100"):
        subsample(task_of([0, 1] * 50, 2), size, seed=1)
