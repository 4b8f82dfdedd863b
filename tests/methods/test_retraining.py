"""Retraining's scores: of which windows, from which examples, with which weights."""

from dataclasses import replace

import numpy as np
import pytest

from fixtures.retraining import METHOD, assert_same_scores, retrainable
from fixtures.runs import DEPTH, make_data
from memloc.engine import fit as engine
from memloc.errors import ScoreError, StoreError
from memloc.methods import Sizes
from memloc.methods.result import Result
from memloc.methods.retraining import Retraining
from memloc.stats.windows import window_name, windows


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return METHOD.run(retrainable(tmp_path_factory.mktemp("whole"), "gpt_neo", dropout=0.2))


def test_scores_are_those_of_all_windows(whole):
    assert whole.outcomes.windows == tuple(windows(DEPTH))
    assert whole.outcomes.wrong.shape == (10, 6)
    assert whole.outcomes.noisy_wrong.shape == (5, 6)
    assert len(np.unique(whole.outcomes.noisy_wrong, axis=1).T) > 1  # windows matter
    assert whole.about["trained_on"] == 14


def test_an_interrupted_run_goes_on_with_what_is_missing(tmp_path, monkeypatch, whole):
    run = retrainable(tmp_path, "gpt_neo", dropout=0.2)
    ran, original = [], engine.Pass

    def interrupted(learners, work):
        if len(ran) == 5:  # three in one pass, and two
            raise KeyboardInterrupt
        ran.extend(learner.name for learner in learners)
        return original(learners, work)

    with monkeypatch.context() as patch:
        patch.setattr(engine, "Pass", interrupted)
        with pytest.raises(KeyboardInterrupt):
            METHOD.run(run)
    assert len(list(run.work("retraining").iterdir())) == 2  # files of three and of two windows

    def noted(learners, work):
        ran.extend(learner.name for learner in learners)
        return original(learners, work)

    monkeypatch.setattr(engine, "Pass", noted)
    assert_same_scores(METHOD.run(run), whole)
    assert sorted(ran) == sorted(window_name(window) for window in windows(DEPTH))  # each once


def test_some_widths_alone_can_be_run(tmp_path):
    scores = METHOD.replace({"widths": (1,)}).run(retrainable(tmp_path))
    assert scores.outcomes.windows == (range(1), range(1, 2), range(2, 3), range(DEPTH))
    assert np.isnan(scores.matrix()[1]).all()
    assert np.isfinite(scores.weights).all()


@pytest.mark.parametrize(
    ("widths", "expected"),
    [
        (None, windows(4)),
        ((), [range(4)]),
        ((2, 4), [range(2), range(1, 3), range(2, 4), range(4)]),
    ],
)
def test_the_full_window_is_always_retrained(widths, expected):
    assert Retraining(widths=widths).windows(4) == expected


def test_fewer_windows_and_epochs_cost_less():
    sizes = Sizes(
        examples=100,
        noisy=15,
        depth=12,
        update=1e-2,
        predict=1e-3,
        layer=0.1,
        last_layer=0.05,
        probe=1e-5,
    )
    whole = Retraining().cost(sizes)
    assert Retraining(widths=(1,)).cost(sizes) == pytest.approx(whole * 13 / 78)
    assert Retraining(frozen_dropout=True).cost(sizes) > whole  # nothing is kept
    assert whole / 6 < Retraining(epochs=1).cost(sizes) < whole / 4


@pytest.mark.parametrize("n_noisy", [0, 12, 24])
def test_too_few_examples_of_a_kind_are_a_sentence(tmp_path, n_noisy):
    run = retrainable(tmp_path, data=make_data(n_noisy=n_noisy))
    with pytest.raises(ScoreError, match=f"{n_noisy} noisy and {24 - n_noisy} clean"):
        METHOD.run(run)


def test_weights_that_are_missing_are_a_sentence(tmp_path):
    run = retrainable(tmp_path)
    alone = {"final": run.loaders["final"]}
    with pytest.raises(StoreError, match="has no pretrained weights: "):
        METHOD.run(replace(run, loaders=alone))


def test_scores_read_back_equal(tmp_path):
    scores = METHOD.replace({"epochs": 1}).run(retrainable(tmp_path))
    scores.write(tmp_path / "retraining")
    assert_same_scores(Result.read(tmp_path / "retraining"), scores)
