"""Makes one module of each layer whose parts stand in parallel lists (XLM, FlauBERT).

Such a model's own loop joins the parts. Here a layer is a module that does what one round of that
loop does with the same parts, and the model runs these modules in place of its loop. Names of
weights and files stay as they are. The self-check compares the result with the loop; no layer is
dropped in training.
"""

import sys
from functools import partial
from typing import Any

from torch import Tensor, nn


def joined_layers(model: Any) -> list[nn.Module]:
    """Return the layers of a classifier that keeps their parts in lists; join them on the first
    call.
    """
    body = model.base_model
    if "joined" not in body.__dict__:
        # Past nn.Module, which would take them for more parts of the model.
        body.__dict__["joined"] = [JoinedLayer(body, layer) for layer in range(body.n_layers)]
        body.__dict__["forward"] = partial(_forward, body)
    layers: list[nn.Module] = body.joined
    return layers


class JoinedLayer(nn.Module):
    """A layer made of its parts: one round of the model's own loop."""

    def __init__(self, body: Any, layer: int) -> None:
        super().__init__()
        self.attention, self.norm1 = body.attentions[layer], body.layer_norm1[layer]
        self.ffn, self.norm2 = body.ffns[layer], body.layer_norm2[layer]
        self.dropout = body.dropout

    def forward(self, state: Tensor, attended: Tensor, mask: Tensor) -> Tensor:
        """Return the state after the layer, with zeros at padding."""
        output = self.attention(state, attended)[0]
        # The model's modes reach the parts only.
        output = nn.functional.dropout(output, self.dropout, training=self.attention.training)
        state = self.norm1(state + output)
        state = self.norm2(state + self.ffn(state))
        return state * mask.unsqueeze(-1).to(state.dtype)


def _forward(body: Any, input_ids: Tensor, attention_mask: Tensor | None, **named: Any) -> Any:
    """Run the model's own forward pass with joined layers in place of its loop."""
    depth = body.n_layers
    body.n_layers = 0
    try:
        output = type(body).forward(body, input_ids, attention_mask=attention_mask, **named)
    finally:
        body.n_layers = depth
    state = output[0]
    lengths = (input_ids != body.pad_index).sum(1)
    masks = sys.modules[type(body).__module__].get_masks
    mask, attended = masks(input_ids.shape[1], lengths, body.causal, padding_mask=attention_mask)
    for layer in body.joined:
        state = layer(state, attended, mask)
    output.last_hidden_state = state
    return output
