import ast
import importlib.metadata
import re
import subprocess
import sys
from pathlib import Path

import pytest

import memloc
from memloc.cli import app, main

HEAVY = ("torch", "transformers", "datasets", "pandas", "sklearn", "altair")
PROTOCOL = "from memloc.methods.protocol import preset; preset('paper')"


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "code",
    [
        "import memloc; memloc.MemlocError; memloc.Run; memloc.Gradients(norm='L2'); dir(memloc)",
        PROTOCOL,
        "import memloc.cli\ntry: memloc.cli.main(['--help'])\nexcept SystemExit: pass",
        "import memloc.cli\ntry: memloc.cli.main(['train', '--help'])\nexcept SystemExit: pass",
        "import memloc.cli\ntry: memloc.cli.main(['protocol'])\nexcept SystemExit: pass",
    ],
    ids=["import", "preset", "help", "train-help", "protocol"],
)
def test_the_front_door_loads_nothing_heavy(code):
    loaded = modules_after(code)
    assert "memloc" in loaded
    assert not loaded & set(HEAVY)


def test_every_public_name_is_at_home_somewhere():
    assert sorted(memloc.__all__) == sorted(memloc._HOMES)
    for name in memloc.__all__:
        assert getattr(memloc, name).__name__ == name
        assert getattr(memloc, name).__module__.startswith("memloc.")


def test_the_vocabulary_is_small():
    assert len(memloc.__all__) <= 26


EVERY = """
import importlib, pkgutil
import memloc

for module in pkgutil.walk_packages(memloc.__path__, "memloc."):
    if module.name != "memloc.__main__":  # which runs the command line
        importlib.import_module(module.name)
for name in memloc.__all__:
    found = getattr(memloc, name)
    assert callable(found) and found.__name__ == name, name
    # No module hides it, as a module called `memloc.train` would.
    assert not hasattr(found, "__path__") and not hasattr(found, "__file__"), name
"""


def test_no_submodule_hides_a_public_name_once_all_are_imported():
    """`memloc.train`, `memloc.report` and `memloc.adopt` are functions, whatever was imported."""
    pytest.importorskip("ray")
    subprocess.run([sys.executable, "-c", EVERY], check=True)


def test_public_names_are_listed():
    assert set(memloc.__all__) <= set(dir(memloc))


def test_types_need_no_import_of_their_own():
    code = "import memloc; assert memloc.types.Task.__name__ == 'Task'"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'localize'"):
        _ = memloc.localize


def test_the_version_is_that_of_the_package():
    assert memloc.__version__ == importlib.metadata.version("memloc")


def test_only_public_names_are_listed():
    assert dir(memloc) == sorted([*memloc.__all__, "__version__", "types"])


def test_the_command_says_its_version(capsys):
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0
    assert capsys.readouterr().out == f"memloc {memloc.__version__}\n"


def test_what_messages_and_docstrings_advise_exists():
    """A name after `memloc.` is public, a word after `memloc ` is a command, or it is a module."""
    package = Path(memloc.__file__).parent
    texts = {
        (path, node.value)
        for path in package.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    names = {(n, p) for p, text in texts for n in re.findall(r"`memloc\.(\w+)", text)}
    commands = {(n, p) for p, text in texts for n in re.findall(r"`memloc ([a-z]+)", text)}
    assert len(names) > 5
    assert len(commands) > 10
    rooms = {path.stem for path in package.iterdir()}
    assert not {(n, p) for n, p in names if n not in {*memloc.__all__, *rooms}}
    known = {command.name or command.callback.__name__ for command in app.registered_commands}
    assert not {(n, p) for n, p in commands if n not in known}
