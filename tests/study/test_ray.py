"""A study on a real Ray cluster, one of whose nodes is killed in the middle of a step."""

import importlib.util
import os
import re
import shutil
import socket
import subprocess
import sys

import pytest

from fixtures.plans import make_step
from fixtures.same_results import assert_same_results
from memloc.errors import SettingsError
from memloc.store import paths
from memloc.study import executors as on_ray
from memloc.study.plan import open_plan
from memloc.study.records import study_states

RAY = """
import sys
import threading
import time
from pathlib import Path

import psutil
from ray.cluster_utils import Cluster

from memloc.errors import StoreError
from memloc.study.execute import open_study
from memloc.study.plan import open_plan
from memloc.study.records import Store
from memloc.study.view import end_sentences

folder = Path(sys.argv[1])
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0})
nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]  # all steps are at work on one of these
cluster.wait_for_nodes()
steps = [*open_plan(folder).steps]
killed = []

def at_work(name):  # the node, or None
    try:
        record = Store(folder).record(name)
        if record is None or record.state != "begun":
            return None
        parents = {parent.pid for parent in psutil.Process(record.pid).parents()}
    except (StoreError, psutil.Error):  # it has just ended
        return None
    return next((n for n in nodes if parents & {p.pid for _, p in n.live_processes()}), None)

def kill_a_node_at_work():
    # A step is short beside the start of its process: looked for often, so that one is found.
    while not killed:
        killed.extend([node for node in map(at_work, steps) if node is not None][:1])
        time.sleep(0.01)
    cluster.remove_node(killed[0], allow_graceful=False)

threading.Thread(target=kill_a_node_at_work, daemon=True).start()
progress = open_study(folder, on="ray", address=cluster.address).run()
print("killed beside", len(killed), "failed", progress.count("failed"), flush=True)
print(*end_sentences(progress), sep="\\n", flush=True)  # what the command says, when Ray has ended
for name in progress.chosen:
    if progress.states[name].name == "failed":
        print(name, progress.states[name].why, file=sys.stderr)
cluster.shutdown()
"""

ALONE = {
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",  # otherwise it waits for whatever else a machine does
}


def test_a_step_asks_for_what_one_machine_has():
    nodes = [
        {"Alive": True, "Resources": {"CPU": 64.0, "memory": 2e11}},
        {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 1.0, "memory": 6e10}},
        {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0, "memory": 2e11}},
    ]
    with_gpu = on_ray.best_machine(nodes, make_step(threads=16, memory=1, gpus=1.0))
    assert with_gpu == {"CPU": 8.0, "GPU": 1.0, "memory": 6e10}
    without = on_ray.best_machine(nodes, make_step(threads=16, memory=1))
    assert without == nodes[0]["Resources"]
    assert on_ray.best_machine([], make_step()) == {}


@pytest.mark.slow
def test_a_node_dies_and_the_study_ends_with_the_same_results(finished, tmp_path):
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs memloc[ray]")
    folder = tmp_path / "on-ray"
    folder.mkdir()
    shutil.copy(finished / paths.CALIBRATION, folder / paths.CALIBRATION)
    text = (finished / paths.STUDY).read_text()
    # Each step is a fresh process there, so fewer of them.
    for asked in ("methods: [swapping]", "analyses: []", "control: null"):
        text = re.sub(f"^{asked.split()[0]} .*", asked, text, flags=re.MULTILINE)
    (folder / paths.STUDY).write_text(text)
    done = subprocess.run(
        [sys.executable, "-c", RAY, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **ALONE},
    )
    assert "killed beside 1 failed 0" in done.stdout, done.stdout + done.stderr
    assert "so the estimate was off by a factor of" in done.stdout, done.stderr
    assert {state.name for state in study_states(open_plan(folder)).values()} == {"done"}
    assert_same_results(folder, finished, trainings=["noisy", "original"])  # what swapping needs


def test_without_ray_it_is_said_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(SettingsError, match=r"pip install 'memloc\[ray\]'"):
        on_ray.RayExecutor(tmp_path)


def test_a_ray_that_does_not_start_is_a_sentence(tmp_path, monkeypatch):
    ray = pytest.importorskip("ray")

    def slow(**_options):
        raise Exception("The current node timed out during startup.")  # as Ray does

    monkeypatch.setattr(ray, "init", slow)
    with pytest.raises(SettingsError, match=r"could be started on this machine: .*timed out"):
        on_ray.RayExecutor(tmp_path)


@pytest.mark.parametrize(
    ("given", "environment", "expected"),
    [(None, "", "local"), (None, "auto", "auto"), ("local", "auto", "local")],
)
def test_without_an_address_ray_is_started_on_this_machine(
    tmp_path, monkeypatch, given, environment, expected
):
    """Ray alone would wait for the cluster that was last started here, even if it has ended."""
    ray = pytest.importorskip("ray")
    asked = {}
    monkeypatch.setattr(ray, "init", lambda **options: asked.update(options))
    monkeypatch.setenv("RAY_ADDRESS", environment)
    on_ray.RayExecutor(tmp_path, given)
    assert asked["address"] == expected


@pytest.mark.parametrize("address", ["127.0.0.1:{}", "ray://127.0.0.1:{}", "[::1]:{}"])
def test_a_cluster_that_does_not_answer_is_refused_at_once(tmp_path, monkeypatch, address):
    ray = pytest.importorskip("ray")
    monkeypatch.setattr(ray, "init", lambda **_options: pytest.fail("Ray would wait for minutes"))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))  # nobody listens there
        place = address.format(free.getsockname()[1])
        with pytest.raises(SettingsError, match=f"No Ray cluster at {re.escape(place)}: "):
            on_ray.RayExecutor(tmp_path, place)
