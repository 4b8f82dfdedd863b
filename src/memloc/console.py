"""How the command line prints: tables for people, JSON for machines, one line for an error."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from memloc.errors import MemlocError

if TYPE_CHECKING:
    from memloc.localise.localise import Localised
    from memloc.localise.scores import LayerScores
    from memloc.train.run import Run


class Commands(TyperGroup):
    """The commands; an error that a user can put right becomes one line and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except MemlocError as error:
            typer.echo(f"memloc: {error}", err=True)
            raise typer.Exit(1) from None
        except KeyboardInterrupt:
            typer.echo("memloc: interrupted; the same command goes on from here.", err=True)
            raise typer.Exit(130) from None


def show_rows(rows: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    """A table with a row a mapping, or a JSON list."""
    if as_json:
        return _show_json(rows)
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for place, column in enumerate(rows[0] if rows else ()):
        table.add_column(column.replace("_", " "), overflow="fold", no_wrap=place == 0)
    for row in rows:
        table.add_row(*(_text(value) for value in row.values()))
    # What is piped into a file or another program is not folded to a screen's width.
    return Console(width=None if sys.stdout.isatty() else 240).print(table)


def show_record(record: Mapping[str, Any], as_json: bool) -> None:
    """One line a field, or a JSON object."""
    if as_json:
        return _show_json(record)
    width = max(map(len, record))
    for name, value in record.items():
        typer.echo(f"{name.replace('_', ' '):{width}}  {_text(value)}")
    return None


def show_run(run: "Run", as_json: bool) -> None:
    """What a training came to: the curve, the verdict in a sentence, where everything is."""
    weights = run.weights()
    if as_json:
        facts = {"folder": str(run.folder), "weights": weights, "verdict": run.verdict()}
        return _show_json({**facts, "without": run.about.get("without", {})})
    if run.verdict():
        from memloc.report.figures import save_figure, training_curves
        from memloc.report.terminal import memorisation_curve

        table = run.training()
        typer.echo(memorisation_curve(table))
        typer.echo(f"\n{_sentence(run)}")
        picture = run.folder / "training.png"
        save_figure(training_curves(table), picture)
        typer.echo(f"The curve as a picture: {picture}")
    for name, why in run.about.get("without", {}).items():
        typer.echo(f"No {name} weights: {why}")
    typer.echo(f"\n{run.folder}: {', '.join(weights)}")
    return None


def show_localised(found: "Localised", as_json: bool) -> None:
    """Bars for every layer, one sentence a method, why others did not run, where the files are."""
    if as_json:
        return _show_json(
            {
                "folder": str(found.folder),
                "methods": {name: _as_record(scores) for name, scores in found.scores.items()},
                "skipped": found.skipped,
            }
        )
    from memloc.report.terminal import layer_bars
    from memloc.report.words import sentence

    for scores in found.scores.values():
        typer.echo(f"{layer_bars(scores)}\n{sentence(scores)}\n")
    for name, why in found.skipped.items():
        typer.echo(f"{name} did not run: it {why}.")
    typer.echo(f"{found.folder}: {', '.join(f'{name}.parquet' for name in found.scores)}")
    return None


def _as_record(scores: "LayerScores") -> dict[str, Any]:
    from memloc.report.words import sentence

    return {
        "weights": scores.weights.tolist(),
        "low": [_or_none(x) for x in scores.low],
        "high": [_or_none(x) for x in scores.high],
        "mcog": {k: _or_none(v) for k, v in asdict(scores.mcog).items()},
        "sentence": sentence(scores),
        "about": scores.about,
    }


def _or_none(number: float) -> float | None:
    """JSON has no NaN."""
    return None if math.isnan(number) else float(number)


def _sentence(run: "Run") -> str:
    verdict, task = run.verdict(), run.about["task"]
    what = f"{verdict['noisy_accuracy']:.0%} of {task['noisy']} wrong labels"
    if verdict["memorised"]:
        return f"{run.about['model']} memorised {what} among {task['train']} of {task['name']}."
    return (
        f"NOT MEMORISED: {run.about['model']} predicts only {what} of {task['name']}; "
        f"{verdict['needed']:.0%} are needed before anything can be concluded."
    )


def _show_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
