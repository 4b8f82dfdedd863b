"""Where things are kept."""

import ast
import re
from pathlib import Path

import pytest

from memloc.store import paths

OUT = Path("study")


@pytest.mark.parametrize(
    ("model", "depth", "expected"),
    [
        ("tiny-opt", None, "study/rte/tiny-opt/seed-2"),
        ("facebook/opt-125m", None, "study/rte/opt-125m/seed-2"),
        ("/models/mine/", None, "study/rte/mine/seed-2"),
        ("tiny-opt", 6, "study/rte/tiny-opt-depth-6/seed-2"),
    ],
)
def test_a_run_is_kept_by_task_model_and_seed(model, depth, expected):
    assert paths.run_folder(OUT, "rte", model, 2, depth) == Path(expected)


def test_a_planted_run_is_kept_beside_the_plain_ones():
    run = paths.run_folder(OUT, "rte", "tiny-opt", 1)
    planted = paths.plant_folder(OUT, run, "3-4", null=False)
    assert planted == Path("study/control/rte/tiny-opt/seed-1/window-3-4")
    assert paths.plant_folder(OUT, run, "3-4", null=True).name == "null-3-4"


def test_everything_of_a_run_is_in_its_folder():
    run = Path("run")
    assert paths.checkpoint(run, "final") == Path("run/checkpoints/final")
    assert paths.training_state(run, "noisy") == Path("run/checkpoints/noisy.state")
    assert paths.training_state(run, "a", "b") == Path("run/checkpoints/a-b.state")
    assert paths.result(run, "swapping") == Path("run/results/swapping")
    assert paths.work(run, "retraining") == Path("run/work/retraining")
    assert paths.page(OUT) == Path("study/report/index.html")


def test_no_two_things_share_a_place():
    run = Path("run")
    places = [
        *(run / name for name in (paths.RUN, paths.LABELS, paths.TRAINING, paths.CURVE)),
        paths.checkpoint(run, "x"),
        paths.training_state(run, "x"),
        paths.result(run, "x"),
        paths.work(run, "x"),
    ]
    assert len(set(places)) == len(places)


ENDINGS = "json|parquet|csv|html|svg|png|npz|md|tex|state"
OTHERS = {
    *("config.json", "adapter_config.json", "tokenizer_config.json", "meta.json"),
    *("pretraining.json", "calibration.json", "page.html", "pyarrow.parquet"),
    *("dataset_dict.json", "state.json"),
}
"""What others write, what comes with memloc, and a module that looks like a file."""


def test_files_that_memloc_writes_are_named_in_one_module():
    named = {
        f"{path.name}: {node.value}"
        for path in Path(paths.__file__).parents[1].rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if path.name != "paths.py"
        and isinstance(node, ast.Constant)
        and re.fullmatch(rf"[\w-]+\.({ENDINGS})", str(node.value))
        and node.value not in OTHERS
    }
    assert not named
