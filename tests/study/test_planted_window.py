"""An embedded model with labels planted in two of its layers: swapping and retraining find them."""

from memloc.data.sources import load_task, subsample
from memloc.models.load import LoadOptions
from memloc.protocol import preset
from memloc.study.control import Control, run_control


def test_swapping_and_retraining_find_the_planted_window(tmp_path):
    what = Control(
        models=["tiny-opt"],
        tasks=[subsample(load_task("tiny-topic"), 100, 1)],
        windows=[range(2)],
        methods=["swapping", "retraining"],
        nulls="none",
        protocol=preset("demo").replace({"control.epochs": 50}),
        options=LoadOptions(depth=6),
        device="cpu",
    )
    found = run_control(what, tmp_path)
    assert found.plants["used"].tolist() == [True]
    scores = found.scores.set_index(["method", "k"])["accuracy"]
    assert scores.to_dict() == {
        ("retraining", 1): 1.0,
        ("retraining", 2): 1.0,
        ("swapping", 1): 1.0,
        ("swapping", 2): 1.0,
    }
