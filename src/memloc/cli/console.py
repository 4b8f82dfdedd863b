"""Prints for the command line: tables for people, JSON for machines, one line for an error."""

import json
import math
import signal
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperCommand, TyperGroup

from memloc.errors import MORE_MEMORY, MemlocError, MemlocWarning, counted, is_out_of_memory
from memloc.progress import plain, requested, say, telling
from memloc.store import paths

if TYPE_CHECKING:
    import pandas as pd

    from memloc.labels.find import Suspects
    from memloc.labels.repaired import Repaired
    from memloc.methods.apply import Found
    from memloc.methods.result import Result
    from memloc.reporting.page import Report
    from memloc.reporting.results import Results
    from memloc.run.folder import Run


WORDS = "memloc.words"
"""Key in a command's context of the words that were typed."""


class Command(TyperCommand):
    """A command whose help is in plain words."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments and options."""
        return _in_plain_words(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line; required ones have no brackets."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


VALUES = {"int": "NUMBER", "float": "NUMBER", "Path": "PATH"}
"""Names that help has for values of options, by their type in Python; other values are TEXT."""


def _in_plain_words(params: list[Any]) -> list[Any]:
    """Remove Python's types from the help of arguments and options."""
    for param in params:
        if param.param_type_name == "argument":
            param.metavar = param.metavar or param.name.upper()
            param.display_type = lambda _: ""
        elif param.is_flag:
            param.metavar = ""
        elif param.metavar is None and hasattr(param, "bare_type"):  # older typers say TEXT
            kind = param.bare_type().removeprefix("list[").removesuffix("]")
            param.metavar = VALUES.get(kind, "TEXT")
    return params


class Commands(TyperGroup):
    """The commands; an error that a user can put right becomes one line and exit code 1."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of memloc itself."""
        return _in_plain_words(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Keep what was typed: it is recorded with what it makes."""
        ctx.meta[WORDS] = list(args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            with _ended_from_outside(), requested(ctx.meta.get(WORDS, [])), _notes_on_stderr():
                return super().invoke(ctx)
        except MemlocError as error:
            raise _refused(str(error)) from None
        except OSError as error:
            if error.filename is None:  # nothing that was named on the command line
                raise
            reason = f"{str(error.filename)[:200]} cannot be used: {error.strerror}."
            raise _refused(f"{reason} Check the path and its permissions.") from None
        except KeyboardInterrupt as stop:
            say(
                "memloc: interrupted; what is finished is kept, and the same command continues "
                "from there.",
                sys.stderr,
            )
            number = stop.number if isinstance(stop, Terminated) else signal.SIGINT
            raise typer.Exit(128 + number) from None
        except (MemoryError, RuntimeError) as error:
            if is_out_of_memory(error):
                raise _refused(MORE_MEMORY) from None
            raise


class Terminated(KeyboardInterrupt):
    """This process was asked to end: by SIGTERM, as schedulers do, or as its terminal closed."""

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end."""


@contextmanager
def _ended_from_outside() -> Iterator[None]:
    """While active, SIGTERM and SIGHUP interrupt the work as Ctrl-C does."""
    if threading.current_thread() is not threading.main_thread():  # which alone hears signals
        yield
        return

    def end(number: int, _frame: object) -> None:
        raise Terminated(number)

    # What is ignored, as SIGHUP is after `nohup`, stays ignored.
    heard = [n for n in ENDING if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _notes_on_stderr() -> Iterator[None]:
    """While active, warnings and notes of memloc are printed as one plain line each."""

    def note(sentence: str) -> None:
        say(sentence, sys.stderr)

    def warn(message: Warning | str, category: type[Warning], *place: Any, **more: Any) -> None:
        if issubclass(category, MemlocWarning):
            note(str(message))
        else:
            others(message, category, *place, **more)

    with telling(note), warnings.catch_warnings():
        warnings.simplefilter("default", MemlocWarning)
        others = warnings.showwarning
        warnings.showwarning = warn
        yield


def _refused(message: str) -> typer.Exit:
    """Print an error on one line, and return the exit with code 1."""
    say(f"memloc: {' '.join(message.split())}", sys.stderr)
    return typer.Exit(1)


def show(as_json: bool, record: Any, *said: Any) -> None:
    """Print a record as JSON for machines, or what is `said` of it for people.

    Texts are printed as they are, lists of mappings and data frames as tables, a mapping as one
    line a field.
    """
    if as_json:
        say(json.dumps(_as_json(record), indent=2, ensure_ascii=False))
        return
    for each in said or (record,):
        if isinstance(each, str):
            say(each)
        elif isinstance(each, Mapping):
            width = max(map(len, each))
            for name, value in each.items():
                say(f"{name.replace('_', ' '):{width}}  {_text(value)}")
        else:
            _show_table(each if isinstance(each, list) else each.to_dict("records"))


def _show_table(rows: Sequence[Mapping[Any, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, column in enumerate(rows[0] if rows else ()):
        table.add_column(plain(str(column).replace("_", " ")), overflow="fold", no_wrap=place == 0)
    for row in rows:
        table.add_row(*(plain(_text(value).replace("\n", "\\n")) for value in row.values()))
    # What is piped into a file or another program is not folded to a screen's width.
    Console(width=None if sys.stdout.isatty() else 240).print(table)


def show_run(run: "Run", needed: float, as_json: bool) -> None:
    """Print the curve and the verdict of a run, and where its files are."""
    weights, final, noise = run.weights(), run.status.final, run.noisy.summary()
    said = [f"No {name} weights: {why}" for name, why in run.status.without.items()]
    if final is not None and not as_json:
        said = [*_curve(run, needed), _sentence(run, final.noisy, needed), noise, *said]
    facts = {"folder": str(run.folder), "weights": weights, "noise": noise}
    bar = {"memorised": run.memorised(needed), "needed": needed}
    verdict = final and {**bar, "accuracies": dict(final)}
    record = {**facts, "verdict": verdict, "without": run.status.without}
    show(as_json, record, *said, f"\n{run.folder}: {', '.join(weights)}")


def _curve(run: "Run", needed: float) -> Iterator[str]:
    """Describe the training curve, if memloc trained the run, and a weak reference."""
    from memloc.reporting.figures import save_figure
    from memloc.reporting.terminal import memorisation_curve

    table, reference = run.training(), run.reference_accuracy
    if not (table["training"] == "noisy").any():
        return
    yield f"{memorisation_curve(table)}\n"
    if reference < needed:
        yield (
            f"The reference weights, trained without noise, predict only {reference:.0%} of "
            "their own labels: methods that use them say little here. Train longer."
        )
    picture = run.folder / paths.CURVE
    save_figure("training", table, picture)
    yield f"The curve as a picture: {picture}"


def _sentence(run: "Run", predicted: float, needed: float) -> str:
    task = run.record.task
    what = (
        f"{predicted:.0%} of {counted(task.noisy, 'wrong label' if task.label_names else 'text')}"
    )
    if run.memorised(needed):
        return f"{run.model_name} memorised {what} among {task.train} of {task.name}."
    return (
        f"NOT MEMORISED: {run.model_name} predicts only {what} of {task.name}; "
        f"{needed:.0%} are needed before anything can be concluded."
    )


def show_layers(found: "Found") -> None:
    """Print the answer to trust most, a bar for each of its layers, and where the files are."""
    from memloc.reporting.terminal import layer_bars

    method, answer = next(iter(found.answers.items()))
    say(f"{answer}\n\n{layer_bars(found[method])}\n")
    if early := found[method].about.get("early_donor"):
        say(f"{early}\n")
    say(f"{found.folder}: {', '.join(found.results)}")


def show_found(found: "Found", kind: str, as_json: bool) -> None:
    """Print the answers, then a picture and a sentence for each method, and where the files are.

    `kind` is what JSON calls them: methods or analyses.
    """
    facts = {"folder": str(found.folder), "skipped": found.skipped, "reused": found.reused}
    records = {name: _as_record(result) for name, result in found.results.items()}
    agrees = {"": "", "yes": " (agrees)", "no": " (does not agree)"}
    marks = {name: agrees[found.agreement.get(name, "")] for name in found.answers}
    said = [f"{name}{marks[name]}: {each.details}" for name, each in found.answers.items()]
    notes = dict.fromkeys(note for each in found.answers.values() for note in each.notes)
    said += [*(f"Note: {note}" for note in notes), *([""] if said else [])]
    for result in found.results.values():
        said += [*_described(result), ""]
    said += [f"{name} did not run: it {why}." for name, why in found.skipped.items()]
    where = f"{found.folder}: {', '.join(found.results)}"
    show(as_json, {**facts, kind: records}, *said, where)


def _described(result: "Result") -> Iterator[str]:
    from memloc.reporting.sentences import sentence
    from memloc.reporting.terminal import layer_bars, picture

    if result.weighs_layers:
        yield from (layer_bars(result), sentence(result))
        return
    yield from (f"{result.method}\n{picture(result)}".rstrip(), sentence(result))
    if result.remarks:
        yield f"Remarks: {len(result.remarks)}, such as: {result.remarks[0]}"


def _as_record(result: "Result") -> dict[str, Any]:
    """Return a result for JSON, without tables that have one row per example."""
    from memloc.reporting.sentences import sentence
    from memloc.reporting.terminal import SHORT

    said = {"sentence": sentence(result), "about": result.about}
    if result.weighs_layers:
        layers = {"weights": result.weights, "low": result.low, "high": result.high}
        numbers = {k: v.tolist() for k, v in layers.items()}
        answer = {"answer": result.answer.record()}
        return {**answer, **numbers, "mcog": asdict(result.mcog), **said}
    short = {name: result[name] for name in SHORT if name in result.tables}
    return {**said, "tables": short, "remarks": result.remarks}


def show_suspects(found: "Suspects", as_json: bool) -> None:
    """Print the examples to look at first, how many there are, and where the files are."""
    columns = ["row", "label", "suggested", "group", "held_out", "trained", "text"]
    first = found.table[columns].head(10)
    facts = {"folder": str(found.folder), "models": found.models, "remarks": found.remarks}
    show(
        as_json,
        {**facts, "examples": found.table},
        first.assign(text=first["text"].str.slice(0, 60)),
        *found.sentences(),
        f"Look at {found.folder / paths.PAGE}, and correct {found.folder / paths.TO_CORRECT}.",
    )


def show_repaired(found: "Repaired", as_json: bool) -> None:
    """Show how repairs compare, the verdict in sentences, and where the files are."""
    said, files = found.sentences(), (paths.REPAIRS, paths.RELEARNING, paths.RELEARNING_FIGURE)
    facts = {"folder": str(found.folder), "verdict": found.verdict, "band": found.band}
    record = {**facts, "sentences": said, "repairs": found.table}
    shown = found.table.dropna(axis="columns", how="all")  # no test accuracy without test examples
    show(as_json, record, shown, *said, f"{found.folder}: a checkpoint, {', '.join(files)}")


def show_control(found: "Results", as_json: bool) -> None:
    """Print the report's tables of answers, of found layers and of nulls, and unused plants."""
    from memloc.reporting.sentences import remarks_on
    from memloc.reporting.tables import TABLES

    described = {table.name: table for table in TABLES}
    tables = [described[name] for name in ("control-answers", "control", "nulls")]
    answers, scores, nulls = (table.shown(found) for table in tables)
    said: list[Any] = []
    for table, tidy in zip(tables, (answers, scores, nulls), strict=True):
        said += [f"{table.title}:", table.layout(tidy), ""] if len(tidy) else []
    said += _unused(found.plants)
    said += filter(None, [remarks_on(found.control_layers)])
    more = {name: getattr(found, name) for name in ("control_answers", "post_processing", "plants")}
    record = {"folder": str(found.folder), "answers": answers, "method": scores, "nulls": nulls}
    where = f"{found.folder}: `memloc report {found.folder}` shows all of it."
    show(as_json, record | more, *said, where)


def show_board(found: "Results", as_json: bool) -> None:
    """Print what each method found of each kind of plant, and what it says of nulls."""
    from memloc.stats.board import by_kind, by_method
    from memloc.study.board import cost

    kinds = by_kind(found.control_layers)
    every = by_method(found.control_layers, found.control_answers)
    every = every.assign(forward_passes=every["method"].map(cost))
    record = {"folder": str(found.folder), "kinds": kinds, "methods": every, "plants": found.plants}
    said = ["Kinds of plants:", kinds.round(2), "", "Methods:", every.round(2), ""]
    show(as_json, record, *said, *_unused(found.plants))


def _unused(plants: "pd.DataFrame") -> Iterator[str]:
    again = plants[plants["tries"] > 1]
    if len(again):
        most = again["learning_rate"].max()
        yield (
            f"{len(again)} of {counted(len(plants), 'plant')} needed a higher rate, {most:g} at "
            "most (`memloc tables` says which)."
        )
    for row in plants[~plants["used"]].to_dict("records"):
        yield (
            f"NOT USED: {row['model']} on {row['task']}, layers {row['planted']}: "
            f"training accuracy {row['training_accuracy']:.3f} at rate {row['learning_rate']:g}."
        )
    if not plants["used"].any():
        yield "No plant can be used, so nothing can be said about the methods."


def show_files(
    folder: Path, written: Sequence[Path], missing: Sequence[str], as_json: bool
) -> None:
    """Print how many files were written and what has no results yet."""
    record = {"written": [str(path) for path in written], "missing": list(missing)}
    said = [f"Without results so far: {', '.join(missing)}."] if missing else []
    show(as_json, record, f"{folder}: {counted(len(written), 'file')}", *said)


def show_report(report: "Report", as_json: bool) -> None:
    """Print the answer, how far to trust it, what is missing, and where the page is."""
    summary = report.summary
    first = {"answer": summary.answer, "trust": summary.trust, "learnt": summary.learnt}
    more = {"found": summary.found, "open": summary.open, "missing": report.commands}
    told = ["\n".join(summary.answers), summary.trust, summary.learnt]
    said = [f"{text}\n" for text in told if text]
    said += filter(None, [report.missing])
    where = f"Open in a browser, with all that was found: {report.path}"
    show(as_json, {"page": str(report.path), **first, **more}, *said, where)


def _as_json(value: Any) -> Any:
    """Return a value for JSON: a table becomes a list of records, NaN becomes null."""
    if isinstance(value, Mapping):
        return {name: _as_json(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(inner) for inner in value]
    if hasattr(value, "to_json"):
        return json.loads(value.to_json(orient="records"))
    return None if isinstance(value, float) and math.isnan(value) else value


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
