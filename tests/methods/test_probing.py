from pathlib import Path

import numpy as np
import pytest
from sklearn.metrics import f1_score

from memloc.errors import DataError, ModelError, StoreError
from memloc.localise import probing
from memloc.localise.base import Subject
from memloc.localise.probing import Probing, resampled_f1, rises, summarise
from memloc.localise.scores import LayerScores
from memloc.models.load import load_model
from memloc.protocol import preset
from memloc.records import Examples, NoisyLabels
from memloc.seeds import generator
from memloc.train.probe import Probes, Target, train_probes
from support import WORDS

FAST = {
    "probes.epochs": 10,
    "probes.first_epoch": 4,
    "probes.hidden": 16,
    "probes.learning_rate": 3e-3,
    "probes.seeds": (0, 1, 2),
}


def make_subject(loaders, n=60, noisy=None, **changes):
    rng = np.random.default_rng(0)
    parts = tuple((" ".join(rng.choice(WORDS, int(m))),) for m in rng.integers(2, 9, n))
    original = np.arange(n) % 2
    is_noisy = rng.random(n) < 0.3 if noisy is None else np.full(n, noisy)
    labels = NoisyLabels(original, np.where(is_noisy, 1 - original, original), is_noisy)
    protocol = preset("paper").replace({**FAST, **changes})
    examples = Examples(parts, labels.assigned)
    return Subject("made up", examples, labels, protocol, 1, loaders, Path())


@pytest.fixture
def loaders(tiny_model):
    def load(seed):
        return lambda: load_model(str(tiny_model("opt", seed=seed)), ["no", "yes"])

    return {"final": load(1), "frozen": load(0)}


@pytest.fixture
def planted(monkeypatch):
    """`planted(k)`: noise shows in the vectors from layer k of 5 on."""

    def plant(k, rises_at_all=True):
        def vectors(subject):
            rng = np.random.default_rng(3)
            found = rng.normal(size=(len(subject.examples), 7, 8)).astype(np.float32)
            if rises_at_all:
                found[subject.noisy.is_noisy, k:-1, 0] += 6
            return found

        monkeypatch.setattr(probing, "_vectors", vectors)

    return plant


@pytest.mark.parametrize("layer", [1, 3, 5])
def test_a_planted_signal_is_found_at_its_layer(planted, layer):
    planted(layer)
    subject = make_subject({}, n=300, **{"probes.batch_size": 16})
    scores = Probing(n_resamples=200).score_layers(subject)
    assert scores.weights.shape == (5,)
    assert scores.weights.argmax() + 1 == layer
    assert scores.low[layer - 1] > 0.2
    assert scores.low[layer - 1] <= scores.weights[layer - 1] <= scores.high[layer - 1]
    assert scores.mcog.low <= scores.mcog.estimate <= scores.mcog.high
    selectivity = scores.details["selectivity"]
    assert (selectivity[layer:] > 0.25).all()
    assert (np.abs(selectivity[:layer]) < 0.25).all()


def test_weights_are_mean_rises_and_layer_1_is_against_the_frozen_one():
    f1 = np.array([[0.9, 0.9], [0.5, 0.3], [0.4, 0.6], [0.3, 0.3], [0.2, 0.4]])
    # Layers 0..3, then the frozen layer 1: means 0.9, 0.4, 0.5, 0.3 and 0.3.
    assert rises(f1) == pytest.approx([0.1, 0.1, 0.0])
    assert rises(np.stack([f1, f1[::-1]])).shape == (2, 3)


def test_the_centre_of_gravity_is_that_of_the_mean_weights():
    f1 = np.array([[0.0, 0.0], [0.4, 0.0], [0.4, 0.6], [0.4, 0.6], [0.0, 0.0]])
    probes = fake_probes(f1)
    scores = summarise(probes, probes, f1[None].repeat(5, 0), level=0.9)
    assert scores.weights == pytest.approx([0.2, 0.3, 0.0])
    assert scores.mcog.estimate == pytest.approx((0.2 * 1 + 0.3 * 2) / 0.5)
    assert scores.mcog.level == pytest.approx(0.9)


def fake_probes(f1):
    layers, seeds = f1.shape
    rows = np.zeros((seeds, 1), np.int64)
    return Probes(rows, rows + 1, np.ones((layers, seeds, 1), np.int64), f1, rows)


def test_resamples_are_weighted_f1_scores():
    rng = np.random.default_rng(0)
    n, settings = 50, preset("paper").replace(FAST).probes
    labels = rng.integers(0, 2, n)
    vectors = rng.normal(size=(n, 3, 4)).astype(np.float32)
    probes = train_probes(vectors, {"noise": Target(labels, 2, f1_of=1)}, settings)["noise"]
    found = resampled_f1(probes, n, 4, generator(0, "test"))
    counts = generator(0, "test").multinomial(n, np.full(n, 1 / n), size=4)
    for resample, layer, seed in np.ndindex(found.shape):
        weights = counts[resample][probes.rows[seed]]
        expected = f1_score(
            probes.truth[seed],
            probes.predicted[layer, seed],
            sample_weight=weights,
            zero_division=0,
        )
        assert found[resample, layer, seed] == pytest.approx(expected, abs=1e-6)


def test_resampling_in_chunks_changes_nothing(monkeypatch):
    f1 = np.random.default_rng(0).random((4, 2))
    probes = fake_probes(f1)
    whole = resampled_f1(probes, 5, 40, generator(0, "test"))
    monkeypatch.setattr(probing, "CHUNK", 7)
    assert np.array_equal(resampled_f1(probes, 5, 40, generator(0, "test")), whole)


def test_without_any_rise_there_is_no_centre_and_the_reason_is_told(tmp_path):
    flat = np.full((5, 2), 0.4)
    scores = summarise(fake_probes(flat), fake_probes(flat), flat[None].repeat(9, 0), level=0.95)
    assert not scores.weights.any()
    assert np.isnan([scores.mcog.estimate, scores.mcog.low, scores.mcog.high]).all()
    assert scores.about["why"] == probing.NO_RISE
    scores.write(tmp_path / "probing.parquet")
    assert np.isnan(LayerScores.read(tmp_path / "probing.parquet").mcog.estimate)


def test_a_run_is_scored_written_and_read_back(loaders, tmp_path):
    subject = make_subject(loaders)
    scores = Probing(n_resamples=50).score_layers(subject)
    assert scores.method == "probing"
    assert scores.depth == 3
    assert scores.details["f1"].shape == scores.details["chance f1"].shape == (4, 3)
    assert np.isnan(scores.details["frozen f1"][1:]).all()
    assert not np.isnan(scores.details["frozen f1"][0]).any()
    scores.write(tmp_path / "probing.parquet")
    back = LayerScores.read(tmp_path / "probing.parquet")
    for name in ("weights", "low", "high"):
        assert np.array_equal(getattr(back, name), getattr(scores, name))
    for name, value in scores.details.items():
        assert np.array_equal(back.details[name], value, equal_nan=True), name
    assert back.about == scores.about


def test_the_yardstick_is_layer_1_of_the_frozen_weights(loaders):
    subject = make_subject(loaders)
    found = probing._vectors(subject)
    same = probing._vectors(make_subject({**loaders, "final": loaders["frozen"]}))
    assert found.shape == (60, 5, 16)
    assert np.array_equal(found[:, -1], same[:, -1])
    assert np.allclose(same[:, 1], same[:, -1], atol=1e-6)


def test_the_last_vector_may_be_taken_after_the_final_norm(loaders):
    plain = probing._vectors(make_subject(loaders))
    normed = probing._vectors(make_subject(loaders, **{"probes.last_layer": "final norm"}))
    assert np.allclose(plain[:, [0, 1, 2, 4]], normed[:, [0, 1, 2, 4]])
    assert not np.allclose(plain[:, 3], normed[:, 3], atol=0.1)


@pytest.mark.parametrize("noisy", [True, False])
def test_noisy_and_clean_examples_are_needed(planted, noisy):
    planted(1)
    with pytest.raises(DataError, match="needs noisy and clean"):
        Probing().score_layers(make_subject({}, noisy=noisy))


def test_missing_or_strange_weights_are_named(loaders, tiny_model):
    with pytest.raises(StoreError, match="no frozen weights"):
        Probing().score_layers(make_subject({"final": loaders["final"]}))
    deep = {**loaders, "frozen": lambda: load_model(str(tiny_model("opt", depth=4)), ["a", "b"])}
    with pytest.raises(ModelError, match="depth 3"):
        Probing().score_layers(make_subject(deep))
