from dataclasses import replace
from math import floor

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

import memloc
from memloc.data.perturb import binarise, given_noise, noisy_task
from memloc.data.perturb import perturb as perturb_named
from memloc.data.sources import load_task
from memloc.data.task import Examples, Task
from memloc.errors import (
    DataError,
    MemlocWarning,
    SettingsError,
    UnknownName,
)
from memloc.protocol import NoiseSettings
from memloc.seeds import generator

KINDS = st.sampled_from(["uniform", "next"])


def perturb(labels, n_classes, rng, **more):
    return perturb_named(labels, [str(c) for c in range(n_classes)], rng, **more)


@st.composite
def labelled(draw):
    """Labels in random order with 10 to 60 examples in every class, or none at all."""
    n_classes = draw(st.integers(2, 6))
    sizes = [draw(st.integers(10, 60) | st.just(0)) for _ in range(n_classes - 1)]
    sizes.append(draw(st.integers(10, 60)))
    labels = np.repeat(np.arange(n_classes), sizes)
    return generator(draw(st.integers(0, 9))).permutation(labels), n_classes


@given(labelled(), st.integers(0, 99), st.integers(10, 99), KINDS)
def test_every_class_loses_exactly_its_share(data, seed, percent, kind):
    labels, n_classes = data
    noise = perturb(labels, n_classes, generator(seed), rate=percent / 100, pattern=kind)
    for label in range(n_classes):
        there = labels == label
        assert np.count_nonzero(noise.is_noisy[there]) == there.sum() * percent // 100


@given(labelled(), st.integers(0, 99), KINDS)
def test_noisy_examples_never_keep_their_label_and_clean_ones_always_do(data, seed, kind):
    labels, n_classes = data
    before = labels.copy()
    noise = perturb(labels, n_classes, generator(seed), pattern=kind)
    assert np.array_equal(labels, before)
    assert np.array_equal(noise.original, before)
    assert np.array_equal(noise.is_noisy, noise.assigned != noise.original)
    assert noise.is_noisy.any()
    assert noise.assigned.min() >= 0
    assert noise.assigned.max() < n_classes


@given(labelled(), st.integers(0, 99), KINDS)
def test_the_same_seed_gives_the_same_noise_whatever_ran_before(data, seed, kind):
    labels, n_classes = data
    one = perturb(labels, n_classes, generator(seed, "noise", "task"), pattern=kind)
    generator(seed).random(5)
    np.random.default_rng().random(5)
    two = perturb(labels, n_classes, generator(seed, "noise", "task"), pattern=kind)
    assert np.array_equal(one.assigned, two.assigned)


def test_another_seed_makes_other_examples_noisy():
    labels = np.arange(400) % 4
    one, two = (perturb(labels, 4, generator(seed)).is_noisy for seed in (1, 2))
    assert not np.array_equal(one, two)


@given(labelled(), st.integers(0, 99))
def test_next_moves_every_noisy_example_to_the_class_after_its_own(data, seed):
    labels, n_classes = data
    noise = perturb(labels, n_classes, generator(seed), pattern="next")
    moved = (noise.original[noise.is_noisy] + 1) % n_classes
    assert np.array_equal(noise.assigned[noise.is_noisy], moved)


@given(labelled(), st.integers(0, 99))
def test_both_kinds_of_noise_choose_the_same_examples(data, seed):
    labels, n_classes = data
    one, two = (perturb(labels, n_classes, generator(seed), pattern=k) for k in ("uniform", "next"))
    assert np.array_equal(one.is_noisy, two.is_noisy)


def test_every_wrong_class_is_equally_likely():
    labels = np.repeat(np.arange(5), 4000)
    noise = perturb(labels, 5, generator(3), rate=0.5)
    for label in range(5):
        assigned = noise.assigned[noise.is_noisy & (labels == label)]
        counts = np.delete(np.bincount(assigned, minlength=5), label)
        assert counts.sum() == 2000
        assert chisquare(counts).pvalue > 0.001


def test_every_example_is_equally_likely_to_be_noisy():
    labels = np.zeros(20, dtype=np.int64)
    labels[10:] = 1
    times = sum(perturb(labels, 2, generator(s), rate=0.3).is_noisy for s in range(2000))
    assert times.sum() == 2000 * 6
    assert chisquare(times).pvalue > 0.001


@settings(max_examples=300)
@given(st.integers(1, 99), st.integers(1, 3000))
def test_shares_are_rounded_down_as_on_paper(percent, size):
    assume(percent * size >= 100)
    labels = np.zeros(size, dtype=np.int64)
    noise = perturb(labels, 2, generator(0), rate=percent / 100)
    assert noise.is_noisy.sum() == percent * size // 100


def test_floating_point_does_not_cost_an_example():
    assert floor(0.29 * 100) == 28  # what plain floats would say
    noise = perturb(np.zeros(100, dtype=np.int64), 2, generator(0), rate=0.29)
    assert noise.is_noisy.sum() == 29


def test_a_class_without_examples_is_no_obstacle():
    noise = perturb(np.zeros(20, dtype=np.int64), 3, generator(0))
    assert noise.is_noisy.sum() == 3


def test_classes_too_small_keep_their_labels_with_one_warning():
    labels = np.array([0] * 20 + [1] * 6 + [2] * 3)
    with pytest.warns(MemlocWarning) as caught:
        noise = perturb_named(labels, ["earn", "acq", "ship"], generator(0))
    assert [str(warning.message) for warning in caught] == [
        "2 classes keep their labels, because a share of 0.15 is less than one training example:"
        " acq (6), ship (3)."
    ]
    assert [noise.is_noisy[labels == c].sum() for c in range(3)] == [3, 0, 0]
    assert perturb(labels, 3, generator(0), rate=0.3334).is_noisy[labels == 2].sum() == 1


def test_a_warning_names_a_few_of_many_small_classes():
    labels = np.array([*[0] * 20, *range(1, 10)])
    with pytest.warns(MemlocWarning, match=r"^9 classes .*: 1 \(1\), .* 5 \(1\) and 4 more\.$"):
        perturb(labels, 10, generator(0))


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (6, "has 6 training examples, .* Use a rate of 0.1667 or more, or add examples"),
        (1, "has 1 training example, .* Add examples"),
    ],
)
def test_a_task_in_which_every_class_is_too_small_is_refused(size, said):
    with pytest.raises(DataError, match=f"No label can be flipped: the largest class {said}"):
        perturb(np.repeat([0, 1], size), 2, generator(0))


@pytest.mark.parametrize(("category", "ends"), [("own", "is not known."), ("topic", "class).")])
def test_added_noise_is_a_visible_step_that_says_who_flipped_labels(category, ends):
    task = replace(load_task("tiny-topic"), category=category)
    noisy = memloc.add_noise(task, rate=0.2, seed=3)
    assert noisy.train is task.train
    noise = noisy.labels
    rng = generator(3, "noise", "tiny-topic")
    same = perturb(task.train.labels, task.n_classes, rng, rate=0.2)
    assert np.array_equal(noise.assigned, same.assigned)
    assert "noisy of 400 examples, labels flipped by memloc (a share of 0.2" in noise.summary()
    assert noise.summary().endswith(ends)


def test_noise_is_that_of_the_settings_unless_a_task_has_its_own():
    task = load_task("tiny-topic", examples=60)
    usual, more, other = (
        noisy_task(task, NoiseSettings(**changes)) for changes in ({}, {"rate": 0.5}, {"seed": 2})
    )
    assert usual.labels.is_noisy.sum() == memloc.add_noise(task).labels.is_noisy.sum() == 6
    assert more.labels.is_noisy.sum() == 30
    assert (other.labels.is_noisy != usual.labels.is_noisy).any()
    assert noisy_task(more, NoiseSettings()) is more


@pytest.mark.parametrize("rate", [0, 1, -0.1, 1.5, float("nan")])
def test_a_rate_that_is_no_share_is_refused(rate):
    with pytest.raises(SettingsError, match="above 0 and below 1"):
        perturb(np.arange(40) % 2, 2, generator(0), rate=rate)


def test_an_unknown_kind_is_refused_with_the_nearest_one():
    with pytest.raises(UnknownName, match=r"is called 'unifrom'\. Did you mean 'uniform'"):
        perturb(np.arange(40) % 2, 2, generator(0), pattern="unifrom")


def test_without_noise_the_labels_of_a_task_are_all_right():
    task = load_task("tiny-topic")
    assert task.noise is None
    assert np.array_equal(task.labels.assigned, task.train.labels)
    assert np.array_equal(task.labels.original, task.train.labels)
    assert not task.labels.is_noisy.any()


def test_a_task_that_has_noise_is_given_no_more():
    noisy = memloc.add_noise(load_task("tiny-topic", examples=60))
    with pytest.raises(DataError, match="'tiny-topic' says which labels are wrong: train on it"):
        memloc.add_noise(noisy)


def test_held_out_data_do_not_change_when_a_tasks_labels_are_perturbed():
    task, fresh = load_task("tiny-topic"), load_task("tiny-topic")
    noise = perturb(task.train.labels, task.n_classes, generator(1, "noise", task.name))
    assert noise.is_noisy.any()
    for split in ("train", "validation", "test"):
        assert np.array_equal(getattr(task, split).labels, getattr(fresh, split).labels)


def test_given_noise_is_where_labels_differ():
    noise = given_noise(np.array([0, 1, 2]), np.array([0, 2, 2]))
    assert noise.is_noisy.tolist() == [False, True, False]
    assert noise.assigned.tolist() == [0, 2, 2]


@pytest.mark.parametrize(("assigned", "found"), [([0, 1], "none"), ([1, 0], "all")])
def test_given_noise_needs_noisy_and_clean_examples(assigned, found):
    with pytest.raises(DataError, match=f"Of 2 examples {found} have an assigned label"):
        given_noise(np.array([0, 1]), np.array(assigned))


def examples(labels: list[int]) -> Examples:
    parts = tuple((f"{label} {i}",) for i, label in enumerate(labels))
    return Examples(parts, np.array(labels, dtype=np.int64))


def task_of(train: list[int], held_out: list[int]) -> Task:
    names = ("red", "green", "blue", "grey")
    return Task("colours", "own", names, examples(train), *[examples(held_out)] * 2, "a test")


@given(st.lists(st.integers(0, 3), min_size=4, max_size=40), st.lists(st.integers(0, 3)))
def test_binarising_keeps_exactly_the_two_largest_classes_of_training(train, held_out):
    counts = [train.count(label) for label in range(4)]
    ranked = sorted(range(4), key=lambda label: (-counts[label], label))[:2]
    task = task_of(train, held_out)
    if counts[ranked[1]] == 0:
        with pytest.raises(DataError, match=r"1 class.*two"):
            binarise(task)
        return
    kept = sorted(ranked)
    binary = binarise(task)
    assert binary.label_names == tuple(task.label_names[label] for label in kept)
    for whole, part in ((task.train, binary.train), (task.test, binary.test)):
        assert part.parts == tuple(p for p in whole.parts if int(p[0].split()[0]) in kept)
        assert [kept[label] for label in part.labels] == [int(p[0].split()[0]) for p in part.parts]


def test_of_equally_frequent_classes_the_first_are_kept():
    binary = binarise(task_of([3, 3, 2, 2, 1, 1, 0], [0, 1, 2, 3]))
    assert binary.name == "colours-binary"
    assert binary.label_names == ("green", "blue")
    assert binary.validation.labels.tolist() == [0, 1]
    assert binary.train.labels.tolist() == [1, 1, 0, 0]


@pytest.mark.parametrize("rate", ["a", None, 2, [0.1]])
def test_a_rate_that_is_no_number_is_refused(rate):
    with pytest.raises(SettingsError, match="The noise rate is"):
        memloc.add_noise(load_task("tiny-topic"), rate=rate)


def test_noise_is_added_to_tasks_only():
    with pytest.raises(SettingsError, match="not to a list"):
        memloc.add_noise(["a text"])
