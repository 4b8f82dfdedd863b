"""What all commands have in common: help, exit codes."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from command_support import printed
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


@pytest.mark.parametrize("command", [(), ("localise",)])
def test_help_shows_no_type_beside_options_that_take_no_value(run, command):
    lines = printed(run(*command, "--help")).splitlines()
    found = [line for line in lines if "--help" in line]
    assert len(found) == 1
    assert "<" not in found[0]
    assert "BOOL" not in found[0].upper()


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
