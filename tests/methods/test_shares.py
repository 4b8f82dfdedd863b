"""Shares add up, are those of really swapped models, and are refused where there is nothing."""

import os
import shutil
import signal
from dataclasses import replace

import numpy as np
import pytest
import torch

from fixtures.forked import ended, forked
from fixtures.models import PAPER_FAMILIES
from fixtures.runs import DEPTH, make_classifier, make_run, random_run
from fixtures.tasks import fast_protocol, make_recipe, make_task, train_run
from memloc.errors import ScoreError, SettingsError
from memloc.methods import Sizes, game, mixtures, shares
from memloc.methods.apply import localise
from memloc.methods.game import Selection
from memloc.methods.protocol import preset
from memloc.methods.registry import find_method, method_names
from memloc.methods.result import Result
from memloc.methods.shares import Every, Shares
from memloc.stats.evenness import uneven_layers
from memloc.stats.subsets import interactions, needed_pairs, shapley_values

MET = [1 << layer for layer in range(24)]
"""The units, as bits, of each layer where layers are the units."""


def memorised(home, family="bert"):
    """A run whose final weights predict its labels: these are what the model says."""
    run = random_run(home, family, weights=("final", "reference"))
    final = run.load("final")
    encoded = run.encode(final)
    with torch.no_grad():
        said = np.array([final.stack.logits(_batch(encoded, i)).argmax().item() for i in range(24)])
    labels = run.noisy
    object.__setattr__(run, "task", replace(run.task, noise=replace(labels, assigned=said)))
    return run


def _batch(encoded, row):
    from memloc.model.predict import to_batch

    return to_batch(encoded, np.array([row]), torch.device("cpu"))


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_shares_sum_to_what_swapping_all_layers_undoes(tmp_path, family):
    run = memorised(tmp_path, family)
    found = Shares().run(run)
    table = found["subsets"]
    assert len(table) == 2**DEPTH
    assert table["lost"].iloc[0] == 0
    np.testing.assert_allclose(found.weights.sum(), table["lost"].iloc[-1], atol=1e-9)
    np.testing.assert_allclose(shapley_values(table["lost"].to_numpy()), found.weights, atol=1e-9)
    assert ((found.low <= found.weights) & (found.weights <= found.high)).all()


def test_an_example_s_shares_sum_to_the_margin_it_loses(tmp_path):
    run = memorised(tmp_path)
    found = Shares().run(run)["example_shares"]
    final, swapped, reference = run.load("final"), run.load("final"), run.load("reference")
    encoded = run.encode(final)
    for own, other in zip(swapped.stack.blocks, reference.stack.blocks, strict=True):
        own.load_state_dict(other.state_dict())
    with torch.no_grad():
        for example, part in found.groupby("example"):
            logits = [m.stack.logits(_batch(encoded, example))[0] for m in (final, swapped)]
            before, after = (_margin(each, run.noisy.assigned[example]) for each in logits)
            np.testing.assert_allclose(part["share"].sum(), before - after, atol=1e-4)


def _margin(logits, label):
    others = torch.cat([logits[:label], logits[label + 1 :]])
    return float(logits[label] - others.max())


def test_a_donor_equal_to_the_final_model_is_refused(tmp_path):
    run = memorised(tmp_path)
    same = {name: (lambda: make_classifier(seed=1)) for name in ("final", "reference")}
    object.__setattr__(run, "loaders", same)
    with pytest.raises(ScoreError, match="layers of the reference weights are those of the final"):
        Shares().run(run)


def test_what_was_finished_is_not_computed_again(tmp_path, monkeypatch):
    run = memorised(tmp_path)
    first = Shares().run(run)
    monkeypatch.setattr(mixtures.Mixtures, "values_of", None)  # would fail if it were called
    again = Shares().run(run)
    np.testing.assert_array_equal(first.weights, again.weights)


def test_results_do_not_depend_on_the_size_of_batches(tmp_path, monkeypatch):
    one = Shares().run(memorised(tmp_path))
    monkeypatch.setattr(mixtures, "BATCH_TOKENS", 1)
    monkeypatch.setattr(mixtures, "CALL_TOKENS", 1)
    other = Shares().run(memorised(tmp_path))
    np.testing.assert_allclose(one.weights, other.weights, atol=1e-9)
    np.testing.assert_allclose(
        one["example_shares"]["share"], other["example_shares"]["share"], atol=1e-4
    )


@pytest.mark.parametrize(
    ("depth", "units", "way", "n_units", "exact"),
    [
        (1, "layers", "auto", 1, True),
        (14, "layers", "auto", 14, True),
        (15, "layers", "auto", 15, False),
        (80, "layers", "auto", 80, False),
        (24, "layers", "exact", 24, True),
        (8, "layers", "sampled", 8, False),
        (7, "sublayers", "auto", 14, True),
        (12, "sublayers", "auto", 24, False),
        (12, {"a": ("*",), "b": ("*",)}, "auto", 2, True),
    ],
)
def test_subsets_are_chosen_by_the_number_of_units(depth, units, way, n_units, exact):
    design = Shares(subsets=way, units=units).guess(depth)
    assert (design.n_units, isinstance(design, Every)) == (n_units, exact)
    assert len(design.met) == depth


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_the_parts_of_a_layer_sum_to_its_share(tmp_path, family):
    found = Shares(units="sublayers", subsets="exact").run(memorised(tmp_path, family))
    table = found["units"].query("value == 'labels'")
    assert list(table["unit"])[:2] == ["attention 1", "mlp 1"]
    np.testing.assert_allclose(table.groupby("first")["share"].sum(), found.weights, atol=1e-12)
    np.testing.assert_allclose(found.weights.sum(), found["subsets"]["lost"].iloc[-1], atol=1e-9)
    lost = found["subsets"]["lost"].to_numpy()
    np.testing.assert_allclose(table["alone_out"], lost[1 << np.arange(6)] - lost[0], atol=1e-9)


def test_nested_orders_give_layers_about_the_shares_that_they_have_as_layers(tmp_path):
    run = memorised(tmp_path)
    layers = Shares().run(run)
    parts = Shares(units="sublayers", subsets="sampled").run(run)
    assert np.abs(layers.weights - parts.weights).max() < 0.08
    np.testing.assert_allclose(layers.weights.sum(), parts.weights.sum(), atol=1e-6)


def test_units_of_one_s_own_are_shared_out_among_their_layers(tmp_path):
    mlp = "*intermediate*", "bert.encoder.layer.?.output*"
    units = {"attention": ("*attention*",), "mlp": mlp}
    found = Shares(units=units).run(memorised(tmp_path))
    assert len(found["subsets"]) == 4
    table = found["units"].query("value == 'labels'").set_index("unit")
    assert (table.loc["mlp", "first"], table.loc["mlp", "last"]) == (1, DEPTH)
    assert np.unique(found.weights.round(12)).size == 1
    np.testing.assert_allclose(found.weights.sum(), table["share"].sum(), atol=1e-9)


@pytest.mark.parametrize(
    ("units", "fact"),
    [
        ("heads", "use layers or sublayers"),
        ({"a": ("*attention*",)}, "are in no unit"),
        ({"a": ("*",)}, "outside the blocks"),
        ({"a": ("*encoder.layer*",), "b": ("*attention*",)}, "both have the parameter"),
        ({"a": ("*nothing*",)}, "no parameter of"),
    ],
)
def test_units_that_do_not_fit_are_refused_with_a_reason(tmp_path, units, fact):
    with pytest.raises(SettingsError, match=fact):
        Shares(units=units).run(memorised(tmp_path))


def test_a_result_says_how_clean_examples_fare_in_mixtures(tmp_path):
    control = Shares().run(memorised(tmp_path)).about["control"]
    assert 0 <= control["worst"] <= control["kept"] <= 1


@pytest.mark.parametrize("depth", [30, 100])
def test_more_subsets_than_memory_are_refused_before_anything_is_loaded(tmp_path, depth):
    run = memorised(tmp_path)
    deep = run.record.model_copy(update={"depth": depth})
    object.__setattr__(run, "record", deep)
    object.__setattr__(run, "loaders", {})
    with pytest.raises(SettingsError, match=f"All subsets of {depth} units take .* GiB of memory"):
        Shares(subsets="exact").run(run)


def test_many_subsets_are_announced_with_their_cost(tmp_path, monkeypatch):
    monkeypatch.setattr(shares, "MOST_EXACT", 2)
    said = []
    monkeypatch.setattr(game, "tell", said.append)
    found = Shares(subsets="exact").run(memorised(tmp_path))
    assert found.about["exact"]
    assert "All subsets of 3 units: 14 layers for each of" in said[0]
    assert said[0].endswith(" s.")


def test_sampled_shares_are_near_the_exact_ones_and_know_how_near(tmp_path):
    run = memorised(tmp_path)
    exact, sampled = Shares().run(run), Shares(subsets="sampled", standard_error=0.02).run(run)
    np.testing.assert_allclose(sampled.weights.sum(), exact.weights.sum(), atol=1e-6)
    se = sampled["shares"].query("value == 'labels'")["se"]
    assert (np.abs(sampled.weights - exact.weights) <= 4 * se.to_numpy() + 1e-9).all()
    assert any("random orders" in remark for remark in sampled.remarks)
    assert 0 < sampled.about["standard_error"] < 0.2
    assert not sampled.about["exact"]
    assert "sets" not in sampled.tables  # they need all subsets


def test_every_run_and_example_has_orders_of_its_own():
    method = Shares(subsets="sampled")

    def orders(run, rows):
        return method.design(MET[:12], Selection(rows, run=run)).orders

    one, other = (orders(run, [3, 4]) for run in ("a", "b"))
    assert not np.array_equal(one[0], one[1])
    assert not np.array_equal(one, other)
    np.testing.assert_array_equal(one, orders("a", [3, 4]))
    np.testing.assert_array_equal(one[1], orders("a", [4])[0])


@pytest.mark.parametrize(("n_noisy", "error"), [(60, 0.015), (60, 0.03), (500, 0.015), (8, 0.1)])
def test_above_fourteen_units_orders_follow_from_the_wanted_standard_error(n_noisy, error):
    """Labels are lost with two of three units, so an order and its reverse name the same one."""
    rows = np.arange(n_noisy)
    design = Shares(standard_error=error).design(MET, Selection(rows, n_noisy, "run"))
    n_draws, n_orders = design.orders.shape[1:3]
    needed = needed_pairs(n_noisy, error)
    assert needed <= n_draws * n_orders / 2 < needed + max(2, n_draws)
    assert design.announced == f"{design.n_orders} orders of 24 units"
    rng = np.random.default_rng(1)
    holders = np.stack([rng.permutation(24)[:3] for _ in rows])
    place = np.argsort(design.orders, axis=-1)
    place = np.take_along_axis(place, holders[:, None, None], axis=-1)
    pivot = np.take_along_axis(
        np.broadcast_to(holders[:, None, None], place.shape), place.argsort(-1)[..., 1:2], -1
    )
    shares = (pivot == np.arange(24)).mean((1, 2))
    true = (holders[..., None] == np.arange(24)).mean(1)
    assert (shares - true).mean(0).std() <= error


@pytest.mark.parametrize("depth", [12, 24])
def test_even_memories_have_no_layer_named_by_the_error_of_sampling(depth):
    """An example is lost once half of the layers are swapped: all layers hold the same."""
    named, means = 0, []
    for number in range(20):
        method = Shares(subsets="sampled", standard_error=0.03)
        design = method.design(MET[:depth], Selection(range(30), 30, f"run {number}"))
        steps = np.arange(depth + 1) > depth / 2
        values = np.tile(steps.astype(float), (30, design.n_orders))
        by_example, errors = design.shares(values)
        means.append(by_example.mean(0))
        spread = by_example.std(0, ddof=1) / np.sqrt(30)
        # The error that is reported is the error that is there.
        said = np.sqrt((errors**2).sum(0)) / 30
        np.testing.assert_allclose(said.mean(), spread.mean(), rtol=0.3)
        named += uneven_layers(by_example).p <= 0.05
    assert named <= 4  # 5 % of 20 are expected; one draw for all runs named layers in all of them
    assert np.abs(np.mean(means, axis=0) - 1 / depth).max() < 0.015


def test_sampled_subsets_are_arranged_as_their_orders_go_through_them():
    design = Shares(subsets="sampled", standard_error=0.1).design(
        MET[:3], Selection([5], run="run")
    )
    values = np.array([design.subsets()], dtype=float)  # each subset is worth its own number
    kept = design.kept(values, 0)
    assert kept.shape == (1, design.n_values)
    assert (kept[0, 0], kept[0, -1]) == (0, 7)
    shares, _ = design.shares(kept)
    np.testing.assert_allclose(shares, [[1, 2, 4]])  # an additive game: what each bit is worth
    out, kept_alone = design.alone(kept)
    known = ~np.isnan(out)
    assert known.any()
    np.testing.assert_allclose(out[known], np.broadcast_to([1, 2, 4], (1, 3))[known])
    known = ~np.isnan(kept_alone)
    np.testing.assert_allclose(kept_alone[known], np.broadcast_to([1, 2, 4], (1, 3))[known])


def test_single_layers_alone_are_read_from_the_subsets(tmp_path):
    found = Shares().run(memorised(tmp_path))
    lost = found["subsets"]["lost"].to_numpy()
    table = found["shares"].query("value == 'labels'").set_index("layer")
    for layer in range(1, DEPTH + 1):
        bit = 1 << layer - 1
        assert table["alone_out"][layer] == pytest.approx(lost[bit] - lost[0])
        assert table["alone_in"][layer] == pytest.approx(lost[-1] - lost[(2**DEPTH - 1) ^ bit])
    assert (table["alone_out_low"] <= table["alone_out_high"]).all()


def test_two_layers_that_hold_the_same_do_little_alone():
    """A label is lost only if both layers are exchanged: neither is needed, each suffices."""
    values = (np.arange(8) & 3 == 3).astype(float)[np.newaxis]
    out, kept = Every((1, 2, 4), range(8)).alone(values)
    assert out.tolist() == [[0, 0, 0]]
    assert kept.tolist() == [[1, 1, 0]]


def test_half_done_work_of_another_version_is_not_used(tmp_path, monkeypatch):
    run = memorised(tmp_path)
    Shares().run(run)
    monkeypatch.setattr(Shares, "version", Shares.version + 1)
    monkeypatch.setattr(mixtures.Mixtures, "values_of", None)
    with pytest.raises(TypeError):  # computed again
        Shares().run(run)


def test_only_so_many_noisy_examples_are_looked_at(tmp_path):
    run = memorised(tmp_path)
    found = Shares(noisy_examples=2).run(run)
    assert found["example_shares"]["example"].nunique() == 2
    assert found["labels"]["is_noisy"].sum() == 2
    assert any("2 of" in remark and "drawn" in remark for remark in found.remarks)


def test_other_embeddings_are_said(tmp_path):
    run = memorised(tmp_path)
    assert any("different embeddings" in remark for remark in Shares().run(run).remarks)

    def same():
        final, reference = make_classifier(seed=1), make_classifier(seed=2)
        for block, other in zip(final.stack.blocks, reference.stack.blocks, strict=True):
            block.load_state_dict(other.state_dict())
        return final

    object.__setattr__(run, "loaders", {**run.loaders, "reference": same})
    assert Shares().run(run).remarks == []


def test_subsets_have_clean_errors_and_all_smallest_sets_are_named(tmp_path):
    found = Shares().run(memorised(tmp_path))
    table, sets = found["subsets"], found["sets"]
    assert "clean_error" in table
    needed = 0.9 * table["lost"].iloc[-1]
    sizes = np.bitwise_count(table["subset"])
    reached = table[table["lost"] >= needed - 1e-12]
    least = sizes[reached.index].min()
    assert len(sets) == (sizes[reached.index] == least).sum()
    pairs = found["interactions"].set_index(["one", "other"])["value"]
    lost = interactions(table["lost"].to_numpy())
    assert pairs[1, 2] == pytest.approx(lost[0, 1])


def walk(folder, most):
    """Look for shares; after so many batches this process is killed. Its batches, and what came."""
    plain, count = mixtures.Mixtures.values_of, 0

    def counted(self, *given):
        nonlocal count
        count += 1
        if count > most:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(self, *given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mixtures.Mixtures, "values_of", counted)
        patch.setattr(mixtures, "BATCH_TOKENS", 1)
        found = localise(folder, ["shares"], force=True)["shares"]
    return count, found.weights.tolist()


@pytest.mark.slow
def test_a_killed_walk_continues_with_the_same_result(tmp_path, tiny_model):
    model = str(tiny_model("opt", depth=3))
    protocol = fast_protocol(finetune__epochs=30, finetune__batch_size=8)
    recipe = make_recipe(model, make_task(48), 1, protocol)
    train_run(recipe, tmp_path / "whole", ["final", "reference"])
    shutil.copytree(tmp_path / "whole", tmp_path / "killed")
    n, weights = walk(tmp_path / "whole", 10**6)
    assert ended(forked(lambda: walk(tmp_path / "killed", 3))) == -signal.SIGKILL
    assert walk(tmp_path / "killed", 10**6) == (n - 3, weights)


def test_weights_that_are_no_numbers_are_refused(tmp_path):
    run = memorised(tmp_path)

    def broken():
        model = make_classifier(seed=2)
        with torch.no_grad():
            for parameter in model.stack.blocks[0].parameters():
                parameter.fill_(float("nan"))
        return model

    object.__setattr__(run, "loaders", {**run.loaders, "reference": broken})
    with pytest.raises(ScoreError, match="give no numbers"):
        Shares().run(run)


def test_they_run_like_other_localisers():
    assert "shares" in method_names("localiser")
    assert find_method("shares", "localiser") is Shares
    assert "shares.standard_error" in preset("paper").flat()


def test_mixtures_cost_two_to_the_depth_and_every_subset_ends_in_a_last_layer():
    sizes = Sizes(
        examples=100, noisy=10, depth=12, update=1, predict=1, layer=0.1, last_layer=0.05, probe=1
    )
    assert Shares().cost(sizes) == pytest.approx((4094 * 0.1 + 4096 * 0.05) * 20)


def test_results_are_kept_like_others(tmp_path):
    found = Shares().run(memorised(tmp_path))
    found.write(tmp_path / "kept")
    again = Result.read(tmp_path / "kept")
    np.testing.assert_array_equal(again.weights, found.weights)


def test_a_run_without_a_reference_says_so(tmp_path):
    run = make_run(tmp_path, loaders={"final": lambda: make_classifier(seed=1)})
    with pytest.raises(Exception, match="reference"):
        Shares().run(run)


def test_shares_have_an_answer(run):
    found = Shares().run(run)
    labels = found["labels"]
    assert labels["is_noisy"].sum() == len(run.noisy_rows)
    sums = found["example_shares"].groupby("example", sort=False)["lost"].sum()
    lost = labels.loc[labels["is_noisy"], "lost"]
    np.testing.assert_allclose(sums, lost, atol=1e-12)
    assert "noisy examples" in found.answer.why
