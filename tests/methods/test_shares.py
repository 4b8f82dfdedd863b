"""Shares add up, are those of really swapped models, and are refused where there is nothing."""

import numpy as np
import pytest
import torch

from memloc.errors import ScoreError, SettingsError
from memloc.methods import mixtures
from memloc.methods.base import Sizes, find_method, method_names
from memloc.methods.result import LayerScores, Result
from memloc.methods.shares import Shares, units_for
from memloc.protocol import preset
from memloc.stats.subsets import shapley_values
from run_support import DEPTH, make_classifier, make_run, random_run
from support import PAPER_FAMILIES


def memorised(home, family="bert"):
    """A run whose final weights predict its labels: these are what the model says."""
    run = random_run(home, family, weights=("final", "reference"))
    final = run.load("final")
    encoded = run.encode(final)
    with torch.no_grad():
        said = np.array([final.stack.logits(_batch(encoded, i)).argmax().item() for i in range(24)])
    labels = run.noisy
    object.__setattr__(
        run, "_data", (run.task, type(labels)(labels.original, said, labels.is_noisy))
    )
    return run


def _batch(encoded, row):
    from memloc.training.predict import to_batch

    return to_batch(encoded, np.array([row]), torch.device("cpu"))


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_shares_sum_to_what_swapping_all_layers_undoes(tmp_path, family):
    run = memorised(tmp_path, family)
    found = Shares().run(run)
    assert isinstance(found, LayerScores)
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


def test_a_reference_equal_to_the_final_model_has_nothing_to_share_out(tmp_path):
    run = memorised(tmp_path)
    same = {name: (lambda: make_classifier(seed=1)) for name in ("final", "reference")}
    object.__setattr__(run, "loaders", same)
    with pytest.raises(ScoreError, match="nothing to share out"):
        Shares().run(run)


def test_what_was_finished_is_not_computed_again(tmp_path, monkeypatch):
    run = memorised(tmp_path)
    first = Shares().run(run)
    monkeypatch.setattr(mixtures.Mixtures, "logits", None)  # would fail if it were called
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


def test_groups_share_evenly_among_their_layers(tmp_path):
    found = Shares(groups=2).run(memorised(tmp_path))
    assert len(found["subsets"]) == 4
    assert len(found.weights) == DEPTH
    assert not found.about["exact"]
    assert np.unique(found.weights.round(12)).size <= 2


@pytest.mark.parametrize(("depth", "n_units"), [(1, 1), (12, 12), (14, 14), (15, 12), (24, 12)])
def test_units_cover_all_layers_once(depth, n_units):
    units = units_for(depth, None)
    assert len(units) == n_units
    assert [layer for unit in units for layer in unit] == list(range(depth))


def test_more_groups_than_layers_are_refused():
    with pytest.raises(SettingsError, match="the model has 3 layers"):
        units_for(3, 4)


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
    assert "shares.groups" in preset("paper").flat()


def test_a_walk_costs_two_to_the_depth():
    sizes = Sizes(examples=100, noisy=10, depth=12, update=1, predict=1, probe=1)
    assert Shares().cost(sizes) == pytest.approx(8190 / 12 * 20)


def test_results_are_kept_like_others(tmp_path):
    found = Shares().run(memorised(tmp_path))
    found.write(tmp_path / "kept")
    again = Result.read(tmp_path / "kept")
    assert isinstance(again, LayerScores)
    np.testing.assert_array_equal(again.weights, found.weights)


def test_a_run_without_a_reference_says_so(tmp_path):
    run = make_run(tmp_path, loaders={"final": lambda: make_classifier(seed=1)})
    with pytest.raises(Exception, match="reference"):
        Shares().run(run)
