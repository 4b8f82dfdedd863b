"""Times two ways of doing one thing side by side, in one process, and keeps what it finds."""

import json
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

RESULTS = Path(__file__).parent / "results.json"
CLOCKS = {"wall": time.perf_counter, "processor": time.process_time}
"""The processor's time counts on a machine that others use as well; for one thread only."""
_clock: list[str] = ["wall"]


@dataclass(frozen=True)
class Measured:
    """Measurement of one stage at one width: memloc compared with the plain way."""

    stage: str
    hidden: int
    ratio: float
    """How many times faster memloc is."""
    seconds: float
    baseline_seconds: float
    baseline: str
    difference: float
    """Largest difference of the two results, which are meant to be the same."""
    peak_mb: float
    baseline_peak_mb: float
    threads: int
    details: dict[str, Any] = field(default_factory=dict)
    clock: str = field(default_factory=lambda: _clock[-1])


def side_by_side(
    ours: Callable[[], Any], baseline: Callable[[], Any], repeats: int
) -> tuple[list[tuple[float, float, Any]], list[tuple[float, float, Any]]]:
    """Return (seconds, peak megabytes, result) of each repeat, for both ways.

    They take turns, also at being first: for a while a machine may be slower.
    """
    mine: list[tuple[float, float, Any]] = []
    plain: list[tuple[float, float, Any]] = []
    turns = [(plain, baseline), (mine, ours)]
    for _ in range(repeats):
        for found, work in turns:
            found.append(timed(work))
        turns.reverse()
    return mine, plain


def timed(work: Callable[[], Any]) -> tuple[float, float, Any]:
    """Return seconds, peak of the process's memory above its start in megabytes, and the result."""
    with _PeakMemory() as memory:
        now = CLOCKS[clock()]
        start = now()
        result = work()
        seconds = now() - start
    return seconds, memory.peak_mb, result


def use_clock(name: str) -> None:
    """Use this clock for all further measurements."""
    _clock.append(name)


def clock() -> str:
    """Return the name of the clock in use."""
    return _clock[-1]


def middle(values: list[float]) -> float:
    """Return the median."""
    return statistics.median(values)


def keep(found: list[Measured]) -> None:
    """Put the results into results.json, in place of those of the same stage and width."""
    old = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else []
    new = {(m.stage, m.hidden) for m in found}
    rows = [row for row in old if (row["stage"], row["hidden"]) not in new]
    rows += [asdict(m) for m in found]
    RESULTS.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


def matmul_peak(threads: int) -> float:
    """Return floating-point operations per second of large matrix products on this many threads."""
    torch.set_num_threads(threads)
    a, b = torch.rand(1024, 1024), torch.rand(1024, 1024)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        a @ b
        best = min(best, time.perf_counter() - start)
    return 2 * 1024**3 / best


class _PeakMemory:
    """Watches the resident memory of this process from a thread."""

    def __enter__(self) -> "_PeakMemory":
        self.start = self.peak = _resident()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._watch, daemon=True)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.done.set()
        self.thread.join()

    def _watch(self) -> None:
        # Seldom: the watcher takes turns with the work that it watches.
        while not self.done.wait(0.1):
            self.peak = max(self.peak, _resident())

    @property
    def peak_mb(self) -> float:
        return (self.peak - self.start) / 1e6


def _resident() -> int:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096
