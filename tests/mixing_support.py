"""Pairs of random models, and their mixtures built by copying weights."""

import copy
from itertools import pairwise

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification

from memloc.data.encode import Encoded
from memloc.model.stack import find_blocks
from memloc.seeds import torch_seeded
from memloc.stats.windows import windows
from support import make_config, make_tokenizer

DEPTH, CLASSES = 4, 3
LENGTHS = (7, 3, 7, 12, 1, 7)


def make_model(family="bert", seed=0, depth=DEPTH):
    config = make_config(family, depth, 0.1, make_tokenizer(family))
    config.num_labels = CLASSES
    config.pad_token_id = config.pad_token_id or 0
    with torch_seeded(seed):
        return randomised(AutoModelForSequenceClassification.from_config(config), seed)


def randomised(model, seed):
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        # Norms and biases as well: what is not swapped rightly must show.
        for parameter in model.parameters():
            spread = 0.3 if parameter.dim() > 1 else 0.1
            parameter.add_(torch.randn(parameter.shape, generator=rng), alpha=spread)
    return model.eval()


def make_pair(family="bert", depth=DEPTH):
    return make_model(family, 1, depth), make_model(family, 2, depth)


def make_texts(model, lengths=LENGTHS):
    """Words other than the padding token, which some models look for."""
    tokens = [i for i in range(model.config.vocab_size) if i != model.config.pad_token_id]
    rng = np.random.default_rng(0)
    texts = [rng.choice(tokens, n).astype(np.int32) for n in lengths]
    offsets = np.cumsum([0, *lengths])
    return Encoded(np.concatenate(texts), offsets, model.config.pad_token_id)


def mixed(final, reference, window):
    """The final model with copies of the reference's blocks in a window."""
    model = copy.deepcopy(final)
    blocks, lent = find_blocks(model), find_blocks(reference)
    for layer in window:
        blocks[layer].load_state_dict(lent[layer].state_dict())
    return model


@torch.no_grad()
def plain_logits(model, encoded):
    """One example at a time, by the model's own forward pass."""
    texts = [encoded.tokens[a:b] for a, b in pairwise(encoded.offsets)]
    ids = [torch.from_numpy(text.astype(np.int64)).unsqueeze(0) for text in texts]
    return torch.cat([model(input_ids=i).logits for i in ids])


def mixed_logits(final, reference, encoded):
    """(examples, windows + 1, classes): every window of the final model, then none."""
    models = [mixed(final, reference, window) for window in windows(len(find_blocks(final)))]
    return torch.stack([plain_logits(model, encoded) for model in [*models, final]], dim=1)


class Counted:
    """Counts the examples that pass through the blocks of a BERT, and the tokens of a call."""

    def __init__(self, *models):
        self.rows, self.most_tokens = 0, 0
        for model in models:
            for block in find_blocks(model):
                # Inside the block: its own hooks also see stand-ins that compute nothing.
                block.attention.register_forward_hook(self._count, with_kwargs=True)

    def _count(self, _module, args, kwargs, _output):
        states = args[0] if args else kwargs["hidden_states"]
        self.rows += len(states)
        self.most_tokens = max(self.most_tokens, states.shape[0] * states.shape[1])
