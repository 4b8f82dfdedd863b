"""Gradients in batches beside gradients of one example at a time."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from memloc.localise import gradients
from memloc.localise.base import score_layers
from memloc.localise.gradients import Gradients, jackknife, post_processed, variants
from memloc.localise.scores import LayerScores

from memloc.errors import ModelError, ScoreError, StoreError
from memloc.records import Examples, NoisyLabels
from memloc.seeds import generator
from subject_support import DEPTH, make_classifier, make_data, make_subject
from support import FAMILIES, PAPER_FAMILIES


def one_at_a_time(subject, weights, objective="loss"):
    """Mean gradient of noisy and of clean examples: by name, for every parameter in a block."""
    loaded = subject.load(weights)
    encoded, model = subject.encode(loaded), loaded.model
    rng = generator(subject.seed, "gradients clean")
    clean = rng.choice(subject.clean_rows, len(subject.noisy_rows), replace=False)
    inside = [list(block.parameters()) for block in loaded.stack.blocks]
    found = []
    for rows in (subject.noisy_rows, clean):
        model.zero_grad()
        for row in rows:
            ids = torch.from_numpy(encoded.batch(np.array([row]))[0])
            # A text alone, so that no padding misleads the model's own readout.
            logits = loaded.stack.logits(
                {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
            )[0]
            label = subject.noisy.assigned[row]
            value = logits[label] if objective == "logit" else logits.log_softmax(0)[label]
            (value / len(rows)).backward()
        found.append([[p.grad.clone() for p in block] for block in inside])
    return found


def norms_by_hand(noisy, clean, subtract, order):
    vectors = [
        torch.cat([(n - c if subtract else n).flatten() for n, c in zip(a, b, strict=True)])
        for a, b in zip(noisy, clean, strict=True)
    ]
    return np.array([float(torch.linalg.vector_norm(v.double(), order)) for v in vectors])


def weights_by_hand(subject):
    settings = subject.protocol.gradients
    norms = [
        norms_by_hand(
            *one_at_a_time(subject, weights, settings.objective),
            settings.subtract_clean,
            int(settings.norm[1]),
        )
        for weights in (["memorised", "frozen"] if settings.divide_frozen else ["memorised"])
    ]
    weights = norms[0] / norms[1] if settings.divide_frozen else norms[0]
    return weights / weights.sum()


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_give_what_single_examples_give(tmp_path, family):
    subject = make_subject(tmp_path, family)
    scores = Gradients().score_layers(subject)
    np.testing.assert_allclose(scores.weights, weights_by_hand(subject), rtol=1e-5)


@pytest.mark.parametrize("objective", ["loss", "logit"])
@pytest.mark.parametrize("norm", ["L1", "L2"])
@pytest.mark.parametrize(("subtract", "divide"), [(True, False), (False, True), (False, False)])
def test_each_step_can_be_off(tmp_path, objective, norm, subtract, divide):
    subject = make_subject(
        tmp_path,
        "opt",
        gradients__objective=objective,
        gradients__norm=norm,
        gradients__subtract_clean=subtract,
        gradients__divide_frozen=divide,
    )
    scores = Gradients().score_layers(subject)
    np.testing.assert_allclose(scores.weights, weights_by_hand(subject), rtol=1e-5)
    assert scores.about["norm"] == norm


@pytest.mark.parametrize("family", PAPER_FAMILIES)
@pytest.mark.parametrize("cap", [1, 40])
def test_the_size_of_batches_does_not_matter(tmp_path, monkeypatch, family, cap):
    subject = make_subject(tmp_path, family)
    expected = Gradients().score_layers(subject)
    monkeypatch.setattr(gradients, "TOKENS_PER_BATCH", cap)
    found = Gradients().score_layers(subject)
    np.testing.assert_allclose(found.weights, expected.weights, rtol=1e-5)


def test_the_order_of_examples_does_not_matter(tmp_path):
    examples, noisy = make_data(12, 6)  # all clean ones are taken
    order = np.random.default_rng(0).permutation(12)
    moved = NoisyLabels(noisy.original[order], noisy.assigned[order], noisy.is_noisy[order])
    shuffled = Examples(tuple(examples.parts[i] for i in order), examples.labels[order])
    one, other = (
        Gradients().score_layers(make_subject(tmp_path, data=data)).weights
        for data in ((examples, noisy), (shuffled, moved))
    )
    np.testing.assert_allclose(one, other, rtol=1e-5)


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_every_parameter_of_a_block_counts_and_no_other(tmp_path, family):
    subject = make_subject(tmp_path, family)
    details = Gradients().score_layers(subject).details
    noisy, _ = one_at_a_time(subject, "memorised")
    for layer, block in enumerate(noisy):
        squares = [float(g.double().square().sum()) for g in block]
        assert details["L2 noisy"][layer] ** 2 == pytest.approx(sum(squares), rel=1e-5)
        # Keys' biases change nothing (softmax); norms and all others do.
        assert sum(square > 1e-12 * sum(squares) for square in squares) >= len(squares) - 1


def test_the_model_is_left_as_it_was(tmp_path):
    loaded = make_classifier("gpt_neo")
    before = {n: v.clone() for n, v in loaded.model.state_dict().items()}
    subject = make_subject(tmp_path, gradients__divide_frozen=False)
    Gradients().score_layers(replace(subject, loaders={"memorised": lambda: loaded}))
    assert all(torch.equal(before[n], v) for n, v in loaded.model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in loaded.model.parameters())
    assert not loaded.model.training


def test_dropout_is_off(tmp_path):
    with_dropout, without = (
        Gradients().score_layers(make_subject(tmp_path, "gpt_neo", dropout=d)) for d in (0.5, 0.0)
    )
    np.testing.assert_array_equal(with_dropout.weights, without.weights)


def test_weights_are_norms_over_frozen_norms_scaled():
    # 2/1, 6/2, 10/2 are 2, 3, 5 of 10.
    found = post_processed(np.array([2.0, 6.0, 10.0]), np.array([1.0, 2.0, 2.0]))
    np.testing.assert_allclose(found, [0.2, 0.3, 0.5])
    np.testing.assert_allclose(post_processed(np.array([1.0, 3.0]), None), [0.25, 0.75])


def test_variants_are_all_combinations():
    details = {
        "L1 noisy": np.array([1.0, 3.0]),
        "L1 difference": np.array([2.0, 2.0]),
        "L1 frozen noisy": np.array([1.0, 1.0]),
        "L1 frozen difference": np.array([1.0, 4.0]),
    }
    found = variants(details, "L1")
    expected = {
        (False, False): [0.25, 0.75],
        (False, True): [0.25, 0.75],
        (True, False): [0.5, 0.5],
        (True, True): [0.8, 0.2],
    }
    assert found.keys() == expected.keys()
    for key, weights in expected.items():
        np.testing.assert_allclose(found[key], weights)


@pytest.mark.parametrize("norm", ["L1", "L2"])
def test_one_run_tells_all_variants_of_both_norms(tmp_path, norm):
    details = Gradients().score_layers(make_subject(tmp_path)).details
    for (subtract, divide), weights in variants(details, norm).items():
        steps = {"gradients__subtract_clean": subtract, "gradients__divide_frozen": divide}
        subject = make_subject(tmp_path, gradients__norm=norm, **steps)
        np.testing.assert_array_equal(Gradients().score_layers(subject).weights, weights)


def test_without_division_the_frozen_weights_are_not_needed(tmp_path):
    subject = make_subject(tmp_path, weights=("memorised",), gradients__divide_frozen=False)
    scores = Gradients().score_layers(subject)
    assert set(scores.details) == {
        f"{norm} {kind}" for norm in ("L1", "L2") for kind in ("noisy", "clean", "difference")
    }
    assert set(variants(scores.details, "L1")) == {(False, False), (True, False)}


def test_missing_weights_are_a_sentence(tmp_path):
    subject = make_subject(tmp_path, weights=("final",))
    with pytest.raises(StoreError, match="no memorised weights for tiny"):
        Gradients().score_layers(subject)
    with pytest.raises(StoreError, match="no frozen weights for tiny"):
        Gradients().score_layers(make_subject(tmp_path, weights=("memorised",)))


def test_frozen_gradients_of_nothing_are_a_sentence():
    with pytest.raises(ScoreError, match="gradients are 0 in layer 2"):
        post_processed(np.array([1.0, 1.0]), np.array([1.0, 0.0]))
    with pytest.raises(ScoreError, match="sum to 0"):
        post_processed(np.zeros(2), None)
    with pytest.raises(ScoreError, match="sum to nan"):
        post_processed(np.array([np.nan, 1.0]), None)


def test_one_kind_of_examples_alone_is_a_sentence(tmp_path):
    with pytest.raises(ScoreError, match="0 noisy and 24 clean"):
        Gradients().score_layers(make_subject(tmp_path, data=make_data(n_noisy=0)))
    with pytest.raises(ScoreError, match="24 noisy and 0 clean"):
        Gradients().score_layers(make_subject(tmp_path, data=make_data(n_noisy=24)))


def test_models_that_differ_are_refused(tmp_path):
    subject = make_subject(tmp_path)
    loaders = {**subject.loaders, "frozen": lambda: make_classifier(depth=2)}
    with pytest.raises(ModelError, match="depth"):
        Gradients().score_layers(replace(subject, loaders=loaders))


def test_the_jackknife_of_a_mean_is_its_standard_error():
    values = np.array([1.0, 2.0, 4.0, 9.0])
    left_out = np.array([np.delete(values, i).mean() for i in range(4)])
    low, high = jackknife(np.array(values.mean()), left_out)
    reach = 3.182446 * values.std(ddof=1) / 2  # Student's t, three degrees of freedom
    assert (low, high) == (pytest.approx(4 - reach, rel=1e-6), pytest.approx(4 + reach, rel=1e-6))


def test_intervals_come_from_leaving_groups_out(tmp_path):
    subject = make_subject(tmp_path, data=make_data(40, 10), gradients__interval_groups=3)
    scores = Gradients().score_layers(subject)
    groups, note = Gradients()._groups(subject, subject.load("memorised").stack)
    assert note == scores.about["intervals"] == "jackknife over 3 groups of examples"
    replicates = []
    for left in range(3):
        kept = [group for number, group in enumerate(groups) if number != left]
        rows = np.concatenate([np.concatenate(group) for group in kept])
        replicates.append(weights_of(subject, np.sort(rows)))
    low, high = jackknife(scores.weights, np.array(replicates))
    np.testing.assert_allclose(scores.low, np.clip(low, 0, None), rtol=1e-3, atol=1e-5)
    np.testing.assert_allclose(scores.high, high, rtol=1e-3)
    assert (scores.low < scores.weights).all()
    assert 1 <= scores.mcog.low < scores.mcog.estimate < scores.mcog.high <= DEPTH


def weights_of(subject, rows):
    """Layer weights from these rows alone; as many are clean as are noisy, so all are used."""
    noisy = subject.noisy
    part = NoisyLabels(noisy.original[rows], noisy.assigned[rows], noisy.is_noisy[rows])
    smaller = replace(subject, examples=subject.examples.take(rows), noisy=part)
    # A new subject: the old one remembers its rows.
    return Gradients().score_layers(replace(smaller, name="part")).weights


def test_groups_change_no_weight(tmp_path):
    grouped, whole = (
        Gradients().score_layers(make_subject(tmp_path, gradients__interval_groups=n))
        for n in (4, 0)
    )
    np.testing.assert_allclose(grouped.weights, whole.weights, rtol=1e-5)
    assert np.isnan(whole.low).all()
    assert np.isnan(whole.mcog.high)
    assert whole.about["intervals"] == "none: gradients.interval_groups is 0"


def test_where_memory_is_short_there_are_fewer_groups_or_none(tmp_path):
    subject = make_subject(tmp_path)
    stack = subject.load("memorised").stack
    size = 8 * sum(p.numel() for block in stack.blocks for p in block.parameters())
    few, none = (Gradients(memory=n).score_layers(subject) for n in (3 * size, size))
    assert few.about["intervals"] == "jackknife over 3 groups of examples"
    assert none.about["intervals"].startswith("none: two examples of each kind and ")
    assert np.isnan(none.low).all()


def test_scores_read_back_equal(tmp_path):
    scores = score_layers(make_subject(tmp_path), "gradients")
    scores.write(tmp_path / "gradients.parquet")
    found = LayerScores.read(tmp_path / "gradients.parquet")
    np.testing.assert_array_equal(found.weights, scores.weights)
    assert (found.mcog, found.about) == (scores.mcog, scores.about)
    assert found.details.keys() == scores.details.keys()
