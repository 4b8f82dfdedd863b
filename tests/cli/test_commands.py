"""What all commands have in common: help, exit codes."""

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from fixtures.commands import printed
from memloc.cli import app
from memloc.cli.options import option_by_option

COMMANDS = [command.callback.__name__ for command in app.registered_commands]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example(run, command):
    shown = printed(run(command, "--help"))
    assert f"memloc {command}" in shown
    assert shown.count("Example") == 1


def test_help_lists_the_commands(run):
    shown = printed(run("--help"))
    assert {"tasks", "models", "check", "protocol", "train"} <= set(COMMANDS)
    assert all(command in shown for command in COMMANDS)
    assert shown.count("Example: memloc init demo") == 1


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS)])
def test_help_is_in_plain_words(run, command):
    """What is needed stands in the usage as it is; values are TEXT, NUMBER or PATH."""
    shown = printed(run(*command, "--help"))
    assert not re.findall(r"[<{\[](?:str|int|float|path|file|list|bool|[A-Za-z]+}).*", shown)
    (line,) = [line for line in shown.splitlines() if "--help" in line]
    assert line.split()[1:3] == ["--help", "Show"]  # a switch takes no value


def test_help_names_what_options_take(run):
    usage = printed(run("localise", "--help"))
    assert "localise [OPTIONS] RUN [METHOD]..." in usage
    shown = printed(run("train", "--help"))
    for option, value in {"seed": "NUMBER", "set": "TEXT", "flip": "NUMBER", "out": "PATH"}.items():
        assert re.search(rf"--{option} +{value} ", shown)


@pytest.mark.parametrize("command", [None, *COMMANDS])
def test_help_fits_a_narrow_terminal(command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = CliRunner().invoke(app, [command, "--help"] if command else ["--help"])
    lines = printed(result).splitlines()
    assert max(map(len, lines)) <= 80
    assert not [line for line in lines if "…" in line]  # nothing is cut


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_is_explained_in_a_sentence(command):
    for parameter in typer.main.get_command(app).commands[command].params:
        assert parameter.help, parameter.name
        assert parameter.help.endswith("."), parameter.name
        assert not parameter.help[0].isspace()


def test_options_that_belong_together_reach_a_command_as_one():
    seen = []

    @dataclass(frozen=True)
    class Group:
        size: Annotated[int, typer.Option(help="How many.")]
        names: Annotated[list[str] | None, typer.Option("--name", help="Who.")] = None

    def command(place: str, *, group: Group, last: bool = False) -> None:
        seen.append((place, group, last))

    small = typer.Typer()
    small.command()(option_by_option(command))
    words = ["here", "--size=3", "--name=a", "--name=b", "--last"]
    assert CliRunner().invoke(small, words).exit_code == 0
    assert CliRunner().invoke(small, ["here", "--size=3"]).exit_code == 0
    assert CliRunner().invoke(small, ["here"]).exit_code == 2  # it has no default
    assert seen == [("here", Group(3, ["a", "b"]), True), ("here", Group(3, None), False)]


def test_a_process_ends_with_the_right_code_and_one_line(tmp_path):
    command = [sys.executable, "-c", "from memloc.cli import main; main()"]
    good = subprocess.run(
        [*command, "protocol", "--json"], capture_output=True, text=True, check=False
    )
    assert (good.returncode, good.stderr) == (0, "")
    assert json.loads(good.stdout)
    bad = subprocess.run(
        [*command, "protocol", "papr"], capture_output=True, text=True, check=False
    )
    assert (bad.returncode, bad.stdout) == (1, "")
    assert bad.stderr.count("\n") == 1
    assert bad.stderr.startswith("memloc: No preset is called 'papr'.")
    usage = subprocess.run([*command, "train"], capture_output=True, text=True, check=False)
    assert usage.returncode == 2


@pytest.mark.parametrize(
    ("typed", "offered"),
    [("memloc lo", ["localise", "logs"]), ("memloc report runs --o", ["--open", "--out"])],
)
def test_a_shell_completes_commands_and_options(typed, offered):
    asked = {"_MEMLOC_COMPLETE": "complete_bash", "COMP_WORDS": typed}
    asked["COMP_CWORD"] = str(len(typed.split()) - 1)
    done = subprocess.run(
        [sys.executable, "-c", "from memloc.cli import main; main(prog_name='memloc')"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **asked},
    )
    assert sorted(done.stdout.split()) == offered
    assert not done.stderr


def test_how_to_set_up_completion_is_in_the_help(run):
    assert "--install-completion" in printed(run("--help"))
