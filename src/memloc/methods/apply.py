"""Runs methods on a run: checks settings, then computes each result or reads the stored one."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from memloc.arrays import Table
from memloc.display import Card, Plotted
from memloc.errors import (
    DataError,
    SettingsError,
    StoreError,
    UnknownKey,
    checked_arguments,
    lookup,
)
from memloc.methods import Kind, Method, Named, Sizes
from memloc.methods.early import LEAST_GAP, early_donor, early_sentence
from memloc.methods.game import Game
from memloc.methods.protocol import preset, requested_methods
from memloc.methods.registry import exactness, method_names, methods
from memloc.methods.result import Result
from memloc.model.device import suitable_threads
from memloc.progress import announce, request, tell
from memloc.protocol import VerdictSettings, readable, refuse_idle
from memloc.run.folder import Run
from memloc.stats.answers import Answer, agrees, half_of
from memloc.store import paths
from memloc.store.memo import Format, Maker, key, memo
from memloc.store.records import as_path


@dataclass(frozen=True, repr=False)
class Found(Plotted):
    """Results of methods on one run, by name, with the reasons why other methods could not run."""

    results: dict[str, Result]
    folder: Path
    skipped: dict[str, str]
    reused: tuple[str, ...] = ()
    """Methods whose stored result was still valid and was used again."""

    def __getitem__(self, name: str) -> Result:
        if name in self.skipped:
            raise UnknownKey(f"{name} was not run on this model: it {self.skipped[name]}.")
        return lookup("result", name, self.results, UnknownKey)

    @property
    def table(self) -> Table:
        """Tables of all methods, concatenated, with the name of the method in a column."""
        import pandas as pd

        named = [result.table.assign(method=name) for name, result in self.results.items()]
        every: Table = pd.concat(named, ignore_index=True)
        return every

    def card(self) -> Card:
        """Return the most exact answer with its strip of layers, and a table with one row per
        method.
        """
        title = f"{', '.join(self.results)} in {self.folder}"
        skipped = [f"{name} did not run: it {why}." for name, why in self.skipped.items()]
        answers = self.answers
        if not answers:
            rows = [{"method": n, "tables": ", ".join(r.tables)} for n, r in self.results.items()]
            return Card(title, skipped, rows=rows)
        best = next(iter(answers))
        rows = [{"method": name, "answer": str(answer)} for name, answer in answers.items()]
        sentences = [f"{best}: {answers[best]}", *skipped]
        return Card(title, sentences, self.results[best].weights.tolist(), rows)

    @property
    def answers(self) -> dict[str, Answer]:
        """Answers of all localisers, the most exact one first."""
        answers = {n: r.answer for n, r in self.results.items() if r.weighs_layers}
        return dict(sorted(answers.items(), key=lambda pair: -exactness(pair[0])))

    @property
    def agreement(self) -> dict[str, str]:
        """Agreement of each other localiser with the most exact one: yes, no, or empty."""
        answers = self.answers
        first = next(iter(answers), "")
        if not exactness(first):
            return {}
        word, profile = answers.pop(first).word, self.results[first].weights
        halves = {
            n: answer.layers or half_of(self.results[n].weights) for n, answer in answers.items()
        }
        return {n: agrees(word, profile, half) for n, half in halves.items()}


@checked_arguments
def localise(
    run: Run | str | Path,
    methods: Named | Sequence[Named] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    force: bool = False,
    device: str | None = None,
) -> Found:
    """Measure how much each layer of a run matters, by the named methods or by all that can run.

    Results are stored in the run's folder and used again as long as nothing they depend on changes.
    Quick methods run first.

    Args:
        run: The run, or its folder.
        methods: A name, a `memloc.Method` (an object or its class, registered or not), or a list of
            these; by default all localisers that can run.
        settings: Settings of methods that differ from the run's preset, such as `{"gradients.norm":
            "L2"}`.
        force: Whether to continue if labels were not memorised.
        device: `auto`, `cpu`, `cuda` or `mps`; by default the run's.
    """
    opened = open_run(run, device)
    return _look(opened, "localiser", methods, settings or {}, force)


@checked_arguments
def analyse(
    run: Run | str | Path,
    methods: Named | Sequence[Named] | None = None,
    *,
    settings: Mapping[str, Any] | None = None,
    force: bool = False,
    device: str | None = None,
) -> Found:
    """Analyse how noisy examples drift from class to class and how well the model generalises.

    The analyses are centroids, label_probes and generalisation.

    Args:
        run: The run, or its folder.
        methods: A name, a `memloc.Method`, or a list of these; by default all analyses that can
            run.
        settings: Settings of analyses that differ from the run's preset.
        force: Whether to continue if labels were not memorised.
        device: `auto`, `cpu`, `cuda` or `mps`; by default the run's.
    """
    opened = open_run(run, device)
    return _look(opened, "analysis", methods, settings or {}, force)


def open_run(run: Run | str | Path, device: str | None) -> Run:
    """Return a run or open the one in a folder; move it to `device` if one is given."""
    opened = run if isinstance(run, Run) else Run.open(as_path(run, "the folder of a run"))
    return opened if device is None else replace(opened, device=device)


def _look(
    run: Run,
    kind: Kind,
    named: Named | Sequence[Named] | None,
    settings: Mapping[str, Any],
    force: bool,
) -> Found:
    protocol = preset(run.settings.preset).replace(settings)
    _refuse_others(settings)
    skipped: dict[str, str] = {}
    if named is None:
        every = [_with_donor(run, protocol.method(name)) for name in method_names(kind)]
        chosen, skipped = runnable(run, every)
    else:
        chosen = [_with_donor(run, m) for m in requested_methods(named, kind, protocol, settings)]
    names = [method.name for method in chosen]
    refuse_idle(settings, ["verdict", *names, *skipped], " and ".join(names))
    findings = apply(run, chosen, protocol.verdict, force=force)
    return replace(findings, skipped=skipped)


def _with_donor(run: Run, method: Method) -> Method:
    """Return the method; without a reference, a game takes the best early epoch as its donor."""
    if not isinstance(method, Game) or method.donor != "reference" or run.has("reference"):
        return method
    donor = early_donor(run)
    if donor is None:
        return method
    if donor.gap < LEAST_GAP:
        tell(f"No reference, and no early epoch can take its place: the best is {donor}.")
        return method
    tell(f"{method.name}: no reference, so early weights take its place: {donor}.")
    return method.replace({"donor": donor.checkpoint})


def _refuse_others(settings: Mapping[str, Any]) -> None:
    """Refuse settings that decide weights: the weights exist already and would not change."""
    for name in settings:
        if name.split(".")[0] not in {*methods(), "verdict"}:
            raise SettingsError(
                f"{name} cannot be changed for weights that are there: settings of methods and "
                "verdict.noisy_at_least can."
            )


def apply(
    run: Run,
    chosen: Sequence[Method],
    verdict: VerdictSettings,
    *,
    force: bool = False,
) -> Found:
    """Run methods on a run, or read their stored results if these are still valid.

    Quick methods run first. Without `force`, a run that did not memorise its labels is refused.

    Args:
        run: The run.
        chosen: Methods with their settings.
        verdict: Settings that decide when labels count as memorised.
        force: Whether to continue if labels were not memorised.
    """
    final = run.require_memorised(verdict.noisy_at_least, force=force)
    for method in chosen:
        _refuse_texts(run, method)
        for weights in method.needs:
            run.require(weights)
        method.check(run)  # settings are refused before files are hashed, which takes seconds
        run.check_unchanged(method.used(run))
    tell(run.noisy.summary())
    _tell_weak_reference(run, chosen, verdict.noisy_at_least)
    # By the bar of today.
    forced = not run.memorised(verdict.noisy_at_least)
    judged = {"forced": forced, "final_noisy_accuracy": final.noisy}
    if left := [method for method in chosen if not _is_stored(run, method)]:
        announce("methods", run, left)
    results, reused = {}, list[str]()
    sizes = roughly(run)
    for method in sorted(chosen, key=lambda method: method.cost(sizes)):
        result = memo(
            paths.result(run.folder, method.name),
            result_key(run, method),
            partial(_made, run, method, judged),
            kept_as(run, method),
            reused=partial(_tell_reused, run, method, reused),
        )
        if method.scratch:
            shutil.rmtree(run.work(method.name), ignore_errors=True)
        results[method.name] = replace(result, about={**result.about, **judged})
    in_order = {method.name: results[method.name] for method in chosen}
    return Found(in_order, run.folder / paths.RESULTS, {}, tuple(reused))


def roughly(run: Run) -> Sizes:
    """Return the sizes of a run, with the speed of a slow machine on a narrow model."""
    return Sizes(
        examples=len(run.task.train),
        noisy=len(run.noisy_rows),
        depth=run.depth,
        update=6e-3,
        predict=2e-3,
        layer=1e-4,
        last_layer=5e-5,
        probe=1e-4,
    )


def _is_stored(run: Run, method: Method) -> bool:
    try:
        about = Result.read(paths.result(run.folder, method.name)).about
    except StoreError:
        return False
    return about.get("key") == result_key(run, method)


def _tell_reused(run: Run, method: Method, reused: list[str]) -> None:
    tell(f"{run.name}: {method.name} was stored before and is used again.")
    reused.append(method.name)


def _tell_weak_reference(run: Run, chosen: Sequence[Method], needed: float) -> None:
    looks = any("reference" in method.needs for method in chosen)
    if looks and run.has("reference") and run.reference_accuracy < needed:
        tell(
            f"The reference weights predict only {run.reference_accuracy:.0%} of their own labels, "
            "so replacing layers by theirs undoes anything: this says little."
        )


def runnable(run: Run, every: Sequence[Method]) -> tuple[list[Method], dict[str, str]]:
    """Return the methods that can run, and by name what the other methods lack."""
    skipped = {}
    for method in every:
        lacking = [w for w in method.needs if not run.has(w)]
        try:
            _refuse_texts(run, method)
            if lacking:
                skipped[method.name] = f"needs {' and '.join(lacking)} weights"
            else:
                method.check(run)
        except (DataError, StoreError) as error:
            skipped[method.name] = f"cannot: {str(error).rstrip('.')}"
    if len(skipped) == len(every):
        reasons = "; ".join(f"{method} {why}" for method, why in skipped.items())
        raise StoreError(f"No method can run on {run.name}: {reasons}.")
    return [method for method in every if method.name not in skipped], skipped


def _refuse_texts(run: Run, method: Method) -> None:
    """Refuse a method that has no meaning for memorised texts."""
    if method.labels_only and run.task.is_texts:
        raise DataError(f"{method.name} has no meaning for memorised texts: {method.labels_only}.")


def result_key(run: Run, method: Method) -> str:
    """Return the cache key of a result: the weights with their files, the data, and the
    settings.
    """
    used = method.used(run)
    decided_by = {
        "settings": method.model_dump(mode="json"),
        "uses": used,
        "run": run.identity(used),
        "files": run.files(used),
    }
    return key(Maker(method.name, method.version), decided_by)


def kept_as(run: Run, method: Method) -> Format[Result]:
    """Return the format of a stored result, whose tables carry its cache key."""
    return Format(lambda path, found, _key: found.write(path), partial(_read, run, method))


def _read(run: Run, method: Method, path: Path) -> tuple[Result, str]:
    """Return a stored result with its cache key; if the key is out of date, say what has
    changed.
    """
    stored_result = Result.read(path)
    stored = str(stored_result.about.get("key", ""))
    if stored != result_key(run, method):
        old, new = stored_result.about.get("settings", {}), method.model_dump(mode="json")
        changed = [
            f"{method.name}.{name}={readable(old[name])} and not {readable(value)}"
            for name, value in new.items()
            if name in old and old[name] != value
        ]
        why = ", ".join(changed) or "other weights or data, or by another version of the method"
        tell(f"{run.name}: {method.name} is computed again. The stored result was made with {why}.")
    return stored_result, stored


def _made(run: Run, method: Method, judged: Mapping[str, Any]) -> Result:
    with suitable_threads(run.record.width):
        result = method.found(run)
    if isinstance(method, Game) and (sentence := early_sentence(run, method.donor, result)):
        result = replace(result, about={**result.about, "early_donor": sentence})
    if result.weighs_layers:
        result = result.with_answer(n_classes=len(run.task.label_names))
    facts = {
        "key": result_key(run, method),
        "run": run.name,
        "command": request(),
        "settings": method.model_dump(mode="json"),
        "inputs": run.identity([*method.needs, *method.uses]),
        **judged,
    }
    return replace(result, about={**result.about, **facts})
