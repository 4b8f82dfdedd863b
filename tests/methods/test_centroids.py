"""Centroids: variants with layers of the reference put in, and the tables of all of them."""

import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

from fixtures.models import PAPER_FAMILIES
from memloc.errors import DataError, SettingsError, StoreError
from memloc.methods.centroids import Centroids
from memloc.model.predict import to_batch, vectors_of
from memloc.model.stack import at_positions
from memloc.run.folder import Run


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_a_window_of_the_reference_runs_where_the_final_one_did(trained, family):
    """Block by block with two models, against one model with two sources of weights."""
    run = Run.open(trained(family, depth=4, epochs=1), "cpu")
    final, reference = run.load("final"), run.load("reference")
    encoded = run.encode(final)
    found = Centroids().variant_vectors(run, range(1, 3))
    rows = np.arange(5)
    with torch.no_grad():
        batch = to_batch(encoded, rows, final.stack.device)
        given = final.stack.prepare(batch)
        state, expected = given.state, [at_positions(given.state, given.positions)]
        for index, owner in enumerate((final, reference, reference, final)):
            state = owner.stack.run(index, state, given.calls[index])
            expected.append(at_positions(state, given.positions))
    np.testing.assert_allclose(found[rows], torch.stack(expected, 1).numpy(), atol=1e-5)
    plain = Centroids().variant_vectors(run, None)
    np.testing.assert_array_equal(found[:, :2], plain[:, :2])
    assert not np.allclose(found[:, 2], plain[:, 2])


def test_all_layers_of_the_reference_are_the_reference(run):
    """Embeddings are frozen, so nothing before the blocks differs either."""
    found = Centroids().variant_vectors(run, range(4))
    np.testing.assert_array_equal(found, run.vectors("reference"))


def test_the_last_vector_may_be_taken_after_the_final_norm(run):
    normed = Centroids(last_layer="final norm")
    final, reference = run.load("final"), run.load("reference")
    for window, loaded in ((None, final), (range(4), reference)):
        expected = vectors_of(loaded.stack, run.encode(loaded), last_layer="final norm")
        # What follows the blocks is the final model's.
        layers = slice(None) if window is None else slice(0, -1)
        found = normed.variant_vectors(run, window)
        np.testing.assert_array_equal(found[:, layers], expected[:, layers])
        plain = Centroids().variant_vectors(run, window)
        np.testing.assert_array_equal(found[:, :-1], plain[:, :-1])
        assert not np.allclose(found[:, -1], plain[:, -1], atol=1e-2)


@pytest.mark.parametrize(
    ("depth", "bottom", "top"),
    [
        (1, None, None),
        (4, range(2), range(2, 4)),
        (5, range(2), range(3, 5)),
        (6, range(3), range(3, 6)),
        (12, range(6), range(6, 12)),
        (24, range(12), range(12, 24)),
    ],
)
def test_halves_are_of_one_size(run, depth, bottom, top):
    found = Centroids().variants(replace(run, record=run.record.replace({"depth": depth})))
    assert found["plain"] is None
    assert (found.get("bottom"), found.get("top")) == (bottom, top)


def test_windows_are_counted_from_1(run):
    found = Centroids(windows=("2-3", "4")).variants(run)
    assert found["window 2-3"] == range(1, 3)
    assert found["window 4-4"] == range(3, 4)
    with pytest.raises(SettingsError, match="outside the model, which has layers 1-4"):
        Centroids(windows=("3-5",)).run(run)


def test_without_reference_weights_there_are_no_halves(run_folder):
    shutil.rmtree(run_folder / "checkpoints" / "reference")
    run = Run.open(run_folder, "cpu")
    assert list(Centroids().variants(run)) == ["plain"]
    (remark, *_) = Centroids().run(run).remarks
    assert "were not swapped in: the run has no reference weights" in remark
    with pytest.raises(StoreError, match="no reference weights: `memloc train`"):
        Centroids(windows=("1-2",)).run(run)


def test_tables_hold_every_variant_layer_pair_and_example(run):
    found = Centroids(windows=("2",)).run(run)
    names = ["plain", "bottom", "top", "window 2-2"]
    noisy = run.noisy.is_noisy
    for table in found.tables.values():
        assert list(table["variant"].unique()) == names
    assert len(found["layers"]) == 4 * 5 * 3
    assert len(found["events"]) == 4 * 2
    assert len(found["pairs"]) == 4 * 5 * 6
    # With three classes a clean example is in four ordered pairs, a noisy one in one.
    assert len(found["positions"]) == 4 * 5 * (4 * (~noisy).sum() + noisy.sum())


def test_positions_of_noisy_examples_name_their_labels(run):
    found = Centroids().run(run)["positions"]
    found = found[found["variant"] == "plain"]
    mine = found[(found["kind"] == "noisy") & (found["layer"] == 4)].set_index("example")
    rows = run.noisy_rows
    assert sorted(mine.index) == rows.tolist()
    assert mine.loc[rows, "a"].tolist() == run.noisy.assigned[rows].tolist()
    assert mine.loc[rows, "b"].tolist() == run.noisy.original[rows].tolist()


def test_memorised_examples_end_at_their_assigned_class(run):
    layers = Centroids().run(run)["layers"]
    last = layers[(layers["layer"] == 4) & (layers["kind"] == "noisy")].set_index("variant")["mean"]
    assert last["plain"] < 0.5 < last["bottom"]


def test_remarks_use_the_names_of_classes_and_of_variants(run):
    run.noisy.is_noisy[:] = False
    some = np.flatnonzero(run.noisy.original == 0)[:2]
    run.noisy.is_noisy[some] = True
    run.noisy.assigned[:] = run.noisy.original
    run.noisy.assigned[some] = 1
    said = Centroids().run(run).remarks
    assert "label 0 → label 2: no noisy example." in said
    assert "top: label 0 → label 2: no noisy example." in said


@pytest.mark.parametrize("every", [False, True], ids=["none-noisy", "all-noisy"])
def test_noisy_and_clean_examples_are_needed(run, every):
    run.noisy.is_noisy[:] = every
    with pytest.raises(DataError, match="compares noisy and clean ones"):
        Centroids().run(run)


def test_one_class_is_not_enough(run):
    task = run.record.task.replace({"label_names": ("only",)})
    with pytest.raises(DataError, match="1 class; an analysis needs two"):
        Centroids().run(replace(run, record=run.record.model_copy(update={"task": task})))
