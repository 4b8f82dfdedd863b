"""What is shipped: every data file, the Python versions, how to cite it, and what CI runs."""

import os
import subprocess
import tomllib
from pathlib import Path

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_every_file_beside_the_modules_is_in_the_wheel():
    """One that no pattern names would be missing after `pip install`."""
    patterns = PROJECT["tool"]["setuptools"]["package-data"]
    shipped = set()
    for package, globs in patterns.items():
        folder = ROOT.joinpath("src", *package.split("."))
        assert (folder / "__init__.py").is_file()
        for pattern in globs:
            found = {path for path in folder.glob(pattern) if path.is_file()}
            assert found, f"{package}: {pattern} names nothing"
            shipped |= found
    tracked = subprocess.run(
        ["git", "ls-files", "-z", "src"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\0")
    others = {ROOT / name for name in tracked if name and not name.endswith(".py")}
    assert ROOT / "src" / "memloc" / "py.typed" in others
    assert {path for path in others if path.exists()} <= shipped


def test_declared_versions_of_python_are_those_that_ci_tries():
    said = [text.split(" :: ")[-1] for text in PROJECT["project"]["classifiers"]]
    declared = [text for text in said if text.startswith("3.")]
    workflow = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["check"]
    assert job["strategy"]["matrix"]["python"] == declared == ["3.11", "3.12", "3.13"]
    assert PROJECT["project"]["requires-python"] == f">={declared[0]}"
    assert [step["run"] for step in job["steps"] if "run" in step] == [".ci/run"]


def test_the_wheel_is_tried_by_ci():
    assert ".ci/wheel\n" in (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert os.access(ROOT / ".ci/wheel", os.X_OK)


def test_the_citation_is_of_this_version():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    project = PROJECT["project"]
    assert cited["version"] == project["version"]
    assert cited["license"] == project["license"]
    assert cited["keywords"] == project["keywords"]
    assert {"cff-version", "message", "title", "authors"} <= set(cited)
