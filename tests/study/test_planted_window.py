"""An embedded model with labels planted in two of its layers: swapping and retraining find them."""

from fixtures.plans import do
from memloc.reporting.results import load_results
from memloc.study.plan import control_plan


def test_swapping_and_retraining_find_the_planted_window(tmp_path):
    study = {
        "preset": "demo",
        "overrides": {
            "control.epochs": 30,
            "control.learning_rate": 0.001,
            "control.auxiliary_examples": 40,  # fewer updates, which change as much as the preset's
            "control.auxiliary_learning_rate": 0.0006,
        },
        "models": ["tiny-opt"],
        "tasks": ["tiny-topic"],
        "examples": 60,
        "depth": 4,
        "device": "cpu",
    }
    block = {"windows": ["1-2"], "methods": ["swapping", "retraining"], "nulls": "none"}
    plan = control_plan(tmp_path, study, block)
    (step,) = plan.steps.values()
    do(step)
    found = load_results(tmp_path)
    assert found.plants["used"].tolist() == [True]
    scores = found.control.set_index(["method", "k"])["accuracy"]
    # Trivial baselines look at every plant as well.
    assert scores["retraining"].to_dict() == {1: 1.0, 2: 1.0}
    assert scores["swapping"].to_dict() == {1: 1.0, 2: 1.0}
