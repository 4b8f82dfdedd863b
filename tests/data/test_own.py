from collections import Counter

import datasets
import numpy as np
import pandas as pd
import pytest

from memloc.data.own import (
    Columns,
    check_noisy_file,
    load_csv,
    read_rows,
)
from memloc.data.task import hash_task
from memloc.errors import DataError, MemlocWarning


def write(path, **columns):
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def load_noisy(path, **columns):
    found = load_csv(path, **columns)
    return found, found.labels


def rows(task, split):
    part = getattr(task, split)
    return [(*p, task.label_names[y]) for p, y in zip(part.parts, part.labels, strict=True)]


@pytest.fixture
def reviews(tmp_path):
    texts = [f"review {i}" for i in range(20)]
    return write(tmp_path / "reviews.csv", text=texts, y=["good", "bad"] * 10)


def test_a_file_becomes_a_task_split_80_to_20_and_halved(reviews):
    task = load_csv(reviews, text="text", label="y")
    assert (task.name, task.label_names, task.category) == ("reviews", ("bad", "good"), "own")
    assert (len(task.train), len(task.validation), len(task.test)) == (16, 2, 2)
    found = Counter(rows(task, "train") + rows(task, "validation") + rows(task, "test"))
    assert found == Counter((f"review {i}", ("good", "bad")[i % 2]) for i in range(20))


def test_the_seed_decides_the_split_and_nothing_else_does(reviews):
    one, again, other = (load_csv(reviews, text="text", label="y", seed=s) for s in (1, 1, 2))
    assert one.train.parts == again.train.parts
    assert one.test.parts == again.test.parts
    assert one.train.parts != other.train.parts


def test_a_held_out_file_leaves_all_rows_of_the_first_to_training(tmp_path, reviews):
    unseen = write(tmp_path / "unseen.csv", text=["a", "b", "c"], y=["bad", "good", "bad"])
    task = load_csv(reviews, text="text", label="y", held_out=unseen, name="mine")
    assert task.name == "mine"
    assert len(task.train) == 20
    assert Counter(rows(task, "validation") + rows(task, "test")) == Counter(
        [("a", "bad"), ("b", "good"), ("c", "bad")]
    )


def test_pairs_have_two_parts(tmp_path):
    path = write(tmp_path / "p.csv", a=list("abcdef"), b=list("uvwxyz"), y=[1, 2, 10] * 2)
    task = load_csv(path, text="a", label="y", pair="b")
    assert task.label_names == ("1", "2", "10")
    assert set(task.train.parts) < set(zip("abcdef", "uvwxyz", strict=True))
    assert len(task.train) == 4


def test_labels_of_integers_and_of_their_spellings_make_the_same_task(tmp_path):
    frame = pd.DataFrame({"t": list("abcdefgh"), "y": [10, 9] * 4})
    frame.to_parquet(tmp_path / "n.parquet")
    frame.to_csv(tmp_path / "n.csv", index=False)
    one, two = (load_csv(tmp_path / f"n.{s}", text="t", label="y") for s in ("parquet", "csv"))
    assert one.label_names == two.label_names == ("9", "10")
    assert one.train.parts == two.train.parts
    assert one.train.labels.tolist() == two.train.labels.tolist()


def test_real_noise_comes_with_the_training_examples_it_belongs_to(tmp_path):
    before = ["a", "b", "c", "a"] * 10
    after = [*["b", "b", "c", "c"], *before[4:36], *["a", "a", "a", "a"]]
    columns = {"t": [f"text {i}" for i in range(40)], "before": before, "after": after}
    path = write(tmp_path / "n.csv", **columns)
    task, noise = load_noisy(path, text="t", label="after", original="before")
    assert noise.original.tolist() == task.train.labels.tolist()
    for (text,), original, assigned, noisy in zip(
        task.train.parts, noise.original, noise.assigned, noise.is_noisy, strict=True
    ):
        row = int(text.split()[1])
        assert task.label_names[original] == before[row]
        assert task.label_names[assigned] == after[row]
        assert noisy == (before[row] != after[row])
    for text, label in rows(task, "validation") + rows(task, "test"):
        assert label == before[int(text.split()[1])]
    plain = load_csv(path, text="t", label="before")
    assert np.array_equal(plain.train.labels, task.train.labels)
    assert plain.test.parts == task.test.parts
    n_noisy = sum(noise.is_noisy)
    assert noise.summary() == (
        f"{n_noisy} noisy of 32 examples, column 'before' read as original labels."
    )


def test_a_class_that_only_noise_assigns_is_a_class(tmp_path):
    columns = {"before": ["a", "b"] * 5, "after": ["a", "c"] * 5}
    path = write(tmp_path / "n.csv", t=list("abcdefghij"), **columns)
    task, _ = load_noisy(path, text="t", label="after", original="before")
    assert task.label_names == ("a", "b", "c")


def test_columns_without_any_noise_are_refused(reviews):
    with pytest.raises(DataError, match="none have an assigned label that differs"):
        load_noisy(reviews, text="text", label="y", original="y")


def test_one_class_is_not_a_task(tmp_path):
    path = write(tmp_path / "one.csv", t=list("abcdef"), y=["x"] * 6)
    with pytest.raises(DataError, match=r"'y' of .* only the label 'x'"):
        load_csv(path, text="t", label="y")


def test_held_out_labels_that_training_has_not_are_refused(tmp_path, reviews):
    unseen = write(tmp_path / "u.csv", text=["a", "b"], y=["ugly", "good"])
    with pytest.raises(DataError, match=r"\(ugly\).*bad"):
        load_csv(reviews, text="text", label="y", held_out=unseen)


def test_too_few_rows_to_split_are_refused(tmp_path):
    path = write(tmp_path / "few.csv", t=list("abcde"), y=list("xyxyx"))
    with pytest.raises(DataError, match="six in all"):
        load_csv(path, text="t", label="y")


def test_an_empty_text_in_somebodys_file_is_refused(tmp_path):
    path = write(tmp_path / "e.csv", t=["a", "", "c", "d", "e", "f"], y=list("xyxyxy"))
    with pytest.raises(DataError, match=r"1 empty text.*row 2"):
        load_csv(path, text="t", label="y")


def test_a_missing_label_in_somebodys_file_is_refused(tmp_path):
    path = write(tmp_path / "e.csv", t=list("abcdef"), y=["x", "y", "x", "y", None, "x"])
    with pytest.raises(DataError, match=r"1 empty label.*row 5"):
        load_csv(path, text="t", label="y")


def test_a_column_that_is_not_there_is_refused(reviews):
    with pytest.raises(DataError, match=r"no column 'txt'\. Did you mean 'text'\? It has: text, y"):
        load_csv(reviews, text="txt", label="y")


def test_paths_may_be_strings(reviews):
    assert len(load_csv(str(reviews), text="text", label="y", held_out=str(reviews)).train) == 20


WAYS = {
    "csv": [0, 1],
    "floats.csv": ["0.0", "1.0"],
    "words.csv": ["No", "YES"],
    "letters.csv": ["f", " T"],
    "jsonl": [False, True],
    "parquet": [False, True],
}


@pytest.mark.parametrize("name", list(WAYS))
def test_flags_beside_two_integer_labels_are_flags(tmp_path, name):
    labels = [i % 2 for i in range(60)]
    wrong = [i % 10 < 3 for i in range(60)]
    flags = [WAYS[name][w] for w in wrong]
    frame = pd.DataFrame({"t": [f"text {i}" for i in range(60)], "y": labels, "wrong": flags})
    path = tmp_path / f"mine.{name}"
    if name == "jsonl":
        frame.to_json(path, orient="records", lines=True)
    elif name == "parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False)
    task, noise = load_noisy(path, text="t", label="y", flag="wrong", held_out=path)
    assert noise.is_noisy.tolist() == wrong
    assert noise.assigned.tolist() == labels
    assert noise.original.tolist() == [y ^ w for y, w in zip(labels, wrong, strict=True)]
    assert task.train.labels.tolist() == noise.original.tolist()
    assert noise.summary() == "18 noisy of 60 examples, column 'wrong' read as flags."


def test_flags_leave_open_what_is_right_among_three_classes(tmp_path):
    texts = [f"text {i}" for i in range(60)]
    flags = [int(i % 10 < 3) for i in range(60)]
    path = write(tmp_path / "n.csv", t=texts, y=[0, 1, 2] * 20, wrong=flags)
    task, noise = load_noisy(path, text="t", label="y", flag="wrong")
    assert (noise.original[noise.is_noisy] == -1).all()
    assert noise.is_noisy.sum() > 0
    for (text,), wrong in zip(task.train.parts, noise.is_noisy, strict=True):
        assert wrong == flags[int(text.split()[1])]
    for part in (task.validation, task.test):
        assert (part.labels >= 0).all()


def test_which_labels_are_wrong_is_said_in_one_way(reviews):
    both = {"original": "y", "flag": "y"}
    said = r"one way .*--original COLUMN \(original=\).*--flag COLUMN"
    with pytest.raises(DataError, match=said):
        load_csv(reviews, text="text", label="y", **both)
    for ways in ({}, both):
        with pytest.raises(DataError, match=said):
            check_noisy_file(reviews, text="text", label="y", **ways)


def test_without_a_column_of_noise_labels_are_taken_as_they_are(reviews):
    task = load_csv(reviews, text="text", label="y")
    assert task.noise is None
    assert dict(rows(task, "train")).items() <= {
        (f"review {i}", ("good", "bad")[i % 2]) for i in range(20)
    }


def test_flags_beside_many_integer_labels_are_not_taken_for_original_labels(tmp_path):
    labels, flags = [i % 6 for i in range(60)], [int(i % 10 < 3) for i in range(60)]
    path = write(tmp_path / "n.csv", t=[f"text {i}" for i in range(60)], y=labels, wrong=flags)
    said = r"holds only 0 and 1, but column 'y' also 2, 3, 4, 5: .* use --flag wrong \(flag=\); if"
    with pytest.raises(DataError, match=said):
        load_noisy(path, text="t", label="y", original="wrong")
    with pytest.raises(DataError, match=said):
        read_known(path, tuple("abcdef"), original="wrong")
    assert read_known(path, tuple("abcdef"), flag="wrong").is_noisy.sum() == 18


def test_more_wrong_labels_than_right_ones_are_suspected_to_be_flags(tmp_path):
    labels, flags = [i % 2 for i in range(60)], [int(i % 10 in {0, 2, 4}) for i in range(60)]
    path = write(tmp_path / "n.csv", t=[f"text {i}" for i in range(60)], y=labels, wrong=flags)
    with pytest.warns(MemlocWarning, match="if it holds flags, use --flag wrong"):
        load_noisy(path, text="t", label="y", original="wrong")


def read_known(path, known=("no", "yes"), **columns):
    names = Columns("t", "y", **columns)
    found = read_rows(path, names, known)
    return names.noise(found.examples.labels, found.assigned)


def test_flags_mark_examples_of_a_model_s_classes(tmp_path):
    path = write(tmp_path / "n.csv", t=list("abc"), y=["no", "yes", "no"], wrong=[1, 0, 0])
    assert read_known(path, flag="wrong").is_noisy.tolist() == [True, False, False]
    assert read_known(path, flag="wrong").original.tolist() == [1, 1, 0]
    three = read_known(path, ("no", "yes", "maybe"), flag="wrong")
    assert three.original.tolist() == [-1, 1, 0]
    path = write(tmp_path / "n.csv", t=list("abc"), y=[0, 1, 0], wrong=[1, 0, 0])
    assert read_known(path, flag="wrong").is_noisy.tolist() == [True, False, False]
    path = write(tmp_path / "n.csv", t=list("abc"), y=[0, 1, 0], wrong=[1, 1, 0])
    assert read_known(path, original="wrong").original.tolist() == [1, 1, 0]


def test_labels_and_original_labels_are_both_by_number_or_both_by_name(tmp_path):
    path = write(tmp_path / "n.csv", t=list("abc"), y=[0, 1, 2], before=[1, 1, 2])
    noise = read_known(path, ("1", "2", "3"), original="before")
    assert noise.assigned.tolist() == [0, 1, 2]
    assert noise.original.tolist() == [1, 1, 2]


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ({"flag": "mark"}, r"holds 'perhaps', but flags are .*use --original mark"),
        ({"original": "mark"}, r"'y' or 'mark' .* does not know \(perhaps, so\); it knows no, yes"),
    ],
)
def test_marks_that_a_model_cannot_know_are_refused(tmp_path, columns, said):
    path = write(tmp_path / "n.csv", t=["a", "b"], y=["no", "yes"], mark=["perhaps", "so"])
    with pytest.raises(DataError, match=said):
        read_known(path, **columns)


def test_long_labels_are_shortened_in_a_sentence(tmp_path):
    path = write(tmp_path / "n.csv", t=["a", "b"], y=["x" * 3000, "yes"], wrong=[1, 0])
    with pytest.raises(DataError, match=r"does not know \(x{60}\.\.\.\); it knows"):
        read_known(path, flag="wrong")


ROWS = {"text": [f"text {n}" for n in range(12)], "label": ["a", "b"] * 6}


@pytest.mark.parametrize("kind", [pd.DataFrame, datasets.Dataset.from_dict])
def test_a_table_in_memory_is_read_as_its_file_is(kind, tmp_path):
    pd.DataFrame(ROWS).to_csv(tmp_path / "table.csv", index=False)
    file, table = load_csv(tmp_path / "table.csv"), load_csv(kind(ROWS), held_out=None)
    assert table.train.parts == file.train.parts
    assert (table.train.labels == file.train.labels).all()
    assert table.label_names == ("a", "b")
    held = load_csv(kind(ROWS), held_out=kind(ROWS))
    assert len(held.validation) == 6


def numbered_classes():
    features = {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["no", "yes"])}
    rows = {**ROWS, "label": [0, 1] * 6}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(features))


def test_classes_of_a_dataset_have_their_names():
    assert load_csv(numbered_classes()).label_names == ("no", "yes")


def test_a_folder_that_datasets_saved_is_read_as_its_dataset_is(tmp_path):
    numbered_classes().save_to_disk(tmp_path / "table")
    file, table = load_csv(tmp_path / "table"), load_csv(numbered_classes(), name="table")
    assert hash_task(file) == hash_task(table)
    assert file.label_names == ("no", "yes")


def test_other_folders_are_refused_in_one_sentence(tmp_path):
    with pytest.raises(DataError, match=r"did not write: give a file ending in \.csv"):
        load_csv(tmp_path)
    datasets.DatasetDict(train=numbered_classes()).save_to_disk(tmp_path / "splits")
    with pytest.raises(DataError, match=r"has splits: give the folder of one of them \(train\)"):
        load_csv(tmp_path / "splits")
    numbered_classes().save_to_disk(tmp_path / "damaged")
    (cut,) = (tmp_path / "damaged").glob("*.arrow")
    cut.write_bytes(cut.read_bytes()[:40])
    with pytest.raises(DataError, match="could not be read"):
        load_csv(tmp_path / "damaged")
    cut.unlink()
    with pytest.raises(DataError, match="could not be read"):
        load_csv(tmp_path / "damaged")


def test_what_is_missing_in_a_data_frame_is_named():
    frame = pd.DataFrame({**ROWS, "label": pd.array([1, None] * 6, dtype="Int64")})
    with pytest.raises(DataError, match="Column 'label' of the DataFrame has 6 empty labels"):
        load_csv(frame)
    with pytest.raises(DataError, match="the DataFrame has no column 'lable'"):
        load_csv(frame, label="lable")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (None, "not from None"),
        (ROWS["text"], "list"),
        (datasets.DatasetDict(train=datasets.Dataset.from_dict(ROWS)), "It has splits"),
    ],
)
def test_what_holds_no_examples_is_refused(data, said):
    with pytest.raises(DataError, match=said):
        load_csv(data)


def test_the_text_is_not_its_own_label():
    with pytest.raises(DataError, match="'text' of the DataFrame is named"):
        load_csv(pd.DataFrame(ROWS), label="text")


@pytest.mark.parametrize("as_text", [False, True])
def test_real_numbers_are_no_classes(as_text):
    numbers = [n / 7 + 0.01 for n in range(12)]
    frame = pd.DataFrame({**ROWS, "label": list(map(str, numbers)) if as_text else numbers})
    with pytest.raises(DataError, match=r"real numbers|float values"):
        load_csv(frame)


def test_whole_numbers_are_classes_in_few_rows():
    rows = len(next(iter(ROWS.values())))
    names = [str(n % (rows * 3 // 4)) for n in range(rows)]
    assert len(load_csv(pd.DataFrame({**ROWS, "label": names})).label_names) > rows / 2
