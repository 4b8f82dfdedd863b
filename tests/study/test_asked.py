"""Which runs a study asks for: blocks with settings of their own, and runs that are there."""

import shutil

import pytest

from command_support import rows_of, write_csv
from memloc.adoption import adopt
from memloc.errors import SettingsError
from memloc.run import Run
from memloc.study.actions import do
from memloc.study.asked import asked_runs, runs_there
from memloc.study.config import parse_study, read_study
from memloc.study.estimate import estimate
from memloc.study.manage import open_plan
from planning_support import RUN, finish_all, not_done, plan_of

ALSO = (
    "also:\n  - seeds: [2]\n    methods: [swapping]\n    overrides: {finetune.epochs: 5}\ndepth: 2"
)
LEAST = "preset: demo\nmodels: [tiny-opt]\ntasks: [tiny-topic]\n"


def test_a_block_has_settings_of_its_own(micro):
    plan = plan_of(micro(changes={"depth: 2": ALSO}))
    first, second = (plan.steps[f"train/{RUN[:-1]}{seed}"] for seed in (1, 2))
    epochs = [step.what["protocol"].finetune.epochs for step in (first, second)]
    assert epochs == [4, 5]
    assert [step.settings["finetune.epochs"] for step in (first, second)] == [4, 5]


def test_the_settings_of_a_block_make_only_its_runs_stale(micro):
    store = finish_all(plan_of(micro(changes={"depth: 2": ALSO})))
    other = ALSO.replace("epochs: 5", "epochs: 6")
    found = not_done(store, plan_of(micro(changes={"depth: 2": other})))
    assert {"/".join(name.split("/")[1:4]) for name in found} == {f"{RUN[:-1]}2"}
    assert len(found) == 5  # training, swapping, three analyses


def test_the_data_seed_of_a_block_decides_its_splits(micro):
    """A block's run is the run that a study with these settings would train."""
    more = "also:\n  - seeds: [2]\n    overrides: {noise.seed: 7}\ndepth: 2"
    one = plan_of(micro("one", {"depth: 2": more}))
    seeds = {"depth: 2": "seeds: [2]\ndepth: 2", "overrides:": "overrides:\n  noise.seed: 7"}
    two = plan_of(micro("two", seeds))
    name = f"train/{RUN[:-1]}2"
    assert one.identities[name] == two.identities[name]
    hashes = []
    for plan in (one, two):
        do(plan, plan.steps[name])
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
        asked_runs(parse_study(LEAST + blocks, tmp_path))
    assert f"study.yaml, line {line}, {key}: tiny-topic, tiny-opt, seed" in str(error.value)
    assert "is asked for twice, with other settings (" in str(error.value)


def test_a_run_that_is_asked_for_twice_with_the_same_settings_is_one(tmp_path):
    text = LEAST + "methods: [swapping]\nanalyses: []\n"
    same = "also:\n- methods: [probing]\n  overrides: {finetune.epochs: 30}\n"  # as in the preset
    (run,) = asked_runs(parse_study(text + same, tmp_path))
    assert run.methods == ("swapping", "probing")


@pytest.mark.parametrize("name", ["verdict.noisy_at_least", "control.tries", "summary.mcog"])
def test_what_concerns_all_runs_is_refused_in_a_block(tmp_path, name):
    with pytest.raises(SettingsError, match=f"line 5, also.*{name}: it concerns all runs"):
        parse_study(f"{LEAST}also:\n- overrides: {{{name}: 1}}\n", tmp_path)


@pytest.fixture(scope="module")
def trained(tiny_model, tmp_path_factory):
    """Checkpoints that somebody has, and the file that they were trained on."""
    from memloc.data.own import load_csv
    from memloc.training.recipe import train

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
    (run,) = runs_there(read_study(adopted))
    assert run.methods == tuple(name.split("/")[-1] for name in plan.steps)


def test_the_steps_of_an_adopted_run_are_really_done_and_estimated(adopted):
    more = "overrides: {probing.epochs: 2, probing.first_epoch: 0}\n"
    (adopted / "study.yaml").write_text((adopted / "study.yaml").read_text() + more)
    plan = open_plan(adopted)
    step = plan.steps["localise/theirs/mine/probing"]
    speed = {"update": 0.8, "predict": 0.01, "probe_epoch": 0.001, "batch": 8, "length": 20}
    measured = {"tokens": {}, "length": 20, "start": 0.0, "speeds": {"2x16": speed}}
    found = estimate(plan, measured, dict.fromkeys(plan.steps, 1))
    # Vectors of 30 examples from two sets of weights, and two epochs of probes on them.
    assert found.seconds[step.name] == pytest.approx(2 * 30 * 0.01 + 2 * 30 * 0.001)
    do(plan, step)
    assert (adopted / "theirs/mine/results/probing/about.json").is_file()
    assert not (adopted / "theirs/mine/checkpoints").exists()


def test_another_run_in_its_place_makes_its_steps_stale_and_stays(adopted, trained):
    store = finish_all(plan_of(adopted))
    assert not not_done(store, plan_of(adopted))
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
    found = not_done(store, plan)
    assert set(found) == set(plan.steps)
    assert {state.name for state in found.values()} == {"stale"}
    for step in plan.steps.values():
        store.begin(step, plan.identities[step.name], "token")
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
