"""Verdicts on repairs: nothing that is only hidden is called removed."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from memloc.labels.repaired import (
    BEFORE,
    LAYERS,
    REFERENCE,
    RETRAINED,
    YARDSTICK,
    Repaired,
    RepairSettings,
    geometric_mean,
    relative,
)


def made_up(updates=(19, 20, 21), **relearning):
    """Repairs with these (noisy labels predicted, relative updates), and updates of yardsticks."""
    names = [f"{YARDSTICK} {k}" for k in range(1, len(updates) + 1)]
    never = geometric_mean(np.array(updates, float))
    rows = [
        {"way": way, "noisy_predicted": predicted, "relearnt_updates": share * never}
        for way, (predicted, share) in relearning.items()
    ]
    rows += [
        {"way": way, "noisy_predicted": 0.1, "relearnt_updates": float(n)}
        for way, n in zip(names, updates, strict=True)
    ]
    curves = {
        "way": np.repeat(names, 4),
        "order": 1,
        "update": np.ravel([[0, 1, n - 1, n] for n in updates]),
        "predicted": np.tile([0.0, 0.0, 0.0, 0.8], len(updates)),
    }
    table = pd.DataFrame(rows).assign(layers="layers 1", clean_accuracy=1.0, test_accuracy=np.nan)
    settings = RepairSettings(yardsticks=len(updates))
    return Repaired(None, relative(table), pd.DataFrame(curves), LAYERS, settings, level=0.8)


@pytest.mark.parametrize(
    ("scores", "verdict"),
    [
        ((0.1, 0.9), "removed"),
        ((0.1, 0.6), "hidden"),
        ((0.1, 0.0), "hidden"),
        ((0.5, 1.0), "still there"),
    ],
)
def test_nothing_is_called_removed_that_is_only_hidden(scores, verdict):
    updates = [18, 19, 20, 20, 21, 22]
    found = made_up(updates, **{BEFORE: (1.0, 0.0), REFERENCE: (0.1, 1.0), LAYERS: scores})
    margin = 2.5706 * np.std(np.log(updates), ddof=1) * np.sqrt(1 + 1 / 6)
    assert found.band == pytest.approx((np.exp(-margin), np.exp(margin)), rel=1e-4)
    assert found.verdict == verdict
    said = " ".join(found.sentences())
    assert ("are removed" in said) == (verdict == "removed")
    assert "--held-out" in said  # there are no test examples
    assert "nan" not in said


def test_a_repair_shows_its_verdict_and_the_models_compared():
    found = made_up(**{BEFORE: (1.0, 0.0), REFERENCE: (0.1, 1.0), LAYERS: (0.1, 0.0)})
    assert repr(found).splitlines()[0].endswith(": hidden")
    assert 2 <= len(repr(found).splitlines()) <= 5
    card = found._repr_html_()
    assert card.startswith("<div><b>Repaired model in ")
    assert card.count("<tr>") == 1 + 6  # names, and one row per model


def test_between_hidden_and_removed_nothing_is_told():
    updates = [18, 19, 20, 20, 21, 22]
    apart = np.std(np.log(updates), ddof=1)
    factor = 1.95996 * np.sqrt(5 * (1 + 1 / 6) / 1.14548)  # of a chi-square below which are 5 %
    hidden, removed = np.exp(-factor * apart), np.exp(-1.47588 * np.sqrt(7 / 6) * apart)
    before = {BEFORE: (1.0, 0.0), REFERENCE: (0.1, 1.0)}
    ends = {hidden - 0.01: "hidden", hidden + 0.01: "cannot tell"}
    for share, verdict in (
        ends | {removed - 0.01: "cannot tell", removed + 0.01: "removed"}
    ).items():
        found = made_up(updates, **before, **{LAYERS: (0.1, share)})
        assert found.limits == pytest.approx((hidden, removed), rel=1e-4)
        assert found.verdict == verdict
        unsure = f"leave open what {hidden:.2f} to {removed:.2f} times their updates mean"
        assert (unsure in " ".join(found.sentences())) == (verdict == "cannot tell")


@pytest.mark.parametrize("n", [4, 8])
def test_models_without_the_labels_are_hardly_ever_called_hidden(n):
    """And those that need as many updates less as any yardstick may need, never removed."""
    rng, verdicts = np.random.default_rng(n), []
    for _ in range(400):
        *yardsticks, another = rng.lognormal(np.log(400), 0.05, n + 1)
        share = another / geometric_mean(np.array(yardsticks))
        shares = {LAYERS: (0.1, share), RETRAINED: (0.1, share * np.exp(-0.3))}
        found = made_up(yardsticks, **shares)
        verdicts.append((found.judge(LAYERS), found.judge(RETRAINED)))
    without, with_labels = (
        pd.Series(of).value_counts(normalize=True) for of in zip(*verdicts, strict=True)
    )
    assert without.get("hidden", 0) <= 0.01
    assert without["removed"] >= 0.85
    assert with_labels.get("removed", 0) <= 0.01
    assert with_labels["hidden"] >= (0.4 if n == 4 else 0.9)


def test_repairs_that_removed_the_labels_are_named_with_their_own_layers():
    found = made_up(**{BEFORE: (1, 0.0), REFERENCE: (0, 1.0), LAYERS: (0, 0.6), RETRAINED: (0, 1)})
    layers = ["none", "all layers", "layer 2", "layers 1, 3", *["all layers"] * 3]
    said = replace(found, table=found.table.assign(layers=layers)).sentences()
    assert said[0].startswith("Reference's layers (layer 2): ")
    assert (
        said[2]
        == "Of all repairs that were compared, retrained layers (layers 1, 3) removed the labels."
    )


def test_the_band_is_no_narrower_than_from_one_measurement_to_the_next():
    found = made_up((20, 20, 20), **{REFERENCE: (0.1, 1.0)})
    assert found.band == pytest.approx((20 / 21, 21 / 20))


def test_a_model_trained_without_the_labels_is_in_the_band_as_often_as_it_says():
    """Trainings differ more than the orders in which one of them learns the labels again."""
    rng, below = np.random.default_rng(0), 0
    for _ in range(400):
        trainings = rng.lognormal(np.log(40), 0.15, 9)
        *yardsticks, another = [
            geometric_mean(rng.lognormal(np.log(own), 0.05, 3)) for own in trainings
        ]
        found = made_up(yardsticks, **{LAYERS: (0.1, 1.0)})
        below += another / geometric_mean(np.array(yardsticks)) < found.band[0]
    assert 3 <= below <= 20  # 2.5 % on this side


def test_what_models_without_the_labels_predict_by_chance_is_not_still_there():
    found = made_up(**{BEFORE: (1.0, 0.0), LAYERS: (0.35, 1.0)})
    assert found.verdict == "still there"
    guessed = found.table["noisy_predicted"].mask(found.table["way"].str.startswith(YARDSTICK), 0.3)
    assert replace(found, table=found.table.assign(noisy_predicted=guessed)).verdict == "removed"


def test_slow_learning_of_a_model_that_forgot_the_clean_examples_is_no_sign_of_removal():
    found = made_up(**{BEFORE: (1.0, 0.0), LAYERS: (0.1, 1.1)})
    assert found.verdict == "removed"
    accuracies = found.table["clean_accuracy"].mask(found.table["way"] == LAYERS, 0.8)
    found = replace(found, table=found.table.assign(clean_accuracy=accuracies))
    assert found.verdict == "cannot tell"
    assert "no longer knows the clean examples" in found.sentences()[0]


def test_updates_that_vary_too_much_decide_nothing():
    labels = {BEFORE: (1.0, 0.0), REFERENCE: (0.1, 1.0), LAYERS: (0.1, 0.9)}
    found = made_up((10, 20, 30), **labels)
    assert found.verdict == "cannot tell"
    assert "differ too much; more models (--set yardsticks=6)" in found.sentences()[0]


@pytest.mark.parametrize(
    ("first", "last", "why"),
    [(0.0, 0.7, "does not learn 80% of them in 30 epochs"), (0.8, 1.0, "80% from the start")],
)
def test_what_the_reference_does_not_learn_in_time_cannot_be_called_removed(first, last, why):
    found = made_up(**{BEFORE: (1.0, 0.0), REFERENCE: (0.1, 1.0), LAYERS: (0.1, 1.0)})
    curves = found.curves.assign(predicted=[first, first, first, last] * 3)
    found = replace(found, curves=curves)
    assert found.verdict == "cannot tell"
    assert "whether they are removed cannot be told: " in found.sentences()[0]
    assert why in found.sentences()[0]


def test_noisy_labels_that_are_all_the_same_decide_nothing():
    found = made_up(**{BEFORE: (1.0, 0.0), REFERENCE: (0.1, 1.0), LAYERS: (0.1, 1.0)})
    found = replace(found, level=1.0)
    assert found.verdict == "cannot tell"
    assert "all noisy labels are the same" in found.sentences()[0]
