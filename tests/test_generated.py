"""The parts of the reference that docs/generated.py makes."""

import re
from pathlib import Path

import memloc
from memloc.cli import app
from memloc.methods.protocol import preset

DOCS = Path(__file__).resolve().parents[1] / "docs"


def test_the_reference_is_generated_from_the_code(monkeypatch):
    monkeypatch.syspath_prepend(DOCS)
    from generated import MARK, PARTS

    pages = DOCS.rglob("*.md")
    asked = [name for page in pages for name in MARK.findall(page.read_text(encoding="utf-8"))]
    assert sorted(asked) == sorted(PARTS)
    made = {name: part() for name, part in PARTS.items()}
    shown = re.findall(r":: (memloc\.\w+)\b", made["api"])
    assert {name: shown.count(f"memloc.{name}") for name in memloc.__all__} == dict.fromkeys(
        memloc.__all__, 1
    )
    for command in app.registered_commands:
        assert f"## {command.callback.__name__}\n" in made["commands"]
    assert "Train on a random sample" in made["commands"]
    for name in preset("paper").flat():
        group, _, leaf = name.rpartition(".")
        assert not group or f"| `{leaf}` |" in made["settings"].split(f"## {group}\n")[1]
    assert "| 0.15 |" in made["settings"]
    assert "demo: 0.0004" in made["settings"]
    assert {"`overrides`", "`windows`"} <= set(made["study"].split())
    assert "`weights_hash`" in made["run"]
    assert "noisy_accuracy" in made["results"]
