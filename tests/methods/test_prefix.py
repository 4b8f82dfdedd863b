"""States that are kept below a window, in memory or in a file, against computing them anew."""

from functools import partial

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
from memloc.errors import StoreError
from memloc.methods import prefix, retrainer
from memloc.methods.prefix import Plain, Prefix
from memloc.methods.retrainer import prepared
from memloc.model.predict import evaluating, to_batch


@pytest.mark.parametrize("family", PAPER_FAMILIES)
@pytest.mark.parametrize("window", [range(1), range(1, 3), range(DEPTH)])
def test_kept_states_change_nothing(tmp_path, family, window):
    rows = np.arange(24)
    found = []
    run = retrainable(tmp_path, family)
    for plainly in (False, True):
        with prepared(run, METHOD.replace({"frozen_dropout": plainly})) as setup:
            assert isinstance(setup.forward, Plain if plainly else Prefix)
            found.append(trained_logits(setup, window, rows))
    assert (found[0] - found[1]).abs().max() <= 1e-4 * found[1].abs().max()
    assert torch.equal(found[0].argmax(-1), found[1].argmax(-1))


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_packed_batches_change_nothing(tmp_path, monkeypatch, family):
    """In one long text, in several of which some have fewer texts, and as it is chosen."""
    found, chosen = [], prefix.fastest_layout
    for layout in (None, in_long_texts(1), in_long_texts(3), chosen):
        monkeypatch.setattr(prefix, "can_pack", lambda _, layout=layout: layout is not None)
        monkeypatch.setattr(prefix, "fastest_layout", layout)
        with prepared(retrainable(tmp_path, family), METHOD) as setup:
            found.append(trained_logits(setup, range(1, 2), np.arange(24)))
            kept = setup.forward._inputs.values()
            is_packed = any(len(inputs.places) < len(inputs.order) for inputs in kept)
            assert is_packed == (layout is not None)
    for packed in found[1:]:
        assert (found[0] - packed).abs().max() <= 1e-4 * found[0].abs().max()


@pytest.mark.parametrize("layers", [[0], [2], [1, DEPTH - 1, 0, 2]])
def test_from_any_layer_on_the_logits_are_the_model_s(tmp_path, layers):
    loaded = make_classifier("gpt_neo")
    encoded, rows = random_run(tmp_path).encode(loaded), np.array([3, 0, 11])
    kept = Prefix(loaded.stack, encoded, tmp_path, memory=2**20)
    with evaluating(loaded.model):
        expected = loaded.stack.logits(to_batch(encoded, rows, loaded.stack.device))
        for layer in layers:
            kept.reach(layer)
            assert kept.layer == layer
            assert (
                kept.logits(rows, loaded.stack) - expected
            ).abs().max() <= 1e-5 * expected.abs().max()


def test_little_memory_means_a_file_and_the_same_scores(tmp_path, monkeypatch):
    whole = METHOD.run(retrainable(tmp_path, "gpt_neo", dropout=0.2))
    run = retrainable(tmp_path, "gpt_neo", dropout=0.2)
    monkeypatch.setattr(prefix, "CALLS_MEMORY", 0)
    monkeypatch.setattr(retrainer, "prepared", partial(retrainer.prepared, memory=1))
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
    with (
        pytest.raises(StoreError, match=r"Cannot write .* are needed there"),
        prepared(retrainable(tmp_path), METHOD, memory=1),
    ):
        pass
