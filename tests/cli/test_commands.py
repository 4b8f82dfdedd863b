"""What all commands have in common: help, exit codes."""

import json
import subprocess
import sys

import pytest

from command_support import printed
from memloc.cli import app

COMMANDS = [command.callback.__name__ for command in app.registered_commands]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_shows_an_example(run, command):
    shown = printed(run(command, "--help"))
    assert f"memloc {command}" in shown
    assert "Example" in shown


def test_help_lists_the_commands(run):
    shown = printed(run("--help"))
    assert {"tasks", "models", "check", "protocol", "train"} <= set(COMMANDS)
    assert all(command in shown for command in COMMANDS)


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
