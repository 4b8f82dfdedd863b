"""Answers on simulated shares of which it is known where they are."""

import json
from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from fixtures.tasks import make_task
from memloc.data.task import NoisyLabels
from memloc.errors import ScoreError
from memloc.run.records import few_in
from memloc.stats import answers as module
from memloc.stats.answers import (
    ROW,
    Answer,
    Evidence,
    agrees,
    answer,
    answer_weights,
    corrected,
    half_of,
    line_shares,
    say_where,
    smallest_halves,
    told,
    too_few,
    where,
)
from memloc.stats.subsets import shapley_values
from memloc.stats.windows import windows

LAYERS = 12


def shares_in(layers, n=30, noise=0.02):
    """Rows that sum to 1 and are in these layers (from 0), in random proportions."""
    rng = np.random.default_rng(0)
    found = np.zeros((n, LAYERS))
    found[:, layers] = rng.dirichlet(np.full(len(layers), 5.0), size=n)
    blur = rng.normal(0, noise, size=found.shape)
    return found + blur - blur.mean(axis=1, keepdims=True)


def evidence(shares, clean=16, **more):
    more.setdefault("margins", np.random.default_rng(1).normal(size=len(shares) + clean))
    return Evidence(shares, np.zeros(clean), **more)


@pytest.mark.parametrize("layers", [[0], [11], [5, 6], [2, 9], [3, 4, 5, 6]])
def test_a_planted_memory_is_concentrated_in_its_layers(layers):
    found = answer(evidence(shares_in(layers)))
    assert found.word == "concentrated"
    assert {layer - 1 for layer in found.places.half} <= set(layers)
    assert [layer - 1 for layer in found.places.above] == layers
    assert found.p == max(found.undone.p, found.places.p_concentrated) <= 0.05
    assert "fewer than 6: p < 0.001" in found.why


def test_a_memory_with_one_heavy_layer_is_uneven_and_says_where():
    profile = np.r_[3.0, np.ones(11)]
    shares = np.random.default_rng(2).dirichlet(5 * profile, size=40)
    found = answer(evidence(shares))
    assert found.word == "uneven"
    assert found.places.above == (1,)
    assert "layer 1 above, " in found.why
    assert found.p == max(found.undone.p, found.places.p_uneven)


def test_an_even_memory_is_even():
    found = answer(evidence(shares_in(range(LAYERS))))
    assert found.word == "even"
    assert found.places.effective.low > LAYERS / 2
    assert found.places.above == found.places.below == ()


def test_a_memory_that_each_example_has_in_another_layer_is_even():
    assert answer(evidence(np.eye(LAYERS)[np.arange(36) % LAYERS])).word == "even"


def test_an_interval_from_concentrated_to_even_cannot_be_told_but_is_described():
    shares = np.eye(LAYERS)[np.r_[np.zeros(4, int), np.ones(3, int), np.arange(13) % LAYERS]]
    found = answer(evidence(shares))
    assert found.word == "cannot tell"
    assert found.p == 1
    assert "reaches from concentrated to even" in found.why
    assert "hold" in found.sentence


def test_the_word_stands_beside_the_sentence_and_the_tests_behind_it():
    found = answer(evidence(shares_in([0])))
    assert str(found) == f"{found.sentence.removesuffix('.')} (concentrated)."
    assert found.details.startswith(found.sentence)
    assert " Concentrated: effectively 1.0 of 12 layers hold the labels" in found.details
    nothing = answer(evidence(np.zeros((30, LAYERS))))
    assert str(nothing) == nothing.details == nothing.sentence


def test_what_clean_examples_lose_as_well_is_not_undone():
    rng = np.random.default_rng(1)
    shares = shares_in([0]) * (rng.random(30) < 0.5)[:, None]
    clean = (rng.random(40) < 0.5).astype(float)
    found = answer(Evidence(shares, clean, rng.normal(size=70)))
    assert found.word == "cannot tell"
    assert found.places is None
    assert found.sentence.startswith("Cannot tell: nothing is undone for sure. Exchanging all")


def test_what_a_second_reference_undoes_is_not_memory():
    shares = shares_in([0], noise=0)
    assert answer(evidence(shares, elsewhere=np.zeros(30))).word == "concentrated"
    assert answer(evidence(shares, elsewhere=np.ones(30))).word == "cannot tell"


def test_one_reference_and_two_classes_are_noted():
    one, two = answer(evidence(shares_in([0]), n_classes=2)).notes
    assert "one reference" in one
    assert "two classes" in two
    assert answer(evidence(shares_in([0]), elsewhere=np.zeros(30), n_classes=3)).notes == ()


def test_few_noisy_examples_and_few_undone_labels_have_no_word():
    few = answer(evidence(shares_in([0], n=12)))
    assert (few.word, "only 12 noisy examples" in few.why) == ("cannot tell", True)
    shares = np.zeros((40, LAYERS))
    shares[:8, 0] = 1
    undone = answer(evidence(shares, clean=100))
    assert (undone.word, "only 8 labels undone" in undone.why) == ("cannot tell", True)


def test_an_answer_survives_its_record():
    for shares in (shares_in([0]), shares_in(range(LAYERS)), shares_in([0], n=4)):
        found = answer(evidence(shares, n_classes=2))
        assert Answer.of(json.loads(json.dumps(found.record()))) == found


def test_an_answer_is_a_row_of_a_table():
    row = answer(evidence(shares_in([4, 5]))).row()
    assert tuple(row) == ROW
    assert (row["word"], row["half"], row["above"]) == ("concentrated", "6", "5, 6")
    assert row["first_half_low"] <= row["first_half"] <= row["first_half_high"]
    nothing = answer(evidence(np.zeros((30, LAYERS)))).row()
    assert tuple(nothing) == ROW
    assert np.isnan(nothing["centre"])


def test_layers_that_hold_half_are_named_with_what_half_of_the_layers_holds():
    shares = np.zeros((40, LAYERS))
    shares[:, 0], shares[:, 1], shares[:, 8] = 0.5, 0.3, 0.2
    found = where(shares)
    assert found.half == (1,)
    assert found.half_held.estimate == pytest.approx(0.5)
    assert found.first_half.estimate == pytest.approx(0.8)
    assert found.last_half.estimate == pytest.approx(0.2)
    assert found.centre.estimate == pytest.approx(0.5 + 0.6 + 1.8)
    assert found.half_agreement == 1
    assert say_where(found) == (
        "Layer 1 holds half of the memorised labels; the first six hold 80 % [80, 80]."
    )


def test_answers_speak_of_texts_where_there_are_no_classes():
    found = answer(evidence(shares_in([4, 5]), n_classes=0))
    assert "of the memorised texts" in found.sentence
    assert "label" not in found.sentence + found.why


def test_late_memories_are_described_by_the_last_half_and_what_is_undone():
    shares = np.zeros((40, LAYERS))
    shares[:30, 8:11] = 1 / 3  # a quarter of the labels is not undone
    assert say_where(where(shares)) == (
        "Layers 9 and 10 hold 67 % [67, 67] of the undone 75% of labels; the last six hold "
        "100 % [100, 100]."
    )


def test_sets_that_resamples_do_not_agree_on_say_so():
    shares = np.random.default_rng(1).dirichlet(np.ones(LAYERS), size=40)
    found = where(shares)
    assert found.half_agreement < 0.5
    assert say_where(found).startswith("About six of twelve layers hold half of the memorised")
    few = say_where(replace(found, undone=0.5, half=(1, 5, 9), half_agreement=0.4))
    assert few.startswith("Layers 1, 5 and 9 hold half of the undone 50% of labels (40% of res")


@pytest.mark.parametrize("depth", [12, 24, 30])
def test_an_answer_with_its_name_and_word_has_at_most_thirty_words(depth):
    rng = np.random.default_rng(2)
    found = where(rng.dirichlet(np.ones(depth), size=30))
    longest = ""
    for size in range(1, depth // 2 + 1):
        half = tuple(sorted(map(int, rng.choice(np.arange(1, depth + 1), size, replace=False))))
        for held, undone, agreed in product((0.5, 0.7), (0.5, 1.0), (0.4, 0.9)):
            sure = replace(found.half_held, estimate=held)
            same = replace(found, half=half, half_held=sure, undone=undone, half_agreement=agreed)
            text = told(say_where(same), "cannot tell", "tiny-topic").replace(" %", "%")
            longest = max(longest, text, key=lambda t: len(t.split()))
    assert len(longest.split()) <= 30, longest


def test_nothing_is_described_where_nothing_is_undone():
    assert where(np.zeros((30, LAYERS))) is None
    assert where(np.full((2, LAYERS), 1 / LAYERS)) is None


def test_negative_shares_are_no_part_of_the_smallest_set():
    (marked,) = smallest_halves(np.array([[0.5, -0.3, 0.4, 0.4]]))
    assert marked.tolist() == [True, False, True, False]


def test_intervals_contain_the_truth_about_as_often_as_they_say(monkeypatch):
    monkeypatch.setattr(module, "RESAMPLES", 499)
    monkeypatch.setattr("memloc.stats.evenness.RESAMPLES", 99)
    profile = np.array([4, 3, 2, 1, 1, 1]) / 12
    hits = 0
    for seed in range(100):
        shares = np.random.default_rng(seed).dirichlet(2 * profile, size=40)
        found = where(shares).first_half
        hits += found.low <= profile[:3].sum() <= found.high
    assert 86 <= hits <= 100


def test_weights_alone_never_decide():
    found = answer_weights("mine", np.eye(LAYERS)[3])
    assert found.word == "cannot tell"
    assert "mine exchanges no layer, its weights are largest in layer 4" in found.sentence
    assert "not been measured" in found.why


def test_line_shares_are_shapley_values_of_the_game_of_runs():
    depth, rng = 5, np.random.default_rng(5)
    known = windows(depth)
    lost = rng.random((3, len(known)))
    values = np.zeros((3, 2**depth))
    for subset in range(2**depth):
        inside = [layer for layer in range(depth) if subset >> layer & 1]
        runs = [w for w in known if _is_run(w, inside)]
        values[:, subset] = sum(lost[:, known.index(w)] for w in runs)
    found = line_shares(lost, depth, known)
    np.testing.assert_allclose(found, shapley_values(values))
    np.testing.assert_allclose(found.sum(1), lost[:, known.index(range(depth))])


def _is_run(window, inside):
    beside = {window.start - 1, window.stop}
    return set(window) <= set(inside) and not beside & set(inside)


def test_line_shares_of_some_windows_are_refused():
    with pytest.raises(ScoreError, match="all 6 windows of 3 layers, found 2"):
        line_shares(np.zeros((4, 2)), 3, [range(1), range(3)])


@pytest.mark.parametrize("profile", [[0.5, 0.5, *[0] * 10], [0.175] * 4 + [0.0375] * 8])
def test_a_run_can_be_a_finding_among_as_many_as_the_paper_has(profile):
    """612 answers: the smallest p has to be below .0001."""
    rng = np.random.default_rng(3)
    shares = np.eye(LAYERS)[rng.choice(LAYERS, size=150, p=profile)]
    found = answer(Evidence(shares, np.zeros(150), rng.normal(size=300)))
    assert found.word in {"concentrated", "uneven"}
    assert corrected([found.p, *[1.0] * 611])[0] <= 0.05


def test_another_method_agrees_if_its_layers_hold_half_by_the_primary_method():
    profile = np.r_[0.5, 0.3, 0.2, -0.4]
    assert half_of(np.r_[1.0, 0.5, 0.1, np.nan]) == (1,)
    assert agrees("uneven", profile, half_of(np.r_[1.0, 0.5, 0.1, 0.1])) == "yes"
    assert agrees("concentrated", profile, half_of(np.r_[0.1, 0.1, 0.5, 1.0])) == "no"
    assert agrees("uneven", profile, half_of(np.zeros(4))) == ""
    assert agrees("even", profile, (1,)) == agrees("cannot tell", profile, (1,)) == ""


def test_holm_by_hand():
    np.testing.assert_allclose(corrected([0.01, 0.04, 0.03, 1]), [0.04, 0.09, 0.09, 1])
    assert corrected([]).tolist() == []


def test_a_study_of_many_runs_can_have_a_finding():
    found = answer(evidence(shares_in([5, 6], n=40)))
    assert corrected([found.p] + [1.0] * 611)[0] <= 0.05


@pytest.mark.parametrize(("noisy", "warns"), [(18, True), (20, False)])
def test_too_few_noisy_examples_are_said_with_the_number_that_suffices(noisy, warns):
    said = too_few(noisy, 120, 4)
    assert bool(said) == warns
    if warns:
        assert "18 noisy examples of 120 and 20 noisy ones are needed" in said
        enough = int(said.split()[-3])
        assert 4 * int(0.15 * enough / 4) >= 20


def test_the_warning_of_a_task_names_the_task():
    task = make_task(40)
    noise = NoisyLabels(task.train.labels, 1 - task.train.labels, np.arange(40) < 3)
    said = few_in(replace(task, noise=noise))
    assert said.startswith(f"{task.name}: NO ANSWER WILL BE POSSIBLE: 3 noisy examples of 40")


def test_damaged_shares_are_refused():
    with pytest.raises(ScoreError, match="not a number"):
        evidence(np.full((30, LAYERS), np.nan))
    with pytest.raises(ScoreError, match="noisy and clean examples, found 30 and 0"):
        Evidence(np.zeros((30, LAYERS)), np.zeros(0), np.zeros(30))
