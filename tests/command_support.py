"""Files to give to commands, and what is expected of the answers."""

import csv

from tasks_support import make_examples

FAST = [
    "--set=finetune.epochs=2",
    "--set=finetune.learning_rate=1e-2",
    "--set=finetune.batch_size=8",
    "--device=cpu",
]
NAMED = ["--text=review", "--label=stars"]
COLUMNS = [*NAMED, "--flip=0.15"]


def write_csv(path, rows, header=("review", "stars")):
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def rows_of(n=60, labels=("good", "bad")):
    examples = make_examples(n, len(labels), 3)
    return [
        (text, labels[label])
        for (text,), label in zip(examples.parts, examples.labels, strict=True)
    ]


def printed(result):
    assert result.exit_code == 0, result.output
    return result.stdout


def refused(result):
    """The one line on stderr."""
    assert result.exit_code == 1, (result.exit_code, result.output, result.exception)
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("memloc: ")
    assert "Traceback" not in lines[0]
    return lines[0]
