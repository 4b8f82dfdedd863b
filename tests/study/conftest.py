"""A study that takes seconds: an embedded model cut to two layers, few examples, every step."""

import pytest

from bad_input.machine import write_calibration
from fixtures.forked import ended, forked
from memloc.cli import main
from memloc.study.executors import LocalExecutor

MICRO = """\
preset: demo
models: [tiny-opt]
tasks: [tiny-sentiment]
methods: [swapping, retraining, gradients, probing]
analyses: [centroids, label_probes, generalisation]
control: {windows: ["1"], methods: [swapping]}
report: false
depth: 2
examples: 30
device: cpu
overrides:
  finetune.epochs: 4
  finetune.batch_size: 8
  finetune.near_ceiling: 0.01
  verdict.noisy_at_least: 0.001
  retraining.epochs: 1
  probing.epochs: 3
  probing.first_epoch: 0
  probing.seeds: [0]
  label_probes.epochs: 3
  label_probes.first_epoch: 0
  label_probes.seeds: [0]
  generalisation.models: 3  # as one
  generalisation.epochs: 1
  control.epochs: 2
  control.width: 1
  control.accuracy_above: 0.01
  control.auxiliary_examples: 10
"""


@pytest.fixture
def micro(tmp_path):
    """Writes a micro study, with `changes` to its text, on a machine that was measured."""

    def write(name="study", changes=None):
        text = MICRO
        for old, new in (changes or {}).items():
            assert old in text
            text = text.replace(old, new)
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        (folder / "study.yaml").write_text(text, encoding="utf-8")
        write_calibration(folder)
        return folder

    return write


@pytest.fixture(scope="session")
def finished(once):
    """A micro study that was carried out by the command, without interruption."""

    def make(folder):
        folder.mkdir()
        (folder / "study.yaml").write_text(MICRO, encoding="utf-8")
        LocalExecutor(folder, 1, 1, ["opt"]).start()  # loads here what a copy needs
        said = folder.with_suffix(".txt")
        running = forked(lambda: main(["run", str(folder), "--jobs", "1"]), said)
        assert ended(running) == 0, said.read_text(encoding="utf-8")

    return once("finished", make)
