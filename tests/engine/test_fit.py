"""`fit` trains several models on the same texts, each as if it were alone."""

from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fixtures.tasks import make_task
from memloc.engine import fit as engine
from memloc.engine.fit import ONE_BY_ONE, fit, fit_all, whole
from memloc.engine.learner import Learner, Part, States, Watch
from memloc.engine.passes import Work
from memloc.model.load import load_model
from memloc.model.predict import encode_for, predict
from memloc.protocol import FineTuneSettings

SETTINGS = FineTuneSettings(learning_rate=1e-2, batch_size=6, epochs=3, warmup=0.2)


@pytest.fixture
def data(tiny_model):
    """A function that loads a model by its seed, and texts with labels."""
    task = make_task(20, 3)
    model = str(tiny_model("opt", depth=3, dropout=0.1))
    load = partial(load_model, model, task.label_names)
    return lambda seed: load(seed=seed), encode_for(load(), task.train, 64), task.train.labels


def learners_of(data, seeds=(1, 2, 3), **more):
    start, _, labels = data
    return [Learner(str(seed), partial(start, seed), labels, seed, **more) for seed in seeds]


def losses(trained):
    return [[row["loss"] for row in one.curve] for one in trained]


def test_several_models_learn_in_one_pass_what_each_learns_alone(data, monkeypatch):
    texts = data[1]
    (at_once,) = fit(learners_of(data), texts, SETTINGS, ask=np.arange(5))
    assert [one.trained_with for one in at_once] == [("1", "2", "3")] * 3
    monkeypatch.setenv(ONE_BY_ONE, "1")
    one_by_one = list(fit(learners_of(data), texts, SETTINGS, ask=np.arange(5)))
    assert [[one.trained_with for one in ready] for ready in one_by_one] == [
        [("1",)],
        [("2",)],
        [("3",)],
    ]
    alone = [one for ready in one_by_one for one in ready]
    np.testing.assert_allclose(losses(at_once), losses(alone), rtol=1e-4)
    for one, other in zip(at_once, alone, strict=True):
        np.testing.assert_allclose(one.logits, other.logits, rtol=1e-3, atol=1e-4)
        np.testing.assert_array_equal(one.logits, predict(one.stack, texts)[:5])


def test_models_with_as_many_texts_share_passes_which_stay_when_the_first_are_done(data):
    start, texts, labels = data
    work = Work(texts, SETTINGS, None, Watch(), Path())

    def passes(learners):
        return [[one.name for one in some] for some in engine._grouped(learners, work, 4)]

    nine = [Learner(str(k), start, labels, k) for k in range(1, 10)]
    assert passes(nine) == [["1", "2", "3", "4"], ["5", "6", "7", "8"], ["9"]]
    assert passes(nine[4:]) == passes(nine)[1:]
    odd = [replace(one, parts=(Part(np.arange(5 + int(one.name) % 2)),)) for one in nine]
    assert passes(odd) == [["2", "4", "6", "8"], ["1", "3", "5", "7"], ["9"]]


def test_windows_share_passes_by_their_first_layer_wide_ones_first(data):
    start, texts, labels = data
    work = Work(texts, SETTINGS, None, Watch(), Path())
    layers = [(0,), (1,), (0, 1), (1, 2), (0, 1, 2), (0, 2)]
    windows = [Learner(str(some), start, labels, 1, (Part(None, some),)) for some in layers]
    shared = engine._grouped(windows, work, 4)
    assert [[one.parts[0].layers for one in some] for some in shared] == [
        [(0, 1, 2), (0, 1), (0,)],
        [(0, 2)],
        [(1, 2), (1,)],
    ]
    everywhere = replace(work, settings=SETTINGS.replace({"frozen_dropout": True}))
    assert {len(some) for some in engine._grouped(windows, everywhere, 4)} == {1}


def test_a_model_that_is_told_to_stop_needs_no_further_epoch(data):
    ended = []

    def is_done(trained):
        ended.append((trained.name, len(trained.curve)))
        return trained.name == "1" or len(trained.curve) == 2

    found = fit_all(learners_of(data), data[1], SETTINGS, Watch(after_epoch=is_done))
    assert [len(one.curve) for one in found] == [2, 2, 2]
    assert ended == [(name, epoch) for epoch in (1, 2) for name in "123"]


def test_updates_are_counted_and_told_for_each_model(data):
    seen, steps = [], []
    watch = Watch(steps.append, lambda trained, update: seen.append((trained.name, update)))
    learners = learners_of(data)
    fit_all(learners, data[1], SETTINGS, watch)
    each = SETTINGS.epochs * -(-len(data[2]) // SETTINGS.batch_size)
    assert [learner.updates(data[1], SETTINGS) for learner in learners] == [each] * 3
    assert sum(steps) == 3 * each
    assert seen == [(name, update) for update in range(each + 1) for name in "123"]


def test_what_was_kept_of_a_pass_counts_only_as_a_whole():
    assert whole({"1": ["1", "2"], "2": ["1", "2"], "3": ["3"]}) == {"1", "2", "3"}
    assert whole({"1": ["1", "2"], "3": ["3"]}) == {"3"}
    assert whole({"1": ["1", "2"], "2": ["2"]}) == {"2"}


def test_a_model_that_only_might_be_trained_is_left_out_where_it_would_be_alone(data, monkeypatch):
    first, second, _ = learners_of(data)
    some = [first, replace(second, is_optional=True)]
    state = States(partial(Path, "nowhere"), "key")
    assert [one.name for one in engine_passes(some, data, state)] == ["1", "2"]
    monkeypatch.setenv(ONE_BY_ONE, "1")
    assert [one.name for one in engine_passes(some, data, state)] == ["1"]


def engine_passes(learners, data, state):
    work = Work(data[1], SETTINGS, None, Watch(), Path())
    return [one for some in engine._passes(learners, work, state) for one in some]
