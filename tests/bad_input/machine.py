"""A machine that is measured at once: a fresh calibration takes seconds, and is no input."""

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from memloc.store import paths
from memloc.store.records import write_json
from memloc.study.estimate import machine

WIDTHS, DEPTHS = (16, 64, 768, 1024, 2048), 32
SPEED = {"update": 0.06, "predict": 0.001, "probe": 0.001, "batch": 16, "length": 9}


def write_calibration(folder: Path) -> None:
    """As if this machine had been measured for models of many sizes."""
    speeds = {f"{depth}x{width}": SPEED for depth in range(1, DEPTHS + 1) for width in WIDTHS}
    known = {"machine": machine(), "tokens": {}, "speeds": speeds}
    write_json(folder / paths.CALIBRATION, known)


@contextmanager
def measured_at_once() -> Iterator[None]:
    """Calibrations are written, not measured."""

    def measure(command: Sequence[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        write_calibration(Path(command[-1]))
        return subprocess.CompletedProcess(command, 0, "", "")

    with (
        mock.patch("memloc.study.estimate.subprocess", SimpleNamespace(run=measure)),
        mock.patch("memloc.study.calibrate.speed", return_value=SPEED),
    ):
        yield
