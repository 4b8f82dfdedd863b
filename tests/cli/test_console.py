"""How the command line prints: texts are data, never markup or commands to the terminal."""

import json

import pandas as pd
import pytest

from memloc.cli import console

ODD = "[/foo] [red]a[/red] :smile: \x1b]0;title\x07\x1b[2J\x9b2J\nnext"
SHOWN = "[/foo] [red]a[/red] :smile: \\u001b]0;title\\u0007\\u001b[2J\\u009b2J"


@pytest.mark.parametrize(
    "said",
    [pd.DataFrame({"text": [ODD], "n": 1}), [{ODD: 1}], {"text": ODD}, f"a {ODD}"],
    ids=["table", "columns", "record", "sentence"],
)
def test_texts_are_shown_as_they_are(capsys, said):
    console.show(False, {}, said)
    shown = capsys.readouterr().out
    assert SHOWN in shown
    assert "\x1b" not in shown


def test_json_holds_the_very_texts_and_no_control_characters(capsys):
    texts = [ODD, "\u202e", "half \ud800", "ü 🙂"]
    console.show(True, {"texts": texts})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {"texts": texts}
    assert not {c for c in shown if not c.isprintable()} - {"\n"}
    assert "ü 🙂" in shown
