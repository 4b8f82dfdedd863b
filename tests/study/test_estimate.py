"""What a study will cost: by counting, corrected by what is done, and how sure that is."""

import pytest

from fixtures.plans import RUN
from memloc.methods.gradients import Gradients
from memloc.methods.protocol import preset
from memloc.methods.shares import Shares
from memloc.model.shape import Shape
from memloc.progress import duration, size
from memloc.store import paths
from memloc.store.records import write_json
from memloc.study.config import read_study
from memloc.study.estimate import (
    SURE,
    UNSURE,
    Calibration,
    estimate,
    machine,
    measured_here,
    sizes_of,
)
from memloc.study.execute import Execution, cores
from memloc.study.executors import LocalExecutor
from memloc.study.plan import make_plan
from memloc.study.records import Store, study_states
from memloc.study.view import plan_rows, plan_sentences
from studies.cost import costs

MEASURED = {
    "machine": "here",
    "tokens": {"tiny-sentiment": 20.0},
    "speeds": {
        "2x64": {
            "update": 0.8,
            "predict": 0.01,
            "layer": 1e-3,
            "last_layer": 5e-4,
            "probe": 0.001,
            "batch": 8,
            "length": 20,
        }
    },
}


def expected(folder, **measured):
    plan = make_plan(read_study(folder))
    return plan, estimate(plan, Calibration(**MEASURED | measured), dict.fromkeys(plan.steps, 1))


def finish(plan, name, seconds, **more):
    step = plan.steps[name]
    facts = {"seconds": seconds, "peak_mb": 500.0, **more}
    for path in (plan.file.folder / path for path in step.outputs if path.endswith(paths.ABOUT)):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    Store(plan.file.folder).finish(step, facts)


def test_time_is_counted_in_updates_and_predictions(micro):
    _, found = expected(micro())
    # Two trainings of 4 epochs: 30 examples of a tenth of a second, and looks at 37.5.
    whole = 4 * (30 * 0.1 + 37.5 * 0.01)
    assert found.seconds[f"train/{RUN}"] == pytest.approx(2.1 * whole)
    # Two models on 15 examples once, and predictions of all 30.
    assert found.seconds[f"analyse/{RUN}/generalisation"] == pytest.approx(3 * (1.5 + 0.3))
    # Swapping: 2 first layers, and 4 last ones, of 20 tokens.
    assert found.seconds[f"localise/{RUN}/swapping"] == pytest.approx(20 * 30 * (2e-3 + 4 * 5e-4))
    assert found.factor == UNSURE


def test_swapping_costs_less_with_fewer_clean_examples(micro):
    change = {"control.epochs: 2": "control.epochs: 2\n  swapping.clean_examples: 10"}
    _, found = expected(micro(changes=change))
    looked_at = 0.15 * 30 + 10
    assert found.seconds[f"localise/{RUN}/swapping"] == pytest.approx(20 * looked_at * 4e-3)


def test_of_long_texts_only_what_is_read_takes_time():
    speed = MEASURED["speeds"]["2x64"]
    measured = Calibration(**MEASURED | {"speeds": {"12x768": speed}})
    short, long, cut = (
        sizes_of(
            Shape(12, 768, 0), preset("paper").replace({"text.max_tokens": most}), 10, n, measured
        )
        for most, n in ((512, 64.0), (512, 160.0), (64, 160.0))
    )
    assert cut == short
    assert long.update == pytest.approx(2.5 * short.update)


@pytest.mark.parametrize("shape", [Shape(12, 64, 0), Shape(12, 768, 0)])
def test_mixtures_cost_in_proportion_to_the_tokens_of_a_text(shape):
    """The texts of one length share a call, so none is padded: their own lengths count."""
    speeds = {shape.name: MEASURED["speeds"]["2x64"]}  # measured with texts of 20 tokens
    measured = Calibration(**MEASURED | {"speeds": speeds})
    settings = preset("paper").replace({"text.max_tokens": 64})
    short, long, cut = (
        Shares().cost(sizes_of(shape, settings, 100, tokens, measured)) for tokens in (8, 40, 400)
    )
    assert short == pytest.approx(30 * 8 * (4094 * 1e-3 + 4096 * 5e-4))
    assert (long, cut) == pytest.approx((5 * short, 8 * short))


@pytest.mark.parametrize("more", ["finetune.clip_over: all", "finetune.frozen_dropout: true"])
def test_what_is_not_kept_is_computed_in_every_update(micro, more):
    _, plain = expected(micro())
    changes = {"control.epochs: 2": f"control.epochs: 2\n  {more}"}
    _, found = expected(micro(changes=changes))
    name = f"train/{RUN}"
    assert found.seconds[name] == pytest.approx(plain.seconds[name] * 3 / 2.1)
    retraining = f"localise/{RUN}/retraining"
    costs_more = found.seconds[retraining] > plain.seconds[retraining]
    assert costs_more == more.startswith("finetune.clip_over")


def test_more_examples_cost_more_and_models_of_many_layers_cost_more_disk(micro):
    _, small = expected(micro())
    _, large = expected(micro(changes={"examples: 30": "examples: 60"}))
    assert large.seconds[f"train/{RUN}"] == pytest.approx(2 * small.seconds[f"train/{RUN}"])
    _, deep = expected(
        micro(changes={"depth: 2": "depth: 4"}), speeds={"4x64": MEASURED["speeds"]["2x64"]}
    )
    name = f"train/{RUN}"
    assert deep.disk[name.replace("depth-2", "depth-4")] > small.disk[name]


def test_finished_steps_correct_it_and_make_it_surer(micro):
    folder = micro()
    plan, before = expected(folder)
    for name in plan.steps:
        finish(plan, name, 3 * before.seconds[name])
    plan, after = expected(folder)
    assert after.seconds[f"train/{RUN}"] == pytest.approx(3 * before.seconds[f"train/{RUN}"])
    assert after.compared == len(plan.steps)
    assert after.factor == pytest.approx(SURE)
    assert after.memory[f"train/{RUN}"] == 500e6


def test_sorts_that_were_never_seen_stay_unsure(micro):
    folder = micro()
    plan, before = expected(folder)
    finish(plan, f"train/{RUN}", before.seconds[f"train/{RUN}"])
    _, after = expected(folder)
    assert SURE < after.factor < UNSURE


def test_hours_in_which_a_step_was_stopped_do_not_count(micro):
    folder = micro()
    plan, before = expected(folder)
    for name, seconds in before.seconds.items():
        finish(plan, name, seconds + 7200, processor=seconds)
    _, after = expected(folder)
    assert after.seconds == pytest.approx(before.seconds)
    assert after.factor == pytest.approx(SURE)


def test_beside_other_work_steps_take_longer_by_what_is_usual(micro):
    folder = micro()
    plan, before = expected(folder)
    for name, seconds in before.seconds.items():
        finish(plan, name, 2 * seconds, processor=seconds)
    finish(plan, f"train/{RUN}", 9999, processor=before.seconds[f"train/{RUN}"])
    _, after = expected(folder)
    assert after.seconds == pytest.approx({n: 2 * each for n, each in before.seconds.items()})


def test_more_threads_take_less_time_but_more_of_the_processor(micro):
    folder = micro()
    plan, one = expected(folder)
    measured = Calibration(**MEASURED)
    two = estimate(plan, measured, dict.fromkeys(plan.steps, 2))
    name = f"train/{RUN}"
    assert one.seconds[name] / 2 < two.seconds[name] < one.seconds[name]
    # A step that was done on two threads is compared with what it should take on two.
    finish(plan, name, 3 * two.seconds[name], processor=6 * two.seconds[name], threads=2)
    after = estimate(plan, measured, dict.fromkeys(plan.steps, 1))
    assert after.seconds[name] == pytest.approx(3 * one.seconds[name])


def test_two_at_once_take_half_as_long_but_never_less_than_the_longest(micro):
    _, found = expected(micro())
    alone = found.duration(found.seconds, cores=2, jobs=1)
    both = found.duration(found.seconds, cores=2, jobs=2)
    assert both == pytest.approx(alone / 2)
    assert found.duration({f"train/{RUN}": 7.0}, 2, 2) == 7.0
    assert found.duration({}, 2, 2) == 0


def execution(plan, found):
    executor = LocalExecutor(plan.file.folder, 2, 2)
    return Execution(plan, executor, found, set(plan.steps), study_states(plan))


@pytest.mark.parametrize("load", [0.0, 900.0])
def test_the_plan_says_what_is_left_and_how_sure_that_is(micro, monkeypatch, load):
    monkeypatch.setattr("os.getloadavg", lambda: (load, 0.0, 0.0))
    plan, found = expected(micro())
    study = execution(plan, found)
    rows = plan_rows(study)
    assert [(r["steps"], r["all"], r["missing"]) for r in rows] == [
        ("train", 1, 1),
        ("localise", 4, 4),
        ("analyse", 3, 3),
        ("plant", 1, 1),
    ]
    first, few, *busy, last = plan_sentences(study)
    assert "NO ANSWER WILL BE POSSIBLE" in few
    assert first.startswith("9 of 9 steps left: about ")
    assert " with 2 at once (" in first
    assert "from a calibration alone" in first
    assert last.endswith("are free.")
    assert [line.endswith("while other programs run, steps take longer.") for line in busy] == (
        [True] if load else []
    )


def test_a_system_that_does_not_tell_its_load_is_not_called_busy(micro, monkeypatch):
    def unknown():
        raise OSError

    monkeypatch.setattr("os.getloadavg", unknown)
    assert not any("busy" in line for line in plan_sentences(execution(*expected(micro()))))


def test_where_threads_would_wait_for_each_other_a_busy_machine_needs_more_jobs(micro, monkeypatch):
    monkeypatch.setattr("os.getloadavg", lambda: (900.0, 0.0, 0.0))
    plan = make_plan(read_study(micro()))
    found = estimate(plan, Calibration(**MEASURED), dict.fromkeys(plan.steps, 2))
    first, _, busy, _ = plan_sentences(execution(plan, found))
    assert " with 1 at once (" in first
    assert busy.startswith("This machine is busy (load 900.0 on ")
    assert busy.endswith(f"use `--jobs {cores()}`.")


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59, "59 s"), (90, "1.5 min"), (5400, "1.5 h"), (2e5, "2.3 d")],
)
def test_durations_as_people_say_them(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(("count", "text"), [(2e3, "2.0 kB"), (3e6, "3.0 MB"), (2.5e9, "2.5 GB")])
def test_sizes_as_people_say_them(count, text):
    assert size(count) == text


@pytest.mark.parametrize(
    "change",
    [
        *({"speeds": {"2x64": {}}}, {"speeds": 3}, {"tokens": None}, {"tokens": {"a": "x"}}),
        {"tokens": {"a": float("nan")}},
    ],
)
def test_a_damaged_calibration_is_measured_again(tmp_path, change):
    write_json(tmp_path / paths.CALIBRATION, {**MEASURED, "machine": machine(), **change})
    assert measured_here(tmp_path) == Calibration(machine=machine())


def test_what_finished_steps_cost_stands_beside_what_was_estimated(finished):
    table = costs(finished, RUN).set_index("step")
    steps = [s for s in make_plan(read_study(finished)).steps.values() if RUN in s.name]
    assert len(table) == len(steps)
    assert {"train", "localise swapping", "analyse centroids", "plant"} <= set(table.index)
    assert (table[["memory", "memory, estimated"]] > 100).all().all()
    disk = table["disk"]
    assert disk["plant"] != disk["train"] > disk["localise swapping"]
    assert costs(finished, "another/run/seed-1").empty


@pytest.mark.parametrize(("width", "tokens"), [(384, 768), (64, 2048)])
def test_gradients_need_memory_for_two_models_the_gradients_of_groups_and_their_own_batch(
    width, tokens
):
    """Of 12 blocks of width 384, 85 MB, six groups of two gradients of 85 MB fit a gigabyte."""
    shape, groups = Shape(12, width, 30_522), {384: 6, 64: 8}[width]
    blocks = 4 * 12 * 12 * width**2
    models, gradients = 2 * shape.bytes, 2 * blocks * (groups + 2) + blocks
    states = 4 * 34 * tokens * width * 12
    for training in (1e9, 5e9):
        assert Gradients().memory(shape, training) == models + gradients + states
        assert Shares().memory(shape, training) == training
    two = Gradients(interval_groups=2).memory(shape, 1e9)
    assert Gradients().memory(shape, 1e9) - two == pytest.approx((groups - 2) * 2 * blocks)
