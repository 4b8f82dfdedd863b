import subprocess
import sys

import pytest

import memloc

HEAVY = ("torch", "transformers", "datasets", "pandas", "sklearn", "altair")


def modules_after(code: str) -> set[str]:
    script = f"import sys\n{code}\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], capture_output=True, text=True, check=True
    )
    return set(done.stderr.split())


@pytest.mark.parametrize(
    "code",
    [
        "import memloc; memloc.preset('paper'); memloc.MemlocError; dir(memloc)",
        "import memloc.cli\ntry: memloc.cli.main(['--help'])\nexcept SystemExit: pass",
        "import memloc.cli\ntry: memloc.cli.main(['train', '--help'])\nexcept SystemExit: pass",
        "import memloc.cli\ntry: memloc.cli.main(['protocol'])\nexcept SystemExit: pass",
    ],
    ids=["import", "help", "train-help", "protocol"],
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


def test_public_names_are_listed():
    assert set(memloc.__all__) <= set(dir(memloc))


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'localize'"):
        _ = memloc.localize
