"""Layer swapping: which labels are lost when a window of units comes from the donor?"""

from collections.abc import Sequence

import numpy as np

from memloc.arrays import IntArray
from memloc.methods import Sizes, drawn
from memloc.methods.game import Design, Game, Played, Selection, seconds_per_text
from memloc.methods.result import Outcomes, Result, from_outcomes
from memloc.run.folder import Run
from memloc.settings import paper
from memloc.stats.answers import line_shares
from memloc.stats.depth import centre_of_gravity
from memloc.stats.intervals import Interval
from memloc.stats.windows import windows


class Swapping(Game):
    """Exchanges windows of the final model's units with a donor's; section 3.1 of the paper."""

    name = "swapping"
    version = 4
    exactness = 2

    normalise: bool = paper(True, "§3.1")
    """Divide errors by that of the full window, so that it counts as 1.0."""

    def run(self, run: Run) -> Result:
        """Return which noisy (and clean) labels are lost under every window, and the layer
        weights.
        """
        played = self.play(run)
        is_noisy = np.arange(len(played.rows)) < played.n_noisy
        every = tuple(windows(played.design.n_units))
        wrong = played.values[0] >= 0.5  # a text is lost with half of its tokens
        outcomes = Outcomes(
            every, played.rows, is_noisy, wrong[:, 1:], wrong[:, 0], played.values[1, :, 0]
        )
        about = {
            **played.about,
            "final_clean_accuracy": 1 - float(wrong[~is_noisy, 0].mean()),
            "clean_examples": int((~is_noisy).sum()),
        }
        normalise = self.normalise and not run.is_null
        n_units = played.design.n_units
        result = from_outcomes(self.name, outcomes, n_units, normalise=normalise, about=about)
        return _by_layer(played, result, outcomes) if played.names else result

    def examples(self, run: Run) -> tuple[IntArray, IntArray]:
        """Return all noisy examples and, by default, all clean ones."""
        return run.noisy_rows, drawn(run.clean_rows, self.clean_examples, run.seed, self.name)

    def design(self, met: Sequence[int], examples: Selection) -> Design:  # noqa: ARG002
        """Choose all windows of units, and the unchanged model."""
        return Design(tuple(met), (0, *window_subsets(max(met).bit_length())))

    def cost(self, sizes: Sizes) -> float:
        """Return the seconds; windows share the layers before them and each other's first
        layers.
        """
        clean = sizes.examples - sizes.noisy
        texts = sizes.noisy + min(clean, self.clean_examples or clean)
        return texts * seconds_per_text(self.guess(sizes.depth), sizes)


def window_subsets(n_units: int) -> list[int]:
    """Return every window as a number whose bits are its units, the full one last."""
    return [sum(1 << unit for unit in window) for window in windows(n_units)]


def _by_layer(played: Played, found: Result, outcomes: Outcomes) -> Result:
    """Turn a result by unit into a result by layer: a layer's weight is the mean of its units'.

    The values of units are in the tables `units` and `unit_windows`.
    """
    in_layers = played.design.in_layers
    weights, low, high = (
        ends @ (in_layers / in_layers.sum(0)) for ends in (found.weights, found.low, found.high)
    )
    changes = played.noisy[..., 1:] - played.noisy[..., :1]
    shares = [
        line_shares(changes_of_one, len(in_layers), outcomes.windows) for changes_of_one in changes
    ]
    names = np.array(played.names, dtype=object)
    ends = {end: names[found["windows"][end] - 1] for end in ("first", "last")}
    tables = {
        "units": played.named(found["layers"]),
        "unit_windows": found["windows"].assign(**ends),
        **played.example_tables(np.stack(shares) @ in_layers),
    }
    mcog = Interval(centre_of_gravity(weights), np.nan, np.nan)
    return Result.of(found.method, weights, (low, high), mcog, tables=tables, about=found.about)
