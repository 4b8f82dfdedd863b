"""The order of steps, failures, retries: with an executor that does nothing but say how it went."""

import pytest

from fixtures.plans import RUN, make_step, write_rows
from memloc.errors import MemlocError, SettingsError
from memloc.progress import telling
from memloc.reporting import page
from memloc.store import paths
from memloc.study import execute
from memloc.study.config import read_study
from memloc.study.estimate import Estimate, urgency
from memloc.study.execute import (
    Execution,
    checked_jobs,
    cores,
    open_study,
    page_of,
    threads_for,
)
from memloc.study.executors import Child, LocalExecutor
from memloc.study.plan import make_plan
from memloc.study.records import StepEnd, Store
from memloc.study.view import end_sentences

TRAIN, PLANT = f"train/{RUN}", f"plant/{RUN}/1-1"


class Saying:
    """Steps whose names hold a word of `fails` fail; the others leave their files and records."""

    cores = jobs = 2

    def __init__(self, plan, fails=(), slots=2):
        self.plan, self.fails, self.slots = plan, fails, slots
        self.folder = plan.file.folder
        self.store = Store(plan.file.folder)
        self.submitted, self.waiting, self.most = [], [], 0
        self.started = self.stopped = 0

    def start(self):
        self.started += 1
        self.seen_before = len(self.seen)

    def has_room(self, step):
        return len(self.waiting) < self.slots

    def submit(self, step):
        self.submitted.append(step.name)
        self.waiting.append(step)
        self.most = max(self.most, len(self.waiting))

    def is_at_work(self, step):
        return True

    def wait(self, seconds):
        return [self.outcome(self.waiting.pop(0))]

    def outcome(self, step):
        if any(word in step.name for word in self.fails):
            return StepEnd(step=step.name, reason="it was told to")
        self.store.begin(step, step.token)
        for path in step.outputs:
            (self.store.folder / path).parent.mkdir(parents=True, exist_ok=True)
            (self.store.folder / path).touch()
        self.store.finish(step, {"seconds": 1.0, "peak_mb": 1.0})
        return StepEnd(step=step.name, seconds=1.0, peak_mb=1.0)

    def stop(self):
        self.stopped += 1


def run_steps(folder, fails=(), slots=2, only=(), **options):
    plan = make_plan(read_study(folder))
    executor = Saying(plan, fails, slots)
    ones = dict.fromkeys(plan.steps, 1.0)
    estimate = Estimate(ones, ones, ones, dict.fromkeys(plan.steps, 1))
    seen = executor.seen = []
    execution = Execution(plan, executor, estimate, plan.chosen(only), {}, **options)
    execution.run(lambda e, outcome: seen.append((e.count("done"), outcome)))
    return executor, execution, seen


@pytest.fixture
def folder(micro):
    return micro(changes={"report: false": "report: true"})


def test_everything_is_done_once_and_in_order(folder):
    executor, progress, seen = run_steps(folder)
    steps = executor.plan.steps
    assert sorted(executor.submitted) == sorted(steps)
    for step in steps.values():
        before = executor.submitted[: executor.submitted.index(step.name)]
        assert not step.needs or step.needs in before
    assert progress.count("done") == len(steps)
    assert executor.most == 2
    assert (executor.started, executor.stopped) == (1, 1)
    assert executor.seen_before == 1  # how much there is to do is shown before what takes long
    assert [outcome.step for _, outcome in seen if outcome] == executor.submitted


def test_a_second_time_there_is_nothing_to_do(folder):
    run_steps(folder)
    executor, progress, _ = run_steps(folder)
    assert (executor.submitted, executor.started) == ([], 0)
    assert progress.seconds_left() == 0
    assert end_sentences(progress) == ["Nothing to do: all that was asked for is done."]


def test_what_fails_does_not_stop_what_does_not_need_it(folder):
    executor, progress, _ = run_steps(folder, fails=["train"])
    assert set(executor.submitted) == {TRAIN, PLANT}
    assert progress.states[TRAIN].why == "it was told to"
    assert set(progress.blocked.values()) == {TRAIN}
    assert len(progress.blocked) == 7


def test_what_failed_is_tried_again_only_if_asked(folder):
    run_steps(folder, fails=["centroids"])
    executor, progress, _ = run_steps(folder)
    assert executor.submitted == []
    assert progress.count("failed") == 1
    executor, progress, _ = run_steps(folder, retry=True)
    assert executor.submitted == [f"analyse/{RUN}/centroids"]
    assert progress.count("failed") == 0


def test_the_report_is_made_of_what_is_there_and_again_when_there_is_more(folder, monkeypatch):
    written = []

    def write(folder):
        written.append(folder)
        paths.page(folder).parent.mkdir(exist_ok=True)
        paths.page(folder).touch()
        paths.page(folder).with_suffix(".json").touch()

    monkeypatch.setattr(page, "write_report", write)
    monkeypatch.setattr(page, "read_report", lambda folder: folder)
    _, nothing, _ = run_steps(folder, fails=["plant", "train"])
    page_of(nothing)
    assert not written  # there is nothing to sum up
    _, some, _ = run_steps(folder, fails=["plant"], retry=True)
    page_of(some)
    assert page_of(some) == folder  # it is as new as what it sums up
    assert len(written) == 1
    _, everything, _ = run_steps(folder, retry=True)
    page_of(everything)
    assert len(written) == 2
    (folder / "study.yaml").write_text((folder / "study.yaml").read_text())
    page_of(everything)  # it may be summed up in another way
    assert len(written) == 3
    paths.page(folder).with_suffix(".json").unlink()  # as if killed while it was written
    page_of(everything)
    assert len(written) == 4


def test_without_a_report_to_make_the_one_that_is_there_is_read(micro, monkeypatch):
    monkeypatch.setattr(page, "read_report", lambda folder: "as it is")
    monkeypatch.setattr(page, "write_report", lambda folder: pytest.fail("it is written"))
    _, done, _ = run_steps(micro())
    assert page_of(done) == "as it is"


def test_only_some_steps(folder):
    executor, _, _ = run_steps(folder, only=["swapping localise"])
    assert executor.submitted == [TRAIN, f"localise/{RUN}/swapping"]


def test_a_step_that_is_done_stays_so_if_its_process_is_ended_after_it(folder):
    class Ending(Saying):
        def outcome(self, step):
            super().outcome(step)
            return StepEnd(step=step.name, reason="its process was ended by SIGKILL")

    plan = make_plan(read_study(folder))
    ones = dict.fromkeys(plan.steps, 1.0)
    estimate = Estimate(ones, ones, ones, dict.fromkeys(plan.steps, 1))
    execution = Execution(plan, Ending(plan), estimate, plan.chosen([TRAIN]), {})
    said = execution.executor.seen = []
    execution.run(
        lambda _, outcome: said.append(outcome and (outcome.step, outcome.reason, outcome.seconds))
    )
    assert execution.states[TRAIN].name == execution.store.record(TRAIN).state == "done"
    assert (TRAIN, "", 1.0) in said
    # Records that cannot be read spoil nothing else.
    execution.store.record_path(TRAIN).write_text("{")
    execution.submitted = {TRAIN: make_step()}
    assert execution._note(StepEnd(step=TRAIN, reason="no")).reason == "no"


def test_steps_on_which_most_depends_come_first(folder):
    plan = make_plan(read_study(folder))
    seconds = {name: 9.0 if name == PLANT else 1.0 for name in plan.steps}
    urgent = urgency(plan, seconds)
    assert urgent[PLANT] == 9
    assert urgent[TRAIN] == 1 + 1  # itself and one of those that wait for it


@pytest.mark.parametrize(
    ("busy", "threads", "room"),
    [([], 1, True), ([1], 1, True), ([1, 1], 1, False), ([1], 2, False), ([], 4, True)],
)
def test_there_are_never_more_threads_than_cores(tmp_path, busy, threads, room):
    executor = LocalExecutor(tmp_path, jobs=4, cores=2)
    executor._children = {pipe: Child("x", n, 0, pipe, lambda: 0) for pipe, n in enumerate(busy)}
    assert executor.has_room(make_step(threads=threads)) is room


def test_narrow_models_get_one_thread_and_wide_ones_their_share(tmp_path, folder):
    plan = make_plan(read_study(folder))
    assert threads_for(plan.steps[TRAIN], 1, 8) == 1
    text = (folder / "study.yaml").read_text().replace("tiny-opt", "facebook/opt-125m")
    (folder / "study.yaml").write_text(text)
    (wide,) = [s for s in make_plan(read_study(folder)).steps.values() if s.action == "train"]
    assert [threads_for(wide, jobs, 8) for jobs in (1, 3, 8)] == [8, 2, 1]


def test_jobs_are_at_most_one_for_each_core():
    assert checked_jobs(None) == cores()
    assert checked_jobs(1) == 1
    for jobs in (0, cores() + 1):
        with pytest.raises(SettingsError, match=f"--jobs is {jobs}; .*: use 1 to {cores()}"):
            checked_jobs(jobs)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"on": "moon"}, "No place to run is called 'moon'"),
        ({"address": "auto"}, "--address is for --on ray"),
        ({"only": ["bert"]}, "No step matches --only 'bert'"),
    ],
)
def test_options_that_mean_nothing_are_refused_before_anything_runs(
    micro, monkeypatch, options, message
):
    monkeypatch.setattr(execute, "estimate_study", lambda *_: None)
    folder = micro()
    with pytest.raises(MemlocError, match=message):
        open_study(folder, **options)
    assert not (folder / "steps").exists()


def test_what_is_noisy_is_said_once_a_task_when_a_study_starts(micro):
    folder = micro(
        changes={
            "tiny-sentiment]": "tiny-sentiment, mine]\ndata: {mine: {file: mine.csv, flag: wrong}}",
            'windows: ["1"]': 'tasks: [tiny-sentiment], windows: ["1"]',
            "examples: 30\n": "",
        }
    )
    write_rows(folder)
    said, few = [], []
    with telling(lambda line: (few if "NO ANSWER" in line else said).append(line)):
        run_steps(folder, only=["train mine"])
        assert len(said) == 1
        run_steps(folder)
        assert len(said) == 3
        run_steps(folder)  # nothing is left to do
    assert len(said) == 3
    assert said[0] == said[2]
    assert said[0].startswith("mine: ")
    assert said[0].endswith("noisy of 48 examples, column 'wrong' read as flags.")
    assert said[1].startswith("tiny-sentiment: ")
    assert said[1].endswith("labels flipped by memloc (a share of 0.15 of each class).")
    assert few[0].startswith("mine: NO ANSWER WILL BE POSSIBLE: ")
