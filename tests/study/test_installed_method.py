"""Somebody's installed method has the same rights in a study as memloc's own."""

import importlib

import pytest

from fixtures.plans import RUN, do, finish_all, not_done, plan_of
from memloc.methods import registry as base
from memloc.methods.protocol import _with_methods, preset
from memloc.methods.registry import trivial_names
from memloc.study.estimate import Calibration, estimate

MODULE = '''
from memloc import Method


class Evenly(Method):
    """Every layer weighs the same."""

    name = "evenly"
    needs = ("final", "frozen")

    weight: float = 1.0
    """Of a layer."""

    def run(self, run):
        return [self.weight] * run.depth

    def cost(self, sizes):
        return 7.0
'''
CHANGES = {
    "methods: [swapping, retraining, gradients, probing]": "methods: [evenly]",
    "analyses: [centroids, label_probes, generalisation]": "analyses: []",
    "methods: [swapping]}": "methods: [evenly, swapping]}",
}


def forget():
    for found in (base.methods, base._theirs, preset, _with_methods):
        found.cache_clear()


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A package with an entry point, as pip would have installed it."""
    site = tmp_path / "site"
    about = site / "evenly-1.0.dist-info"
    about.mkdir(parents=True)
    (site / "evenly_method.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: evenly\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[memloc.methods]\nevenly = evenly_method:Evenly\n")
    monkeypatch.syspath_prepend(site)
    importlib.invalidate_caches()
    forget()
    yield
    monkeypatch.undo()
    forget()


def test_only_the_weights_that_it_needs_are_trained(installed, micro):
    plan = plan_of(micro(changes=CHANGES))
    assert plan.steps[f"train/{RUN}"].checkpoints == ("final", "frozen")
    assert f"localise/{RUN}/evenly" in plan.steps


def test_only_its_own_settings_make_it_stale(installed, micro):
    both = {
        **CHANGES,
        "methods: [swapping, retraining, gradients, probing]": "methods: [evenly, swapping]",
    }
    finish_all(plan_of(micro(changes=both)))
    for setting, stale in (
        ("swapping.normalise: false", "swapping"),
        ("evenly.weight: 2", "evenly"),
    ):
        more = {"control.epochs: 2": f"control.epochs: 2\n  {setting}"}
        found = not_done(plan_of(micro(changes=both | more)))
        assert set(found) == {f"localise/{RUN}/{stale}", f"plant/{RUN}/1-1"}


def test_its_own_cost_is_its_estimate(installed, micro):
    plan = plan_of(micro(changes=CHANGES))
    speed = {
        "update": 0.8,
        "predict": 0.01,
        "layer": 1e-3,
        "last_layer": 5e-4,
        "probe": 0.001,
        "batch": 8,
        "length": 20,
    }
    measured = Calibration(machine="here", speeds={"2x64": speed})
    found = estimate(plan, measured, dict.fromkeys(plan.steps, 1))
    assert found.seconds[f"localise/{RUN}/evenly"] == 7.0


def test_it_looks_at_plain_and_planted_runs(installed, micro):
    from memloc.reporting.results import load_results

    plan = plan_of(micro(changes=CHANGES))
    for step in plan.steps.values():
        do(step)
    found = load_results(plan.file.folder)
    assert found.layers["method"].unique().tolist() == ["evenly"]
    assert set(found.control_layers["method"]) == {"evenly", "swapping", *trivial_names()}


def test_without_it_the_study_is_refused(micro):
    with pytest.raises(Exception, match=r"methods\[0\]: No method is called 'evenly'"):
        plan_of(micro(changes=CHANGES))
