"""Studies from end to end: write an example, plan it, run it, say how it stands."""

import json
import re
from collections.abc import Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from memloc import paths
from memloc.errors import SettingsError, StoreError, counted, lookup
from memloc.lock import STUDY, who_runs
from memloc.models import tiny
from memloc.models.known import default_preset
from memloc.progress import tell
from memloc.records import whole_file
from memloc.study.checks import check_files, check_names
from memloc.study.config import parse_study, read_study
from memloc.study.estimate import Estimate, calibration, estimate
from memloc.study.execute import Execution, Executor, Progress, Watcher, cores, threads_for
from memloc.study.plan import Plan
from memloc.study.planning import make_plan
from memloc.study.processes import LocalExecutor
from memloc.study.records import State, Store
from memloc.study.tasks import noise_sentence

EXAMPLES = ("demo", "small", "paper")
"""The studies that come with the package."""


@dataclass(frozen=True)
class Options:
    """Where a study runs, and which of its steps."""

    jobs: int | None = None
    """Steps at once; default: as many as there are cores."""
    only: Sequence[str] = ()
    """Words that choose steps; none: all."""
    retry: bool = False
    """Whether steps that failed before are tried again."""
    on: str = "local"
    """`local`: processes of this machine; `ray`: a Ray cluster."""
    address: str | None = None
    """Of the cluster; default: the one that this machine is part of, or a new one on it."""


def init_study(example: str, folder: str | Path | None = None) -> Path:
    """Write the example's file into a folder, which becomes the study's; returns the file."""
    lookup("example study", example, {name: name for name in EXAMPLES})
    text = files("memloc.study").joinpath("examples", f"{example}.yaml").read_text("utf-8")
    path = (Path(example) if folder is None else Path(folder)) / paths.STUDY
    if path.exists() and path.read_text(encoding="utf-8") != text:
        raise StoreError(f"{path} exists and describes another study: choose another folder.")
    with whole_file(path) as draft:
        draft.write_text(text, encoding="utf-8")
    return path


def open_plan(place: str | Path) -> Plan:
    """The steps of the study in a folder."""
    file = read_study(place)
    plan = make_plan(file)
    check_files(file)
    return plan


def estimate_study(plan: Plan, jobs: int | None = None) -> Estimate:
    """What each step will cost; measures this machine for some seconds where that is not done."""
    there = cores()
    threads = {s.name: threads_for(s, jobs or 1, there) for s in plan.steps.values()}
    widest = max(threads.values(), default=1)
    return estimate(plan, calibration(plan, widest), threads)


def run_study(place: str | Path, options: Options, watch: Watcher) -> Progress:
    """Do what is missing of a study."""
    plan = open_plan(place)
    chosen = plan.chosen(options.only)  # words that fit nothing are refused before anything else
    there, jobs = cores(), checked_jobs(options.jobs)
    expected = estimate_study(plan, options.jobs)
    executor, there = _executor(plan, options, jobs, there)
    for sentence in noise_sentences(plan, chosen):
        tell(sentence)
    return Execution(plan, executor, expected, options.only, options.retry, there).run(watch)


def noise_sentences(plan: Plan, chosen: Container[str]) -> list[str]:
    """Of every task that is left to do: how many labels are wrong, and how that is known."""
    states, found = study_states(plan), dict[str, None]()
    for name, step in plan.steps.items():
        if step.shape is None or name not in chosen or states[name].name == "done":
            continue
        task, run = step.what["task"], step.what["run"]
        if run is None:
            found[noise_sentence(plan.file, task, step.what["protocol"])] = None
        else:
            found[f"{run.name}: {run.noisy.summary()}"] = None
    return list(found)


def checked_jobs(jobs: int | None) -> int:
    """At most one a core: more of them would only wait for each other."""
    there = cores()
    if jobs is None:
        return there
    if not 1 <= jobs <= there:
        raise SettingsError(
            f"--jobs is {jobs}; this machine has {counted(there, 'core')}: use 1 to {there}."
        )
    return jobs


def _executor(plan: Plan, options: Options, jobs: int, there: int) -> tuple[Executor, int]:
    lookup("place to run", options.on, {"local": 1, "ray": 1})
    if options.on == "ray":
        from memloc.study.ray import RayExecutor

        cluster = RayExecutor(plan.file.folder, options.address)
        return cluster, cluster.cores()
    if options.address is not None:
        raise SettingsError("--address is for --on ray.")
    return LocalExecutor(plan.file.folder, jobs, there, _model_types(plan)), there


def _model_types(plan: Plan) -> set[str]:
    """The types of the models whose configuration is on this machine."""
    found = set()
    for name in {str(step.what["model"]) for step in plan.steps.values() if step.shape}:
        folder = tiny.folder(name) if name in tiny.NAMES else Path(name).expanduser()
        if (folder / "config.json").is_file():
            config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
            found.add(str(config.get("model_type", "")))
    return found


def study_states(plan: Plan) -> dict[str, State]:
    """How every step stands."""
    return Store(plan.file.folder).states(plan)


def study_status(place: str | Path) -> dict[str, Any]:
    """How a study stands, and what the process that runs it says, if there is one."""
    plan = open_plan(place)
    states = study_states(plan)
    running = who_runs(plan.file.folder, STUDY)
    return {
        "folder": str(plan.file.folder),
        "steps": len(states),
        **{s: count(states, s) for s in ("done", "missing", "stale", "failed")},
        **_spent(plan, [name for name, state in states.items() if state.name == "done"]),
        "running": running,
        "failures": {n: s.why for n, s in states.items() if s.name == "failed"},
    }


def _spent(plan: Plan, done: Sequence[str]) -> dict[str, float]:
    """What the steps that are done took: seconds one after the other, the largest memory, disk."""
    store = Store(plan.file.folder)
    records = [record for name in done if (record := store.record(name))]
    return {
        "seconds": sum(float(record["seconds"]) for record in records),
        "memory": max((float(record["peak_mb"]) * 1e6 for record in records), default=0.0),
        "disk": float(sum(_bytes(path) for path in plan.file.folder.rglob("*"))),
    }


def _bytes(path: Path) -> int:
    with suppress(FileNotFoundError):  # a draft, which has its name by now
        return path.stat().st_size if path.is_file() else 0
    return 0


def count(states: dict[str, State], name: str) -> int:
    """How many steps stand so."""
    return sum(state.name == name for state in states.values())


def read_log(place: str | Path, step: str) -> str:
    """What a step has printed, all its attempts."""
    plan = open_plan(place)
    lookup("step", step, plan.steps)
    path = Store(plan.file.folder).log_path(step)
    if not path.is_file():
        raise StoreError(f"{step} has not been begun: there is no {path}.")
    return path.read_text(encoding="utf-8", errors="replace")


def control_study(out: Path, study: Mapping[str, Any], block: Mapping[str, Any]) -> Path:
    """Write a study that does nothing but plant; its folder is returned.

    What is None is left to the study's defaults. A folder with another study is refused.
    """
    import yaml

    models = [_found(model) for model in study["models"]]
    preset = study["preset"] or default_preset(models[0])
    asked = _given({**study, "preset": preset, "models": models})
    planted = _given({"tasks": [*study["tasks"]], **block})  # a copy: YAML would refer to it
    asked |= {"methods": [], "analyses": [], "report": False, "control": planted}
    text = yaml.safe_dump(asked, sort_keys=False, allow_unicode=True)
    path = out / paths.STUDY
    try:
        file = parse_study(text, out)
        check_names(file)
    except SettingsError as error:  # of a file that nobody has seen
        said = re.sub(r"^line \d+, ", "", str(error).removeprefix(f"{path}, "))
        raise SettingsError(said) from None
    if not path.is_file():
        with whole_file(path) as draft:
            draft.write_text(text, encoding="utf-8")
    elif read_study(out).study != file.study:
        raise StoreError(
            f"{path} describes another study: choose another folder with --out, or edit that file "
            f"and use `memloc run {out}`."
        )
    return out


def _found(model: str) -> str:
    """A folder by its whole path: in a study's file, paths are from the study's folder."""
    path = Path(model).expanduser()
    return str(path.resolve()) if path.is_dir() else model


def _given(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in values.items() if value not in (None, {}, [])}
