"""Streamed models give the numbers of whole ones to the bit, and hold no blocks."""

import re
import time
import weakref

import numpy as np
import pytest
import torch

import memloc
from fixtures.mixtures import LOGITS, logits_of, make_pair, make_texts
from fixtures.models import CAUSAL, PAPER_FAMILIES, make_tokenizer, write_language_model
from fixtures.tasks import make_texts as make_continued
from memloc.data.encode import encode_continued
from memloc.errors import ModelError
from memloc.methods import mixtures as module
from memloc.methods.mixtures import TOKENS, MixedBatch, Mixtures
from memloc.model import streamed
from memloc.model.checkpoints import load_checkpoint
from memloc.model.load import load_model
from memloc.model.predict import continued
from memloc.model.streamed import load_streamed
from memloc.model.units import find_units
from memloc.progress import telling


def saved(home, family, depth=3):
    """Two random models in folders."""
    folders = []
    for name, model in zip(("final", "donor"), make_pair(family, depth), strict=True):
        tokenizer = make_tokenizer(family)
        tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
        model.save_pretrained(home / name)
        tokenizer.save_pretrained(home / name)
        folders.append(home / name)
    return folders


@pytest.mark.parametrize("units", ["layers", "sublayers"])
@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_streamed_mixtures_are_equal_to_the_bit(tmp_path, family, units):
    folders = saved(tmp_path, family)
    found = []
    for load in (load_checkpoint, load_streamed):
        final, donor = (load(folder) for folder in folders)
        named = find_units(final.stack, units)
        mixtures = Mixtures(final.stack, donor.stack, named, LOGITS)
        subsets = range(0, 2 ** len(named), 1 if units == "layers" else 3)
        found.append(logits_of(mixtures, make_texts(final.model), subsets))
    assert torch.equal(*found)
    inside = {id(p) for p in final.stack.blocks.parameters()}
    held = [p for p in final.model.parameters() if id(p) in inside]
    assert all(p.is_meta for p in held)  # nothing of the blocks stayed


HALF = [("llama", torch.bfloat16), ("gpt2", torch.float16)]


@pytest.mark.parametrize(("family", "dtype"), [*((f, torch.float32) for f in CAUSAL), *HALF])
def test_streamed_language_models_are_equal_to_the_bit(tmp_path, family, dtype):
    folders = []
    for seed in (0, 1):
        folders.append(write_language_model(tmp_path / str(seed), family, seed, depth=3))
        load_model(str(folders[-1]), []).model.to(dtype).save_pretrained(folders[-1])
    found = []
    for load in (load_checkpoint, load_streamed):
        final, donor = (load(folder, texts=True) for folder in folders)
        encoded = encode_continued(make_continued()[["start", "rest"]].to_numpy(), final.tokenizer)
        said = continued(final.stack, encoded)
        mixtures = Mixtures(final.stack, donor.stack, outcome=TOKENS)
        rows = np.arange(len(encoded))
        for places in mixtures.batches(encoded, rows):
            found.append(mixtures.values(encoded, rows[places], said.tokens[places], range(8)))
        found.append(torch.from_numpy(said.log_probability))
    half = len(found) // 2
    assert all(map(torch.equal, found[:half], found[half:]))


@pytest.fixture
def kept(monkeypatch):
    """Note every reading of weights and the most bytes of them that were there at once."""
    alive, found = [], {"reads": 0, "most": 0}

    class Noted(streamed.mmap.mmap):
        def __new__(cls, *given, **named):
            pages = super().__new__(cls, *given, **named)
            alive.append(len(pages))
            weakref.finalize(pages, alive.remove, len(pages))
            found["reads"] += 1
            found["most"] = max(found["most"], sum(alive))
            return pages

    monkeypatch.setattr(streamed.mmap, "mmap", Noted)
    return found


def test_at_most_one_block_is_held_and_each_is_read_once_for_many_states(texts_run, kept):
    folder = texts_run.path("final")
    plain = memloc.Shares().run(texts_run)
    found = memloc.Shares(stream=True).run(texts_run)
    for name, table in plain.tables.items():
        assert table.equals(found[name]), name
    loaded = load_checkpoint(folder, texts=True)
    size = sum(p.nbytes for p in loaded.model.parameters())
    block = sum(p.nbytes for p in loaded.stack.blocks[0].parameters())
    outside = size - loaded.stack.depth * block
    assert kept["most"] < 2 * outside + 1.5 * block + 4096 * 20  # pages are whole


SAID = r": (\d+) layers for each of (\d+) texts, about (\d+) s; at most (\S+ \S+) of memory .*"
SAID += r"; about (\S+ \S+) will be read, of (\S+ \S+) of files"
UNITS = {"bytes": 1, "kB": 10**3, "MB": 10**6, "GB": 10**9}


def test_what_is_said_before_streamed_work_is_what_the_work_takes(texts_run, monkeypatch):
    sentences, sizes_read, began = [], [], []

    def note(sentence):
        sentences.append(sentence)
        sizes_read.clear()
        began[:] = [time.perf_counter()]

    read = streamed.Place.read
    monkeypatch.setattr(streamed.Place, "read", lambda p: sizes_read.append(p.size) or read(p))
    with telling(note):
        memloc.Shares(stream=True).run(texts_run)
    taken = time.perf_counter() - began[0]
    layers, texts, seconds, *sizes = re.search(SAID, sentences[-1]).groups()
    assert int(layers) == 2 ** (texts_run.depth + 1) - 2
    assert int(texts) == 2 * len(texts_run.noisy_rows)  # memorised texts and as many ordinary ones
    assert int(seconds) <= 10 * taken + 1
    held, in_all, files = (float(n) * UNITS[unit] for n, unit in map(str.split, sizes))
    assert module.MEMORY < held < 1.1 * module.MEMORY  # besides states, the models are tiny
    assert in_all == pytest.approx(sum(sizes_read), rel=0.1)
    stored = [texts_run.path(name) / "model.safetensors" for name in ("final", "reference")]
    assert files == pytest.approx(sum(path.stat().st_size for path in stored), rel=0.2)


def test_reading_is_shared_by_all_states_that_memory_holds(tmp_path, kept, monkeypatch):
    folders = saved(tmp_path, "bert", depth=4)
    final, donor = (load_streamed(folder) for folder in folders)
    monkeypatch.setattr(module, "MOST_HELD", 2)
    mixtures = Mixtures(final.stack, donor.stack, outcome=LOGITS)
    encoded = make_texts(final.model, (7, 7))
    kept["reads"] = 0
    logits_of(mixtures, encoded, range(16))
    n_weights = len(list(final.stack.blocks[0].parameters()))
    assert kept["reads"] == 2 * 4 * n_weights  # final and donor, four blocks of each
    sizes = [streamed.bytes_read(stack.blocks[0]) for stack in (final.stack, donor.stack)]
    batch = MixedBatch(np.arange(2), np.arange(2), range(16))
    assert mixtures.bytes_read(encoded, [batch]) == 4 * sum(sizes)


def test_a_block_is_read_once_for_texts_of_all_lengths(tmp_path, kept, monkeypatch):
    """As far as memory holds their states, and with the same numbers to the bit."""
    folders = saved(tmp_path, "bert", depth=4)
    final, donor = (load_streamed(folder) for folder in folders)
    mixtures = Mixtures(final.stack, donor.stack, outcome=LOGITS)
    encoded, rows = make_texts(final.model, (9, 7, 7, 3)), np.arange(4)
    places = list(mixtures.batches(encoded, rows))
    subsets = [range(16), [0, 3, 15], range(0, 16, 5)]
    batches = [MixedBatch(rows[p], rows[p], own) for p, own in zip(places, subsets, strict=True)]
    (group,) = mixtures.groups(encoded, batches)
    alone = [mixtures.values(encoded, b.rows, b.labels, b.subsets) for b in batches]
    kept["reads"] = 0
    together = mixtures.values_of(encoded, group)
    assert all(map(torch.equal, alone, together))
    assert kept["reads"] == 2 * 4 * len(list(final.stack.blocks[0].parameters()))
    size = sum(streamed.bytes_read(stack.blocks[0]) for stack in (final.stack, donor.stack))
    assert mixtures.bytes_read(encoded, group) == 4 * size
    monkeypatch.setattr(mixtures, "memory", 1)
    assert [len(group) for group in mixtures.groups(encoded, batches)] == [1, 1, 1]


def test_a_checkpoint_that_cannot_be_streamed_says_why(tmp_path):
    folder, _ = saved(tmp_path, "opt")
    (folder / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="cannot be streamed"):
        load_streamed(folder)
