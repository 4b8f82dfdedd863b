"""What the documents show is true: their Python runs, their commands exist, their links lead."""

import re
import shlex
from pathlib import Path

import pandas as pd
import pytest
from typer.testing import CliRunner

import memloc.protocol
from memloc.cli import app

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


@pytest.fixture(scope="module")
def desk(tmp_path_factory):
    """A folder with the files that the documents speak of."""
    desk = tmp_path_factory.mktemp("desk")
    texts = memloc.load_task("tiny-sentiment").train
    rows = [f'"{parts[0]}",{label}' for parts, label in zip(texts.parts, texts.labels, strict=True)]
    (desk / "reviews.csv").write_text("review,stars\n" + "\n".join(rows), encoding="utf-8")
    crowd = [
        f"{row},{label if i % 7 else 1 - label}"
        for i, (row, label) in enumerate(zip(rows, texts.labels, strict=True))
    ]
    (desk / "crowd.csv").write_text("text,expert,crowd\n" + "\n".join(crowd), encoding="utf-8")
    return desk


@pytest.fixture(scope="module")
def quick_demo():
    """The embedded default on less work: what is tested is that the documents run."""
    kept = {name: dict(values) for name, values in memloc.protocol.PRESETS.items()}
    less = {"finetune.epochs": 8, "control.epochs": 2, "control.tries": 1}
    memloc.protocol.PRESETS["demo"].update(less)
    for values in memloc.protocol.PRESETS.values():
        values["finetune.noisy_at_least"] = 0.01
    yield
    for name, values in memloc.protocol.PRESETS.items():
        values.clear()
        values.update(kept[name])


@pytest.mark.slow
def test_the_python_of_the_documents_runs(desk, quick_demo, monkeypatch):
    monkeypatch.chdir(desk)
    shown = [(page, code) for page in PAGES for code in blocks(page, "python")]
    assert len(shown) >= 6
    for page, code in shown:
        exec(compile(code, str(page), "exec"), {})
        if "memloc.train_run" in code:
            _checkpoints_of_ones_own(desk)


def _checkpoints_of_ones_own(desk: Path) -> None:
    """What the second example of the README starts from, made of the first one's run."""
    run = memloc.Run.open(desk / "runs" / "first")
    (desk / "noisy-model").symlink_to(run.path("final"))
    (desk / "clean-model").symlink_to(run.path("reference"))
    task, noisy = run.data()
    rows = zip(task.train.parts, noisy.assigned, noisy.original, strict=True)
    names = task.label_names
    lines = [f'"{parts[0]}",{names[a]},{names[o]}' for parts, a, o in rows]
    (desk / "train.csv").write_text("text,label,original\n" + "\n".join(lines), encoding="utf-8")


def commands() -> list[list[str]]:
    found = set()
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        lines = [line for block in blocks(page, "sh") for line in block.splitlines()]
        found |= {line.split("#")[0].strip() for line in lines if line.startswith("memloc ")}
        found |= set(re.findall(r"`(memloc [a-z][^`]*)`", text))
    return sorted(shlex.split(line) for line in found)


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_commands_in_the_documents_exist_with_their_options(command):
    shown = CliRunner().invoke(app, [command[1], "--help"], terminal_width=200)
    assert shown.exit_code == 0, shown.output
    for word in command:
        if word.startswith("--"):
            assert word in shown.output


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_every_command_is_in_the_readme():
    readme = PAGES[0].read_text(encoding="utf-8")
    for command in app.registered_commands:
        assert f"`memloc {command.callback.__name__}" in readme


def test_the_page_of_findings_withholds_what_its_generator_does(monkeypatch):
    """Numbers of probes, until they are measured again."""
    monkeypatch.syspath_prepend(ROOT)
    from benchmarks.findings import AGAIN, withheld

    text = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8")
    found = re.findall(r"\*\*([^*\n]+)\*\*\n\n((?:\|.*\n)+)", text)
    assert len(found) >= 15
    for title, lines in found:
        rows = [[c.strip() for c in line.split("|")[1:-1]] for line in lines.splitlines()]
        table = pd.DataFrame(rows[2:], columns=rows[0])
        assert withheld(title, table).equals(table), title
    assert withheld("Made up", pd.DataFrame({"task": ["a"], "probing": ["9.1"]})).iat[0, 1] == AGAIN
