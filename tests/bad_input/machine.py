"""A machine that is measured at once: a fresh calibration takes seconds, and is no input."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

from memloc.store import paths
from memloc.store.records import write_json
from memloc.study.estimate import machine

WIDTHS, DEPTHS = (16, 64, 768, 1024, 2048), 32
SPEED = {
    "update": 0.06,
    "predict": 0.001,
    "layer": 1e-5,
    "last_layer": 5e-6,
    "probe": 0.001,
    "batch": 16,
    "length": 9,
}


def write_calibration(folder: Path) -> None:
    """As if this machine had been measured for models of many sizes."""
    speeds = {f"{depth}x{width}": SPEED for depth in range(1, DEPTHS + 1) for width in WIDTHS}
    known = {"machine": machine(), "tokens": {}, "speeds": speeds}
    write_json(folder / paths.CALIBRATION, known)


@contextmanager
def measured_at_once() -> Iterator[None]:
    """No model is timed: every one is as fast as `SPEED` says."""
    with mock.patch("memloc.study.calibrate.speed", return_value=SPEED):
        yield
