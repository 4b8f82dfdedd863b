"""A really pre-trained encoder of the paper's depth, where it is beside the project."""

from pathlib import Path

import pytest

from memloc.engine.packing import can_pack
from memloc.model.check import TOLERANCE, check_model
from memloc.model.load import load_model

FOLDER = Path(__file__).resolve().parents[2].parent / "shared" / "models" / "bert-12x384"
pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason="the real model is not here")


def test_a_real_encoder_passes_the_check():
    report = check_model(str(FOLDER))
    assert (report.depth, report.width, report.readout) == (12, 384, "first token")
    assert report.parity <= TOLERANCE
    assert report.batch_invariance <= TOLERANCE


def test_a_real_encoder_can_be_packed_and_gets_a_new_head():
    loaded = load_model(str(FOLDER), ["a", "b", "c"])
    assert can_pack(loaded.stack)
    assert "classifier.weight" in loaded.new_weights
