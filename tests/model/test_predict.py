import numpy as np
import pytest
import torch

from fixtures.models import PAPER_FAMILIES, SPECIAL
from memloc.data.encode import encode
from memloc.data.task import NoisyLabels
from memloc.model import predict as evaluate
from memloc.model.load import load_model
from memloc.model.predict import accuracies, evaluating, predict


@pytest.mark.parametrize("family", [*PAPER_FAMILIES, *SPECIAL])
def test_predictions_depend_neither_on_batches_nor_on_order(tiny_model, task, family, monkeypatch):
    loaded = load_model(str(tiny_model(family, depth=2, dropout=0.1)), task.label_names)

    def logits_of(parts):
        texts = encode(parts, loaded.tokenizer, loaded.separator, loaded.max_tokens)
        return predict(loaded.stack, texts)

    parts = task.train.parts
    plain = logits_of(parts)
    assert plain.shape == (28, 2)
    with torch.no_grad():
        for (text,), expected in zip(parts[:5], plain[:5], strict=True):
            alone = loaded.model(**loaded.tokenizer(text, return_tensors="pt")).logits[0]
            np.testing.assert_allclose(expected, alone.numpy(), rtol=1e-4, atol=1e-6)
    for tokens in (1, 17, 100_000):
        monkeypatch.setattr(evaluate, "TOKENS_PER_BATCH", tokens)
        np.testing.assert_allclose(logits_of(parts), plain, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(logits_of(parts[::-1])[::-1], plain, rtol=1e-4, atol=1e-6)


def test_there_is_no_dropout_and_no_gradient_while_evaluating(tiny_model):
    model = load_model(str(tiny_model("opt", depth=2, dropout=0.1)), ["a", "b"]).model.train()
    with pytest.raises(ZeroDivisionError), evaluating(model):  # noqa: PT012
        assert not model.training
        assert not torch.is_grad_enabled()
        raise ZeroDivisionError
    assert model.training
    assert torch.is_grad_enabled()


def test_evaluating_puts_back_the_mode_of_every_part(tiny_model):
    loaded = load_model(str(tiny_model("opt", depth=2, dropout=0.1)), ["a", "b"])
    loaded.model.train()
    loaded.stack.blocks[0].eval()
    with evaluating(loaded.model):
        pass
    assert [block.training for block in loaded.stack.blocks] == [False, True]


def test_accuracies_by_hand():
    noisy = NoisyLabels(
        original=np.array([0, 0, 1, 1, 1]),
        assigned=np.array([1, 0, 0, 1, 1]),
        is_noisy=np.array([True, False, True, False, False]),
    )
    predicted = np.array([1, 0, 1, 1, 0])
    found = accuracies(predicted, noisy.assigned, noisy)
    assert found["accuracy"] == pytest.approx(3 / 5)
    assert found["noisy_accuracy"] == pytest.approx(1 / 2)
    assert found["clean_accuracy"] == pytest.approx(2 / 3)
    assert found["noisy_as_original"] == pytest.approx(1 / 2)
    # class 0: 1 of 2 predicted right, 1 of 2 found; class 1: 2 of 3 both ways
    assert found["macro_f1"] == pytest.approx((1 / 2 + 2 / 3) / 2)
