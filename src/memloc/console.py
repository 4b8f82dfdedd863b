"""How the command line prints: tables for people, JSON for machines, one line for an error."""

import json
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from memloc.errors import MemlocError

if TYPE_CHECKING:
    import pandas as pd

    from memloc.analyse.analyse import Analysed
    from memloc.analyse.store import Analysis
    from memloc.experiment.control import Controlled
    from memloc.localise.localise import Localised
    from memloc.localise.scores import LayerScores
    from memloc.report.page import Report
    from memloc.train.run import Run


class Commands(TyperGroup):
    """The commands; an error that a user can put right becomes one line and exit code 1."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except MemlocError as error:
            raise _refused(str(error)) from None
        except OSError as error:
            if error.filename is None:  # nothing that was named on the command line
                raise
            reason = f"{str(error.filename)[:200]} cannot be used: {error.strerror}."
            raise _refused(f"{reason} Check the path and its permissions.") from None
        except KeyboardInterrupt:
            typer.echo("memloc: interrupted; the same command goes on from here.", err=True)
            raise typer.Exit(130) from None


def _refused(message: str) -> typer.Exit:
    """Say why, on one line even where a name or value in it has several."""
    typer.echo(f"memloc: {' '.join(message.split())}", err=True)
    return typer.Exit(1)


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
        from memloc.train.run import at_the_end

        table = run.training()
        typer.echo(memorisation_curve(table))
        typer.echo(f"\n{_sentence(run)}")
        reference = at_the_end(table, "original", "accuracy")
        if reference < run.verdict()["needed"]:
            typer.echo(
                f"The reference weights, trained without noise, predict only {reference:.0%} of "
                "their own labels: swapping says little here. Train longer."
            )
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


def show_analysed(found: "Analysed", as_json: bool) -> None:
    """A small picture and a sentence for each analysis, how odd the data are, where files are."""
    from memloc.report.analyses import picture, sentence

    if as_json:
        records = {name: _analysis_record(analysis) for name, analysis in found.found.items()}
        return _show_json({"folder": str(found.folder), "analyses": records})
    for name, analysis in found.found.items():
        typer.echo(f"{name}\n{picture(analysis)}\n{sentence(analysis)}")
        if analysis.remarks:
            typer.echo(f"Remarks: {len(analysis.remarks)}, such as: {analysis.remarks[0]}")
        typer.echo("")
    typer.echo(f"{found.folder}: {', '.join(f'{a.name}.parquet' for a in found.found.values())}")
    return None


def _analysis_record(analysis: "Analysis") -> dict[str, Any]:
    """Without the tables that have a row an example; those are in the file."""
    from memloc.report.analyses import SHORT, sentence

    short = {name: analysis[name] for name in SHORT if name in analysis.tables}
    return {
        "sentence": sentence(analysis),
        "tables": {name: json.loads(t.to_json(orient="records")) for name, t in short.items()},
        "remarks": analysis.remarks,
        "about": analysis.about,
    }


def show_control(found: "Controlled", as_json: bool) -> None:
    """accuracy@k a method, task and model with chance beside it; the nulls; appendix E."""
    if as_json:
        tables = {
            "accuracy": found.accuracy(),
            "by_task": found.accuracy(("method", "task")),
            "by_model": found.accuracy(("method", "model")),
            "nulls": found.nulls,
            "post_processing": found.post_processing,
            "plants": found.plants,
        }
        records = {k: json.loads(t.to_json(orient="records")) for k, t in tables.items()}
        return _show_json({"folder": str(found.folder), **records})
    for by in (("method",), ("method", "task"), ("method", "model")):
        if len(by) == 1 or found.scores[by[1]].nunique() > 1:
            show_rows(_accuracy_rows(found, by), as_json=False)
            typer.echo("")
    if len(found.nulls):
        typer.echo("Where nothing was planted (distance of the layer weights from uniform):")
        columns = ["method", "nulls", "distance_planted", "distance_null", "threshold", "called"]
        columns += ["undone_planted", "undone_null"]
        show_rows(_records(found.nulls[columns]), as_json=False)
        typer.echo("")
    if len(found.post_processing):
        typer.echo("Gradients, accuracy@2 with each step of the post-processing:")
        show_rows(_records(found.post_processing), as_json=False)
        typer.echo("")
    _say_unused(found)
    typer.echo(
        f"{found.folder}: {', '.join(sorted(p.name for p in found.folder.glob('*.parquet')))}"
    )
    return None


def _accuracy_rows(found: "Controlled", by: Sequence[str]) -> list[dict[str, Any]]:
    """A row a value of `by`; one column a k."""
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for record in found.accuracy(by).to_dict("records"):
        row = rows.setdefault(
            tuple(record[name] for name in by), {name: record[name] for name in by}
        )
        text = f"{record['accuracy']:.2f} [{record['low']:.2f}, {record['high']:.2f}]"
        row[f"accuracy@{record['k']}"] = text
        row |= {name: record[name] for name in ("chance", "mrr", "auroc", "plants")}
    return list(rows.values())


def _records(table: "pd.DataFrame") -> list[dict[str, Any]]:
    return [{str(k): v for k, v in row.items()} for row in table.to_dict("records")]


def _say_unused(found: "Controlled") -> None:
    plants = found.plants
    again = plants[plants["tries"] > 1]
    if len(again):
        most = again["learning_rate"].max()
        typer.echo(
            f"{len(again)} of {len(plants)} plants needed a higher rate, {most:g} at most "
            "(plants.parquet says which)."
        )
    for row in plants[~plants["used"]].to_dict("records"):
        typer.echo(
            f"NOT USED: {row['model']} on {row['task']}, layers {row['first']}-{row['last']}: "
            f"training accuracy {row['training_accuracy']:.3f} at rate {row['learning_rate']:g}."
        )


def show_files(
    folder: Path, written: Sequence[Path], missing: Sequence[str], as_json: bool
) -> None:
    """How many files were written where, and what has no results yet."""
    if as_json:
        return _show_json({"written": [str(path) for path in written], "missing": list(missing)})
    typer.echo(f"{folder}: {len(written)} file{'' if len(written) == 1 else 's'}")
    if missing:
        typer.echo(f"Without results so far: {', '.join(missing)}.")
    return None


def show_report(report: "Report", as_json: bool) -> None:
    """The summary in sentences, what is missing, and where the page is."""
    summary = report.summary
    if as_json:
        facts = {"page": str(report.path), "found": summary.found, "open": summary.open}
        return _show_json({**facts, "missing": report.commands})
    for line in summary.found:
        typer.echo(f"- {line}")
    for line in summary.open:
        typer.echo(f"? {line}")
    if report.commands:
        typer.echo(f"Parts are missing; the page lists the {len(report.commands)} commands.")
    typer.echo(f"\nOpen in a browser: {report.path}")
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
    verdict, task, model = run.verdict(), run.about["task"], Path(run.about["model"]).name
    what = f"{verdict['noisy_accuracy']:.0%} of {task['noisy']} wrong labels"
    if verdict["memorised"]:
        return f"{model} memorised {what} among {task['train']} of {task['name']}."
    return (
        f"NOT MEMORISED: {model} predicts only {what} of {task['name']}; "
        f"{verdict['needed']:.0%} are needed before anything can be concluded."
    )


def _show_json(value: Any) -> None:
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def _text(value: Any) -> str:
    if isinstance(value, tuple | list):
        return ", ".join(map(str, value)) or "none"
    return f"{value:.3g}" if isinstance(value, float) else str(value)
