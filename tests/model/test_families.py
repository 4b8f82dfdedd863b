"""Families by what is special about them; `python -m studies.families` tries all there are."""

import pytest

from memloc.model import stack
from memloc.model.joined import JoinedLayer
from memloc.model.stack import register_stack
from studies.families import CAUSAL, try_family

EXACT = {
    "eurobert": ("all tokens", True),
    "gemma3": ("last attended token", True),
    "flaubert": ("first token", True),
    "xlm": ("first token", True),
    "openai-gpt": ("last attended token", True),
    "convbert": ("first token", False),
    "fnet": ("first token", False),
    "nystromformer": ("first token", False),
    "yoso": ("first token", False),
}
"""What the head reads, and whether texts of different lengths go together."""
REFUSED = {
    "albert": "its 2 layers share their weights (AlbertLayerGroup is called 2 times)",
    "bart": "it has an encoder and a decoder",
    "canine": "their configuration has no vocab_size",
    "funnel": "it has 0 lists of 12 blocks",
    "lilt": "its blocks hand on more than a state to the next one",
    "longformer": "its last block returns a state of shape (2, 512, 32)",
    "perceiver": "their configuration has no num_hidden_layers",
    "reformer": "its blocks hand on more than a state to the next one",
    "squeezebert": "calls the 2 blocks of its list 0 times",
    "zamba2": "its layers 1 and 2 share the weights",
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", EXACT)
def test_a_family_is_exact_alone_in_batches_and_with_swapped_layers(family):
    found = try_family(family)
    assert (found.outcome, found.reason) == ("exact", "")
    assert (found.readout, found.padding) == EXACT[family]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", ["qwen3", "gemma3_text", "falcon", "mamba"])
def test_a_language_model_is_exact_alone_in_batches_and_with_swapped_layers(family):
    found = try_family(family, CAUSAL)
    assert (found.outcome, found.reason) == ("exact", "")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("family", REFUSED)
def test_another_structure_is_refused_with_its_true_reason(family):
    found = try_family(family)
    assert found.outcome == "refused"
    assert REFUSED[family] in found.reason
    assert "\n" not in found.reason


@pytest.mark.filterwarnings("ignore")
def test_layers_that_are_joined_in_another_way_than_the_model_s_are_refused(monkeypatch):
    """The model's own loop is what counts, as another transformers may have another one."""
    right = JoinedLayer.forward
    monkeypatch.setattr(JoinedLayer, "forward", lambda *given: right(*given) * 1.01)
    found = try_family("xlm")
    assert found.outcome == "refused"
    assert "run block by block, its logits differ by" in found.reason


@pytest.mark.filterwarnings("ignore")
def test_a_refused_family_works_once_its_blocks_are_named(monkeypatch):
    """The encoder of an encoder-decoder counts as embeddings, and the decoder is looked at."""
    assert try_family("t5gemma").outcome == "refused"
    monkeypatch.setattr(stack, "_REGISTERED", {})
    register_stack("t5gemma", lambda model: model.model.decoder.layers)
    found = try_family("t5gemma")
    assert (found.outcome, found.reason) == ("exact", "")
