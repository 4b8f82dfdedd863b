"""What is known of models before they were fine-tuned."""

import numpy as np
import pytest
from safetensors.numpy import save_file

from memloc.reporting.pretraining import layer_parameters, pretraining, rounded


def test_parameters_of_blocks_are_counted_without_embeddings_and_head(tmp_path):
    weights = {
        "model.layers.0.fc.weight": np.zeros((3, 4), np.float32),
        "model.layers.11.fc.bias": np.zeros(5, np.float32),
        "model.embed.weight": np.zeros((7, 7), np.float32),
        "score.weight": np.zeros((2, 2), np.float32),
    }
    place = tmp_path / "checkpoints" / "final"
    place.mkdir(parents=True)
    save_file(weights, place / "model.safetensors")
    assert layer_parameters("somebody/model", tmp_path) == 17


def test_without_weights_nothing_is_counted(tmp_path):
    assert layer_parameters("somebody/model", tmp_path) is None
    assert pretraining("somebody/model") == {}


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "–"), (12, "12"), (1_500, "1.5k"), (1_234_000, "1.2M"), (180e9, "180B")],
)
def test_large_numbers_are_short(number, text):
    assert rounded(number) == text
