"""Fixtures for every test; nothing here reaches the network."""

import csv
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["MEMLOC_QUIET"] = "1"
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Several processes test at once, and threads of tiny models would only wait for each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest

from fixtures.models import DEPTH, write_model
from memloc.data.task import Task

MakeModel = Callable[..., Path]
Once = Callable[[str, Callable[[Path], Any]], Path]

QUICK = ("stats", "data", "store", "methods", "golden", "test_architecture.py", "test_settings.py")
"""Folders and files of tests that `--quick` runs."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="Tests that catch most mistakes.")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """With `--quick`, keep the quick folders, one model family and no slow test."""
    if config.getoption("--quick"):
        left = [item for item in items if not _is_quick(item)]
        items[:] = [item for item in items if _is_quick(item)]
        config.hook.pytest_deselected(items=left)


def _is_quick(item: pytest.Item) -> bool:
    here = Path(__file__).parent
    place = item.path.relative_to(here).parts[0] if item.path.is_relative_to(here) else ""
    family = getattr(item, "callspec", None) and item.callspec.params.get("family", "bert")
    slow = any(item.get_closest_marker(name) for name in ("slow", "browser"))
    return place in QUICK and family in (None, "bert") and not slow


@pytest.fixture(scope="session", autouse=True)
def _unsynced() -> Iterator[None]:
    """While tests run, nothing waits for the disk: no test takes this machine's power away."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _file: None)
        yield


@pytest.fixture(scope="session")
def once(tmp_path_factory: pytest.TempPathFactory) -> Once:
    """`once("name", make)`: the folder that `make` was given to fill, not to be changed.

    Of several processes that run tests at once, one makes it, and the others wait.
    """
    own = tmp_path_factory.getbasetemp()
    home = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "once"
    home.mkdir(exist_ok=True)

    def get(name: str, make: Callable[[Path], Any]) -> Path:
        folder, done = home / name, home / f"{name}.done"
        with (home / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not done.exists():
                make(folder)
                done.touch()
        return folder

    return get


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> MakeModel:
    """`tiny_model("opt", depth=24, dropout=0.1)`: the folder of a random model, made once."""
    made: dict[Any, Path] = {}

    def make(family: str, depth: int = DEPTH, dropout: float = 0.0, seed: int = 0) -> Path:
        key = (family, depth, dropout, seed)
        if key not in made:
            home = tmp_path_factory.mktemp("models") / f"{family}-{depth}-{dropout}-{seed}"
            made[key] = write_model(home, family, depth, dropout, seed)
        return made[key]

    return make


@pytest.fixture
def write_data(tmp_path: Path) -> Callable[..., Path]:
    """`write_data(run)`: the run's training data in a file, as a person would have them."""

    def write(run: Any) -> Path:
        task, noisy, names = run.task, run.noisy, run.task.label_names
        path = tmp_path / "train.csv"
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "label", "original", "flag"])
            for (text,), a, o in zip(task.train.parts, noisy.assigned, noisy.original, strict=True):
                writer.writerow([text, names[a], names[o], "true" if a != o else "false"])
        return path

    return write


@pytest.fixture
def task() -> Task:
    """A small one, of words."""
    from fixtures.tasks import make_task

    return make_task()


@pytest.fixture
def recipe_of(tiny_model):
    """`recipe_of("opt", seed=2, finetune__epochs=3)`."""

    def make(family: str = "opt", *, seed: int = 1, task: Task | None = None, **changes: Any):
        from fixtures.tasks import fast_protocol, make_recipe, make_task

        model = str(tiny_model(family, depth=2, dropout=0.1))
        protocol = fast_protocol(**changes)
        return make_recipe(model, task or make_task(), seed, protocol)

    return make


@pytest.fixture(scope="session")
def memorised_folder(once: Once, tiny_model: MakeModel) -> Path:
    """The folder of a run that memorised, with all weights; not to be changed."""
    from fixtures.tasks import fast_protocol, make_recipe, make_task, train_run

    model = str(tiny_model("opt", depth=3, dropout=0.1))
    protocol = fast_protocol(finetune__near_ceiling=0.9)
    recipe = make_recipe(model, make_task(48), 1, protocol)
    return once("memorised", lambda folder: train_run(recipe, folder))


@pytest.fixture
def memorised_run(memorised_folder: Path, tmp_path: Path) -> Any:
    """A copy of that run without any result."""
    from memloc.run.folder import Run

    return Run.open(shutil.copytree(memorised_folder, tmp_path / "memorised"), "cpu")


@pytest.fixture
def texts_run(once: Once, tmp_path: Path) -> Any:
    """A copy of a run whose language model memorised random texts, without any result."""
    import memloc
    from fixtures.models import write_language_model
    from fixtures.tasks import LEARNT_TEXTS, TEXTS, make_texts

    def make(folder: Path) -> None:
        model = write_language_model(folder / "start", "opt")
        task = memloc.load_csv(make_texts(), name="texts", **TEXTS)
        settings = {**LEARNT_TEXTS, "finetune.keep_epochs": "early"}
        memloc.train(str(model), task, folder / "run", settings=settings)

    folder = once("texts", make) / "run"
    return memloc.Run.open(shutil.copytree(folder, tmp_path / "texts"), "cpu")
