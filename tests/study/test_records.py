"""Records of steps: what is removed when settings change, and that nothing is lost half-way."""

import os
import signal
import time

import pytest

from fixtures.forked import ended, forked
from fixtures.plans import SPEC
from memloc.errors import StoreError
from memloc.model.shape import Shape
from memloc.store import files as files_module
from memloc.store.files import drafts_in, new_draft
from memloc.store.lock import RUN, locked, who_runs
from memloc.store.records import read_json, write_json
from memloc.study.plan import Step
from memloc.study.records import Store


def make_step(training=1, swapping=1, probing=1):
    return Step(
        name="plant/x",
        action="plant",
        spec=SPEC,
        folder="run",
        shape=Shape(2, 8, 0),
        products={
            "plant": {"rate": training},
            "swapping": {"swaps": swapping},
            "probing": {"probes": probing},
        },
        removes={
            "plant": ("run",),
            "swapping": ("run/swapping",),
            "probing": ("run/probing",),
        },
        outputs=("run/json",),
    )


def make_files(folder):
    (folder / "run").mkdir(exist_ok=True)
    for name in ("json", "swapping", "probing"):
        (folder / "run" / name).write_text(name)


def files(folder):
    return sorted(p.name for p in (folder / "run").glob("*")) if (folder / "run").is_dir() else []


def finished(tmp_path, step):
    store = Store(tmp_path)
    store.begin(step, "one")
    make_files(tmp_path)
    store.finish(step, {"seconds": 1.0, "peak_mb": 2.0})
    return store


def test_a_step_is_missing_then_begun_then_done(tmp_path):
    step = make_step()
    store = Store(tmp_path)
    assert store.state(step).name == "missing"
    store.begin(step, "one")
    assert store.state(step).why == "begun"
    make_files(tmp_path)
    store.finish(step, {"seconds": 1.0, "peak_mb": 2.0})
    assert store.state(step).name == "done"


@pytest.mark.parametrize("name", ["products", "settings", "allowed", "results"])
def test_a_record_that_holds_something_else_is_refused(tmp_path, name):
    step = make_step()
    store = finished(tmp_path, step)
    path = store.record_path(step.name)
    write_json(path, {**read_json(path), name: [1]})
    with pytest.raises(StoreError, match=rf"\({name} is \[1\]: .*; delete it and run again"):
        store.begin(make_step(training=2), "two")


def test_a_done_step_whose_files_are_gone_is_missing(tmp_path):
    step = make_step()
    store = finished(tmp_path, step)
    (tmp_path / "run" / "json").unlink()
    state = store.state(step)
    assert (state.name, state.why) == ("missing", "run/json is not there")


def test_a_result_that_another_command_made_anew_is_stale(tmp_path):
    step = make_step().model_copy(update={"outputs": ("run/about.json",)})
    (tmp_path / "run").mkdir()
    about = tmp_path / "run" / "about.json"
    about.write_text("norm: L1")
    store = finished(tmp_path, step)
    assert store.state(step).name == "done"
    about.write_text("norm: L2")
    state = store.state(step)
    assert (state.name, state.why) == ("stale", "run/about.json was made anew by another command")


def test_a_failure_keeps_its_reason_until_settings_change(tmp_path):
    step, other = make_step(), make_step(training=2)
    store = Store(tmp_path)
    store.fail(step, "no luck")
    assert store.state(step).why == "no luck"
    assert store.state(other).name == "stale"


@pytest.mark.parametrize(
    ("now", "left"),
    [
        (make_step(), ["json", "probing", "swapping"]),
        (make_step(swapping=2), ["json", "probing"]),
        (make_step(training=2), []),
        (make_step().model_copy(update={"reads": "another"}), []),
    ],
    ids=["same", "one product", "the ground of all", "what it reads"],
)
def test_what_no_longer_holds_is_removed_and_nothing_else(tmp_path, now, left):
    store = finished(tmp_path, make_step())
    store.begin(now, "two")
    assert files(tmp_path) == left
    assert store.owner("plant/x") == "two"


def test_killed_while_removing_it_is_removed_next_time(tmp_path, monkeypatch):
    store, now = finished(tmp_path, make_step()), make_step(training=2)

    def killed(path):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(files_module, "_delete", killed)
        with pytest.raises(KeyboardInterrupt):
            store.begin(now, "two")
    assert store.state(now).name == "stale"
    store.begin(now, "two")
    assert files(tmp_path) == []


def test_drafts_of_killed_processes_are_swept(tmp_path):
    store = finished(tmp_path, make_step())
    new_draft(tmp_path / "run" / "table.parquet").write_text("half")
    new_draft(tmp_path / "run" / "final").mkdir()
    store.sweep()
    assert files(tmp_path) == ["json", "probing", "swapping"]


def test_files_of_users_that_are_named_like_drafts_stay(tmp_path):
    store = finished(tmp_path, make_step())
    (tmp_path / "download.part").write_text("mine")
    (tmp_path / "run" / "notes.part").mkdir()
    (tmp_path / "run" / "link.part").symlink_to(tmp_path / "nowhere")
    new_draft(tmp_path / "link").symlink_to(tmp_path / "run")
    store.sweep()
    assert files(tmp_path) == ["json", "link.part", "notes.part", "probing", "swapping"]
    assert (tmp_path / "download.part").read_text() == "mine"
    assert not drafts_in(tmp_path)


def test_a_damaged_record_says_what_to_delete(tmp_path):
    store = finished(tmp_path, make_step())
    store.record_path("plant/x").write_text("{")
    with pytest.raises(StoreError, match=r"x\.json is not JSON .*delete it"):
        store.record("plant/x")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *[("state", "x"), ("state", 3), ("identity", None), ("seconds", "x"), ("seconds", -1)],
        *[("peak_mb", float("nan")), ("peak_mb", "1"), ("settings", []), ("products", 3)],
        *[("processor", "x"), ("processor", -1), ("threads", 0), ("threads", 1.5)],
    ],
)
def test_a_damaged_record_of_a_step_is_refused_by_its_name(tmp_path, name, value):
    store, step = Store(tmp_path), make_step()
    store.finish(step, {"seconds": 1.0, "peak_mb": 2.0})
    write_json(
        store.record_path(step.name), {**read_json(store.record_path(step.name)), name: value}
    )
    with pytest.raises(StoreError, match=r"plant/x.json does not hold what it should") as refused:
        store.record(step.name)
    found = "empty" if value is None else repr(value)
    assert f"({name} is {found}: " in str(refused.value)
    assert "http" not in str(refused.value)


@pytest.mark.parametrize(
    ("state", "name"), [("done", "seconds"), ("done", "peak_mb"), ("failed", "reason")]
)
def test_a_record_that_lacks_what_its_state_needs_is_refused(tmp_path, state, name):
    store, step = Store(tmp_path), make_step()
    store.finish(step, {"state": state, "seconds": 1.0, "peak_mb": 2.0, "reason": "no luck"})
    whole = read_json(store.record_path(step.name))
    assert store.record(step.name).state == state
    write_json(store.record_path(step.name), {k: v for k, v in whole.items() if k != name})
    with pytest.raises(StoreError, match=rf"\({name} is missing\); delete it and run again"):
        store.record(step.name)


def is_trained_elsewhere(run):
    about = {"host": "elsewhere", "pid": 1, "beat": time.time()}
    write_json(run / "running.json", about)


def test_a_run_that_another_process_is_training_is_not_removed(tmp_path):
    store, now = finished(tmp_path, make_step()), make_step(training=2)
    is_trained_elsewhere(tmp_path / "run")
    for step in (now, make_step(swapping=2)):
        with pytest.raises(StoreError, match="run is being trained by process 1 on elsewhere"):
            store.begin(step, "two")
    assert files(tmp_path) == ["json", "probing", "running.json", "swapping"]
    assert store.owner("plant/x") == "two"  # so that a process which it was taken from ends
    (tmp_path / "run" / "running.json").unlink()
    store.begin(now, "two")
    assert not files(tmp_path)
    assert not list(tmp_path.rglob("*.part"))


def test_drafts_of_a_run_that_another_process_is_training_stay(tmp_path):
    store = finished(tmp_path, make_step())
    is_trained_elsewhere(tmp_path / "run")
    drafts = [new_draft(tmp_path / "run" / "final"), new_draft(tmp_path / "other")]
    for draft in drafts:
        draft.write_text("half")
    store.sweep()
    assert [draft.is_file() for draft in drafts] == [True, False]


def test_drafts_of_a_killed_process_go_even_before_its_parent_has_noticed(tmp_path):
    store, draft = finished(tmp_path, make_step()), new_draft(tmp_path / "run" / "final")

    def work():
        with locked(tmp_path / "run", RUN):
            draft.write_text("half")
            os.kill(os.getpid(), signal.SIGKILL)

    child = forked(work)
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)  # it is still listed
    assert who_runs(tmp_path / "run", RUN) is not None
    store.sweep()
    assert not draft.exists()
    ended(child)
