import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

from memloc.data.encode import (
    encode,
    length_grouped_batches,
    random_batches,
    sorted_batches,
)
from memloc.errors import ModelError
from memloc.seeds import generator

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "</s>", "|", "a", "b", "c", "d"]
ID = {word: i for i, word in enumerate(WORDS)}


def tokenizer(*, encloses: bool, **special) -> PreTrainedTokenizerFast:
    """Words by white space; `encloses` texts in [CLS] and [SEP] as BERT does, or adds nothing."""
    words = Tokenizer(WordLevel(ID, unk_token="[UNK]"))
    words.pre_tokenizer = WhitespaceSplit()
    if encloses:
        words.post_processor = TemplateProcessing(
            single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
        )
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", model_max_length=6, **special
    )


BERT = tokenizer(encloses=True, pad_token="[PAD]")
DECODER = tokenizer(encloses=False, pad_token="[PAD]", eos_token="</s>")


def words(ids) -> str:
    return " ".join(WORDS[i] for i in ids)


def test_parts_are_joined_with_the_separator_between_them():
    for parts in (("a",), ("a", "b"), ("d", "a", "b c")):
        assert words(encode([parts], DECODER, "|").tokens) == " | ".join(parts)


def test_a_batch_is_padded_right_to_its_longest_text():
    encoded = encode([("a",), ("a", "b"), ("c d",)], BERT, "[SEP]")
    ids, mask = encoded.batch(np.array([1, 0]))
    assert [words(row) for row in ids] == ["[CLS] a [SEP] b [SEP]", "[CLS] a [SEP] [PAD] [PAD]"]
    assert mask.tolist() == [[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]]
    assert ids.dtype == mask.dtype == np.int64
    assert encoded.batch(np.array([2]))[0].shape == (1, 4)


def test_texts_are_kept_end_to_end_with_their_lengths():
    encoded = encode([("a",), ("b c d",)], DECODER, "|")
    assert words(encoded.tokens) == "a b c d"
    assert encoded.tokens.dtype == np.int32
    assert encoded.lengths.tolist() == [1, 3]
    assert len(encoded) == 2


def test_long_texts_are_cut_and_keep_their_closing_token():
    encoded = encode([("a b c d",), ("a b",), ("a b c",)], BERT, "[SEP]", max_tokens=4)
    assert [words(row) for row in encoded.batch(np.arange(3))[0]] == ["[CLS] a b [SEP]"] * 3


def test_encoding_is_the_tokenizers_own_whatever_the_other_texts_are():
    texts = ["a", "b a d", "", "c c c c c c c", "unknown a"]
    encoded = encode([(text,) for text in texts], BERT, "[SEP]", max_tokens=6)
    for i, text in enumerate(texts):
        alone = BERT(text, truncation=True, max_length=6)["input_ids"]
        assert encoded.batch(np.array([i]))[0][0].tolist() == alone


@pytest.mark.parametrize("text", ["a b", "a b c d a b c d"])
def test_the_tokenizer_is_left_without_truncation_or_padding(text):
    """What is saved beside a model cuts nothing, whether or not a text was cut here."""
    encode([(text,)], BERT, "[SEP]", 6)
    assert BERT.backend_tokenizer.truncation is None
    assert BERT.backend_tokenizer.padding is None


def test_a_text_without_tokens_becomes_one_end_of_text_token_that_is_attended_to():
    encoded = encode([("",), ("a b",)], DECODER, "|")
    ids, mask = encoded.batch(np.array([0, 1]))
    assert [words(row) for row in ids] == ["</s> [PAD]", "a b"]
    assert mask.tolist() == [[1, 0], [1, 1]]


def test_without_an_end_of_text_token_the_padding_token_stands_for_an_empty_text():
    ids, mask = encode([("",)], tokenizer(encloses=False, pad_token="[PAD]"), "|").batch(
        np.array([0])
    )
    assert (words(ids[0]), mask.tolist()) == ("[PAD]", [[1]])


def test_without_a_padding_token_the_end_of_text_token_pads():
    encoded = encode([("a",), ("a b",)], tokenizer(encloses=False, eos_token="</s>"), "|")
    assert words(encoded.batch(np.array([0, 1]))[0][0]) == "a </s>"


def test_a_tokenizer_that_cannot_pad_is_refused():
    with pytest.raises(ModelError, match="neither a padding nor an end-of-text token"):
        encode([("a",)], tokenizer(encloses=False), "|")


def test_long_texts_raise_no_alarm_before_they_are_cut(caplog, monkeypatch):
    monkeypatch.setattr(logging.getLogger("transformers"), "propagate", True)
    fresh = tokenizer(encloses=True, pad_token="[PAD]")  # the alarm is given once a tokenizer
    encode([("a " * 50,)], fresh, "[SEP]", max_tokens=5)
    assert caplog.text == ""
    fresh("a " * 50)
    assert "longer than" in caplog.text


def test_no_texts_are_an_empty_encoding_and_an_empty_batch():
    encoded = encode([], BERT, "[SEP]")
    assert len(encoded) == 0
    assert encoded.batch(np.array([], dtype=np.int64))[0].shape == (0, 0)


LENGTHS = st.lists(st.integers(1, 40), max_size=120).map(lambda n: np.array(n, dtype=np.int64))


def covered(batches) -> list[int]:
    return sorted(int(row) for batch in batches for row in batch)


@given(st.integers(0, 200), st.integers(1, 40), st.integers(0, 9))
def test_random_batches_hold_every_example_once_and_all_but_the_last_are_full(n, size, seed):
    batches = random_batches(n, size, generator(seed))
    assert covered(batches) == list(range(n))
    assert all(len(batch) == size for batch in batches[:-1])
    assert all(1 <= len(batch) <= size for batch in batches)


def test_random_batches_depend_on_their_generator_alone():
    one, again, other = (random_batches(50, 8, generator(seed)) for seed in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(one, again, strict=True))
    assert not all(np.array_equal(a, b) for a, b in zip(one, other, strict=True))


@given(LENGTHS, st.integers(1, 10), st.integers(1, 5), st.integers(0, 9))
def test_length_grouped_batches_hold_every_example_once(lengths, size, pool, seed):
    batches = length_grouped_batches(lengths, size, generator(seed), pool=pool)
    assert covered(batches) == list(range(len(lengths)))
    assert len(batches) == -(-len(lengths) // size)


def test_batches_grouped_by_length_need_less_padding_and_are_not_in_order_of_length():
    lengths = generator(0).integers(1, 100, size=400)

    def padded(batches):
        return sum(int(lengths[batch].max()) * len(batch) for batch in batches)

    grouped = length_grouped_batches(lengths, 8, generator(1))
    assert padded(grouped) < 0.6 * padded(random_batches(400, 8, generator(1)))
    longest = [int(lengths[batch].max()) for batch in grouped]
    assert longest != sorted(longest)
    assert longest != sorted(longest, reverse=True)


def test_length_grouped_batches_differ_between_epochs():
    rng, lengths = generator(1), np.arange(200)
    one, two = (
        {frozenset(b.tolist()) for b in length_grouped_batches(lengths, 8, rng, pool=5)}
        for _ in range(2)
    )
    assert one != two


@given(LENGTHS, st.integers(1, 200))
def test_sorted_batches_hold_every_example_once_within_the_budget(lengths, budget):
    batches = sorted_batches(lengths, budget)
    assert covered(batches) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) == 1 or len(batch) * lengths[batch].max() <= budget
    in_turn = [int(lengths[row]) for batch in batches for row in batch]
    assert in_turn == sorted(in_turn, reverse=True)


def test_sorted_batches_are_as_large_as_the_budget_allows():
    batches = sorted_batches(np.array([2, 9, 3, 3, 2]), 6)
    assert [batch.tolist() for batch in batches] == [[1], [2, 3], [0, 4]]


def test_many_texts_are_tokenised_some_at_a_time(monkeypatch):
    """What a tokenizer keeps of a text is a hundred times its ids."""
    parts = [("a",), ("a b c d a b",), ("",), ("c", "d"), ("b",)]
    whole, sizes = encode(parts, DECODER, "|", max_tokens=4), []
    real = DECODER.__class__.__call__
    monkeypatch.setattr("memloc.data.encode.AT_ONCE", 2)
    monkeypatch.setattr(
        DECODER.__class__,
        "__call__",
        lambda self, texts, **k: sizes.append(len(texts)) or real(self, texts, **k),
    )
    pieces = encode(parts, DECODER, "|", max_tokens=4)
    assert max(sizes) == 2
    np.testing.assert_array_equal(pieces.tokens, whole.tokens)
    np.testing.assert_array_equal(pieces.offsets, whole.offsets)
