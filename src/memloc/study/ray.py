"""Steps on a Ray cluster: each with its processors, GPUs and memory, results through the study's
folder, which every machine sees under the same path."""

import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from memloc.data.sources import DATA_VARIABLE
from memloc.errors import SettingsError
from memloc.study.execute import Needs
from memloc.study.step import Order, Outcome

RETRIES = 3
"""How often a step is given to another worker when its own is lost."""


class RayExecutor:
    """Gives every step that is ready to Ray, which finds the place for it."""

    def __init__(self, folder: Path, address: str | None = None) -> None:
        try:
            import ray
        except ImportError:
            raise SettingsError(
                "Ray is not installed: `pip install 'memloc[ray]'` brings it."
            ) from None
        self._ray: Any = ray
        self.folder = folder.resolve()
        self._began_here = not ray.is_initialized()
        if self._began_here:
            self._connect(address)
        self._running: dict[Any, str] = {}
        self._remote = ray.remote(_do_step)

    def _connect(self, address: str | None) -> None:
        try:
            self._ray.init(
                address=address or os.environ.get("RAY_ADDRESS"),
                log_to_driver=False,
                logging_level="ERROR",
                include_dashboard=False if address is None else None,
            )
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())[:200]
            raise SettingsError(f"No Ray cluster at {address}: {reason}") from error

    def cores(self) -> int:
        """Of all machines together."""
        return max(1, int(self._ray.cluster_resources().get("CPU", 1)))

    def start(self) -> None:
        """Nothing to do: the cluster is there."""

    def has_room(self, needs: Needs, running: Mapping[str, Needs]) -> bool:
        """Ray queues what does not fit; a few more than fit keep every machine busy."""
        busy = sum(other.threads for other in running.values())
        return not running or busy + needs.threads <= 2 * self.cores()

    def submit(self, order: Order, needs: Needs) -> None:
        """Have a step done somewhere."""
        best = best_machine(self._ray.nodes(), needs)
        options: dict[str, Any] = {
            "num_cpus": min(needs.threads, max(1, int(best.get("CPU", 1)))),
            "num_gpus": min(needs.gpus, best.get("GPU", 0.0)),
            "memory": int(min(needs.memory, 0.9 * best.get("memory", 0.0))),
            "max_retries": RETRIES,
            "name": order.step,
        }
        folder = os.environ.get(DATA_VARIABLE)
        if folder is not None:  # a study reads the same data everywhere
            options["runtime_env"] = {"env_vars": {DATA_VARIABLE: folder}}
        reference = self._remote.options(**options).remote(str(self.folder), order.text())
        self._running[reference] = order.step

    def wait(self, seconds: float) -> list[Outcome]:
        """The steps that ended, after at most so long."""
        if not self._running:
            time.sleep(seconds)
            return []
        waiting = list(self._running)
        ready, _ = self._ray.wait(waiting, num_returns=len(waiting), timeout=seconds)
        return [self._outcome(reference) for reference in ready]

    def _outcome(self, reference: Any) -> Outcome:
        step = self._running.pop(reference)
        try:
            return Outcome(**self._ray.get(reference))
        except self._ray.exceptions.RayError as error:
            reason = " ".join(str(error).split())[:300]
            return Outcome(step, f"{type(error).__name__}: {reason}")

    def stop(self) -> None:
        """End whatever still runs, and leave the cluster."""
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        if self._began_here:
            self._ray.shutdown()


def best_machine(nodes: Sequence[Mapping[str, Any]], needs: Needs) -> dict[str, float]:
    """What one machine has, the best for a step: it must not wait for more than that."""
    there: list[dict[str, float]] = [node["Resources"] for node in nodes if node["Alive"]]

    def suits(has: Mapping[str, float]) -> tuple[float, ...]:
        wanted = {"GPU": needs.gpus, "memory": needs.memory, "CPU": needs.threads}
        return tuple(min(has.get(name, 0.0), most) for name, most in wanted.items())

    return max(there, key=suits, default={})


def _do_step(folder: str, order: str) -> dict[str, Any]:
    """On a worker: a step in a process of its own, which ends with the worker."""
    import json
    import secrets
    from dataclasses import asdict, replace

    from memloc.study.processes import started_fresh

    # A token of its own: a worker that was given up, but is alive, ends its step when it sees it.
    given = replace(Order(**json.loads(order)), token=secrets.token_hex(8))
    return asdict(started_fresh(Path(folder), given).outcome())
