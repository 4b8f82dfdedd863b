"""A file of a study is damaged: `run`, `localise` and `report` agree on what is there.

After any damage each of them gives the numbers from before, or computes them again, or refuses in
one sentence. What `run` calls done, the report reads.
"""

import shutil

import numpy as np
import pandas as pd
import pytest

from fixtures.plans import RUN, plan_of
from fixtures.power import THOROUGH
from memloc.errors import MemlocError
from memloc.methods.apply import localise
from memloc.reporting.results import load_results
from memloc.run.folder import Run
from memloc.study import step as steps
from memloc.study.records import study_states

CORRUPTIONS = 200 if THOROUGH else 50
PART = 25
"""Corruptions of one test."""
CHANGES = {
    "methods: [swapping, retraining, gradients, probing]": "methods: [swapping, gradients]",
    "analyses: [centroids, label_probes, generalisation]": "analyses: []",
    'control: {windows: ["1"], methods: [swapping]}\n': "",
}


@pytest.fixture(autouse=True)
def _in_this_process(monkeypatch):
    monkeypatch.setattr(steps, "_watch", lambda *_: None)
    monkeypatch.setattr(steps, "limit_threads", lambda _: None)


def done(folder):
    """Do what is missing, as `memloc run` does; the reasons of what failed."""
    plan, failed = plan_of(folder), []
    for name, step in plan.steps.items():
        state = study_states(plan)[name]
        if state.name == "failed":
            failed.append(state.why)
        elif state.name != "done":
            outcome = steps.do(step.model_copy(update={"token": "token"}))
            failed += [outcome.reason] if outcome.reason else []
    return failed


def numbers(folder):
    """All tables of a report."""
    left_out = ["seconds", "folder"]
    tables = load_results(folder).tables
    shown = {name: t.drop(columns=left_out, errors="ignore") for name, t in tables.items()}
    # Curves stand in the order in which trainings ended.
    by = ["training", "epoch"]
    return shown | {"training": shown["training"].sort_values(by, ignore_index=True)}


def answer(ask, *given):
    """What is answered, or the one sentence of a refusal."""
    try:
        return ask(*given)
    except MemlocError as error:
        said = str(error)
    assert "\n" not in said
    return said


def localised(folder):
    found = localise(Run.open(folder / RUN, "cpu"), ["swapping", "gradients"], force=True)
    return {(n, t): table for n, r in found.results.items() for t, table in r.tables.items()}


def corrupt(path, rng):
    """Damage a file in a random way; how is returned."""
    whole = path.read_bytes()
    place = int(rng.integers(len(whole))) if whole else 0
    how = str(rng.choice(["flip", "cut", "delete", "edit", "zeros"]))
    if how == "delete":
        path.unlink()
        return how
    digits = [i for i, byte in enumerate(whole) if chr(byte).isdigit()] or [place]
    at = int(rng.choice(digits))
    path.write_bytes(
        {
            "flip": whole[:place]
            + bytes([whole[place] ^ (1 << int(rng.integers(8)))])
            + whole[place + 1 :],
            "cut": whole[:place],
            "edit": whole[:at] + bytes([48 + (whole[at] - 47) % 10]) + whole[at + 1 :],
            "zeros": whole[:place] + bytes(8) + whole[place + 8 :],
        }[how]
    )
    return how


def assert_same(found, expected):
    assert found.keys() == expected.keys()
    for name, table in expected.items():
        pd.testing.assert_frame_equal(found[name], table, obj=str(name))


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    return tmp_path_factory.mktemp("kept") / "study"


@pytest.fixture
def whole(micro, kept):
    """A finished study, its numbers, and what `localise` gives."""
    if not kept.exists():
        folder = micro(changes=CHANGES)
        assert done(folder) == []
        shutil.copytree(folder, kept)
        assert done(kept) == []
    return kept, numbers(kept), localised(kept)


@pytest.mark.parametrize(
    "seed",
    [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(1, CORRUPTIONS // PART))],
)
def test_after_any_corruption_run_localise_and_report_agree(whole, tmp_path, seed):
    kept, expected, scores = whole
    rng = np.random.default_rng(seed)
    files = sorted(p.relative_to(kept) for p in (kept / RUN).rglob("*") if p.is_file())
    kinds = sorted({(p.suffix, p.name) for p in files})
    for number in range(PART):
        folder = shutil.copytree(kept, tmp_path / str(number))
        kind = kinds[int(rng.integers(len(kinds)))]
        some = [p for p in files if (p.suffix, p.name) == kind]
        path = some[int(rng.integers(len(some)))]
        how = corrupt(folder / path, rng)
        said = f"seed {seed}, {number}: {how} {path}"
        print(said)
        before = answer(numbers, folder)
        if not isinstance(before, str):
            assert_same(before, expected)
        one = shutil.copytree(folder, tmp_path / f"{number} localised")
        found = answer(localised, one)
        if not isinstance(found, str):
            assert_same(found, scores)
        failed = answer(done, folder)
        after = answer(numbers, folder)
        if not failed:
            assert not isinstance(after, str), f"{said}: done by run, but the report says {after}"
        if not isinstance(after, str):
            assert_same(after, expected)
        shutil.rmtree(folder)
        shutil.rmtree(one)
