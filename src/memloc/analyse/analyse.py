"""Runs analyses on a run: checks first, then each analysis, then its file."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from memloc.analyse.generalisation import generalisation
from memloc.analyse.label_probes import label_probes
from memloc.analyse.material import Material
from memloc.analyse.store import Analysis
from memloc.analyse.variants import centroids, variants
from memloc.errors import lookup
from memloc.models.device import suitable_threads
from memloc.train.provenance import of_the_same
from memloc.train.run import Run

ANALYSES = ("centroids", "label-probes", "generalisation")
"""Those of section 5, which are run where none is named."""


@dataclass(frozen=True)
class Analysed:
    """What came out, by the name of the analysis."""

    found: dict[str, Analysis]
    folder: Path

    def __getitem__(self, name: str) -> Analysis:
        return self.found[name]


def analyse_run(
    folder: Path,
    analyses: Sequence[str] = (),
    *,
    windows: Sequence[str] = (),
    changes: Mapping[str, Any] | None = None,
    force: bool = False,
    device: str = "auto",
) -> Analysed:
    """Analyse a run made by memloc; results are kept in its folder and used again.

    `windows`, such as `3-6`, are layers that are swapped in from the reference weights for the
    centroids; `changes` are settings of the analyses that differ from the run's.
    """
    known = {name: name for name in ANALYSES}
    wanted = [lookup("analysis", name, known) for name in analyses] or ANALYSES
    run = Run.open(Path(folder))
    run.require_memorised(force)
    material = Material.of(run, changes, device)
    _require_weights(run, windows)
    out = run.folder / "analyse"
    makers = _makers(material, windows)
    with suitable_threads(int(run.about["width"])):
        found = {name: _kept_or_made(out, material, makers[name], name) for name in wanted}
    return Analysed(found, out)


def _require_weights(run: Run, windows: Sequence[str]) -> None:
    """Missing weights are found out before hours of other work."""
    for weights in ("final", "reference") if windows else ("final",):
        if not run.path(weights).is_dir():
            run.load(weights)  # says which command makes them


@dataclass(frozen=True)
class _Maker:
    """How an analysis is made, and what it depends on besides the run and its settings."""

    make: Callable[[], Analysis]
    depends_on: dict[str, Any] = field(default_factory=dict)


def _makers(material: Material, windows: Sequence[str]) -> dict[str, _Maker]:
    chosen = variants(material, windows)
    return {
        "centroids": _Maker(lambda: centroids(material, chosen), {"variants": list(chosen)}),
        "label-probes": _Maker(lambda: label_probes(material)),
        "generalisation": _Maker(lambda: generalisation(material)),
    }


def _kept_or_made(out: Path, material: Material, maker: _Maker, name: str) -> Analysis:
    path = out / f"{name.replace('-', '_')}.parquet"
    inputs = {**material.about(), **maker.depends_on}
    if path.is_file():
        kept = Analysis.read(path)
        if of_the_same(kept.about, inputs):
            return kept
    found = maker.make()
    verdict = material.run.verdict()
    mark = {
        "forced": not verdict["memorised"],
        "final_noisy_accuracy": verdict["noisy_accuracy"],
    }
    found = replace(found, about={**inputs, **mark, **found.about})
    found.write(path)
    return found
