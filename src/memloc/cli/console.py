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
"""Key under which a command's context stores the words that were typed."""


class Command(TyperCommand):
    """A command whose help is written in plain words."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the arguments and options."""
        return _in_plain_words(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the words of the usage line; required ones have no brackets."""
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]


VALUES = {"int": "NUMBER", "float": "NUMBER", "Path": "PATH"}
"""Names of option values in the help, by Python type; other values are called TEXT."""


def _in_plain_words(params: list[Any]) -> list[Any]:
    """Remove Python types from the help of arguments and options."""
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
    """The group of all commands; an error that a user can correct becomes one line and exit
    code 1.
    """

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of memloc itself."""
        return _in_plain_words(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Store the typed words, which are recorded with the results of the command."""
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
    """Raised when this process is asked to end: by SIGTERM, as schedulers do, or by a closed
    terminal.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number


ENDING = (signal.SIGTERM, signal.SIGHUP)
"""Signals that ask a process to end."""


@contextmanager
def _ended_from_outside() -> Iterator[None]:
    """Let SIGTERM and SIGHUP interrupt the work as Ctrl-C does, while active."""
    if threading.current_thread() is not threading.main_thread():  # which alone hears signals
        yield
        return

    def end(number: int, _frame: object) -> None:
        raise Terminated(number)

    # Signals that are ignored, as SIGHUP is after `nohup`, stay ignored.
    heard = [n for n in ENDING if signal.getsignal(n) is not signal.SIG_IGN]
    before = {number: signal.signal(number, end) for number in heard}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _notes_on_stderr() -> Iterator[None]:
    """Print each warning and note of memloc as one plain line on stderr, while active."""

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
    """Print a record as JSON for machines, or the other arguments for people.

    Texts are printed as they are, lists of mappings and data frames as tables, a mapping as one
    line per field.
    """
    if as_json:
        say(json.dumps(_as_json(record), indent=2, ensure_ascii=False))
        return
    for part in said or (record,):
        if isinstance(part, str):
            say(part)
        elif isinstance(part, Mapping):
            width = max(map(len, part))
            for name, value in part.items():
                say(f"{name.replace('_', ' '):{width}}  {_text(value)}")
        else:
            _show_table(part if isinstance(part, list) else part.to_dict("records"))


def _show_table(records: Sequence[Mapping[Any, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, column in enumerate(records[0] if records else ()):
        table.add_column(plain(str(column).replace("_", " ")), overflow="fold", no_wrap=place == 0)
    for row in records:
        table.add_row(*(plain(_text(value).replace("\n", "\\n")) for value in row.values()))
    # Output piped into a file or another program is not folded to a screen's width.
    Console(width=None if sys.stdout.isatty() else 240).print(table)


def show_run(
    run: "Run", needed: float, as_json: bool, recall: Sequence[Mapping[Any, Any]] = ()
) -> None:
    """Print the training curve of a run, the verdict on it, and where its files are.

    `recall` are rows of `run.recall()`, which are printed if there are any.
    """
    checkpoints = run.checkpoints()
    final = run.status.final
    noise = run.noisy.summary()
    lines = [f"No {name} weights: {why}" for name, why in run.status.without.items()]
    if final is not None and not as_json:
        lines = [*_curve(run, needed), _sentence(run, final.noisy, needed), noise, *lines]
    facts = {"folder": str(run.folder), "checkpoints": checkpoints, "noise": noise}
    bar = {"memorised": run.memorised(needed), "needed": needed}
    verdict = final and {**bar, "accuracies": dict(final)}
    told = {"recall": recall} if recall else {}
    record = {**facts, "verdict": verdict, "without": run.status.without, **told}
    table = [[*recall]] if recall else []
    show(as_json, record, *lines, *table, f"\n{run.folder}: {', '.join(checkpoints)}")


def _curve(run: "Run", needed: float) -> Iterator[str]:
    """Yield lines on the training curve, if memloc trained the run, and a warning of a weak
    reference.
    """
    from memloc.reporting.figures import save_figure
    from memloc.reporting.terminal import memorisation_curve

    table = run.training()
    reference = run.reference_accuracy
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
    """Print the most exact answer, a bar for each layer, and where the files are."""
    from memloc.reporting.terminal import layer_bars

    method, answer = next(iter(found.answers.items()))
    say(f"{answer}\n\n{layer_bars(found[method])}\n")
    if early := found[method].about.get("early_donor"):
        say(f"{early}\n")
    say(f"{found.folder}: {', '.join(found.results)}")


def show_found(found: "Found", heading: str, as_json: bool) -> None:
    """Print the answers, then a picture and a sentence for each method, and where the files are.

    `heading` is the key for them in JSON: methods or analyses.
    """
    facts = {"folder": str(found.folder), "skipped": found.skipped, "reused": found.reused}
    records = {name: _as_record(result) for name, result in found.results.items()}
    agrees = {"": "", "yes": " (agrees)", "no": " (does not agree)"}
    marks = {name: agrees[found.agreement.get(name, "")] for name in found.answers}
    lines = [f"{name}{marks[name]}: {answer.details}" for name, answer in found.answers.items()]
    notes = dict.fromkeys(note for answer in found.answers.values() for note in answer.notes)
    lines += [*(f"Note: {note}" for note in notes), *([""] if lines else [])]
    for result in found.results.values():
        lines += [*_described(result), ""]
    lines += [f"{name} did not run: it {why}." for name, why in found.skipped.items()]
    where = f"{found.folder}: {', '.join(found.results)}"
    show(as_json, {**facts, heading: records}, *lines, where)


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

    facts_told = {"sentence": sentence(result), "about": result.about}
    if result.weighs_layers:
        layers = {"weights": result.weights, "low": result.low, "high": result.high}
        numbers = {k: v.tolist() for k, v in layers.items()}
        answer = {"answer": result.answer.record()}
        return {**answer, **numbers, "mcog": asdict(result.mcog), **facts_told}
    short = {name: result[name] for name in SHORT if name in result.tables}
    return {**facts_told, "tables": short, "remarks": result.remarks}


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
    """Print a comparison of repairs, the verdict in sentences, and where the files are."""
    sentences = found.sentences()
    files = (paths.REPAIRS, paths.RELEARNING, paths.RELEARNING_FIGURE)
    facts = {"folder": str(found.folder), "verdict": found.verdict, "band": found.band}
    record = {**facts, "sentences": sentences, "repairs": found.table}
    shown = found.table.dropna(axis="columns", how="all")  # no test accuracy without test examples
    show(as_json, record, shown, *sentences, f"{found.folder}: a checkpoint, {', '.join(files)}")


def show_control(found: "Results", as_json: bool) -> None:
    """Print the report's tables of answers, of planted layers found and of nulls, and unused
    plants.
    """
    from memloc.reporting.sentences import remarks_on
    from memloc.reporting.tables import TABLES

    described = {table.name: table for table in TABLES}
    tables = [described[name] for name in ("control-answers", "control", "nulls")]
    answers, scores, nulls = (table.shown(found) for table in tables)
    parts: list[Any] = []
    for table, tidy in zip(tables, (answers, scores, nulls), strict=True):
        parts += [f"{table.title}:", table.layout(tidy), ""] if len(tidy) else []
    parts += _unused(found.plants)
    parts += filter(None, [remarks_on(found.control_layers)])
    more = {name: getattr(found, name) for name in ("control_answers", "post_processing", "plants")}
    record = {"folder": str(found.folder), "answers": answers, "method": scores, "nulls": nulls}
    where = f"{found.folder}: `memloc report {found.folder}` shows all of it."
    show(as_json, record | more, *parts, where)


def show_board(found: "Results", as_json: bool) -> None:
    """Print how well each method finds each kind of plant, and what it answers on nulls.

    Trivial baselines come last, the best of them in each column below, and columns without any
    number are left out.
    """
    from memloc.methods.registry import trivial_names
    from memloc.stats.board import by_kind, by_method
    from memloc.stats.planted import BASELINE
    from memloc.study.board import cost

    trivial = trivial_names()

    def shown(table: "pd.DataFrame") -> "pd.DataFrame":
        last = table["method"].isin([*trivial, BASELINE]).sort_values(kind="stable").index
        rows = table.loc[last].dropna(axis=1, how="all").round(2).astype(object)
        return rows.where(rows.notna(), "–")

    kinds = by_kind(found.control_layers, trivial)
    every = by_method(found.control_layers, found.control_answers, trivial)
    passes = [math.nan if name == BASELINE else cost(name) for name in every["method"]]
    every = every.assign(forward_passes=passes)
    record = {"folder": str(found.folder), "kinds": kinds, "methods": every, "plants": found.plants}
    parts = ["Kinds of plants:", shown(kinds), "", "Methods:", shown(every), ""]
    show(as_json, record, *parts, *_unused(found.plants))


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
    """Print how many files were written, and which ones have no results yet.

    Args:
        folder: Folder of the files.
        written: Files that were written.
        missing: Sentences on files without results.
        as_json: Whether to print JSON.
    """
    record = {"written": [str(path) for path in written], "missing": list(missing)}
    sentences = [f"Without results so far: {', '.join(missing)}."] if missing else []
    show(as_json, record, f"{folder}: {counted(len(written), 'file')}", *sentences)


def show_report(report: "Report", as_json: bool) -> None:
    """Print the answer, how far to trust it, what is missing, and where the page is."""
    summary = report.summary
    first = {"answer": summary.answer, "trust": summary.trust, "learnt": summary.learnt}
    more = {"found": summary.found, "open": summary.open, "missing": report.commands}
    told = ["\n".join(summary.answers), summary.trust, summary.learnt]
    paragraphs = [f"{text}\n" for text in told if text]
    paragraphs += filter(None, [report.missing])
    where = f"Open in a browser, with all that was found: {report.path}"
    show(as_json, {"page": str(report.path), **first, **more}, *paragraphs, where)


def _as_json(value: Any) -> Any:
    """Return a value in a form that JSON can hold: a table as records, NaN as null."""
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
