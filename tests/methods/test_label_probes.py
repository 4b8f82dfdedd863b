"""Label probes: their events on curves made by hand, their curves on labels put into layers."""

import numpy as np
import pytest
from sklearn.metrics import f1_score

from memloc.errors import DataError
from memloc.methods.label_probes import (
    CLEAN,
    CURVES,
    UNLEARNT,
    LabelProbes,
    _remarks,
    f1_tables,
    mean_over_seeds,
    memorisation,
    ninety,
    weighted_f1,
)
from memloc.methods.probes import (
    Target,
    shuffled,
    split_rows,
    train_probes,
)

SETTINGS = LabelProbes()
QUICK = LabelProbes(epochs=3, first_epoch=0, seeds=(0, 1))


def made(assigned=None, original=None, clean=None, chance=0.0):
    """The three curves, one row per draw; layer 0 is the first value."""
    some = next(values for values in (assigned, original, clean) if values is not None)
    f1 = [
        np.zeros(len(some)) if values is None else values for values in (assigned, original, clean)
    ]
    return np.array([[[values, np.full(len(some), chance)] for values in f1]], dtype=float)


def twice(found):
    """The data, and one draw that is the same."""
    return np.concatenate([found, found])


@pytest.mark.parametrize(
    ("assigned", "original", "holds"),
    [
        ([0, 0.1, 0.2, 0.3], [0, 0.5, 0.5, 0.5], ""),
        ([0, 0.6, 0.7, 0.8], [0, 0.4, 0.4, 0.4], "123"),
        ([0, 0.4, 0.6, 0.8], [0, 0.4, 0.55, 0.6], "3"),
        ([0, 0.7, 0.2, 0.9], [0, 0.4, 0.4, 0.1], "13"),
        ([0.9, 0.2, 0.2, 0.2], [0, 0.2, 0.2, 0.2], ""),
    ],
    ids=["never", "layer-1", "by-the-margin", "twice", "not-before-layer-1"],
)
def test_memorisation_exceeds_generalisation_by_the_margin(assigned, original, holds):
    where = np.flatnonzero(memorisation(made(assigned, original), SETTINGS)[0]) + 1
    assert "".join(map(str, where)) == holds


@pytest.mark.parametrize(
    ("f1", "chance", "holds"),
    [
        ([0, 0.2, 0.6, 1.0], 0.0, "3"),
        ([0, 0.91, 0.95, 1.0], 0.0, "123"),
        # (0.92 - 0.5) / (1 - 0.5) = 0.84: nine tenths of the best, but not of the way to it.
        ([0, 0.92, 0.96, 1.0], 0.5, "23"),
        ([0, 0.2, 0.5, 0.48], 0.1, "23"),
        ([0, 0.2, 0.3, 0.3], 0.4, ""),
    ],
    ids=["last-layer", "layer-1", "above-chance", "of-its-own-best", "never-above-chance"],
)
def test_ninety_per_cent_is_of_the_way_from_chance_to_the_best(f1, chance, holds):
    where = np.flatnonzero(ninety(made(clean=f1, chance=chance), SETTINGS)[0]) + 1
    assert "".join(map(str, where)) == holds


def test_events_may_be_sought_from_layer_0_on():
    """As the published code does: what the first block is given counts as a layer, too."""
    original, clean = [0.1, 0.2, 0.2], [1.0, 0.2, 0.5]
    found = twice(made([0.9, 0.2, 0.9], original, clean))
    usual = f1_tables(found, SETTINGS)["events"]
    assert usual["layer"].tolist() == usual["high"].tolist() == [2, 2]
    earlier = f1_tables(found, LabelProbes(first_layer=0))["events"]
    assert earlier["layer"].tolist() == earlier["low"].tolist() == [0, 0]
    assert earlier["separable"].all()
    nowhere = twice(made([0.1, 0.2, 0.2], original, clean))
    events = f1_tables(nowhere, LabelProbes(first_layer=0))["events"]
    assert np.isnan(events["layer"][0])


def test_layers_that_label_probes_can_hardly_read_are_told(run, monkeypatch):
    assert not any("differ" in said for said in QUICK.run(run).about["remarks"])
    shifted = run.vectors("final").copy()
    shifted[:, 1] += 1000
    monkeypatch.setattr(type(run), "vectors", lambda *_: shifted)
    said = QUICK.run(run).about["remarks"]
    assert any("after layer 1, so probes read little there" in remark for remark in said)
    scaled = QUICK.replace({"standardise": True}).run(run)
    assert not any("differ" in said for said in scaled.about["remarks"])


def test_chance_may_be_the_shuffled_labels_themselves(run):
    """F1 of labels dealt out anew against the right ones, the same at every layer."""
    trained = QUICK.run(run)["seeds"]
    found = QUICK.replace({"chance": "shuffled labels"}).run(run)["seeds"]
    assert np.array_equal(found["f1"], trained["f1"])
    original, is_noisy = run.noisy.original, run.noisy.is_noisy
    dealt = shuffled(original, QUICK.seeds)
    clean = found[found["examples"] == "clean"]
    for place, seed in enumerate(QUICK.seeds):
        test = split_rows(len(original), QUICK.split, seed)[2]
        rows = test[~is_noisy[test]]
        expected = f1_score(original[rows], dealt[place][rows], average="macro", zero_division=0)
        chance = clean.loc[clean["probe_seed"] == seed, "chance"].to_numpy()
        assert chance == pytest.approx(expected)
    assert not np.allclose(found["chance"], trained["chance"])


def test_an_event_at_a_layer_that_reads_no_better_than_chance_is_marked():
    own = made([0.1, 0.6, 0.9], [0.1, 0.2, 0.2], [0.3, 0.3, 0.9], chance=0.3)
    draws = own + 0.02 * np.random.default_rng(0).normal(size=(200, *own.shape[1:]))
    events = f1_tables(np.concatenate([own, draws]), SETTINGS)["events"].set_index("event")
    assert events["layer"].to_dict() == {"memorisation": 1, "ninety": 2}
    assert events["separable"].to_dict() == {"memorisation": False, "ninety": True}


def test_labels_are_found_in_the_layer_that_holds_them():
    """Layer 1 knows the original labels, layers 2 and 3 the assigned ones, layer 0 nothing."""
    rng = np.random.default_rng(0)
    n, classes = 150, 3
    original = rng.integers(0, classes, n)
    is_noisy = rng.random(n) < 0.3
    assigned = np.where(is_noisy, (original + 1) % classes, original)
    known = np.stack([np.zeros(n, int), original, assigned, assigned], axis=1)
    vectors = np.eye(classes)[known] * 4 + 0.3 * rng.normal(size=(n, 4, classes))
    vectors[:, 0] = rng.normal(size=(n, classes))
    settings = LabelProbes(epochs=30, first_epoch=0, seeds=(0, 1), learning_rate=5e-3)
    targets = {
        "assigned": Target(assigned, classes),
        "original": Target(original, classes),
        "chance": Target(shuffled(original, settings.seeds), classes),
    }
    probes = train_probes(vectors.astype(np.float32), targets, settings)
    found = mean_over_seeds(weighted_f1(probes, is_noisy, np.ones((1, n), dtype=np.int64), classes))
    assert memorisation(found, SETTINGS)[0].tolist() == [False, True, True]
    assert ninety(found, SETTINGS)[0].tolist() == [True, True, True]
    assert found[0, CLEAN, 1].mean() < 0.6


def test_tables_hold_three_curves_of_every_layer(run):
    found = QUICK.run(run)
    assert len(found["layers"]) == 3 * 5
    assert len(found["seeds"]) == 3 * 5 * 2
    assert list(found["events"]["event"]) == ["memorisation", "ninety"]
    kinds = found["layers"][["examples", "labels"]].drop_duplicates()
    assert [tuple(row) for row in kinds.to_numpy()] == list(CURVES)
    means = found["seeds"].groupby(["examples", "labels", "layer"])["f1"].mean()
    own = found["layers"].set_index(["examples", "labels", "layer"])["f1"]
    np.testing.assert_allclose(own.sort_index(), means.sort_index())
    assert (found["layers"]["low"] <= found["layers"]["high"]).all()


def test_where_nothing_noisy_is_tested_memorisation_is_not_never():
    nothing, clean = [np.nan] * 3, [0, 0.5, 1.0]
    found = made(nothing, nothing, clean)
    assert list(f1_tables(twice(found), SETTINGS)["events"]["event"]) == ["ninety"]
    # Nor are draws without a noisy example among those in which it never happens.
    own = made([0, 0.9, 0.9], [0, 0.1, 0.1], clean)
    events = f1_tables(np.concatenate([own, own, found]), SETTINGS)["events"].set_index("event")
    assert tuple(events.loc["memorisation", ["layer", "high", "never"]]) == (1, 1, 0)


def test_seeds_without_a_noisy_test_example_are_named(run):
    """One noisy example is a test example of some probe seeds at most."""
    run.noisy.assigned[:] = run.noisy.original
    run.noisy.is_noisy[:] = np.arange(60) == 3
    run.noisy.assigned[3] = (run.noisy.original[3] + 1) % 3
    found = QUICK.run(run)
    assert "of 2 probe seeds" in found.remarks[0]
    assert len(found["layers"]) == 15


@pytest.mark.parametrize("every", [False, True], ids=["none-noisy", "all-noisy"])
def test_noisy_and_clean_examples_are_needed(run, every):
    run.noisy.is_noisy[:] = every
    with pytest.raises(DataError, match="compares noisy and clean ones"):
        QUICK.run(run)


def test_labels_before_noise_must_be_known(run):
    run.noisy.original[run.noisy.is_noisy] = -1
    with pytest.raises(DataError, match="The labels before noise of words are not known"):
        QUICK.run(run)


def test_label_probes_that_did_not_learn_say_so():
    by_seed = np.full((3, 2, 5, 2), 0.3)
    by_seed[:, 1] = 0.4
    assert UNLEARNT in _remarks(by_seed)
    assert UNLEARNT not in _remarks(by_seed[:, ::-1])
