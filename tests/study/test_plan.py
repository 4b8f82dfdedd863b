"""Steps, what each depends on, and which become stale; nothing is loaded and nothing runs."""

import shutil

import pytest

from memloc.errors import SettingsError, StoreError
from memloc.protocol import preset
from memloc.study.config import parse_study, read_study
from memloc.study.manage import EXAMPLES, init_study, open_plan
from memloc.study.plan import KINDS
from memloc.study.planning import WEIGHTS, make_plan
from memloc.study.records import Store

RUN = "tiny-sentiment/tiny-opt-depth-2/seed-1"


def plan_of(folder):
    return make_plan(read_study(folder))


def finish_all(plan):
    """As if everything had been done: records, and files that are there."""
    store = Store(plan.file.folder)
    for step in plan.steps.values():
        store.begin(step, plan.identities[step.name], "token")
        for path in step.outputs:
            (store.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (store.folder / path).touch()
        facts = {"seconds": 1.0, "peak_mb": 1.0}
        store.finish(step, plan.identities[step.name], facts)
    return store


def stale_after(micro, changes):
    """The steps that are not done after the text of a finished study was changed."""
    store = finish_all(plan_of(micro()))
    plan = plan_of(micro(changes=changes))
    return {name: s for name, s in store.states(plan).items() if s.name != "done"}


def test_the_demo_has_every_kind_of_step(tmp_path):
    init_study("demo", tmp_path)
    assert {step.kind for step in open_plan(tmp_path).steps.values()} == set(KINDS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_written_once_and_never_over_another_one(tmp_path, name):
    path = init_study(name, tmp_path)
    assert init_study(name, tmp_path) == path
    path.write_text(path.read_text() + "seeds: [7]\n")
    with pytest.raises(StoreError, match="is there already and is another one"):
        init_study(name, tmp_path)


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
        "analyses: [centroids, label-probes, generalisation]": "analyses: []",
    }
    plan = plan_of(micro(changes=changes))
    assert plan.steps[f"train/{RUN}"].what["weights"] == ("final",)


def test_what_methods_need_is_what_they_say():
    from memloc.analyse.analyse import ANALYSES
    from memloc.localise.base import ENTRY_POINTS, localiser
    from memloc.localise.localise import METHODS

    from memloc.study.checks import LOCALISERS
    from memloc.study.config import ANALYSES as OURS
    from memloc.study.config import METHODS as OUR_METHODS

    assert (OURS, OUR_METHODS, LOCALISERS) == (ANALYSES, METHODS, ENTRY_POINTS)
    for method in METHODS:
        assert set(localiser(method).needs) - {"pretrained"} == set(WEIGHTS[method])


def test_after_everything_nothing_is_left(micro):
    assert not stale_after(micro, {})


STALE = {
    "noise": ({"examples: 30": "examples: 31"}, 10),
    "epochs": ({"finetune.epochs: 4": "finetune.epochs: 5"}, 8),  # plants have their own
    "of large models": (
        {"control.epochs: 2": "control.epochs: 2\n  finetune.large_learning_rate: 0.1"},
        0,
    ),
    "of noise probes": (
        {"control.epochs: 2": "control.epochs: 2\n  probes.class_weights: [0.5, 0.5]"},
        1,
    ),
    # Training, gradients, which look at those weights, and the plant with its summary.
    "near ceiling": ({"near_ceiling: 0.01": "near_ceiling: 0.02"}, 4),
    "verdict": ({"noisy_at_least: 0.001": "noisy_at_least: 0.002"}, 3),
    "force": ({"report: false": "report: false\nforce: true"}, 0),
    "swapping": ({"report: false": "report: false\n# a remark"}, 0),
    "retraining": ({"retraining.epochs: 1": "retraining.epochs: 2"}, 1),
    "generalisation": ({"generalisation.models: 2": "generalisation.models: 3"}, 1),
    "probes": ({"probes.seeds: [0]": "probes.seeds: [1]"}, 2),
    "clipping": ({"finetune.epochs: 4": "finetune.epochs: 4\n  finetune.clip_over: all"}, 10),
    "frozen weights": ({"finetune.epochs: 4": "finetune.epochs: 4\n  finetune.frozen_seed: 1"}, 10),
    "pooler": ({"retraining.epochs: 1": "retraining.epochs: 1\n  retraining.trains_pooler: 0"}, 1),
    "of planted tasks": (
        {"control.epochs: 2": "control.epochs: 2\n  control.trains_pooler_and_norm: true"},
        2,
    ),
    "of planted frozen weights": (
        {"control.epochs: 2": "control.epochs: 2\n  control.frozen_beside_auxiliary: true"},
        2,
    ),
    "how seeds are summed up": (
        {"control.epochs: 2": "control.epochs: 2\n  summary.mcog: of mean weights"},
        0,  # there is no report
    ),
    "device": ({"device: cpu": "device: auto"}, 0),
    "control": ({"control.epochs: 2": "control.epochs: 3"}, 2),
    "summary": ({"control.epochs: 2": "control.epochs: 2\n  control.ks: [1]"}, 1),
}


@pytest.mark.parametrize(("changes", "expected"), STALE.values(), ids=list(STALE))
def test_a_setting_makes_stale_what_depends_on_it_and_nothing_else(micro, changes, expected):
    found = stale_after(micro, changes)
    assert {state.name for state in found.values()} <= {"stale"}
    assert len(found) == expected, found


def test_which_steps_are_stale_and_why(micro):
    probes = stale_after(micro, {"probes.seeds: [0]": "probes.seeds: [1]"})
    assert set(probes) == {f"localise/{RUN}/probing", f"analyse/{RUN}/label-probes"}
    assert {s.why for s in probes.values()} == {"probes.seeds was [0] and is [1]"}
    planted = stale_after(micro, {"control.epochs: 2": "control.epochs: 3"})
    assert set(planted) == {f"plant/{RUN}/1-1", "control"}
    trained = stale_after(micro, {"finetune.epochs: 4": "finetune.epochs: 5"})
    assert trained[f"localise/{RUN}/swapping"].why == "what it is made from changed"


@pytest.mark.parametrize("name", ["mcog", "single_layer", "binarised_events"])
def test_how_results_are_summed_up_concerns_the_report_alone(micro, name):
    other = preset("reference").flat()[f"summary.{name}"]
    report = {"report: false": "report: true"}
    store = finish_all(plan_of(micro(changes=report)))
    more = {"control.epochs: 2": f"control.epochs: 2\n  summary.{name}: {other}"}
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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"[tiny-opt]": "[tiny-optt]"}, "line 2, models[0]: .*Did you mean 'tiny-opt'?"),
        ({"[tiny-opt]": "[./nowhere]"}, "line 2, models[0]: There is no folder"),
        ({"[tiny-sentiment]": "[tiny-sentimant]"}, "line 3, tasks[0]: .*'tiny-sentiment'?"),
        ({"[swapping, retraining": "[swaping, retraining"}, "methods[0]: there is no method"),
        ({"label-probes": "label-prob"}, "analyses[1]: there is no analysis"),
        ({"depth: 2": "depth: 13"}, "A depth of 13 was asked for; this model has 1 to 12 layers."),
        ({'windows: ["1"]': "windows: [2-3]"}, "2-3 is outside the model, which has layers 1-2"),
        ({"device: cpu": "device: gpu"}, "device: there is no device 'gpu'"),
        ({"control: {": "control: {tasks: [tiny-entailment], "}, "is the auxiliary task"),
        ({"[tiny-sentiment]": "[tiny-entailment]"}, "the only task is the auxiliary one"),
        ({"[tiny-opt]": "[tiny-opt, ./x/tiny-opt]"}, "There is no folder"),
    ],
)
def test_names_that_do_not_exist_are_refused(micro, changes, message):
    folder = micro(changes=changes)
    with pytest.raises(
        SettingsError, match=message.replace("[0]", r"\[0\]").replace("[1]", r"\[1\]")
    ):
        plan_of(folder)


def test_two_models_of_one_name_are_refused(micro, tmp_path, tiny_model):
    for name in ("a", "b"):
        shutil.copytree(tiny_model("opt", depth=3), tmp_path / "study" / name / "model")
    with pytest.raises(SettingsError, match="would share the folder model-depth-2"):
        plan_of(micro(changes={"[tiny-opt]": "[./a/model, ./b/model]"}))
    with pytest.raises(SettingsError, match="would share the folder model-depth-2"):
        plan_of(micro(changes={"control: {": "control: {models: [./a/model, ./b/model], "}))


@pytest.mark.parametrize(
    ("only", "chosen"),
    [
        (["train"], {f"train/{RUN}"}),
        (["localise swapping"], {f"train/{RUN}", f"localise/{RUN}/swapping"}),
        (
            ["centroids", f"localise/{RUN}/probing"],
            {f"train/{RUN}", f"analyse/{RUN}/centroids", f"localise/{RUN}/probing"},
        ),
        (["control"], {"control"}),
    ],
)
def test_words_choose_steps_and_what_they_need(micro, only, chosen):
    assert plan_of(micro()).chosen(only) == chosen


def test_words_that_fit_nothing_are_refused(micro):
    with pytest.raises(SettingsError, match="No step fits --only 'localise bert'"):
        plan_of(micro()).chosen(["localise bert"])
