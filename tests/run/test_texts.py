"""Runs on texts: language models that memorise continuations."""

import numpy as np
import pandas as pd
import pytest
import torch

import memloc
from fixtures.models import CAUSAL, write_language_model
from fixtures.tasks import TEXTS, make_texts
from memloc.data.encode import encode_continued
from memloc.errors import DataError, ModelError, TrainingError
from memloc.model.load import load_model
from memloc.model.predict import continued, log_probabilities


def test_training_memorises_texts_and_the_reference_does_not(texts_run):
    run = texts_run
    assert run.task.is_texts
    assert run.status.final.noisy == 1
    assert not run.has("frozen")
    reference = run.load("reference")
    recalled = continued(reference.stack, run.encode(reference)).recalled
    assert not recalled[run.noisy_rows].any()


@pytest.mark.parametrize("family", CAUSAL)
def test_teacher_forcing_says_what_greedy_decoding_says(family, tmp_path):
    """Of random texts and of texts that the model says itself, after prompts of several lengths."""
    loaded = load_model(str(write_language_model(tmp_path, family)), [])
    texts = make_texts()[["start", "rest"]].to_numpy().tolist()
    texts += [[start, _greedy(loaded, start, 3)] for start, _ in texts]
    encoded = encode_continued(texts, loaded.tokenizer)
    said = continued(loaded.stack, encoded)
    recalled = []
    for row, start in enumerate(encoded.starts):
        ids = torch.from_numpy(encoded.batch(np.array([row]))[0])
        n = ids.shape[1] - start
        with torch.inference_mode():
            found = loaded.model.generate(ids[:, :start], max_new_tokens=n, do_sample=False)
        recalled.append(found.shape == ids.shape and bool((found == ids).all()))
    assert said.recalled.tolist() == recalled
    assert any(recalled)
    assert not all(recalled)


def _greedy(loaded, start, n):
    ids = loaded.tokenizer(start, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        found = loaded.model.generate(ids, max_new_tokens=n, min_new_tokens=n, do_sample=False)
    return loaded.tokenizer.decode(found[0, ids.shape[1] :])


@pytest.mark.parametrize("family", CAUSAL)
def test_log_probabilities_are_those_of_the_plain_model(family, tmp_path):
    loaded = load_model(str(write_language_model(tmp_path, family)), [])
    texts = make_texts()[["start", "rest"]].to_numpy().tolist()
    encoded = encode_continued(texts, loaded.tokenizer)
    said = continued(loaded.stack, encoded)
    rows = np.arange(len(texts))
    mean = said.log_probability.sum(1) / said.is_token.sum(1)
    with torch.inference_mode():
        assert np.allclose(log_probabilities(loaded.stack, encoded, rows), mean, atol=1e-4)
        for row in rows:
            start, ids = encoded.starts[row], torch.from_numpy(encoded.batch(rows[[row]])[0])
            plain = loaded.model(ids).logits[0].log_softmax(-1)
            own = plain[np.arange(start - 1, ids.shape[1] - 1), ids[0, start:]]
            assert np.allclose(said.log_probability[row, : len(own)], own, atol=1e-4)


def test_an_adopted_run_keeps_what_only_the_final_weights_recall(texts_run, tmp_path):
    run = texts_run
    texts = make_texts()
    final = run.load("final")
    more = [{"start": "the old man", "rest": "was very blue", "flag": True}]  # never learnt
    table = pd.concat([texts, pd.DataFrame(more)])
    given = {"final": run.path("final"), "reference": run.path("reference"), "data": table}
    adopted = memloc.adopt(tmp_path / "run", **given, **TEXTS)
    assert "recall 6 of 7 texts; other weights recall 0 of these" in adopted.record.task.noise
    assert adopted.task.train.parts == run.task.train.parts
    assert adopted.status.final.noisy == 1
    assert len(continued(final.stack, adopted.encode(final)).recalled) == len(texts)


def test_where_nothing_is_memorised_nothing_is_adopted(texts_run, tmp_path):
    run = texts_run
    given = {"final": run.path("reference"), "data": make_texts(), **TEXTS}
    with pytest.raises(TrainingError, match=r"recall 0 of 6 texts.*nothing to locate"):
        memloc.adopt(tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"rest": ""}, "Column 'rest' of the DataFrame has 14 empty texts"),
        ({"flag": True}, "there are no ordinary texts"),
        ({"flag": False}, "there are no texts that may be memorised"),
        ({"start": "red " * 100}, "Text 1 has 101 tokens before its continuation"),
    ],
)
def test_bad_texts_are_refused(texts_run, tmp_path, change, fact):
    final = texts_run.path("final")
    with pytest.raises(DataError, match=fact):
        memloc.adopt(tmp_path / "run", final=final, data=make_texts().assign(**change), **TEXTS)


@pytest.mark.parametrize(
    ("columns", "fact"),
    [
        ({"prompt": "start", "flag": "flag"}, "Name both columns"),
        ({"prompt": "start", "continuation": "rest"}, "Say which texts"),
        ({**TEXTS, "continuation": "start"}, "named as prompt and as continuation"),
    ],
)
def test_texts_without_their_columns_are_refused(columns, fact):
    with pytest.raises(DataError, match=fact):
        memloc.load_csv(make_texts(), **columns)


def test_a_model_of_another_vocabulary_is_refused(texts_run, tmp_path):
    other = write_language_model(tmp_path / "other", "gpt2")
    final = texts_run.path("final")
    with pytest.raises(ModelError, match=r"vocab_size|model_type"):
        memloc.adopt(tmp_path / "run", final=final, reference=other, data=make_texts(), **TEXTS)
