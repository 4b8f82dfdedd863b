import pytest
import torch

from fixtures.models import CAUSAL, DEPTH, WIDTH, write_language_model
from memloc.errors import ModelError
from memloc.model.check import check_model
from memloc.model.checkpoints import load_checkpoint
from memloc.model.load import load_model
from memloc.model.stack import forward


@pytest.mark.parametrize("family", CAUSAL)
def test_a_language_model_is_seen_as_its_blocks(family, tmp_path):
    report = check_model(str(write_language_model(tmp_path, family)), texts=True)
    assert (report.depth, report.width) == (DEPTH, WIDTH)
    assert report.readout == "every token, to say the next one"
    assert report.head == "saved with the model"
    assert report.parity < 1e-5
    assert report.batch_invariance < 1e-5


@pytest.mark.parametrize("family", CAUSAL)
def test_the_head_reads_any_positions(family, tmp_path):
    loaded = load_checkpoint(write_language_model(tmp_path, family), texts=True)
    stack = loaded.stack
    assert stack.is_language_model
    assert loaded.label_names == []
    with torch.inference_mode():
        batch = stack.sample(2)
        state = stack.run_all(stack.prepare(batch))
        own = forward(loaded.model, batch)
        assert torch.allclose(stack.finish(state[:1, 2:4]), own[:1, 2:4], atol=1e-5)
        assert torch.allclose(stack.finish(state)[1, :3], own[1, :3], atol=1e-5)


def test_a_model_without_its_head_is_refused(tiny_model):
    with pytest.raises(ModelError, match=r"no head that continues texts \(the weight lm_head"):
        load_model(str(tiny_model("gpt_neox")), [])


def test_an_encoder_is_refused(tmp_path):
    folder = write_language_model(tmp_path, "bert")
    with pytest.raises(ModelError, match="reads texts in both directions"):
        check_model(str(folder), texts=True)
