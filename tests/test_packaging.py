"""Contents of the package: every data file, the Python versions, how to cite it, and what CI
runs.
"""

import ast
import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest
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
    assert job["strategy"]["matrix"]["python"] == declared == ["3.11", "3.12", "3.13", "3.14"]
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


def _imported() -> set[str]:
    """The packages that memloc imports, in functions too, by their first name.

    pydantic_core is a part of pydantic, which fixes its version. IPython is used in notebooks
    alone, which run in it.
    """
    found: set[str] = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Import):
                found |= {name.name.partition(".")[0] for name in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(str(node.module).partition(".")[0])
    return found - sys.stdlib_module_names - {"memloc", "pydantic_core", "IPython"}


def test_whatever_is_imported_is_declared():
    """What another package happens to bring may be missing after its next release."""
    project = PROJECT["project"]
    optional = project["optional-dependencies"]
    extras = [text for name in ("ray", "peft", "hub") for text in optional[name]]
    declared = [*project["dependencies"], *extras]
    names = {_plain(re.split(r"[<>=\[]", text)[0]) for text in declared}
    homes = packages_distributions()
    assert "threadpoolctl" in names
    for package in _imported():
        assert names & {_plain(name) for name in homes.get(package, [package])}, package


def _plain(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_bare_pytest_finds_what_tests_import():
    """The command `pytest` puts neither the project's folder nor that of the tests on the path."""
    command = [
        str(Path(sys.executable).with_name("pytest")),
        "--collect-only",
        "-p",
        "no:cacheprovider",
    ]
    done = subprocess.run(
        [*command, "tests/test_seeds.py"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def _workflow(name: str) -> dict[str, Any]:
    text = (ROOT / ".github/workflows" / name).read_text(encoding="utf-8")
    return yaml.safe_load(text.replace("\non:", "\nwhen:"))  # YAML reads `on` as true


def test_a_tag_builds_tests_and_publishes_without_a_password():
    release = _workflow("release.yml")
    assert release["when"] == {"push": {"tags": ["v*"]}}
    jobs = release["jobs"]
    matrix = jobs["try"]["strategy"]["matrix"]
    assert matrix["python"] == ["3.11", "3.12", "3.13", "3.14"]
    assert {"ubuntu-latest", "macos-latest"} == set(matrix["os"])
    assert set(jobs["publish"]["needs"]) == {"build", "try"}
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert "password" not in str(release)


def test_links_of_the_published_readme_lead_to_the_repository(tmp_path):
    """The package index shows the README alone, so what is beside it needs an address."""
    (tmp_path / ".ci").mkdir()
    for name in ("README.md", "pyproject.toml", ".ci/address"):
        shutil.copy(ROOT / name, tmp_path / name)
    address, tag = "https://github.com/somebody/memloc", "v1.2.3"
    for _ in range(2):  # the second time there is nothing left to do
        subprocess.run([tmp_path / ".ci/address", address, tag], check=True)
    published = (tmp_path / "README.md").read_text(encoding="utf-8")
    before = (ROOT / "README.md").read_text(encoding="utf-8")
    old, new = (re.findall(r"\]\(([^)]*)\)", text) for text in (before, published))
    assert len(old) == len(new) > 15
    for was, now in zip(old, new, strict=True):
        kind = "raw" if was.endswith(".png") else "blob"
        assert now == (was if was.startswith("http") else f"{address}/{kind}/{tag}/{was}")
    urls = tomllib.loads((tmp_path / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    assert urls == {"Repository": address, **PROJECT["project"]["urls"]}
    runs = [step.get("run", "") for step in _workflow("release.yml")["jobs"]["build"]["steps"]]
    given = '.ci/address "$GITHUB_SERVER_URL/$GITHUB_REPOSITORY" "$GITHUB_REF_NAME"'
    assert runs.index(given) < runs.index("python -m build")


@pytest.mark.parametrize("name", ["ci.yml", "docs.yml", "release.yml"])
def test_a_workflow_can_read_the_repository_and_runs_what_is_there(name):
    """A job's own permissions take the place of the workflow's; only publishing reads no files."""
    workflow = _workflow(name)
    for job in workflow["jobs"].values():
        steps = job["steps"]
        assert all(len({"uses", "run"} & set(step)) == 1 for step in steps)
        granted = job.get("permissions", workflow.get("permissions"))
        checks_out = any(str(step.get("uses")).startswith("actions/checkout@") for step in steps)
        assert not checks_out or granted["contents"] == "read"
        for command in (step["run"] for step in steps if "run" in step):
            assert "index-url" not in command
            for script in re.findall(r"^\.ci/\w+$", command):
                assert os.access(ROOT / script, os.X_OK)


def test_the_lowest_versions_are_those_that_are_declared():
    """`.ci/lowest` installs every lower bound; a bound is a version, so that it can be."""
    for text in PROJECT["project"]["dependencies"]:
        assert re.fullmatch(r"[\w-]+>=[\d.]+", text), text
    assert ".ci/lowest" in str(_workflow("ci.yml")["jobs"]["lowest"])


def test_windows_is_refused_in_a_sentence():
    code = "import sys; sys.platform = 'win32'; import memloc"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs Linux or macOS" in done.stderr
    assert "WSL" in done.stderr
