"""Steps, what each depends on, and which become stale; nothing is loaded and nothing runs."""

import shutil

import pytest

from memloc.methods.base import find_method, method_names
from memloc.protocol import preset
from memloc.study.config import parse_study
from memloc.study.manage import init_study, open_plan
from memloc.study.plan import KINDS
from memloc.study.planning import make_plan
from planning_support import RUN, finish_all, plan_of, stale_after


def test_the_demo_has_every_kind_of_step(tmp_path):
    init_study("demo", tmp_path)
    assert {step.kind for step in open_plan(tmp_path).steps.values()} == set(KINDS)


def test_the_paper_s_study_is_complete(tmp_path):
    init_study("paper", tmp_path / "paper")
    plan = open_plan(tmp_path / "paper")
    kinds = [step.kind for step in plan.steps.values()]
    main, large, binary = 4 * 12 * 3, 12, 4 * 5
    assert kinds.count("train") == main + large + binary
    assert kinds.count("localise") == 4 * main + large + binary
    halves = [n for n in plan.steps if n.startswith("analyse") and n.endswith("generalisation")]
    assert len(halves) == 4 * 12  # 30 models each, not 30 a seed
    assert kinds.count("analyse") == 2 * main + len(halves) + large + binary
    assert kinds.count("plant") == 4 * 11 * 3
    large_ones = [n for n in plan.steps if "opt-1.3b" in n and n.startswith("localise")]
    assert {name.split("/")[-1] for name in large_ones} == {"swapping"}
    assert not [n for n in plan.steps if n.startswith("plant/rte")]


def test_the_small_study_is_as_large_as_it_says(tmp_path):
    init_study("small", tmp_path / "small")
    plan = open_plan(tmp_path / "small")
    kinds = [step.kind for step in plan.steps.values()]
    assert (kinds.count("train"), kinds.count("plant")) == (4 * 4 * 2, 4 * 3)


def test_a_step_comes_after_all_that_it_needs(micro):
    plan = plan_of(micro())
    names = list(plan.steps)
    for step in plan.steps.values():
        assert all(names.index(name) < names.index(step.name) for name in step.inputs)


def test_one_training_serves_all_that_want_it(micro):
    more = "also:\n  - methods: [swapping]\n    seeds: [1, 2]\ndepth: 2"
    plan = plan_of(micro(changes={"depth: 2": more}))
    trainings = [n for n in plan.steps if n.startswith("train/")]
    assert trainings == [f"train/{RUN}", f"train/{RUN[:-1]}2"]
    first, second = (plan.steps[name].what["weights"] for name in trainings)
    assert first == ("memorised", "final", "reference", "frozen")
    assert second == ("final", "reference")


def test_only_weights_that_are_needed_are_trained(micro):
    changes = {
        "methods: [swapping, retraining, gradients, probing]": "methods: [retraining]",
        "analyses: [centroids, label_probes, generalisation]": "analyses: []",
    }
    plan = plan_of(micro(changes=changes))
    assert plan.steps[f"train/{RUN}"].what["weights"] == ("final",)


ASKED = {"localiser": "methods", "analysis": "analyses"}


@pytest.mark.parametrize("name", [*method_names("localiser"), *method_names("analysis")])
def test_a_run_has_the_weights_that_a_method_looks_at(micro, name):
    method = find_method(name)
    lines = {
        "methods: [swapping, retraining, gradients, probing]": "methods: []",
        "analyses: [centroids, label_probes, generalisation]": "analyses: []",
    }
    old = next(line for line in lines if line.startswith(ASKED[method.kind]))
    lines[old] = lines[old].replace("[]", f"[{name}]")
    made = plan_of(micro(changes=lines)).steps[f"train/{RUN}"].what["weights"]
    assert set(made) == {"final", *method.needs, *method.uses} - {"pretrained"}


def test_after_everything_nothing_is_left(micro):
    assert not stale_after(micro, {})


STALE = {
    "noise": ({"examples: 30": "examples: 31"}, 9),
    "epochs": ({"finetune.epochs: 4": "finetune.epochs: 5"}, 8),  # plants have their own
    "of noise probes": (
        {"control.epochs: 2": "control.epochs: 2\n  probing.class_weights: [0.5, 0.5]"},
        1,
    ),
    # Training, gradients, which look at those weights, and the plant.
    "near ceiling": ({"near_ceiling: 0.01": "near_ceiling: 0.02"}, 3),
    "verdict": ({"noisy_at_least: 0.001": "noisy_at_least: 0.002"}, 1),
    "force": ({"report: false": "report: false\nforce: true"}, 0),
    "swapping": ({"report: false": "report: false\n# a remark"}, 0),
    "retraining": ({"retraining.epochs: 1": "retraining.epochs: 2"}, 1),
    "generalisation": ({"generalisation.models: 2": "generalisation.models: 3"}, 1),
    "probing": ({"  probing.seeds: [0]": "  probing.seeds: [1]"}, 1),
    "label probes": ({"label_probes.seeds: [0]": "label_probes.seeds: [1]"}, 1),
    "centroids": ({"control.epochs: 2": "control.epochs: 2\n  centroids.events: last"}, 1),
    # Of the plant, too, where swapping looks.
    "a method's own": ({"control.epochs: 2": "control.epochs: 2\n  swapping.normalise: false"}, 2),
    "clipping": ({"finetune.epochs: 4": "finetune.epochs: 4\n  finetune.clip_over: all"}, 9),
    "frozen weights": ({"finetune.epochs: 4": "finetune.epochs: 4\n  finetune.frozen_seed: 1"}, 9),
    "pooler": ({"retraining.epochs: 1": "retraining.epochs: 1\n  retraining.trains_pooler: 0"}, 1),
    "of planted tasks": (
        {"control.epochs: 2": "control.epochs: 2\n  control.trains_pooler_and_norm: true"},
        1,
    ),
    "of planted frozen weights": (
        {"control.epochs: 2": "control.epochs: 2\n  control.frozen_beside_auxiliary: true"},
        1,
    ),
    "how seeds are summed up": (
        {"control.epochs: 2": "control.epochs: 2\n  summary.mcog: of mean weights"},
        0,  # there is no report
    ),
    "device": ({"device: cpu": "device: auto"}, 0),
    "control": ({"control.epochs: 2": "control.epochs: 3"}, 1),
    # What planted runs say is summed up when results are loaded.
    "summary": ({"control.epochs: 2": "control.epochs: 2\n  control.ks: [1]"}, 0),
}


@pytest.mark.parametrize(("changes", "expected"), STALE.values(), ids=list(STALE))
def test_a_setting_makes_stale_what_depends_on_it_and_nothing_else(micro, changes, expected):
    found = stale_after(micro, changes)
    assert {state.name for state in found.values()} <= {"stale"}
    assert len(found) == expected, found


def test_which_steps_are_stale_and_why(micro):
    probes = stale_after(micro, {"  probing.seeds: [0]": "  probing.seeds: [1]"})
    assert set(probes) == {f"localise/{RUN}/probing"}
    assert {s.why for s in probes.values()} == {"probing.seeds was [0] and is [1]"}
    planted = stale_after(micro, {"control.epochs: 2": "control.epochs: 3"})
    assert set(planted) == {f"plant/{RUN}/1-1"}
    trained = stale_after(micro, {"finetune.epochs: 4": "finetune.epochs: 5"})
    assert trained[f"localise/{RUN}/swapping"].why == "what it is made from changed"


@pytest.mark.parametrize(
    "name", ["summary.mcog", "summary.single_layer", "summary.binarised_events", "control.ks"]
)
def test_how_results_are_summed_up_concerns_the_report_alone(micro, name):
    other = {**preset("reference").flat(), "control.ks": [1]}[name]
    report = {"report: false": "report: true"}
    store = finish_all(plan_of(micro(changes=report)))
    more = {"control.epochs: 2": f"control.epochs: 2\n  {name}: {other}"}
    states = store.states(plan_of(micro(changes=report | more)))
    assert {step for step, state in states.items() if state.name != "done"} == {"report"}


def test_another_method_needs_no_other_training(micro):
    some = {"methods: [swapping, retraining, gradients, probing]": "methods: [swapping, probing]"}
    store = finish_all(plan_of(micro(changes=some)))
    states = store.states(plan_of(micro()))
    left = {name: state.name for name, state in states.items() if state.name != "done"}
    assert left == {f"localise/{RUN}/{m}": "missing" for m in ("retraining", "gradients")}


def test_a_model_is_what_is_in_its_folder(tmp_path, tiny_model, micro):
    for name in ("one", "two"):
        shutil.copytree(tiny_model("opt", depth=3), tmp_path / name / "model")
    text = micro().joinpath("study.yaml").read_text().replace("[tiny-opt]", "[./model]")
    text = text.replace("depth: 2", "depth: 3")
    plans = [make_plan(parse_study(text, tmp_path / name)) for name in ("one", "two")]
    assert plans[0].identities == plans[1].identities
    weights = tmp_path / "two" / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    assert make_plan(parse_study(text, tmp_path / "two")).identities != plans[0].identities


def test_a_plant_made_anew_leaves_no_null_of_older_settings(micro):
    plan = plan_of(micro(changes={"methods: [swapping]}": "methods: [swapping], nulls: none}"}))
    (step,) = (step for step in plan.steps.values() if step.kind == "plant")
    for product in ("plant", "null"):
        assert any("null-1-1" in path for path in step.products[product].removes)
