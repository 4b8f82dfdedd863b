from itertools import combinations, product
from math import dist

import pytest

from memloc.data.tasks import EMBEDDED_TASKS, PAPER_TASKS
from memloc.methods.centroids import Centroids
from memloc.methods.label_probes import LabelProbes
from memloc.reporting.style import (
    COLOURS,
    MEANINGS,
    OTHERS,
    SHADES,
    TASKS,
    WORDS,
    colours,
    order,
    task_order,
    task_style,
)

PAPER, DARK = "#ffffff", "#14181d"


def luminance(colour):
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, other):
    light, dark = sorted([luminance(one), luminance(other)], reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("suite", [PAPER_TASKS, EMBEDDED_TASKS], ids=["paper", "tiny"])
def test_every_task_has_a_colour_and_marker_of_its_own(suite):
    styles = [TASKS[name] for name in suite]
    assert len(set(styles)) == len(styles)
    assert len({colour for colour, _ in styles}) == len(styles)


def test_tasks_of_one_category_differ_in_marker_too():
    for category in {spec.category for spec in PAPER_TASKS.values()}:
        markers = [TASKS[n][1] for n, spec in PAPER_TASKS.items() if spec.category == category]
        assert len(set(markers)) == len(markers)


@pytest.mark.parametrize("colour", sorted({*COLOURS, *(colour for colour, _ in TASKS.values())}))
@pytest.mark.parametrize("background", [PAPER, DARK])
def test_colours_stand_out_on_paper_and_on_dark_screens(colour, background):
    assert contrast(colour, background) >= 2


def lab(colour):
    """The colour in CIELAB, in which distances are about as people see them."""
    parts = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts)
    x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.9505
    y, z = luminance(colour), (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.0891
    x, y, z = (c ** (1 / 3) if c > 0.008856 else 7.787 * c + 16 / 116 for c in (x, y, z))
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


def test_colours_of_different_meanings_can_be_told_apart():
    """Those of tasks, listed or not, of kinds of examples, of numbers, and of other names."""
    tasks = {colour for colour, _ in TASKS.values()} | set(OTHERS)
    groups = [tasks, set(MEANINGS.values()), set(COLOURS), set(SHADES)]
    near = [
        (a, b)
        for one, other in combinations(groups, 2)
        for a, b in product(one, other)
        if dist(lab(a), lab(b)) < 16
    ]
    assert not near


def test_a_binarised_task_looks_like_the_whole_one():
    assert task_style("trec-binary") == task_style("trec")


def test_a_task_of_ones_own_always_looks_the_same():
    assert task_style("mine") == task_style("mine")
    assert len({task_style(f"task {i}") for i in range(40)}) > 8


def test_tasks_are_ordered_by_category_then_others_by_name():
    assert task_order(["zebra", "trec", "mine", "rte", "sst2"]) == [
        "rte",
        "sst2",
        "trec",
        "mine",
        "zebra",
    ]
    assert order("category", ["own", "topic", "nlu"]) == ["nlu", "topic", "own"]


def test_a_colour_means_one_thing_on_the_whole_page():
    kinds = [*WORDS["curve"].values(), *Centroids.report["words"]["kind"].values()]
    kinds += LabelProbes.report["words"]["what"].values()
    assert set(kinds) <= set(MEANINGS)
    noisy = {MEANINGS[kind] for kind in kinds if "noisy" in kind and "original" not in kind}
    clean = {MEANINGS[kind] for kind in kinds if "clean" in kind}
    assert len(noisy) == 1
    assert not noisy & clean
    assert colours("group", kinds[:2]).range == [MEANINGS[kind] for kind in kinds[:2]]
