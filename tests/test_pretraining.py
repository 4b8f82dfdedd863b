"""The embedded suite: its texts are as they were made, and its models read them."""

import subprocess
import sys
from collections import Counter

import pandas as pd
import pytest

from memloc.data.encode import encode_continued
from memloc.data.sources import load_task
from memloc.data.tasks import EMBEDDED_TASKS
from memloc.errors import UnknownName
from memloc.model.known import TINY, tiny_folder
from memloc.model.load import load_model
from memloc.model.predict import continued
from pretraining import heads
from pretraining import texts as of_study
from pretraining.documents import corpus
from pretraining.language import TOPICS, WORDS, forms, past, plural, vocabulary
from pretraining.tasks import generate

MEGABYTE = 1_000_000
TASKS = list(EMBEDDED_TASKS)
SEPARATORS = {"tiny-bert": "[SEP]", "tiny-opt": "</s>", "tiny-gpt-neo": "|", "tiny-gpt-neox": "|"}


def words_of(texts):
    return {word for parts in texts for part in parts for word in part.split()}


@pytest.mark.parametrize("name", TASKS)
def test_the_same_seed_makes_the_same_texts_and_another_seed_others(name):
    assert generate(name, seed=1) == generate(name, seed=1)
    assert generate(name, seed=1) != generate(name, seed=2)


def test_texts_are_the_same_on_every_machine():
    (text,), label = (column[0] for column in generate("tiny-topic", seed=1)["train"])
    assert (text, label) == ("the drums are melodic .", 2)


@pytest.mark.parametrize("name", TASKS)
def test_classes_are_balanced(name):
    for texts, labels in generate(name).values():
        counts = Counter(labels)
        assert len(texts) == len(labels) == 400
        assert set(counts) == set(range(len(EMBEDDED_TASKS[name].label_names)))
        assert max(counts.values()) - min(counts.values()) <= 1


@pytest.mark.parametrize("name", TASKS)
def test_no_text_appears_twice(name):
    texts = [parts for split, _ in generate(name).values() for parts in split]
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("name", TASKS)
def test_held_out_words_appear_in_held_out_data_only(name):
    splits = generate(name)
    held_out = forms(lambda group: group.held)
    assert not words_of(splits["train"][0]) & held_out
    assert words_of(splits["validation"][0]) & held_out


@pytest.mark.parametrize("name", TASKS)
def test_the_vocabulary_covers_every_task(name):
    for texts, _ in generate(name, seed=3).values():
        assert words_of(texts) <= set(vocabulary())


def test_the_vocabulary_is_small_sorted_and_fully_used_by_the_corpus():
    known = vocabulary()
    used = words_of(corpus(seed=1, n_documents=20_000))
    assert used == set(known)
    assert known == sorted(known)
    assert len(known) < 1000
    assert "|" in known


def test_documents_are_the_same_for_the_same_seed():
    assert list(corpus(5, 20)) == list(corpus(5, 20))
    assert list(corpus(5, 20)) != list(corpus(6, 20))


def test_no_word_belongs_to_two_topics():
    counts = Counter(
        word
        for groups in TOPICS.values()
        for name, group in groups.items()
        if name not in WORDS
        for word in group.all
    )
    assert max(counts.values()) == 1


def test_pairs_have_two_parts_and_other_texts_one():
    for name in TASKS:
        parts = {len(parts) for parts in generate(name)["train"][0]}
        assert parts == ({2} if name == "tiny-entailment" else {1})


@pytest.mark.parametrize(("noun", "expected"), [("cake", "cakes"), ("cherry", "cherries")])
def test_nouns_have_plurals(noun, expected):
    assert plural(noun) == expected


@pytest.mark.parametrize(
    ("verb", "expected"), [("bake", "baked"), ("play", "played"), ("carry", "carried")]
)
def test_verbs_have_a_past(verb, expected):
    assert past(verb) == expected


@pytest.mark.parametrize("name", TASKS)
def test_the_texts_that_come_with_memloc_are_those_that_are_made(name):
    task, splits = load_task(name), generate(name)
    texts, labels = splits["train"]
    assert task.train.parts == tuple(texts)
    assert task.train.labels.tolist() == labels
    unseen = Counter(zip(*splits["validation"], strict=True))
    for part in (task.validation, task.test):
        unseen.subtract(zip(part.parts, part.labels.tolist(), strict=True))
    assert set(unseen.values()) == {0}


def test_embedded_tasks_are_read_without_torch():
    code = (
        "import sys, memloc, memloc.model.known;"
        "memloc.load_task('tiny-topic');"
        "sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_model_is_refused_by_name():
    with pytest.raises(UnknownName, match="tiny-bert"):
        tiny_folder("tiny-llama")


@pytest.mark.parametrize("name", TINY)
def test_a_model_folder_is_small(name):
    assert sum(file.stat().st_size for file in tiny_folder(name).iterdir()) <= 3 * MEGABYTE


@pytest.mark.parametrize("name", TINY)
def test_a_model_loads_as_a_classifier_of_twelve_layers(name):
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(
        tiny_folder(name), num_labels=6, local_files_only=True
    )
    assert model.config.num_hidden_layers == 12
    assert model.config.num_labels == 6


@pytest.mark.parametrize("name", TINY)
def test_a_tokenizer_gives_back_every_text_without_unknown_words(name):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folder(name), local_files_only=True)
    for task in TASKS:
        for parts in generate(task)["validation"][0][:50]:
            text = f" {SEPARATORS[name]} ".join(parts)
            ids = tokenizer(text, add_special_tokens=False).input_ids
            assert len(ids) == len(text.split())
            assert tokenizer.convert_ids_to_tokens(ids) == text.split()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("tiny-bert", ["[CLS]", "the", "soup", "[SEP]"]),
        ("tiny-opt", ["</s>", "the", "soup"]),
        ("tiny-gpt-neo", ["the", "soup"]),
        ("tiny-gpt-neox", ["the", "soup"]),
    ],
)
def test_a_tokenizer_follows_its_family(name, expected):
    transformers = pytest.importorskip("transformers")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tiny_folder(name), local_files_only=True)
    assert tokenizer.convert_ids_to_tokens(tokenizer("The soup").input_ids) == expected
    assert (tokenizer.pad_token is None) == name.startswith("tiny-gpt")


@pytest.mark.parametrize("name", of_study.MAKERS)
def test_the_texts_of_the_example_are_those_of_the_script(name):
    table = pd.read_csv(of_study.HOME / f"{name}.csv")
    assert [*map(tuple, table.to_numpy())] == of_study.rows_of(name, of_study.MAKERS[name])
    assert not table["prompt"].duplicated().any()


@pytest.mark.parametrize("name", heads.CAUSAL)
def test_language_models_expect_ordinary_texts_and_not_random_words(name):
    table = pd.read_csv(of_study.HOME / "sequences.csv")
    loaded = load_model(name, [])
    encoded = encode_continued(table[["prompt", "continuation"]].to_numpy(), loaded.tokenizer)
    said = continued(loaded.stack, encoded)
    mean = said.log_probability.sum(1) / said.is_token.sum(1)
    is_random = (table["memorised"] == "yes").to_numpy()
    assert mean[~is_random].mean() > -2.5
    assert mean[is_random].mean() < -6
    assert not said.recalled[is_random].any()
