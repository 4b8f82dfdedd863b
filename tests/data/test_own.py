from collections import Counter

import numpy as np
import pandas as pd
import pytest

from memloc.data.sources import load_file, load_noisy_file
from memloc.errors import DataError


def write(path, **columns):
    pd.DataFrame(columns).to_csv(path, index=False)
    return path


def rows(task, split):
    part = getattr(task, split)
    return [(*p, task.label_names[y]) for p, y in zip(part.parts, part.labels, strict=True)]


@pytest.fixture
def reviews(tmp_path):
    texts = [f"review {i}" for i in range(20)]
    return write(tmp_path / "reviews.csv", text=texts, y=["good", "bad"] * 10)


def test_a_file_becomes_a_task_split_80_to_20_and_halved(reviews):
    task = load_file(reviews, text="text", label="y")
    assert (task.name, task.label_names, task.category) == ("reviews", ("bad", "good"), "own")
    assert (len(task.train), len(task.validation), len(task.test)) == (16, 2, 2)
    found = Counter(rows(task, "train") + rows(task, "validation") + rows(task, "test"))
    assert found == Counter((f"review {i}", ("good", "bad")[i % 2]) for i in range(20))


def test_the_seed_decides_the_split_and_nothing_else_does(reviews):
    one, again, other = (load_file(reviews, text="text", label="y", seed=s) for s in (1, 1, 2))
    assert one.train.parts == again.train.parts
    assert one.test.parts == again.test.parts
    assert one.train.parts != other.train.parts


def test_a_held_out_file_leaves_all_rows_of_the_first_to_training(tmp_path, reviews):
    unseen = write(tmp_path / "unseen.csv", text=["a", "b", "c"], y=["bad", "good", "bad"])
    task = load_file(reviews, text="text", label="y", held_out=unseen, name="mine")
    assert task.name == "mine"
    assert len(task.train) == 20
    assert Counter(rows(task, "validation") + rows(task, "test")) == Counter(
        [("a", "bad"), ("b", "good"), ("c", "bad")]
    )


def test_pairs_have_two_parts(tmp_path):
    path = write(tmp_path / "p.csv", a=list("abcdef"), b=list("uvwxyz"), y=[1, 2, 10] * 2)
    task = load_file(path, text="a", label="y", pair="b")
    assert task.label_names == ("1", "2", "10")
    assert set(task.train.parts) < set(zip("abcdef", "uvwxyz", strict=True))
    assert len(task.train) == 4


def test_labels_of_integers_and_of_their_spellings_make_the_same_task(tmp_path):
    frame = pd.DataFrame({"t": list("abcdefgh"), "y": [10, 9] * 4})
    frame.to_parquet(tmp_path / "n.parquet")
    frame.to_csv(tmp_path / "n.csv", index=False)
    one, two = (load_file(tmp_path / f"n.{s}", text="t", label="y") for s in ("parquet", "csv"))
    assert one.label_names == two.label_names == ("9", "10")
    assert one.train.parts == two.train.parts
    assert one.train.labels.tolist() == two.train.labels.tolist()


def test_real_noise_comes_with_the_training_examples_it_belongs_to(tmp_path):
    before = ["a", "b", "c", "a"] * 10
    after = [*["b", "b", "c", "c"], *before[4:36], *["a", "a", "a", "a"]]
    columns = {"t": [f"text {i}" for i in range(40)], "before": before, "after": after}
    path = write(tmp_path / "n.csv", **columns)
    task, noise = load_noisy_file(path, text="t", label="after", original="before")
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
    plain = load_file(path, text="t", label="after", original="before")
    assert np.array_equal(plain.train.labels, task.train.labels)
    assert plain.test.parts == task.test.parts


def test_a_class_that_only_noise_assigns_is_a_class(tmp_path):
    columns = {"before": ["a", "b"] * 5, "after": ["a", "c"] * 5}
    path = write(tmp_path / "n.csv", t=list("abcdefghij"), **columns)
    task, _ = load_noisy_file(path, text="t", label="after", original="before")
    assert task.label_names == ("a", "b", "c")


def test_columns_without_any_noise_are_refused(reviews):
    with pytest.raises(DataError, match="none have an assigned label that differs"):
        load_noisy_file(reviews, text="text", label="y", original="y")


def test_one_class_is_not_a_task(tmp_path):
    path = write(tmp_path / "one.csv", t=list("abcdef"), y=["x"] * 6)
    with pytest.raises(
        DataError, match=r"'y' of .* has the one label 'x', at least two are needed"
    ):
        load_file(path, text="t", label="y")


def test_held_out_labels_that_training_has_not_are_refused(tmp_path, reviews):
    unseen = write(tmp_path / "u.csv", text=["a", "b"], y=["ugly", "good"])
    with pytest.raises(
        DataError, match=r"labels that the training file has not \(ugly\), it has bad"
    ):
        load_file(reviews, text="text", label="y", held_out=unseen)


def test_too_few_rows_to_split_are_refused(tmp_path):
    path = write(tmp_path / "few.csv", t=list("abcde"), y=list("xyxyx"))
    with pytest.raises(DataError, match="six in all"):
        load_file(path, text="t", label="y")


def test_an_empty_text_in_somebodys_file_is_refused(tmp_path):
    path = write(tmp_path / "e.csv", t=["a", "", "c", "d", "e", "f"], y=list("xyxyxy"))
    with pytest.raises(DataError, match=r"has 1 empty texts, the first in row 2 .*fill them in"):
        load_file(path, text="t", label="y")


def test_a_missing_label_in_somebodys_file_is_refused(tmp_path):
    path = write(tmp_path / "e.csv", t=list("abcdef"), y=["x", "y", "x", "y", None, "x"])
    with pytest.raises(DataError, match="has 1 empty labels, the first in row 5 "):
        load_file(path, text="t", label="y")


def test_a_column_that_is_not_there_is_refused(reviews):
    with pytest.raises(DataError, match=r"no column 'txt'\. Did you mean 'text'\? It has: text, y"):
        load_file(reviews, text="txt", label="y")


def test_paths_may_be_strings(reviews):
    assert len(load_file(str(reviews), text="text", label="y", held_out=str(reviews)).train) == 20
