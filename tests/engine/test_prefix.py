"""States that are kept below a window, in memory or in a file, against computing them anew."""

import numpy as np
import pytest
import torch

from fixtures.models import PAPER_FAMILIES
from fixtures.retraining import (
    METHOD,
    assert_same_scores,
    in_long_texts,
    retrainable,
    trained_logits,
)
from fixtures.runs import DEPTH, make_classifier, random_run
from memloc.engine import passes, prefix
from memloc.engine.prefix import Prefix
from memloc.errors import StoreError
from memloc.methods.retrainer import prepared
from memloc.model.predict import evaluating, to_batch


@pytest.mark.parametrize("family", PAPER_FAMILIES)
@pytest.mark.parametrize("window", [range(1), range(1, 3), range(DEPTH)])
def test_kept_states_change_nothing(tmp_path, monkeypatch, family, window):
    found, made = [], []
    run = retrainable(tmp_path, family)
    monkeypatch.setattr(passes, "Prefix", lambda *given: made.append(given) or Prefix(*given))
    for plainly in (False, True):
        setup = prepared(run, METHOD.replace({"frozen_dropout": plainly}))
        found.append(trained_logits(setup, window))
        assert len(made) == 1  # by the first
    assert (found[0] - found[1]).abs().max() <= 1e-4 * found[1].abs().max()
    assert torch.equal(found[0].argmax(-1), found[1].argmax(-1))


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_packed_batches_change_nothing(tmp_path, monkeypatch, family):
    """In one long text, in several of which some have fewer texts, and as it is chosen."""
    found, chosen, read = [], prefix.fastest_layout, Prefix._read
    for layout in (None, in_long_texts(1), in_long_texts(3), chosen):
        monkeypatch.setattr(prefix, "can_pack", lambda _, layout=layout: layout is not None)
        monkeypatch.setattr(prefix, "fastest_layout", layout)
        packed = []
        monkeypatch.setattr(
            passes.Prefix,
            "_read",
            lambda self, inputs, packed=packed: (
                packed.append(len(inputs.places) < len(inputs.order)) or read(self, inputs)
            ),
        )
        found.append(trained_logits(prepared(retrainable(tmp_path, family), METHOD), range(1, 2)))
        assert any(packed) == (layout is not None)
    for packed in found[1:]:
        assert (found[0] - packed).abs().max() <= 1e-4 * found[0].abs().max()


@pytest.mark.parametrize("layers", [[0], [2], [1, DEPTH - 1, 0, 2]])
def test_from_any_layer_on_the_logits_are_the_model_s(tmp_path, layers):
    loaded = make_classifier("gpt_neo")
    encoded, rows = random_run(tmp_path).encode(loaded), np.array([3, 0, 11])
    kept = Prefix(loaded.stack, encoded, tmp_path)
    with evaluating(loaded.model):
        expected = loaded.stack.logits(to_batch(encoded, rows, loaded.stack.device))
        for layer in layers:
            kept.reach(layer, loaded.stack)
            assert kept.layer == layer
            assert (
                kept.logits(rows, loaded.stack) - expected
            ).abs().max() <= 1e-5 * expected.abs().max()


def test_little_memory_means_a_file_and_the_same_scores(tmp_path, monkeypatch):
    whole = METHOD.run(retrainable(tmp_path, "gpt_neo", dropout=0.2))
    run = retrainable(tmp_path, "gpt_neo", dropout=0.2)
    monkeypatch.setattr(prefix, "CALLS_MEMORY", 0)
    monkeypatch.setattr(prefix, "MEMORY", 1)
    made = []
    original = torch.from_file
    monkeypatch.setattr(torch, "from_file", lambda *a, **k: made.append(a) or original(*a, **k))
    assert_same_scores(METHOD.run(run), whole)
    assert len(made) == 1
    names = {path.name for path in run.work("retraining").iterdir()}
    assert names == {f"windows-{first}-{DEPTH}.npz" for first in range(1, DEPTH + 1)}


def test_a_disk_without_room_is_a_sentence(tmp_path, monkeypatch):
    usage = type("Usage", (), {"free": 10})
    monkeypatch.setattr(prefix.shutil, "disk_usage", lambda _: usage)
    monkeypatch.setattr(prefix, "MEMORY", 1)
    with pytest.raises(StoreError, match=r"Cannot write .* are needed there"):
        METHOD.run(retrainable(tmp_path))
