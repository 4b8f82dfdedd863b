"""Centroids with layers of the reference put in."""

import shutil

import numpy as np
import pytest
import torch

from memloc.analyse.material import Material
from memloc.analyse.variants import centroids, variant_vectors, variants
from memloc.errors import SettingsError, StoreError
from memloc.models.stack import at_positions
from memloc.train.evaluate import to_batch
from memloc.train.run import Run
from support import PAPER_FAMILIES


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_a_window_of_the_reference_runs_where_the_final_one_did(trained, family):
    """Block by block with two models, against one model with two sources of weights."""
    material = Material.of(Run.open(trained(family, depth=4, epochs=1)), device="cpu")
    final, reference = material.load("final"), material.load("reference")
    encoded = material.encode(final)
    found = variant_vectors(material, range(1, 3))
    rows = np.arange(5)
    with torch.no_grad():
        batch = to_batch(encoded, rows, final.stack.device)
        given = final.stack.prepare(batch)
        state, expected = given.state, [at_positions(given.state, given.positions)]
        for index, owner in enumerate((final, reference, reference, final)):
            state = owner.stack.run(index, state, given.calls[index])
            expected.append(at_positions(state, given.positions))
    np.testing.assert_allclose(found[rows], torch.stack(expected, 1).numpy(), atol=1e-5)
    np.testing.assert_array_equal(found[:, :2], material.final_vectors[:, :2])
    assert not np.allclose(found[:, 2], material.final_vectors[:, 2])


def test_all_layers_of_the_reference_are_the_reference(material):
    """Embeddings are frozen, so nothing before the blocks differs either."""
    found = variant_vectors(material, range(4))
    np.testing.assert_array_equal(found, material.vectors(material.load("reference")))


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
def test_halves_are_of_one_size(material, depth, bottom, top):
    material.run.about["depth"] = depth
    found = variants(material)
    assert found["plain"] is None
    assert (found.get("bottom"), found.get("top")) == (bottom, top)


def test_windows_are_counted_from_1(material):
    assert variants(material, ["2-3", "4"])["window 2-3"] == range(1, 3)
    assert variants(material, ["2-3", "4"])["window 4-4"] == range(3, 4)
    with pytest.raises(SettingsError, match="outside the model, which has layers 1-4"):
        variants(material, ["3-5"])


def test_without_reference_weights_there_are_no_halves(run_folder):
    shutil.rmtree(run_folder / "checkpoints" / "reference")
    material = Material.of(Run.open(run_folder), device="cpu")
    assert list(variants(material)) == ["plain"]
    (remark, *_) = centroids(material, variants(material)).remarks
    assert "no reference weights, which `memloc train` makes" in remark
    with pytest.raises(StoreError, match="no reference weights: `memloc train`"):
        variant_vectors(material, range(2))


def test_tables_hold_every_variant_layer_pair_and_example(material):
    chosen = variants(material, ["2"])
    found = centroids(material, chosen)
    names = ["plain", "bottom", "top", "window 2-2"]
    noisy = material.noisy.is_noisy
    for table in found.tables.values():
        assert list(table["variant"].unique()) == names
    assert len(found["layers"]) == 4 * 5 * 3
    assert len(found["events"]) == 4 * 2
    assert len(found["pairs"]) == 4 * 5 * 6
    # With three classes a clean example is in four ordered pairs, a noisy one in one.
    assert len(found["positions"]) == 4 * 5 * (4 * (~noisy).sum() + noisy.sum())


def test_positions_of_noisy_examples_name_their_labels(material):
    found = centroids(material, {"plain": None})["positions"]
    mine = found[(found["kind"] == "noisy") & (found["layer"] == 4)].set_index("example")
    rows = np.flatnonzero(material.noisy.is_noisy)
    assert sorted(mine.index) == rows.tolist()
    assert mine.loc[rows, "a"].tolist() == material.noisy.assigned[rows].tolist()
    assert mine.loc[rows, "b"].tolist() == material.noisy.original[rows].tolist()


def test_memorised_examples_end_at_their_assigned_class(material):
    layers = centroids(material, variants(material))["layers"]
    last = layers[(layers["layer"] == 4) & (layers["kind"] == "noisy")].set_index("variant")["mean"]
    assert last["plain"] < 0.5 < last["bottom"]


def test_remarks_use_the_names_of_classes_and_of_variants(material):
    material.noisy.is_noisy[:] = False
    some = np.flatnonzero(material.noisy.original == 0)[:2]
    material.noisy.is_noisy[some] = True
    material.noisy.assigned[:] = material.noisy.original
    material.noisy.assigned[some] = 1
    said = centroids(material, {"plain": None, "top": range(2, 4)}).about["remarks"]
    assert "label 0 → label 2: no noisy example." in said
    assert "top: label 0 → label 2: no noisy example." in said
