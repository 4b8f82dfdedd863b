"""From a study to its steps: which runs are asked for, what each step depends on, what is stale."""

import shutil

import pytest

from fixtures.commands import rows_of, write_csv
from fixtures.plans import RUN, do, finish_all, not_done, plan_of, stale_after
from memloc.errors import SettingsError
from memloc.methods.protocol import preset
from memloc.methods.registry import find_method, method_names
from memloc.run.adopt import adopt
from memloc.run.folder import Run
from memloc.study.config import (
    ControlBlock,
    init_study,
    parse_study,
    read_study,
)
from memloc.study.estimate import Calibration, estimate
from memloc.study.plan import (
    ACTIONS,
    make_plan,
    open_plan,
    planted_windows,
    runs_there,
)
from memloc.study.records import study_states


@pytest.mark.parametrize(
    ("only", "chosen"),
    [
        (["train"], {f"train/{RUN}"}),
        (["localise swapping"], {f"train/{RUN}", f"localise/{RUN}/swapping"}),
        (
            ["centroids", f"localise/{RUN}/probing"],
            {f"train/{RUN}", f"analyse/{RUN}/centroids", f"localise/{RUN}/probing"},
        ),
        (["plant"], {f"plant/{RUN}/1-1"}),
    ],
)
def test_words_choose_steps_and_what_they_need(micro, only, chosen):
    assert plan_of(micro()).chosen(only) == chosen


def test_words_that_fit_nothing_are_refused(micro):
    with pytest.raises(SettingsError, match="No step matches --only 'localise bert'"):
        plan_of(micro()).chosen(["localise bert"])


def test_the_demo_has_every_kind_of_step(tmp_path):
    init_study("demo", tmp_path)
    assert {step.action for step in open_plan(tmp_path).steps.values()} == set(ACTIONS)


def test_the_paper_s_study_is_complete(tmp_path):
    init_study("paper", tmp_path / "paper")
    plan = open_plan(tmp_path / "paper")
    kinds = [step.action for step in plan.steps.values()]
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
    kinds = [step.action for step in plan.steps.values()]
    assert (kinds.count("train"), kinds.count("plant")) == (4 * 4 * 2, 4 * 3)


def test_a_step_comes_after_all_that_it_needs(micro):
    plan = plan_of(micro())
    names = list(plan.steps)
    for step in plan.steps.values():
        assert not step.needs or names.index(step.needs) < names.index(step.name)


def test_one_training_serves_all_that_want_it(micro):
    more = "also:\n  - methods: [swapping]\n    seeds: [1, 2]\ndepth: 2"
    plan = plan_of(micro(changes={"depth: 2": more}))
    trainings = [n for n in plan.steps if n.startswith("train/")]
    assert trainings == [f"train/{RUN}", f"train/{RUN[:-1]}2"]
    first, second = (plan.steps[name].checkpoints for name in trainings)
    assert first == ("memorised", "final", "reference", "frozen")
    assert second == ("final", "reference")


def test_only_weights_that_are_needed_are_trained(micro):
    changes = {
        "methods: [swapping, retraining, gradients, probing]": "methods: [retraining]",
        "analyses: [centroids, label_probes, generalisation]": "analyses: []",
    }
    plan = plan_of(micro(changes=changes))
    assert plan.steps[f"train/{RUN}"].checkpoints == ("final",)


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
    made = plan_of(micro(changes=lines)).steps[f"train/{RUN}"].checkpoints
    assert set(made) == {"final", *method().needs, *method.uses} - {"pretrained"}


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
    "generalisation": ({"generalisation.models: 3": "generalisation.models: 4"}, 1),
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
        {"control.epochs: 2": "control.epochs: 2\n  control.frozen_with_auxiliary: true"},
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
    more = {"control.epochs: 2": f"control.epochs: 2\n  {name}: {other}"}
    assert not stale_after(micro, more)


def test_another_method_needs_no_other_training(micro):
    some = {"methods: [swapping, retraining, gradients, probing]": "methods: [swapping, probing]"}
    finish_all(plan_of(micro(changes=some)))
    states = study_states(plan_of(micro()))
    left = {name: state.name for name, state in states.items() if state.name != "done"}
    assert left == {f"localise/{RUN}/{m}": "missing" for m in ("retraining", "gradients")}


def identities(plan):
    return {name: step.identity for name, step in plan.steps.items()}


def test_a_model_is_what_is_in_its_folder(tmp_path, tiny_model, micro):
    for name in ("one", "two"):
        shutil.copytree(tiny_model("opt", depth=3), tmp_path / name / "model")
    text = micro().joinpath("study.yaml").read_text().replace("[tiny-opt]", "[./model]")
    text = text.replace("depth: 2", "depth: 3")
    plans = [make_plan(parse_study(text, tmp_path / name)) for name in ("one", "two")]
    assert identities(plans[0]) == identities(plans[1])
    weights = tmp_path / "two" / "model" / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[len(content) // 2] ^= 1
    weights.write_bytes(content)
    other = make_plan(parse_study(text, tmp_path / "two"))
    assert identities(other) != identities(plans[0])


def test_a_plant_made_anew_leaves_no_null_of_older_settings(micro):
    plan = plan_of(micro(changes={"methods: [swapping]}": "methods: [swapping], nulls: none}"}))
    (step,) = (step for step in plan.steps.values() if step.action == "plant")
    for product in ("plant", "null"):
        assert any("null-1-1" in path for path in step.removes[product])


ALSO = (
    "also:\n  - seeds: [2]\n    methods: [swapping]\n    overrides: {finetune.epochs: 5}\ndepth: 2"
)
LEAST = "preset: demo\nmodels: [tiny-opt]\ntasks: [tiny-topic]\n"


def test_a_block_has_settings_of_its_own(micro):
    plan = plan_of(micro(changes={"depth: 2": ALSO}))
    first, second = (plan.steps[f"train/{RUN[:-1]}{seed}"] for seed in (1, 2))
    epochs = [step.spec.settings.finetune.epochs for step in (first, second)]
    assert epochs == [4, 5]
    assert [step.settings["finetune.epochs"] for step in (first, second)] == [4, 5]


def test_the_settings_of_a_block_make_only_its_runs_stale(micro):
    finish_all(plan_of(micro(changes={"depth: 2": ALSO})))
    other = ALSO.replace("epochs: 5", "epochs: 6")
    found = not_done(plan_of(micro(changes={"depth: 2": other})))
    assert {"/".join(name.split("/")[1:4]) for name in found} == {f"{RUN[:-1]}2"}
    assert len(found) == 5  # training, swapping, three analyses


def test_the_data_seed_of_a_block_decides_its_splits(micro):
    """A block's run is the run that a study with these settings would train."""
    more = "also:\n  - seeds: [2]\n    overrides: {noise.seed: 7}\ndepth: 2"
    one = plan_of(micro("one", {"depth: 2": more}))
    seeds = {"depth: 2": "seeds: [2]\ndepth: 2", "overrides:": "overrides:\n  noise.seed: 7"}
    two = plan_of(micro("two", seeds))
    name = f"train/{RUN[:-1]}2"
    assert one.steps[name].identity == two.steps[name].identity
    hashes = []
    for plan in (one, two):
        do(plan.steps[name])
        hashes.append(Run.open(plan.file.folder / f"{RUN[:-1]}2").record.task.hash)
    assert hashes[0] == hashes[1]


@pytest.mark.parametrize(
    ("blocks", "line", "key"),
    [
        (
            "also:\n- methods: [swapping]\n  overrides: {finetune.epochs: 3}\n",
            6,
            "also[0].overrides",
        ),
        (
            "also:\n- seeds: [2]\n- seeds: [3, 2]\n  overrides:\n    probing.epochs: 3\n",
            7,
            "also[1].overrides",
        ),
    ],
    ids=["the main part's", "another block's"],
)
def test_a_run_that_is_asked_for_with_other_settings_is_refused(tmp_path, blocks, line, key):
    with pytest.raises(SettingsError) as error:
        make_plan(parse_study(LEAST + blocks, tmp_path))
    assert f"study.yaml, line {line}, {key}: tiny-topic, tiny-opt, seed" in str(error.value)
    assert "is asked for twice, with different settings (" in str(error.value)


def test_a_run_that_is_asked_for_twice_with_the_same_settings_is_one(tmp_path):
    text = LEAST + "methods: [swapping]\nanalyses: []\n"
    same = "also:\n- methods: [probing]\n  overrides: {finetune.epochs: 30}\n"  # as in the preset
    steps = make_plan(parse_study(text + same, tmp_path)).steps
    assert [name.split("/")[0] for name in steps] == ["train", "localise", "localise"]
    assert [name.split("/")[-1] for name in steps][1:] == ["swapping", "probing"]


@pytest.mark.parametrize("name", ["verdict.noisy_at_least", "control.tries", "summary.mcog"])
def test_what_concerns_all_runs_is_refused_in_a_block(tmp_path, name):
    with pytest.raises(SettingsError, match=f"line 5, also.*{name}: it concerns all runs"):
        parse_study(f"{LEAST}also:\n- overrides: {{{name}: 1}}\n", tmp_path)


@pytest.fixture(scope="module")
def trained(tiny_model, tmp_path_factory):
    """Checkpoints that somebody has, and the file that they were trained on."""
    from memloc.data.own import load_csv
    from memloc.run.train import train

    home = tmp_path_factory.mktemp("trained")
    other = {"good": "bad", "bad": "good"}
    rows = [(t, other[y] if i < 4 else y, y) for i, (t, y) in enumerate(rows_of(30))]
    data = write_csv(home / "mine.csv", rows, ("text", "label", "before"))
    held = write_csv(home / "held.csv", rows, ("text", "label", "before"))
    task = load_csv(data, original="before", held_out=held)
    settings = {"finetune.epochs": 2, "finetune.batch_size": 8}
    model = str(tiny_model("opt", depth=2))
    train(model, task, home / "run", settings=settings, device="cpu")
    return home


@pytest.fixture
def adopted(trained, tmp_path):
    """A study of nothing but an adopted run, whose reference weights are not there."""
    folder = tmp_path / "study"
    adopt(
        folder / "theirs" / "mine",
        final=trained / "run" / "checkpoints" / "final",
        frozen=trained / "run" / "checkpoints" / "frozen",
        data=trained / "mine.csv",
        original="before",
        device="cpu",
    )
    text = "runs: [./theirs/mine]\nforce: true\nreport: false\ndevice: cpu\n"
    (folder / "study.yaml").write_text(text, encoding="utf-8")
    return folder


def test_an_adopted_run_gets_the_steps_whose_weights_are_there(adopted):
    plan = plan_of(adopted)
    assert {name for name in plan.steps if name.startswith("localise")} == {
        "localise/theirs/mine/probing"
    }
    analyses = ("centroids", "label_probes")
    assert {f"analyse/theirs/mine/{name}" for name in analyses} <= set(plan.steps)
    assert not [name for name in plan.steps if "swapping" in name or "train" in name]
    assert list(runs_there(read_study(adopted))) == ["theirs/mine"]


def test_the_steps_of_an_adopted_run_are_really_done_and_estimated(adopted):
    more = "overrides: {probing.epochs: 2, probing.first_epoch: 0}\n"
    (adopted / "study.yaml").write_text((adopted / "study.yaml").read_text() + more)
    plan = open_plan(adopted)
    step = plan.steps["localise/theirs/mine/probing"]
    speed = {
        "update": 0.8,
        "predict": 0.01,
        "layer": 1e-3,
        "last_layer": 5e-4,
        "probe": 0.001,
        "batch": 8,
        "length": 20,
    }
    measured = Calibration(machine="here", speeds={"2x16": speed})
    found = estimate(plan, measured, dict.fromkeys(plan.steps, 1))
    # Vectors of 30 examples from two sets of weights, and two epochs of probes on them.
    assert found.seconds[step.name] == pytest.approx(2 * 30 * 0.01 + 2 * 30 * 0.001)
    do(step)
    assert (adopted / "theirs/mine/results/probing/about.json").is_file()
    assert not (adopted / "theirs/mine/checkpoints").exists()


def test_another_run_in_its_place_makes_its_steps_stale_and_stays(adopted, trained):
    store = finish_all(plan_of(adopted))
    assert not not_done(plan_of(adopted))
    shutil.rmtree(adopted / "theirs")
    adopt(
        adopted / "theirs" / "mine",
        final=trained / "run" / "checkpoints" / "reference",
        frozen=trained / "run" / "checkpoints" / "frozen",
        data=trained / "mine.csv",
        original="before",
        device="cpu",
    )
    plan = plan_of(adopted)
    found = not_done(plan)
    assert set(found) == set(plan.steps)
    assert {state.name for state in found.values()} == {"stale"}
    for step in plan.steps.values():
        store.begin(step, "token")
    assert (adopted / "theirs" / "mine" / "run.json").is_file()  # only results are removed


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        (
            "[theirs/mine, ../elsewhere]",
            r"runs\[1\]: a run of a study must be in the study's folder",
        ),
        ("[theirs/other]", r"runs\[0\]: .*theirs/other is not a run: it has no run.json"),
        ("[theirs/mine, theirs/mine]", r"runs\[1\]: 'theirs/mine' is there twice"),
    ],
)
def test_runs_that_cannot_be_used_are_refused(adopted, runs, message):
    shutil.copytree(adopted / "theirs" / "mine", adopted.parent / "elsewhere")
    (adopted / "study.yaml").write_text(f"device: cpu\nruns: {runs}\n")
    with pytest.raises(SettingsError, match=f"study.yaml, line 2, {message}"):
        plan_of(adopted)


def test_a_run_that_the_study_trains_is_not_taken_for_an_earlier_one(micro, adopted):
    folder = micro(changes={"report: false": f"report: false\nruns: [{RUN}]"})
    shutil.copytree(adopted / "theirs" / "mine", folder / RUN)
    with pytest.raises(SettingsError, match=r"runs\[0\]: this study trains the run that is there"):
        plan_of(folder)


@pytest.mark.parametrize(
    ("block", "windows"),
    [
        ({}, ["1-2", "6-7", "11-12"]),
        ({"windows": ["6-7", "3"]}, ["6-7", "3-3"]),
        ({"windows": ["9+2", "2-3/9-10"]}, ["2+9", "2-3/9-10"]),
        ({"every": [11]}, ["1-11", "2-12"]),
        ({"windows": ["1-11", "2-3"], "every": [11]}, ["1-11", "2-3", "2-12"]),
    ],
    ids=["usual", "named", "separate layers, groups", "every", "overlapping, each once"],
)
def test_planted_windows(block, windows):
    assert planted_windows(ControlBlock(**block), 12, preset("paper")) == windows


def test_all_layers_cannot_be_planted():
    with pytest.raises(SettingsError, match="12 of 12 layers: plant in some, not in all"):
        planted_windows(ControlBlock(windows=["1-12"]), 12, preset("paper"))
