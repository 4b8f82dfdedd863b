"""Probes for noise: planted signals, rises by hand, and the vectors that they look at."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.metrics import f1_score

from fixtures.models import WORDS
from fixtures.runs import make_run
from memloc.data.task import Examples, NoisyLabels
from memloc.errors import DataError, SettingsError, StoreError
from memloc.methods import Sizes, probing
from memloc.methods.probes import Probes, Target, train_probes
from memloc.methods.probing import (
    Probing,
    probe_scores,
    resampled_f1,
    rises,
)
from memloc.methods.result import Result
from memloc.model.load import load_model
from memloc.seeds import generator
from memloc.stats import intervals

METHOD = Probing(epochs=10, first_epoch=4, hidden=16, learning_rate=3e-3, seeds=(0, 1, 2))


def probeable(home, loaders, n=60, noisy=None):
    """A run of two classes; about three of ten labels are wrong."""
    rng = np.random.default_rng(0)
    parts = tuple((" ".join(rng.choice(WORDS, int(m))),) for m in rng.integers(2, 9, n))
    original = np.arange(n) % 2
    is_noisy = rng.random(n) < 0.3 if noisy is None else np.full(n, noisy)
    labels = NoisyLabels(original, np.where(is_noisy, 1 - original, original), is_noisy)
    return make_run(home, (Examples(parts, labels.original), labels), loaders=loaders)


@pytest.fixture
def loaders(tiny_model):
    def load(seed):
        return lambda: load_model(str(tiny_model("opt", seed=seed)), ["no", "yes"])

    return {"final": load(1), "frozen": load(0)}


@pytest.fixture
def planted(monkeypatch):
    """`planted(k)`: noise shows in the vectors from layer k of 5 on."""

    def plant(k):
        def vectors(_method, run):
            rng = np.random.default_rng(3)
            found = rng.normal(size=(len(run.task.train), 7, 8)).astype(np.float32)
            found[run.noisy.is_noisy, k:-1, 0] += 6
            return found

        monkeypatch.setattr(Probing, "_vectors", vectors)

    return plant


@pytest.mark.parametrize("layer", [1, 3, 5])
def test_a_planted_signal_is_found_at_its_layer(planted, monkeypatch, tmp_path, layer):
    planted(layer)
    monkeypatch.setattr(probing, "RESAMPLES", 200)
    scores = METHOD.replace({"batch_size": 16}).run(probeable(tmp_path, {}, n=300))
    assert scores.about["resamples"] == 200
    assert scores.weights.shape == (5,)
    assert scores.weights.argmax() + 1 == layer
    assert scores.low[layer - 1] > 0.2
    assert scores.low[layer - 1] <= scores.weights[layer - 1] <= scores.high[layer - 1]
    assert scores.mcog.low <= scores.mcog.estimate <= scores.mcog.high
    table = scores["noise_probes"]
    selectivity = (table["f1"] - table["chance"]).to_numpy()
    assert (selectivity[layer:] > 0.25).all()
    assert (np.abs(selectivity[:layer]) < 0.25).all()


def test_layers_that_probes_can_hardly_read_are_told(monkeypatch, tmp_path):
    def vectors(_method, run):
        found = np.random.default_rng(3).normal(size=(len(run.task.train), 7, 8))
        found[:, 3] += 1000
        found[:, -1] += 1000  # of the frozen weights
        return found.astype(np.float32)

    monkeypatch.setattr(Probing, "_vectors", vectors)
    said = METHOD.run(probeable(tmp_path, {})).about["remarks"]
    assert any("after layer 3" in remark for remark in said)
    scaled = METHOD.replace({"standardise": True}).run(probeable(tmp_path, {}))
    assert not any("differ" in remark for remark in scaled.about["remarks"])


@pytest.mark.parametrize("weights", [(1.0, 0.0), (-1.0, 1.0)])
def test_class_weights_are_above_0(weights):
    with pytest.raises(SettingsError, match=r"class_weights.* should be greater than 0"):
        METHOD.replace({"class_weights": weights})


def test_weights_are_mean_rises_and_layer_1_is_against_the_frozen_one():
    f1 = np.array([[0.9, 0.9], [0.5, 0.3], [0.4, 0.6], [0.3, 0.3], [0.2, 0.4]])
    # Layers 0..3, then the frozen layer 1: means 0.9, 0.4, 0.5, 0.3 and 0.3.
    assert rises(f1) == pytest.approx([0.1, 0.1, 0.0])
    assert rises(np.stack([f1, f1[::-1]])).shape == (2, 3)


def test_the_centre_of_gravity_is_that_of_the_mean_weights():
    f1 = np.array([[0.0, 0.0], [0.4, 0.0], [0.4, 0.6], [0.4, 0.6], [0.0, 0.0]])
    probes = fake_probes(f1)
    scores = probe_scores(probes, probes, f1[None].repeat(5, 0))
    assert scores.weights == pytest.approx([0.2, 0.3, 0.0])
    assert scores.mcog.estimate == pytest.approx((0.2 * 1 + 0.3 * 2) / 0.5)
    assert scores.mcog.level == 0.95


def fake_probes(f1):
    layers, seeds = f1.shape
    rows = np.zeros((seeds, 1), np.int64)
    return Probes(rows, rows + 1, np.ones((layers, seeds, 1), np.int64), f1, rows)


def test_resamples_are_weighted_f1_scores():
    rng = np.random.default_rng(0)
    n = 50
    labels = rng.integers(0, 2, n)
    vectors = rng.normal(size=(n, 3, 4)).astype(np.float32)
    probes = train_probes(vectors, {"noise": Target(labels, 2, f1_of=1)}, METHOD)["noise"]
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
    monkeypatch.setattr(intervals, "CHUNK", 7)
    assert np.array_equal(resampled_f1(probes, 5, 40, generator(0, "test")), whole)


def test_without_any_rise_there_is_no_centre_and_the_reason_is_told(tmp_path):
    flat = np.full((5, 2), 0.4)
    scores = probe_scores(fake_probes(flat), fake_probes(flat), flat[None].repeat(9, 0))
    assert not scores.weights.any()
    assert np.isnan([scores.mcog.estimate, scores.mcog.low, scores.mcog.high]).all()
    assert scores.remarks == [probing.NO_RISE]
    scores.write(tmp_path / "probing")
    assert np.isnan(Result.read(tmp_path / "probing").mcog.estimate)


@pytest.mark.parametrize(
    ("zeros", "is_marked"), [((1, 2, 3), True), ((0, 1, 2), False), ((0, 1, 5), False)]
)
def test_probes_that_find_nothing_in_most_layers_are_said_not_to_have_learnt(zeros, is_marked):
    """Layers 0..4, then the frozen layer 1; the first and the last do not count."""
    f1 = np.full((6, 2), 0.3)
    f1[list(zeros)] = 0
    scores = probe_scores(fake_probes(f1), fake_probes(f1), f1[None].repeat(9, 0))
    assert (probing.UNLEARNT in scores.remarks) == is_marked
    f1[1:4, 1] = 0.1  # one probe seed that finds some
    scores = probe_scores(fake_probes(f1), fake_probes(f1), f1[None].repeat(9, 0))
    assert probing.UNLEARNT not in scores.remarks


def test_without_a_noisy_test_example_probes_are_not_blamed():
    f1 = np.zeros((5, 2))
    probes = replace(fake_probes(f1), truth=np.zeros((2, 1), np.int64))
    scores = probe_scores(probes, probes, f1[None].repeat(9, 0))
    assert scores.remarks == [probing.NO_NOISE]


def test_a_run_is_scored_written_and_read_back(loaders, monkeypatch, tmp_path):
    monkeypatch.setattr(probing, "RESAMPLES", 50)
    scores = METHOD.run(probeable(tmp_path, loaders))
    assert scores.method == "probing"
    assert scores.depth == 3
    assert scores["noise_probes"]["layer"].tolist() == [0, 1, 2, 3]
    seeds = scores["probe_seeds"]
    assert len(seeds) == 5 * 3  # layers 0..3 and the frozen layer 1, three probe seeds
    assert seeds[seeds["of"] == "frozen"]["layer"].tolist() == [1, 1, 1]
    final = seeds[seeds["of"] == "final"].groupby("layer")["f1"]
    np.testing.assert_allclose(final.mean(), scores["noise_probes"]["f1"])
    np.testing.assert_array_equal(final.min(), scores["noise_probes"]["low"])
    np.testing.assert_array_equal(final.max(), scores["noise_probes"]["high"])
    scores.write(tmp_path / "probing")
    back = Result.read(tmp_path / "probing")
    for name in ("weights", "low", "high"):
        assert np.array_equal(getattr(back, name), getattr(scores, name))
    for name, table in scores.tables.items():
        assert back[name].equals(table), name
    assert back.about == scores.about


def test_the_yardstick_is_layer_1_of_the_frozen_weights(loaders, tmp_path):
    found = METHOD._vectors(probeable(tmp_path, loaders))
    same = METHOD._vectors(probeable(tmp_path, {**loaders, "final": loaders["frozen"]}))
    assert found.shape == (60, 5, 16)
    assert np.array_equal(found[:, -1], same[:, -1])
    assert np.allclose(same[:, 1], same[:, -1], atol=1e-6)


def test_the_last_vector_may_be_taken_after_the_final_norm(loaders, tmp_path):
    run = probeable(tmp_path, loaders)
    plain = METHOD._vectors(run)
    normed = METHOD.replace({"last_layer": "final norm"})._vectors(run)
    assert np.allclose(plain[:, [0, 1, 2, 4]], normed[:, [0, 1, 2, 4]])
    assert not np.allclose(plain[:, 3], normed[:, 3], atol=0.1)


@pytest.mark.parametrize("noisy", [True, False])
def test_noisy_and_clean_examples_are_needed(planted, tmp_path, noisy):
    planted(1)
    with pytest.raises(DataError, match="needs noisy and clean"):
        METHOD.run(probeable(tmp_path, {}, noisy=noisy))


def test_missing_weights_are_named(loaders, tmp_path):
    with pytest.raises(StoreError, match="no frozen weights"):
        METHOD.run(probeable(tmp_path, {"final": loaders["final"]}))


def test_probes_cost_more_with_more_epochs():
    sizes = Sizes(
        examples=100,
        noisy=15,
        depth=12,
        update=1,
        predict=0.01,
        layer=0.1,
        last_layer=0.05,
        probe=0.1,
    )
    assert Probing(epochs=30).cost(sizes) == pytest.approx(30 * 100 * 0.1 + 2 * 100 * 0.01)
