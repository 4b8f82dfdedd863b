"""What is said about real models together: depths in per cent, orders of tasks, predictions."""

import numpy as np
import pytest

from studies import exact, models
from studies.evidence import ENCODER
from studies.models import ORDERS, PREDICTED, WIDE, by_task, depths, orders, predicted, together
from studies.stored import KEPT, kept

TWELVE = exact.STUDY.folder.with_name("twelve")
OTHER = "decoder"


@pytest.fixture
def found(monkeypatch):
    """The runs of `twelve`, and the same ones as those of a model with twice as many layers."""
    real = kept(TWELVE)
    tables = {name: getattr(real, name) for name in KEPT if "task" in getattr(real, name)}
    tables = {n: t[t["task"].isin(WIDE.file["tasks"])] for n, t in tables.items()}
    deep = {name: table.assign(model=OTHER) for name, table in tables.items()}
    deep["runs"] = deep["runs"].assign(depth=24)
    deep["events"] = deep["events"].assign(layer=2 * deep["events"]["layer"])
    deep["mcog"] = deep["mcog"].assign(mcog=2 * deep["mcog"]["mcog"])
    monkeypatch.setattr(models, "joined", lambda _: real.with_tables(**deep))
    return together(real)


def test_models_are_joined_on_the_tasks_that_they_have_in_common(found):
    runs = found.runs.groupby("model")["task"].unique()
    assert set(runs.index) == {ENCODER, OTHER}
    assert all(set(tasks) == set(WIDE.file["tasks"]) for tasks in runs)


def test_depth_is_in_per_cent_of_a_models_own_layers(found):
    by_model = depths(found).pivot_table("per_cent", ["task", "measure"], "model")
    happened = depths(found).groupby(["task", "measure"])["n_never"].sum() == 0
    assert happened.sum() >= 12
    same = by_model[happened]
    np.testing.assert_allclose(same[ENCODER], same[OTHER])
    cell = by_task(found).set_index("task").loc["trec", "centre of windows, %"]
    assert len({*cell.split(" · ")}) == 1


def test_models_that_order_tasks_alike_agree_and_one_that_turns_them_round_does_not(found):
    table = orders(found).set_index("measure")["models agree on the order, ρ"]
    assert table["centre of windows"].startswith("1.00 [")
    mcog = found.mcog
    is_other = mcog["model"] == OTHER
    turned = mcog.assign(mcog=np.where(is_other, 24 - mcog["mcog"], mcog["mcog"]))
    table = orders(found.with_tables(mcog=turned)).set_index("measure")
    assert table["models agree on the order, ρ"]["centre of windows"].startswith("-1.00 [")


def test_predictions_made_of_the_encoders_own_layers_are_right_of_itself(found):
    said = predicted(found).set_index("#")[OTHER]
    assert len(said) == len(PREDICTED)
    # The layers of ORDERS were read off the runs of `twelve`, so its orders are theirs.
    assert said[1].endswith("right")
    assert said[2].endswith("right")
    assert said[[6, 7]].tolist() == ["not computed yet"] * 2  # no timeline, no shares there


def test_a_prediction_is_wrong_or_open_where_it_should_be(found):
    events = found.events
    is_other = (events["model"] == OTHER) & (events["event"] == "crossing")
    turned = events.assign(layer=events["layer"].mask(is_other, 25 - events["layer"]))
    assert predicted(found.with_tables(events=turned))[OTHER][0].endswith("wrong")
    fewer = events[~(is_other & (events["task"] == "rte"))]
    assert predicted(found.with_tables(events=fewer))[OTHER][0] == "not computed yet"


def test_orders_of_the_predictions_name_all_tasks():
    for order in ORDERS.values():
        assert {*order} == {*WIDE.file["tasks"]}


def test_no_wide_model_is_said_where_there_is_none(monkeypatch):
    real = kept(TWELVE)
    empty = {name: getattr(real, name).iloc[:0] for name in KEPT}
    monkeypatch.setattr(models, "joined", lambda _: real.with_tables(**empty))
    said = models.texts(together(real))
    assert {*said.values()} == {"No wide model is computed yet.\n"}
    assert models.files(together(real)) == {}
