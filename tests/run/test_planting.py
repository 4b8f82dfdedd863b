"""Two tasks on one body: the planted one changes its window and its head, and nothing else."""

from contextlib import contextmanager
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from fixtures.models import FAMILIES, PAPER_FAMILIES, each_once
from fixtures.tasks import Plant, fast_protocol, make_recipe, make_task, train_run
from memloc.data.encode import encode
from memloc.data.task import hash_examples
from memloc.engine import fit as engine
from memloc.engine import loop
from memloc.engine.learner import Part, Watch
from memloc.engine.loop import Objective, shuffled_rows, train_epoch
from memloc.engine.objectives import planted_objectives, share_body
from memloc.engine.passes import Pass, Work, logits_of
from memloc.errors import StoreError
from memloc.model.load import load_model
from memloc.model.parts import find_parts
from memloc.model.units import sublayer_units
from memloc.run.folder import Run
from memloc.run.recipe import Training
from memloc.stats.windows import planted_layers

DEPTH = 4
SETTINGS = fast_protocol(finetune__weight_decay=0.1, finetune__clip=0.5).finetune


@contextmanager
def learners(tiny_model, family, window, *, pooler_and_norm=False, **changes):
    """The planted task and the auxiliary one on one body, with all parameters by name."""
    folder = str(tiny_model(family, depth=DEPTH))
    settings = SETTINGS.replace(changes)
    tasks = make_task(16, 3), make_task(24, 2, "other")
    loaded = [load_model(folder, task.label_names) for task in tasks]
    share_body(*loaded)
    both = []
    for name, task, model in zip(("noisy", "auxiliary"), tasks, loaded, strict=True):
        texts = encode(task.train.parts, model.tokenizer, model.separator, 64)
        labels = torch.from_numpy(task.train.labels)
        given = name, logits_of(model.stack, texts, settings), labels, texts.lengths
        both.append(partial(Objective, *given, settings=settings))
    named = {f"noisy.{n}": p for n, p in loaded[0].model.named_parameters()}
    shared = {id(p) for p in named.values()}
    named |= {
        f"auxiliary.{n}": p for n, p in loaded[1].model.named_parameters() if id(p) not in shared
    }
    stacks = [model.stack for model in loaded]
    planted = [(Part(layers=tuple(window)), both[0])]
    with planted_objectives(
        stacks, planted, both[1], settings, pooler_and_norm=pooler_and_norm
    ) as objectives:
        yield loaded, objectives, named


@pytest.mark.parametrize(("family", "over"), each_once(FAMILIES, ["trained", "all"]))
def test_the_planted_task_changes_its_window_and_head_alone(tiny_model, family, over):
    """Bit for bit, after steps of both: weights, AdamW's moments, weight decay and clipping."""
    window = range(1, 3)
    with learners(tiny_model, family, window, clip_over=over) as (both, objectives, named):
        stack = both[0].stack
        train_epoch(objectives, [1], 1)  # both have moments now
        before = {n: p.detach().clone() for n, p in named.items()}
        moments = [m.clone() for m in _moments(objectives[1])]
        gradients = {n: p.grad for n, p in named.items()}
        assert any(g is not None and g.any() for g in gradients.values())
        train_epoch(objectives[:1], [1], 2)
        changed = {n for n, p in named.items() if not torch.equal(p, before[n])}
        in_window = {id(p) for index in window for p in stack.blocks[index].parameters()}
        body = f"noisy.{both[0].stack.model.base_model_prefix}."
        for name in changed:
            assert id(named[name]) in in_window or not name.startswith(body), name
            assert not name.startswith("auxiliary."), name
        assert any(not n.startswith(body) for n in changed)
        assert any(id(named[n]) in in_window for n in changed)
        for new, old in zip(_moments(objectives[1]), moments, strict=True):
            assert torch.equal(new, old)


def test_steps_of_both_in_one_epoch_leave_the_rest_to_the_auxiliary_task(tiny_model):
    """Frozen out of the auxiliary objective by a rate of zero, everything else stays put."""
    with learners(tiny_model, "opt", range(2, 4)) as (both, objectives, named):
        objectives[1].settings = SETTINGS.replace({"learning_rate": 1e-30})
        objectives[1].optimiser.param_groups[0]["weight_decay"] = 0.0
        objectives[1].continue_after(0)
        before = {n: p.detach().clone() for n, p in named.items()}
        train_epoch(objectives, [1], 1)
        stack = both[0].stack
        outside = [p for index in (0, 1) for p in stack.blocks[index].parameters()]
        kept = {id(p) for p in outside}
        for name, parameter in named.items():
            if id(parameter) in kept:
                assert torch.allclose(parameter, before[name], atol=1e-25), name
        assert [o.updates for o in objectives] == [4, 6]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_auxiliary_task_changes_every_layer_and_not_the_other_head(tiny_model, family):
    with learners(tiny_model, family, range(1)) as (both, objectives, named):
        before = {n: p.detach().clone() for n, p in named.items()}
        train_epoch(objectives[1:], [1], 1)
        changed = {id(p) for n, p in named.items() if not torch.equal(p, before[n])}
        for block in both[0].stack.blocks:
            assert all(id(p) in changed for p in block.parameters() if p.dim() > 1)
        body = f"noisy.{both[0].stack.model.base_model_prefix}."
        heads = [p for n, p in named.items() if n.startswith("noisy.") and not n.startswith(body)]
        assert heads
        assert not any(id(p) in changed for p in heads)


def test_embeddings_learn_with_the_auxiliary_task_where_they_are_not_frozen(tiny_model):
    for freeze in (True, False):
        with learners(tiny_model, "bert", range(1), freeze_embeddings=freeze) as found:
            both, objectives, _named = found
            words = both[0].stack.model.get_input_embeddings().weight
            before = words.detach().clone()
            train_epoch(objectives[:1], [1], 1)
            assert torch.equal(words, before)
            train_epoch(objectives, [1], 2)
            assert torch.equal(words, before) == freeze


@pytest.mark.parametrize("family", ["bert", "opt"])
def test_the_planted_task_changes_pooler_and_final_norm_where_that_is_asked(tiny_model, family):
    for asked in (False, True):
        with learners(tiny_model, family, range(1), pooler_and_norm=asked) as found:
            both, objectives, named = found
            body = both[0].stack.model.base_model_prefix
            after = [n for n in find_parts(both[0].stack).after if n.startswith(body)]
            before = {n: p.detach().clone() for n, p in named.items()}
            train_epoch(objectives[:1], [1], 1)
            changed = {n for n, p in named.items() if not torch.equal(p, before[n])}
            assert after
            assert {f"noisy.{n}" in changed for n in after} == {asked}


def test_clipping_over_all_parameters_counts_the_whole_body_and_one_head(tiny_model, monkeypatch):
    norms, plain = [], torch.nn.utils.clip_grad_norm_
    monkeypatch.setattr(
        torch.nn.utils, "clip_grad_norm_", lambda t, clip: norms.append(plain(list(t), clip))
    )
    with learners(tiny_model, "bert", range(1), clip_over="all") as (both, objectives, named):
        rows, expected = torch.arange(4).numpy(), []
        for objective in objectives:
            loss = torch.nn.functional.cross_entropy(
                objective.logits(rows), objective.labels[0, rows]
            )
            found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
            expected.append(torch.stack([g.norm() for g in found if g is not None]).norm())
        monkeypatch.setattr(loop, "shuffled_rows", lambda *_: [(0, rows), (1, rows)])
        train_epoch(objectives, [1], 1)
        words = both[0].stack.model.get_input_embeddings().weight
        assert words.grad is not None
    # The second is after an update of the first, whose rate is still zero.
    torch.testing.assert_close(torch.stack(norms), torch.stack(expected), rtol=1e-4, atol=0)


def test_one_body_computes_for_both_heads(tiny_model):
    with learners(tiny_model, "gpt_neo", range(1)) as (both, objectives, _named):
        assert both[0].stack.blocks[0] is both[1].stack.blocks[0]
        rows = torch.arange(3).numpy()
        assert [o.logits(rows).shape[1] for o in objectives] == [3, 2]


def _moments(objective):
    states = objective.optimiser.state
    return [
        moment
        for tensor in objective.tensors.values()
        for kind, moment in sorted(states[tensor].items())
        if kind != "step"
    ]


def planted_recipe(model, planted="2-3", **changes):
    protocol = fast_protocol(**{"finetune__epochs": 4, **changes})
    return make_recipe(
        model,
        make_task(16),
        1,
        protocol,
        device="cpu",
        plant=Plant(planted, make_task(24, 2, "other")),
    )


@pytest.mark.parametrize("planted", ["2-3", "1/3-4", "1/3-4@3", "mlp:2-3"])
def test_an_interrupted_planted_training_goes_on_to_the_same_weights(
    tiny_model, tmp_path, monkeypatch, planted
):
    model = str(tiny_model("opt", depth=DEPTH, dropout=0.1))
    whole = train_run(planted_recipe(model, planted), tmp_path / "whole", ["final"])
    real, calls = engine.save_state, []

    def stop_after_two(*given):
        real(*given)
        calls.append(given)
        if len(calls) == 2:
            raise KeyboardInterrupt

    monkeypatch.setattr(engine, "save_state", stop_after_two)
    with pytest.raises(KeyboardInterrupt):
        train_run(planted_recipe(model, planted), tmp_path / "stopped", ["final"])
    monkeypatch.setattr(engine, "save_state", real)
    again = train_run(planted_recipe(model, planted), tmp_path / "stopped", ["final"])
    for (name, a), b in zip(
        whole.load("final").model.named_parameters(),
        again.load("final").model.parameters(),
        strict=True,
    ):
        assert torch.equal(a, b), name
    columns = ["loss", "auxiliary_loss", "accuracy"]
    assert whole.training()[columns].equals(again.training()[columns])


@pytest.mark.parametrize("planted", ["1+4", "1/3-4"])
def test_a_plant_changes_its_layers_and_no_others(tiny_model, tmp_path, planted):
    """The auxiliary task, which always does, moves nothing at so low a rate."""
    changes = {"control__auxiliary_learning_rate": 1e-30, "finetune__epochs": 2}
    model = str(tiny_model("opt", depth=DEPTH))
    run = train_run(planted_recipe(model, planted, **changes), tmp_path, ["final", "reference"])
    start = run.load_pretrained(1)
    for weights in ("final", "reference"):
        for layer, (before, after) in enumerate(
            zip(start.stack.blocks, run.load(weights).stack.blocks, strict=True)
        ):
            pairs = zip(before.parameters(), after.parameters(), strict=True)
            same = all(torch.allclose(a, b, rtol=0, atol=1e-12) for a, b in pairs)
            assert same != (layer in planted_layers(planted))


@pytest.mark.parametrize("family", PAPER_FAMILIES)
@pytest.mark.parametrize("part", ["attention", "mlp"])
def test_a_plant_changes_its_part_of_its_layers_and_no_others(tiny_model, tmp_path, family, part):
    """The auxiliary task, which always does, moves nothing at so low a rate."""
    changes = {"control__auxiliary_learning_rate": 1e-30, "finetune__epochs": 1}
    model = str(tiny_model(family, depth=DEPTH))
    recipe = planted_recipe(model, f"{part}:2-3", **changes)
    run = train_run(recipe, tmp_path, ["final", "reference"])
    start = run.load_pretrained(1)
    units = sublayer_units(start.stack)
    before = dict(start.model.named_parameters())
    for weights in ("final", "reference"):
        after = dict(run.load(weights).model.named_parameters())
        moved = {
            unit
            for unit, names in units.items()
            if any(not torch.allclose(before[n], after[n], rtol=0, atol=1e-12) for n in names)
        }
        assert moved == {f"{part} 2", f"{part} 3"}


def test_a_group_that_begins_later_changes_nothing_before(tmp_path, tiny_model):
    run = staged_run("1/3-4@5", tmp_path, tiny_model)
    assert moved(run, "pretrained", "epoch-1") == [1]
    assert moved(run, "pretrained", "epoch-4") == [1]
    assert moved(run, "epoch-4", "final") == [1, 3, 4]


def test_a_stage_changes_its_layers_and_the_first_one_the_head(tmp_path, tiny_model):
    run = staged_run("1@2-3/3-4@5-6", tmp_path, tiny_model)
    assert moved(run, "pretrained", "epoch-1") == []
    assert moved(run, "epoch-1", "epoch-3") == [1]
    assert moved(run, "epoch-3", "epoch-4") == []
    assert moved(run, "epoch-4", "final") == [3, 4]
    heads = [run.load(name).model.score.weight for name in ("epoch-1", "epoch-3", "final")]
    assert not torch.equal(heads[0], heads[1])
    assert torch.equal(heads[1], heads[2])
    curve = run.training()
    assert curve["loss"].isna().tolist() == [True, False, False, True, False, False]


def test_a_stage_sees_the_noisy_examples_of_its_group_and_all_clean_ones(tmp_path, tiny_model):
    run = staged_run("1@1-2/3-4@5-6", tmp_path, tiny_model)
    parts = Training(run, run.load_pretrained(1))._parts(run.noisy.assigned, is_frozen=False)
    for number, part in enumerate(parts):
        assert {*run.clean_rows} <= {*part.rows}
        noisy = [row for row in run.noisy_rows if run.planted_groups[row] == number]
        assert {*part.rows} - {*run.clean_rows} == {*noisy}


def staged_run(planted, folder, tiny_model):
    """Six epochs; the auxiliary task, which always learns, moves nothing at so low a rate."""
    changes = {"control__auxiliary_learning_rate": 1e-30, "finetune__epochs": 6}
    changes |= {"finetune__keep_epochs": "early"}
    model = str(tiny_model("opt", depth=DEPTH))
    return train_run(planted_recipe(model, planted, **changes), folder, ["final"])


def moved(run, one, other):
    """The layers, from 1, in which two of a run's weights differ."""
    pairs = zip(run.load(one).stack.blocks, run.load(other).stack.blocks, strict=True)
    return [
        layer
        for layer, (before, after) in enumerate(pairs, 1)
        if not all(
            torch.allclose(a, b, rtol=0, atol=1e-12)
            for a, b in zip(before.parameters(), after.parameters(), strict=True)
        )
    ]


def test_groups_of_examples_have_layers_of_their_own(tiny_model, tmp_path):
    """Half of the noisy and half of the clean examples, each example once, noise or not."""
    model = str(tiny_model("opt", depth=DEPTH))
    recipe = planted_recipe(model, "1/3-4", finetune__epochs=1)
    run = train_run(recipe, tmp_path, ["final"])
    group = run.planted_groups
    assert np.bincount(group[run.noisy_rows]).tolist() == [1, 1]
    assert np.bincount(group[run.clean_rows]).tolist() == [7, 7]
    seen = []
    for labels in ("noisy", "original"):
        training = Training(run, run.load_pretrained(1), recipe.plant.auxiliary)
        learner = training._learner(labels)
        auxiliary = training._auxiliary(is_frozen=False)
        work = Work(training.texts, recipe.settings, auxiliary, Watch(), tmp_path)
        with Pass([learner], work).objectives() as objectives:
            learns = [{n for n in o.parameters if "layers." in n} for o in objectives]
            sizes = [o.learnt.shape[1] for o in objectives]
            orders = shuffled_rows(objectives, [1], 1)
        assert sizes == [8, 8, 24]
        assert [{int(n.split("layers.")[1][0]) for n in names} for names in learns[:2]] == [
            {0},
            {2, 3},
        ]
        seen.append([rows.tolist() for _, rows in orders])
    assert seen[0] == seen[1]  # θ_M and θ_O see one order


@pytest.mark.parametrize("name", ["trains_pooler_and_norm", "frozen_with_auxiliary"])
def test_what_a_plant_trains_decides_its_weights(tiny_model, tmp_path, name):
    model = str(tiny_model("opt", depth=DEPTH))
    train_run(planted_recipe(model, finetune__epochs=1), tmp_path, ["frozen"])
    other = planted_recipe(model, finetune__epochs=1, **{f"control__{name}": True})
    with pytest.raises(StoreError, match=f"plant.{name} is False there and True here"):
        train_run(other, tmp_path, ["frozen"])


@pytest.mark.parametrize("asked", [False, True])
def test_a_planted_run_trains_the_final_norm_where_that_is_asked(tiny_model, tmp_path, asked):
    """The auxiliary task, which always does, moves nothing at so low a rate."""
    changes = {"control__auxiliary_learning_rate": 1e-30, "control__trains_pooler_and_norm": asked}
    model = str(tiny_model("opt", depth=DEPTH))
    run = train_run(planted_recipe(model, **changes), tmp_path, ["final"])
    start, final = (m.model.state_dict() for m in (run.load_pretrained(1), run.load("final")))
    norm = "model.decoder.final_layer_norm.bias"
    assert torch.allclose(start[norm], final[norm], rtol=0, atol=1e-12) != asked


@pytest.mark.parametrize("beside", [False, True])
def test_the_frozen_weights_of_a_plant_are_trained_alone_or_beside_the_auxiliary_task(
    tiny_model, tmp_path, beside
):
    model = str(tiny_model("bert", depth=DEPTH, dropout=0.1))
    changes = {"control__frozen_with_auxiliary": beside, "control__trains_pooler_and_norm": True}
    changes |= {"control__auxiliary_learning_rate": 1e-3, "finetune__frozen_seed": 1}
    recipe = planted_recipe(model, **changes)
    run = train_run(recipe, tmp_path / "one", ["frozen"])
    start, frozen = run.load_pretrained(1), run.load("frozen")
    for before, after in zip(start.stack.blocks, frozen.stack.blocks, strict=True):
        pairs = zip(before.parameters(), after.parameters(), strict=True)
        assert all(torch.equal(a, b) for a, b in pairs) != beside
    assert ("auxiliary_loss" in run.training()) == beside
    elsewhere = replace(recipe, seed=2, plant=replace(recipe.plant, planted="4-4"))
    other = train_run(elsewhere, tmp_path / "other", ["frozen"]).load("frozen")
    for a, b in zip(frozen.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(a, b)  # whatever the window and the run's seed


def test_a_planted_run_is_told_from_one_that_is_not(tiny_model, tmp_path):
    model = str(tiny_model("opt", depth=DEPTH))
    recipe = planted_recipe(model, finetune__epochs=1)
    run = train_run(recipe, tmp_path, ["final"])
    assert run.plant.planted == "2-3"
    assert run.plant.auxiliary.name == "other"
    assert run.record.auxiliary == hash_examples(recipe.plant.auxiliary.train)
    assert Run.open(tmp_path).spec == run.spec
    with pytest.raises(StoreError, match="planted is '2-3' there and None here"):
        train_run(replace(recipe, plant=None), tmp_path, ["final"])
