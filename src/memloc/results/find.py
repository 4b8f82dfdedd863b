"""The runs in a study's folder, and the key of their rows."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memloc.results.columns import KEY
from memloc.train.run import Run


@dataclass(frozen=True)
class Found:
    """A run and the key of its rows."""

    key: dict[str, Any]
    run: Run

    def score_files(self) -> list[Path]:
        """What the localisers found, by name."""
        return sorted((self.run.folder / "localise").glob("*.parquet"))


def find_runs(folder: Path) -> list[Found]:
    """The runs of a study without those of its control set-up, in a fixed order."""
    places = [p.parent for p in folder.rglob("run.json") if "checkpoints" not in p.parts]
    # Deepest first: what stands where `memloc train` puts it keeps the plain name.
    places.sort(key=lambda p: (-len(p.parts), str(p)))
    opened = [Run.open(place) for place in places]
    return _keyed([run for run in opened if not run.about.get("control")], folder)


def _keyed(runs: list[Run], folder: Path) -> list[Found]:
    seen: set[tuple[Any, ...]] = set()
    found = []
    for run in runs:
        key = _key(run)
        if tuple(key.values()) in seen:  # two runs of one task, model and seed never merge
            key["model"] += f" ({run.folder.relative_to(folder)})"
        seen.add(tuple(key.values()))
        found.append(Found(key, run))
    return sorted(found, key=lambda f: (f.key["task"], f.key["model"], f.key["seed"]))


def _key(run: Run) -> dict[str, Any]:
    task = run.about["task"]
    model = Path(str(run.about["model"])).name
    return dict(zip(KEY, (task["name"], task["category"], model, run.seed), strict=True))
