import pandas as pd
import pytest

from memloc.display import sparkline
from memloc.reporting.style import WORDS
from memloc.reporting.terminal import memorisation_curve


@pytest.mark.parametrize(
    ("values", "bars"),
    [
        ([], ""),
        ([0.0, 0.5, 1.0], " ▄█"),
        ([0.125, 0.25, 0.375, 0.625, 0.75, 0.875], "▁▂▃▅▆▇"),
        ([-1.0, 2.0], " █"),
        ([float("nan"), 1.0], "·█"),
    ],
)
def test_a_sparkline_is_empty_at_0_and_full_at_1(values, bars):
    assert sparkline(values) == bars


def test_the_curve_has_a_line_a_group_and_a_bar_an_epoch():
    table = pd.DataFrame(
        {
            "training": ["noisy"] * 3 + ["original"],
            "epoch": [3, 1, 2, 1],  # in any order
            "clean_accuracy": [1.0, 0.0, 0.5, 0.0],
            "noisy_accuracy": [0.75, 0.0, 0.25, 1.0],
            "noisy_as_original": [0.25, 1.0, 0.75, 0.0],
            "validation_accuracy": [0.5, 0.5, 0.5, 0.0],
        }
    )
    title, *lines = memorisation_curve(table).splitlines()
    assert "epoch 1 to 3" in title
    assert len(lines) == len(WORDS["curve"])
    by_label = {line.split("|")[0].strip(): line.split("|")[1:] for line in lines}
    assert by_label["clean examples, their label"] == [" ▄█", " 100%"]
    assert by_label["noisy examples, assigned (wrong) label"] == [" ▂▆", " 75%"]
    assert by_label["noisy examples, original (right) label"] == ["█▆▂", " 25%"]
    assert len({line.index("|") for line in lines}) == 1
