"""How often do intervals over tasks hold the true number? `python -m studies.task_intervals`.

Simulates studies with few tasks and writes the share of intervals that hold the true mean or
coefficient into docs/explanation/error_rates.md. The percentile bootstrap and BCa are what memloc
does not use. Less than ten minutes on a busy core.
"""

from collections.abc import Callable

import numpy as np
import pandas as pd
from scipy import stats

from memloc.arrays import FloatArray
from memloc.reporting.tables import markdown
from memloc.seeds import generator
from memloc.stats.agreement import COEFFICIENTS, Coefficient, correlation
from memloc.stats.intervals import t_ends
from studies.pages import DOCS, put

PAGE = DOCS / "explanation" / "error_rates.md"
STUDIES, DRAWS = 1000, 10_000
STUDIES_RHO, DRAWS_RHO, LARGE = 400, 1000, 100_000
TASKS = (12, 8, 5)
SLOPES = (0.0, 0.5, 0.8)
ERRORS = {
    "normal": lambda rng, size: rng.normal(size=size),
    "skewed": lambda rng, size: rng.exponential(size=size) - 1,
}
"""Numbers with mean 0 and deviation 1."""
OURS, PERCENTILE, BCA = "memloc", "percentile", "BCa"
Ends = tuple[float, float]


def main() -> None:
    """Write the table of coverages into the page."""
    rows = [mean_row(shape, n) for shape in ERRORS for n in TASKS]
    designs: tuple[tuple[Coefficient, int], ...] = (
        ("spearman", 1),
        ("spearman", 4),
        ("pearson", 1),
    )
    for kind, models in designs:
        rows += [rho_row(shape, n, kind, models) for shape in ERRORS for n in TASKS]
    put("coverage", markdown(pd.DataFrame(rows)), PAGE)


def mean_row(shape: str, n: int) -> dict[str, str]:
    """Return the coverage of the intervals of a mean over `n` tasks with one number each."""
    rng = generator(n, "means", shape)
    counts = rng.multinomial(n, np.full(n, 1 / n), size=DRAWS) / n
    held = []
    for _ in range(STUDIES):
        values = ERRORS[shape](rng, n)
        without = (values.sum() - values) / (n - 1)
        ends = {OURS: t_ends(values), **drawn_ends(values.mean(), counts @ values, without)}
        held.append({name: low <= 0 <= high for name, (low, high) in ends.items()})
    return _row("mean", shape, n, pd.DataFrame(held).mean())


def rho_row(shape: str, n: int, kind: Coefficient, models: int) -> dict[str, str]:
    """Return the lowest coverage over SLOPES of the intervals of a coefficient over `n` tasks."""
    found = [rho_coverage(shape, n, kind, models, slope) for slope in SLOPES]
    name = {"spearman": "Spearman's ρ", "pearson": "Pearson's r"}[kind]
    what = f"{name}, {models} models" if models > 1 else f"{name}, 1 model"
    return _row(what, shape, n, pd.DataFrame(found).min())


def rho_coverage(
    shape: str, n: int, kind: Coefficient, models: int, slope: float
) -> "pd.Series[float]":
    """Return the coverage of the intervals of a coefficient, by the name of the interval."""
    rng = generator(n, "coefficients", shape, kind, str(models), str(slope))
    true = COEFFICIENTS[kind](*_pairs(rng, shape, LARGE, models, slope)).statistic
    group = np.repeat(np.arange(n), models)
    held = []
    for _ in range(STUDIES_RHO):
        x, y = _pairs(rng, shape, n, models, slope)
        ours = correlation(x, y, kind, group, np.tile(np.arange(models), n))
        without = _coefficients(x, y, [np.flatnonzero(group != g) for g in range(n)], kind)
        tasks = rng.integers(n, size=(DRAWS_RHO, n))
        places = (tasks[:, :, None] * models + np.arange(models)).reshape(DRAWS_RHO, -1)
        drawn = _coefficients(x, y, places, kind)
        ends = {OURS: (ours.low, ours.high), **drawn_ends(ours.rho, drawn, without)}
        held.append({name: low <= true <= high for name, (low, high) in ends.items()})
    return pd.DataFrame(held).mean()


def drawn_ends(estimate: float, drawn: FloatArray, without: FloatArray) -> dict[str, Ends]:
    """Return the ends of the percentile and of the BCa interval, from resamples and from leaving
    out one.
    """
    drawn, without = drawn[np.isfinite(drawn)], without[np.isfinite(without)]
    below = (np.mean(drawn < estimate) + np.mean(drawn <= estimate)) / 2
    bias = stats.norm.ppf(np.clip(below, 1 / len(drawn), 1 - 1 / len(drawn)))
    off = without.mean() - without
    squares = np.square(off).sum()
    skew = (off**3).sum() / (6 * squares**1.5) if squares > 0 else 0.0
    z = bias + stats.norm.ppf([0.025, 0.975])
    places = stats.norm.cdf(bias + z / (1 - skew * z))
    low, high, low_bca, high_bca = np.quantile(drawn, [0.025, 0.975, *places])
    return {PERCENTILE: (low, high), BCA: (low_bca, high_bca)}


def _pairs(
    rng: np.random.Generator, shape: str, n: int, models: int, slope: float
) -> tuple[FloatArray, FloatArray]:
    """Return numbers of `n` tasks by two measures; models of one task agree closely."""
    draw: Callable[..., FloatArray] = ERRORS[shape]
    x = draw(rng, (n, 1))
    y = slope * x + np.sqrt(1 - slope**2) * draw(rng, (n, 1))
    own = 0.5 * rng.normal(size=(2, n, models)) if models > 1 else np.zeros((2, n, 1))
    return (x + own[0]).ravel(), (y + own[1]).ravel()


def _coefficients(x: FloatArray, y: FloatArray, places: object, kind: Coefficient) -> FloatArray:
    """Return coefficients of the pairs at each row of `places`; NaN where a side is constant."""
    one, other = x[np.array(places)], y[np.array(places)]
    if kind == "spearman":
        one, other = stats.rankdata(one, axis=1), stats.rankdata(other, axis=1)
    one, other = (side - side.mean(1, keepdims=True) for side in (one, other))
    under = np.sqrt(np.square(one).sum(1) * np.square(other).sum(1))
    over = (one * other).sum(1)
    return np.asarray(np.divide(over, under, out=np.full(len(one), np.nan), where=under > 1e-12))


def _row(what: str, shape: str, n: int, held: "pd.Series[float]") -> dict[str, str]:
    cells = {name: f"{held[name]:.2f}" for name in (OURS, PERCENTILE, BCA)}
    return {"estimate": what, "tasks differ": shape, "tasks": str(n), **cells}


if __name__ == "__main__":
    main()
