"""Games with every kind of unit and donor are those of models whose weights are really mixed."""

import copy
from dataclasses import replace

import numpy as np
import pytest

from fixtures.mixtures import plain_logits
from fixtures.models import PAPER_FAMILIES
from fixtures.runs import DEPTH, make_classifier, random_run
from memloc.errors import ModelError, ScoreError, StoreError, UnknownName
from memloc.methods.apply import localise, result_key
from memloc.methods.shares import Shares
from memloc.methods.swapping import Swapping
from memloc.model.units import find_units
from memloc.stats.subsets import units_of
from memloc.store.records import write_json

OWN = {"ends": ("*.0.*", "*.2.*"), "middle": ("*.1.*",)}
"""Units of one's own: the first and last of three layers, and the middle one."""


def really_mixed(final, donor, names):
    """The final model with these parameters of the donor, in a state dict of its own."""
    model = copy.deepcopy(final.model)
    lent = donor.model.state_dict()
    model.load_state_dict({k: lent[k] if k in names else v for k, v in model.state_dict().items()})
    return model


def given_run(home, family="bert", donor="reference"):
    """A run of random models; a donor that is a folder is written there."""
    weights = ("final", "reference", "pretrained", "epoch-3")
    run = random_run(home, family, weights=weights)
    if donor == "folder":
        donor = str(home / "other")
        saved = make_classifier(family, seed=9)
        saved.model.config.id2label = dict(enumerate(run.task.label_names))
        saved.model.save_pretrained(donor)
        saved.tokenizer.save_pretrained(donor)
        run.loaders[donor] = lambda: make_classifier(family, seed=9)
    return run, donor


@pytest.mark.parametrize("donor", ["reference", "pretrained", "epoch-3", "folder"])
@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_games_lose_the_labels_that_really_mixed_models_lose(tmp_path, family, donor):
    """Windows, all subsets, and the subsets that an example's random orders go through."""
    run, donor = given_run(tmp_path, family, donor)
    final, other = run.load("final"), run.load(donor)
    encoded, labels = run.encode(final), run.noisy.assigned
    for units in ("layers", "sublayers", OWN):
        named = list(find_units(final.stack, units).values())
        given = {"units": units, "donor": donor}
        swapping, shares = Swapping(**given).play(run), Shares(**given).play(run)
        sampled = Shares(**given, subsets="sampled", standard_error=0.1).play(run)

        def really(subset, named=named):
            names = {name for unit in units_of(subset) for name in named[unit]}
            logits = plain_logits(really_mixed(final, other, names), encoded).numpy()
            own = np.take_along_axis(logits, labels[:, None], 1)[:, 0]
            others = np.where(np.eye(logits.shape[1])[labels] > 0, -np.inf, logits).max(1)
            return logits.argmax(1) != labels, own - others

        windows = swapping.design.listed
        for place in (1, len(windows) // 2):
            lost, margin = really(windows[place])
            for played, column in ((swapping, place), (shares, windows[place])):
                values = played.values[..., column]
                np.testing.assert_array_equal(values[0], lost[played.rows])
                np.testing.assert_allclose(values[1], margin[played.rows], atol=1e-4)
        for example, column in ((0, 1), (len(sampled.rows) - 1, len(named))):
            first = sampled.design.orders[example, 0, 0]
            lost, margin = really(sum(1 << unit for unit in first[:column]))
            values, row = sampled.values[:, example, column], sampled.rows[example]
            assert values[0] == lost[row]
            assert values[1] == pytest.approx(margin[row], abs=1e-4)
        for played in (swapping, shares, sampled):
            assert played.about["donor"] == donor
            assert 0 <= played.about["control"]["kept"] <= 1


@pytest.mark.parametrize("donor", ["reference", "pretrained"])
def test_windows_of_sublayers_have_weights_by_unit_and_by_layer(tmp_path, donor):
    run, _ = given_run(tmp_path)
    found = Swapping(units="sublayers", donor=donor, normalise=False).run(run)
    assert found.depth == DEPTH
    assert found["units"]["unit"].tolist() == [
        f"{part} {layer}" for layer in range(1, DEPTH + 1) for part in ("attention", "mlp")
    ]
    by_unit = found["units"]["weight"].to_numpy().reshape(DEPTH, 2)
    np.testing.assert_allclose(found.weights, by_unit.mean(1))
    examples, evidence = found.evidence()
    assert examples.tolist() == run.noisy_rows.tolist()
    lost = found["labels"].query("is_noisy")["lost"]
    np.testing.assert_allclose(evidence.shares.sum(1), lost, atol=1e-9)


def test_a_method_needs_the_weights_of_its_donor():
    assert Shares().needs == ("final", "reference")
    assert Swapping(donor="epoch-3").needs == ("final", "epoch-3")
    assert Shares(donor="base").needs == ("final", "pretrained")


def test_a_donor_from_a_folder_counts_by_its_contents(tmp_path):
    run, donor = given_run(tmp_path, donor="folder")
    keys = []
    for _ in range(2):
        keys.append(result_key(run, Shares(donor=donor)))
        write_json(tmp_path / "other" / "tokenizer_config.json", {"changed": True})
    assert keys[0] != keys[1]


def other_vocabulary():
    found = make_classifier(seed=2)
    tokenizer = copy.deepcopy(found.tokenizer)
    words = tokenizer.get_vocab()
    swapped = {"red": words["sky"], "sky": words["red"]} if {"red", "sky"} <= set(words) else {}
    tokenizer.get_vocab = lambda: {**words, **swapped}
    return replace(found, tokenizer=tokenizer)


def other_labels():
    found = make_classifier(seed=2)
    found.model.config.id2label = {0: "label 1", 1: "label 0", 2: "label 2"}
    return found


def named_labels(seed):
    found = make_classifier(seed=seed)
    found.model.config.id2label = {i: f"label {i}" for i in range(3)}
    return found


@pytest.mark.parametrize(
    ("donor", "fact"),
    [
        (lambda: make_classifier("opt", seed=2), "final weights have .*, the reference ones"),
        (lambda: make_classifier(seed=2, depth=2), "depth 3, the reference ones 2"),
        (other_vocabulary, "same vocabulary"),
        (other_labels, "train both with the labels in one order"),
    ],
)
def test_a_donor_that_does_not_fit_is_refused(tmp_path, donor, fact):
    run, _ = given_run(tmp_path)
    run.loaders["reference"] = donor
    run.loaders["final"] = lambda: named_labels(1)
    with pytest.raises(ModelError, match=fact):
        Shares().run(run)


def test_a_donor_equal_to_the_final_weights_is_refused(tmp_path):
    run, _ = given_run(tmp_path)
    run.loaders["reference"] = run.loaders["final"]
    for game in (Shares(), Swapping()):
        with pytest.raises(ScoreError, match="are those of the final ones"):
            game.run(run)


@pytest.mark.parametrize(
    ("donor", "error", "fact"),
    [
        ("epoch-7", Exception, "epoch-7"),
        ("nobody", UnknownName, "No set of weights is called 'nobody'"),
        ("./nowhere", ModelError, "There is no folder nowhere"),
    ],
)
def test_a_donor_that_is_not_there_is_refused(tmp_path, donor, error, fact):
    run, _ = given_run(tmp_path)
    with pytest.raises(error, match=fact):
        localise(run, [Shares(donor=donor)], force=True)


def test_a_missing_donor_says_how_to_get_it(tmp_path):
    run, _ = given_run(tmp_path)
    del run.loaders["reference"]
    with pytest.raises(StoreError, match="has no reference weights"):
        localise(run, [Shares()], force=True)


def test_mixtures_are_computed_without_dropout(tmp_path):
    run, _ = given_run(tmp_path)
    run.loaders["final"] = lambda: make_classifier(seed=1, dropout=0.5)
    one, two = (Swapping(clean_examples=n).play(run) for n in (4, 5))
    np.testing.assert_allclose(one.noisy, two.noisy, atol=1e-5)


def test_models_that_are_too_far_apart_have_no_answer(tmp_path):
    run, _ = given_run(tmp_path)
    found = Swapping(normalise=False).run(run)
    near, far = ({**found.about, "control": {"kept": kept, "worst": 0}} for kept in (0.9, 0.5))
    assert replace(found, about=near).can_mix
    answer = replace(found, about=far).answered()
    assert answer.word == "cannot tell"
    assert "too far apart to be mixed: 50% of the clean labels" in answer.sentence
