"""Hashes: the same where what they stand for is the same, and other where it is not."""

import os
import time
from dataclasses import replace

import numpy as np
import pytest
import torch

from fixtures.tasks import make_task
from memloc.data.task import Examples, NoisyLabels, hash_task
from memloc.store import identity
from memloc.store.identity import (
    hash_checkpoint,
    hash_files,
    hash_weights,
)


def make_noisy():
    task = make_task()
    labels = task.train.labels
    is_noisy = np.arange(len(labels)) % 5 == 0
    noisy = NoisyLabels(labels, np.where(is_noisy, 1 - labels, labels), is_noisy)
    return replace(task, noise=noisy)


@pytest.mark.parametrize("split", ["train", "validation", "test"])
def test_every_text_label_and_split_of_a_task_counts(split):
    task = make_noisy()
    examples = getattr(task, split)
    text = Examples((("the sea",), *examples.parts[1:]), examples.labels)
    label = Examples(examples.parts, np.roll(examples.labels, 1))
    parts = Examples(tuple((*p, "") for p in examples.parts), examples.labels)
    found = {hash_task(task)}
    for other in (text, label, parts):
        found.add(hash_task(replace(task, **{split: other})))
    assert len(found) == 4


def test_the_noise_of_a_task_counts_and_its_name_does_not():
    task = make_noisy()
    noisy = task.labels
    # Where original labels are unknown, the marks alone may differ.
    marked = replace(noisy, is_noisy=~noisy.is_noisy)
    other = replace(noisy, assigned=np.roll(noisy.assigned, 1))
    elsewhere = replace(noisy, origin="flags")
    found = [hash_task(replace(task, noise=n)) for n in (noisy, marked, other, elsewhere)]
    assert len(set(found[:3])) == 3
    assert found[0] == found[3] == hash_task(replace(task, name="x", source="y"))


def test_weights_are_hashed_by_name_and_value():
    values = {"a": torch.tensor([1.0, 2.0]), "b": torch.tensor([[3.0]])}
    same = {"a": torch.tensor([1.0, 2.0], requires_grad=True), "b": torch.tensor([[3.0]])}
    assert hash_weights(values.items()) == hash_weights(same.items())
    nearly = {**values, "a": torch.tensor([1.0, 2.0 + 2e-7])}
    renamed = {"a": values["a"], "c": values["b"]}
    assert len({hash_weights(v.items()) for v in (values, nearly, renamed)}) == 3


def test_files_are_hashed_by_name_size_and_contents(tmp_path):
    def made(folder, name="model.safetensors", content=b"abc"):
        path = tmp_path / folder / name
        path.parent.mkdir()
        path.write_bytes(content)
        return hash_files([path])

    assert made("one") == made("two")  # wherever they are
    assert len({made("a"), made("b", "other"), made("c", content=b"abd")}) == 3


def test_every_byte_of_a_file_counts(tmp_path):
    content = bytearray(np.random.default_rng(0).bytes(1_000))
    path = tmp_path / "x"
    found = set()
    for place in (None, *range(0, 1_000, 7), 999):
        changed = content.copy()
        if place is not None:
            changed[place] ^= 1
        path.write_bytes(changed)
        found.add(hash_files([path]))
    assert len(found) == 145


def test_a_checkpoint_is_its_model_and_tokenizer_files(tmp_path):
    for name in ("model.safetensors", "config.json", "tokenizer.json"):
        (tmp_path / name).write_text(name)
    before = hash_checkpoint(tmp_path)
    for name in ("training.log", "eval_results.json", "trainer_state.json", "training_args.bin"):
        (tmp_path / name).write_text("done")
    (tmp_path / "folder").mkdir()
    assert hash_checkpoint(tmp_path) == before
    (tmp_path / "config.json").write_text("{}")
    assert hash_checkpoint(tmp_path) != before


def test_a_file_is_read_once_until_it_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(identity, "SETTLED", 0.0)
    path, read, plain = tmp_path / "model.safetensors", [], identity._read
    monkeypatch.setattr(identity, "_read", lambda path: read.append(path) or plain(path))
    path.write_bytes(b"a" * 5000)
    first = hash_files([path])
    assert hash_files([path]) == first
    assert len(read) == 1
    time.sleep(0.02)  # a file system's clock ticks
    times = path.stat()
    path.write_bytes(b"b" * 5000)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))  # as some tools keep it
    assert hash_files([path]) != first
    assert len(read) == 2


def test_a_file_that_was_just_written_is_read_again(tmp_path):
    path = tmp_path / "model.safetensors"
    found = set()
    for letter in b"abc":
        path.write_bytes(bytes([letter]) * 5000)
        found.add(hash_files([path]))
    assert len(found) == 3
