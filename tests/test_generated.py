"""The parts of the reference that docs/generated.py writes."""

import re
from pathlib import Path

import pytest

import memloc
import memloc.types
from memloc.cli import app
from memloc.methods.protocol import preset

DOCS = Path(__file__).resolve().parents[1] / "docs"
PAGES = sorted(DOCS.rglob("*.md"))


@pytest.fixture
def generated(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    import generated

    return generated


def test_the_reference_says_what_the_code_says(generated):
    old = [
        page.relative_to(DOCS).as_posix()
        for page in PAGES
        if generated.filled(text := page.read_text(encoding="utf-8")) != text
    ]
    for page in (DOCS / "notebooks").glob("*.md"):
        made = generated.as_notebook(page.read_text(encoding="utf-8"))
        if page.with_suffix(".ipynb").read_text(encoding="utf-8") != made:
            old.append(page.with_suffix(".ipynb").name)
    assert not old, "run `python docs/generated.py`"


def test_a_notebook_is_one_click_away_once_there_is_an_address(generated, monkeypatch):
    assert "colab" not in generated.notebook(["wrong_labels"])
    urls = {"project": {"urls": {"Repository": "https://github.com/somebody/memloc"}}}
    monkeypatch.setattr(generated.tomllib, "loads", lambda _text: urls)
    hosted = "github/somebody/memloc/blob/main/docs/notebooks/wrong_labels.ipynb"
    assert hosted in generated.notebook(["wrong_labels"])


def test_every_public_name_command_and_setting_is_in_the_reference(generated):
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    marks = generated.MARK.findall(text)
    assert {name for name, _ in marks} == set(generated.PARTS)
    asked = {part: [] for part, _ in marks}
    for part, words in marks:
        asked[part] += words.split()
    assert sorted(asked["api"]) == sorted(memloc.__all__)
    assert sorted(asked["types"]) == sorted({*memloc.types.__all__} - {"Data"})
    shown = generated.commands(asked["commands"])
    for command in app.registered_commands:
        assert f"## {command.callback.__name__}\n" in shown
    ours = {name.partition(".")[0] for name in preset("paper").flat()} - {"preset"}
    assert ours - {"adapter_off"} <= set(asked["settings"])


def test_everything_listed_is_described():
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*"))
    assert text.count("\n- `") > 400
    assert not re.findall(
        r"^ *- `[^`]+`:(?: `[^`]+`\.)?(?: Default: `[^`]*`\.)?$", text, re.MULTILINE
    )


def test_parameters_are_listed_one_by_one(generated):
    shown = generated.api(["adopt"])
    assert len(re.findall(r"^- `\w+`: \S", shown, re.MULTILINE)) >= 18
    assert "Column of texts. Default: `'text'`." in shown
