"""Streamed models give the numbers of whole ones to the bit, and hold no blocks."""

import pytest
import torch

from fixtures.mixtures import LOGITS, logits_of, make_pair, make_texts
from fixtures.models import PAPER_FAMILIES, make_tokenizer
from memloc.errors import ModelError
from memloc.methods.mixtures import Mixtures
from memloc.model.checkpoints import load_checkpoint
from memloc.model.streamed import load_streamed
from memloc.model.units import find_units


def saved(home, family, depth=3):
    """Two random models in folders."""
    folders = []
    for name, model in zip(("final", "donor"), make_pair(family, depth), strict=True):
        tokenizer = make_tokenizer(family)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        model.save_pretrained(home / name)
        tokenizer.save_pretrained(home / name)
        folders.append(home / name)
    return folders


@pytest.mark.parametrize("units", ["layers", "sublayers"])
@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_streamed_mixtures_are_equal_to_the_bit(tmp_path, family, units):
    folders = saved(tmp_path, family)
    found = []
    for load in (load_checkpoint, load_streamed):
        final, donor = (load(folder) for folder in folders)
        named = find_units(final.stack, units)
        mixtures = Mixtures(final.stack, donor.stack, named, LOGITS)
        subsets = range(0, 2 ** len(named), 1 if units == "layers" else 3)
        found.append(logits_of(mixtures, make_texts(final.model), subsets))
    assert torch.equal(*found)
    inside = {id(p) for p in final.stack.blocks.parameters()}
    held = [p for p in final.model.parameters() if id(p) in inside]
    assert all(p.is_meta for p in held)  # nothing of the blocks stayed


def test_a_checkpoint_that_cannot_be_streamed_says_why(tmp_path):
    folder, _ = saved(tmp_path, "opt")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="cannot be streamed"):
        load_streamed(folder)
