from contextlib import contextmanager
from itertools import chain
from unittest import mock

import numpy as np
import pytest
import torch
from transformers import get_linear_schedule_with_warmup

from fixtures.models import PAPER_FAMILIES, WIDTH
from memloc.data.encode import encode
from memloc.engine import loop as finetune
from memloc.engine.loop import (
    Objective,
    out_of_memory_explained,
    shuffled_rows,
    train_epoch,
)
from memloc.engine.objectives import counted_groups, learning, learning_groups
from memloc.engine.passes import logits_of
from memloc.errors import TrainingError
from memloc.model.load import load_model
from memloc.model.parts import find_parts
from memloc.model.predict import to_batch
from memloc.protocol import FineTuneSettings
from memloc.seeds import torch_seeded

SETTINGS = FineTuneSettings(learning_rate=1e-2, batch_size=8, epochs=2, weight_decay=0.1, warmup=0)
ROWS = np.arange(8)


def update(objective, rows):
    """Train on one batch, and return its mean loss."""
    with mock.patch.object(finetune, "shuffled_rows", return_value=[(0, rows)]):
        (loss,) = train_epoch([objective], [1], 1).values()
    return loss.item()


@pytest.fixture(params=PAPER_FAMILIES)
def family(request):
    return request.param


@pytest.fixture
def load(tiny_model, task):
    """A fresh classifier of a family, and the task's training texts for it."""

    def fresh(family="opt", dropout=0.0):
        loaded = load_model(str(tiny_model(family, depth=2, dropout=dropout)), task.label_names)
        texts = encode(task.train.parts, loaded.tokenizer, loaded.separator, loaded.max_tokens)
        return loaded, texts

    return fresh


def groups_of(loaded, *, blocks=(0, 1)):
    parts, named = find_parts(loaded.stack), dict(loaded.model.named_parameters())
    chosen = [parts.after, *(parts.blocks[i] for i in blocks)]
    return [{name: named[name] for name in group} for group in chosen]


@pytest.mark.parametrize("embeddings", [False, True])
def test_what_learns_is_all_of_a_model_but_for_frozen_embeddings(load, family, embeddings):
    loaded, _ = load(family)
    parts = find_parts(loaded.stack)
    after, *blocks = learning_groups(loaded.stack, embeddings=embeddings)
    assert tuple(after) == parts.after
    expected = [*parts.blocks, *([parts.embeddings] if embeddings else [])]
    assert [tuple(block) for block in blocks] == expected
    everything = dict(loaded.model.named_parameters())
    assert all(p is everything[name] for group in (after, *blocks) for name, p in group.items())


def merged(groups):
    return {name: tensor for group in groups for name, tensor in group.items()}


def objective_of(loaded, texts, task, tensors, groups, settings=SETTINGS, name="noisy"):
    """Of the tensors, as many learn as there are groups; the others are counted only."""
    stack, n = loaded.stack, len(groups)
    return Objective(
        name=name,
        logits=logits_of(stack, texts, settings),
        labels=torch.from_numpy(task.train.labels),
        lengths=texts.lengths,
        tensors=merged(tensors[:n]),
        parameters=merged(groups),
        settings=settings,
        counted=merged(tensors[n:]),
    )


@contextmanager
def one_objective(load, task, family="opt", settings=SETTINGS, dropout=0.0, blocks=(0, 1)):
    loaded, texts = load(family, dropout)
    groups = groups_of(loaded, blocks=blocks)
    counted = counted_groups(loaded.stack, groups, settings)
    with learning(loaded.model, [*groups, *counted]) as tensors:
        yield loaded, objective_of(loaded, texts, task, tensors, groups, settings)


def weights(loaded):
    return {name: p.detach().clone() for name, p in loaded.model.named_parameters()}


@pytest.mark.parametrize(
    ("done", "share"),
    [(0, 0.0), (1, 0.5), (2, 1.0), (3, 17 / 18), (11, 0.5), (19, 1 / 18), (20, 0.0)],
)
def test_the_rate_rises_for_a_tenth_and_falls_to_zero(load, task, done, share):
    """28 examples in batches of 14: 10 epochs have 20 updates."""
    settings = SETTINGS.replace({"batch_size": 14, "epochs": 10, "warmup": 0.1})
    with one_objective(load, task, settings=settings) as (_, objective):
        objective.continue_after(done)
        assert objective.updates == done
        rate = objective.optimiser.param_groups[0]["lr"]
        assert rate == pytest.approx(share * settings.learning_rate)


@pytest.mark.parametrize("over", ["trained", "all"])
def test_updates_are_those_of_plain_torch(load, task, family, over):
    """Three updates against the loop that anybody would write: plain model, AdamW, clipping."""
    settings = SETTINGS.replace({"clip": 0.05, "warmup": 0.5, "clip_over": over})
    batches = [np.arange(0, 8), np.arange(8, 16), np.arange(16, 21)]
    with one_objective(load, task, family, settings, blocks=(1,)) as (ours, objective):
        losses = [float(update(objective, rows)) for rows in batches]
        total = settings.epochs * objective.updates_per_epoch
    plain, texts = load(family)
    named = merged(groups_of(plain, blocks=(1,)))
    learnt = list(named.values())
    clipped = learnt if over == "trained" else list(plain.model.parameters())
    optimiser = torch.optim.AdamW(learnt, lr=1e-2, weight_decay=0.1)
    rate = get_linear_schedule_with_warmup(optimiser, total // 2, total)
    for step, rows in enumerate(batches):
        batch = to_batch(texts, rows, torch.device("cpu"))
        labels = torch.from_numpy(task.train.labels[rows])
        loss = plain.model(**batch, labels=labels).loss
        plain.model.zero_grad()
        loss.backward()
        assert torch.nn.utils.clip_grad_norm_(clipped, 0.05) > 0.05
        optimiser.step()
        rate.step()
        assert losses[step] == pytest.approx(loss.item(), rel=1e-4)
    trained = weights(ours)
    for name, parameter in named.items():
        # Where the true gradient is zero (a key's bias), AdamW blows up what is only float noise.
        counts = optimiser.state[parameter]["exp_avg_sq"].sqrt() > 1e-7
        torch.testing.assert_close(
            trained[name][counts], parameter[counts].detach(), rtol=1e-3, atol=1e-4, msg=name
        )


def test_a_batch_in_pieces_gives_the_same_update(load, task, family):
    after = []
    for pieces in (1, 2, 3):
        settings = SETTINGS.replace({"accumulate": pieces})
        with one_objective(load, task, family, settings) as (loaded, objective):
            before = weights(loaded)
            loss = update(objective, ROWS)
            # AdamW's first step has size one in every direction, so compare the gradients too.
            grads = {n: p.grad.clone() for n, p in objective.parameters.items()}
            after.append((weights(loaded), grads, loss))
    whole = after[0]
    assert any(not torch.equal(whole[0][n], before[n]) for n in before)
    for pieces in after[1:]:
        torch.testing.assert_close(pieces[2], whole[2], rtol=0, atol=1e-6)
        for name, gradient in pieces[1].items():
            torch.testing.assert_close(gradient, whole[1][name], rtol=0, atol=1e-6)


def test_checkpointed_blocks_run_twice_and_give_the_same_update(load, task, family):
    after, calls = [], []
    for wanted in (False, True):
        settings = SETTINGS.replace({"gradient_checkpointing": wanted})
        with one_objective(load, task, family, settings, dropout=0.1) as (loaded, objective):
            counted = []
            inside = next(m for m in loaded.stack.blocks[1].modules() if not [*m.children()])
            inside.register_forward_hook(lambda *_, counted=counted: counted.append(1))
            train_epoch([objective], [1], 1)
            after.append(weights(loaded))
            calls.append(len(counted))
            assert all("forward" not in vars(block) for block in loaded.stack.blocks)
    assert calls[1] == 2 * calls[0] > 0
    for name, value in after[0].items():
        assert torch.equal(after[1][name], value), name


def test_more_pieces_than_examples_are_fine(load, task):
    with one_objective(load, task, settings=SETTINGS.replace({"accumulate": 100})) as (_, o):
        assert np.isfinite(update(o, np.arange(3)))


def test_frozen_parameters_get_no_gradient_and_stay_as_they_were(load, task, family):
    with one_objective(load, task, family, blocks=(1,)) as (loaded, objective):
        before = weights(loaded)
        train_epoch([objective], [1], 1)
        for name, parameter in loaded.model.named_parameters():
            if name in objective.parameters:
                assert parameter.requires_grad
                assert not torch.equal(parameter, before[name])
            else:
                assert parameter.grad is None
                assert torch.equal(parameter, before[name])


@pytest.mark.parametrize("over", ["trained", "all"])
def test_frozen_parameters_count_in_clipping_where_that_is_asked(load, task, monkeypatch, over):
    clipped = []
    plain = torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(
        torch.nn.utils,
        "clip_grad_norm_",
        lambda tensors, clip: clipped.append(plain(list(tensors), clip)),
    )
    settings = SETTINGS.replace({"clip_over": over})
    with one_objective(load, task, settings=settings, blocks=(1,)) as (ours, objective):
        before = weights(ours)
        update(objective, ROWS)
        changed = {n for n, value in weights(ours).items() if not torch.equal(value, before[n])}
    assert changed == set(objective.parameters)  # whatever counts, no more learns
    loaded, texts = load("opt")
    batch = to_batch(texts, ROWS, torch.device("cpu"))
    loaded.model(**batch, labels=torch.from_numpy(task.train.labels[ROWS])).loss.backward()
    everything = torch.stack([p.grad.norm() for p in loaded.model.parameters()]).norm()
    names = dict(loaded.model.named_parameters())
    mine = torch.stack([names[n].grad.norm() for n in objective.parameters]).norm()
    expected = mine if over == "trained" else everything
    assert float(clipped[0]) == pytest.approx(float(expected), rel=1e-5)
    assert float(everything) > float(mine) * 1.01


def test_learning_is_put_back(load, task):
    loaded, texts = load("opt", 0.1)
    loaded.model.eval()
    storage = {n: p.data_ptr() for n, p in loaded.model.named_parameters()}
    groups = groups_of(loaded)
    with pytest.raises(ZeroDivisionError), learning(loaded.model, groups) as tensors:  # noqa: PT012
        assert loaded.model.training
        update(objective_of(loaded, texts, task, tensors, groups), ROWS)
        raise ZeroDivisionError
    assert not loaded.model.training
    assert all(p.requires_grad and p.grad is None for p in loaded.model.parameters())
    whole = {p.data.untyped_storage().data_ptr() for p in loaded.model.parameters()}
    assert len(whole) == len(storage)  # every parameter has its own memory again


@contextmanager
def two_objectives(load, task, first_blocks, second_blocks):
    """A main and an auxiliary objective on one model, each with a head of its own."""
    loaded, texts = load("opt")
    parts, named = find_parts(loaded.stack), dict(loaded.model.named_parameters())
    with torch_seeded(0, "other head"):
        other_head = torch.nn.Linear(WIDTH, 2)
    blocks = [{n: named[n] for n in block} for block in parts.blocks]
    heads = [
        {n: named[n] for n in parts.after},
        {f"other.{n}": p for n, p in other_head.named_parameters()},
    ]
    with learning(loaded.model, [*blocks, *heads]) as tensors:
        objectives = []
        for index, chosen in enumerate((first_blocks, second_blocks)):
            picked = [*chosen, 2 + index]
            objective = objective_of(
                loaded,
                texts,
                task,
                [tensors[i] for i in picked],
                [[*blocks, *heads][i] for i in picked],
                SETTINGS,
                ("main", "auxiliary")[index],
            )
            objectives.append(objective)
        stack = loaded.stack
        norm = loaded.model.model.decoder.final_layer_norm
        objectives[1].logits = lambda rows: other_head(
            norm(stack.run_all(stack.prepare(to_batch(texts, rows, stack.device)))[:, 2])
        )
        yield loaded, objectives, {**named, **heads[1]}


def test_each_of_two_objectives_changes_only_its_own(load, task):
    with two_objectives(load, task, (0,), (0, 1)) as (_, objectives, named):
        for index in (0, 1, 0):
            before = {n: p.detach().clone() for n, p in named.items()}
            moments = {
                n: {k: v.clone() for k, v in o.optimiser.state[t].items()}
                for o in objectives
                if o is not objectives[index]
                for n, t in o.tensors.items()
            }
            own = set(objectives[index].parameters)
            others = [p for n, p in objectives[1 - index].parameters.items() if n not in own]
            for parameter in others:
                parameter.grad.zero_()
            with finetune.only_trainable(objectives, index):
                update(objectives[index], ROWS)
            assert all((parameter.grad == 0).all() for parameter in others)
            changed = {n for n, p in named.items() if not torch.equal(p, before[n])}
            assert changed <= own
            assert {n for n in own if named[n].dim() > 1} <= changed
            other = objectives[1 - index]
            for n, t in other.tensors.items():
                for kind, moment in other.optimiser.state[t].items():
                    assert torch.equal(moment, moments[n][kind])
        assert [o.updates for o in objectives] == [2, 1]


def test_one_objective_among_two_moves_as_if_it_were_alone(load, task):
    """Clipping, moments and schedule of one do not see the other's gradients."""
    with two_objectives(load, task, (0,), (1,)) as (_, objectives, named):
        with finetune.only_trainable(objectives, 1):
            update(objectives[1], ROWS)  # leaves gradients behind in block 1
        with finetune.only_trainable(objectives, 0):
            update(objectives[0], ROWS)
        together = {n: named[n].detach().clone() for n in objectives[0].parameters}
    with two_objectives(load, task, (0,), (1,)) as (_, objectives, named):
        with finetune.only_trainable(objectives, 1):
            update(objectives[1], ROWS)
        with torch.no_grad():
            for p in objectives[1].parameters.values():
                p.grad.fill_(1e6)  # were these counted, clipping would stop the other objective
        with finetune.only_trainable(objectives, 0):
            update(objectives[0], ROWS)
        for n, values in together.items():
            assert torch.equal(named[n], values)


def test_an_epoch_mixes_the_batches_of_two_objectives(load, task):
    with two_objectives(load, task, (0,), (1,)) as (_, objectives, _named):
        order = shuffled_rows(objectives, [1], 1)
        assert sorted({index for index, _ in order}) == [0, 1]
        indices = [index for index, _ in order]
        assert indices != sorted(indices)
        for index in (0, 1):
            rows = np.concatenate([rows[0] for i, rows in order if i == index])
            assert sorted(rows.tolist()) == list(range(28))
        means = train_epoch(objectives, [1], 1)
        assert set(means) == {"main", "auxiliary"}
        assert all(p.requires_grad for o in objectives for p in o.parameters.values())


def rows_of(order):
    return [rows[0].tolist() for _, rows in order]


def test_the_order_depends_on_seed_and_epoch_and_not_on_labels_or_name(load, task):
    with one_objective(load, task) as (_, objective):
        first = rows_of(shuffled_rows([objective], [1], 1))
        objective.labels = 1 - objective.labels
        objective.name = "original"
        assert rows_of(shuffled_rows([objective], [1], 1)) == first
        assert rows_of(shuffled_rows([objective], [1], 2)) != first
        assert rows_of(shuffled_rows([objective], [2], 1)) != first
        assert sorted(chain(*first)) == list(range(28))
        assert [len(rows) for rows in first] == [8, 8, 8, 4]


def test_length_grouped_batches_pad_less_and_hold_everything(load, task):
    def padding(order, lengths):
        return sum(int(lengths[r].max() * r.size - lengths[r].sum()) for _, r in order)

    with one_objective(load, task) as (_, objective):
        plain = shuffled_rows([objective], [1], 1)
        objective.settings = SETTINGS.replace({"length_grouped": True})
        grouped = shuffled_rows([objective], [1], 1)
        assert sorted(chain(*rows_of(grouped))) == list(range(28))
        assert padding(grouped, objective.lengths) < padding(plain, objective.lengths) / 2


def test_the_same_seed_gives_the_same_weights_bit_for_bit(load, task, family):
    after = {}
    for key, seed in (("one", 1), ("again", 1), ("other", 2)):
        torch.rand(len(after) * 7 + 1)  # what ran before does not matter
        with one_objective(load, task, family, dropout=0.1) as (loaded, objective):
            for epoch in (1, 2):
                train_epoch([objective], [seed], epoch)
            after[key] = weights(loaded)
    assert all(torch.equal(after["one"][n], after["again"][n]) for n in after["one"])
    assert any(not torch.equal(after["one"][n], after["other"][n]) for n in after["one"])


def test_training_leaves_the_global_random_state_alone(load, task):
    with one_objective(load, task, dropout=0.1) as (_, objective):
        before = torch.random.get_rng_state()
        train_epoch([objective], [1], 1)
        assert torch.equal(torch.random.get_rng_state(), before)


def test_progress_counts_every_update(load, task):
    steps = []
    with one_objective(load, task) as (_, objective):
        train_epoch([objective], [1], 1, lambda losses: steps.append(len(losses)))
        assert sum(steps) == objective.updates_per_epoch == objective.updates == 4


def test_lower_precision_runs_and_is_near(load, task, family):
    losses = {}
    for kind in ("none", "bf16"):
        settings = SETTINGS.replace({"autocast": kind})
        with one_objective(load, task, family, settings) as (loaded, objective):
            losses[kind] = float(update(objective, ROWS))
            assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}
    assert losses["bf16"] == pytest.approx(losses["none"], rel=0.05)
    assert losses["bf16"] != losses["none"]


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB."),
        RuntimeError("MPS backend out of memory (MPS allocated: 1 GB)"),
        RuntimeError(
            "[enforce fail at alloc_cpu.cpp:127] DefaultCPUAllocator: can't allocate memory: you "
            "tried to allocate 4000 bytes. Error code 12 (Cannot allocate memory)"
        ),
        MemoryError(),
    ],
    ids=["cuda", "mps", "cpu", "python"],
)
def test_out_of_memory_says_what_to_try(load, task, error):
    def fail(_rows):
        raise error

    with one_objective(load, task) as (_, objective):
        objective.logits = fail
        with pytest.raises(TrainingError) as raised, out_of_memory_explained(SETTINGS):
            train_epoch([objective], [1], 1)
    message = str(raised.value)
    assert "finetune.accumulate=2" in message
    assert "finetune.batch_size" in message
    assert "\n" not in message


def test_torch_on_this_machine_says_it_in_a_way_that_is_known():
    with pytest.raises(TrainingError, match="Out of memory"), out_of_memory_explained(SETTINGS):
        torch.empty(10**15)


def test_other_errors_are_not_called_out_of_memory():
    with pytest.raises(RuntimeError, match="shapes"), out_of_memory_explained(SETTINGS):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")


def test_a_loss_that_is_no_number_is_an_error_with_advice(load, task):
    with one_objective(load, task) as (_, objective):
        objective.logits = lambda rows: torch.full((len(rows), 2), torch.nan, requires_grad=True)
        with pytest.raises(TrainingError, match=r"loss of noisy became nan in epoch 3.*lower"):
            train_epoch([objective], [1], 3)
