"""A micro study gives what it gave when it was recorded, on all four families."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from fixtures.models import PAPER_FAMILIES
from fixtures.power import THOROUGH
from memloc.engine.fit import ONE_BY_ONE
from memloc.engine.stacked import Stacked

_spec = importlib.util.spec_from_file_location("measure", Path(__file__).with_name("measure.py"))
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)
RECORDED = json.loads(golden.RECORD.read_text(encoding="utf-8"))
COUNTED = ("swapping", "retraining", "probing", "probes", "generalisation")
"""Made of labels that are predicted or not: of some ten of them, noise can turn one over."""


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_a_micro_study_gives_what_was_recorded(family, tmp_path):
    same_machine = RECORDED["machine"] == golden.machine()
    assert_same(
        golden.measure(family, tmp_path), RECORDED["families"][family], family, same_machine
    )


@pytest.mark.parametrize("family", PAPER_FAMILIES if THOROUGH else ["bert", "gpt_neo"])
def test_models_that_are_trained_one_by_one_give_the_same_up_to_float_noise(
    family, tmp_path, monkeypatch
):
    """With the switch of `memloc.engine.fit`, no two models are computed in one pass."""
    monkeypatch.setenv(ONE_BY_ONE, "1")
    monkeypatch.setattr(Stacked, "__init__", lambda *_, **_more: pytest.fail("in one pass"))
    found = golden.measure(family, tmp_path)
    assert_same(found, RECORDED["families"][family], family, exact=False)


def assert_same(found, recorded, where, exact):
    """Numbers to the bit on the machine that recorded them, up to float noise on others."""
    if isinstance(recorded, dict):
        assert found.keys() == recorded.keys(), where
        for name, value in recorded.items():
            if name != "hash" or exact:
                assert_same(found[name], value, f"{where} {name}", exact)
    elif isinstance(recorded, list):
        assert len(found) == len(recorded), where
        for i, (here, there) in enumerate(zip(found, recorded, strict=True)):
            assert_same(here, there, f"{where}[{i}]", exact)
    elif isinstance(recorded, float) and not exact:
        near = 0.15 if any(name in where for name in COUNTED) else 0.02
        np.testing.assert_allclose(found, recorded, rtol=near, atol=near, err_msg=where)
    else:
        assert found == recorded, where
