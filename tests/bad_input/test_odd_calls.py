"""Every public function with arguments of a wrong kind: a result, or one of memloc's own errors."""

import inspect
import warnings

import pandas as pd
import pytest

import memloc

ODD = {
    "nothing": None,
    "number": 3.5,
    "empty": "",
    "list": [],
    "dict": {"a": 1},
    "frame": pd.DataFrame({"a": [1]}),
    "object": object(),
    "bytes": b"x",
    "not a number": float("nan"),
}
NO_CALL = {"MemlocError", "Method", "Run", "RunSpec"}
"""Names that nobody calls with data: an exception, and what other functions make."""


@pytest.fixture(scope="module")
def task():
    return memloc.load_task("tiny-topic", examples=60)


def usual(name, task):
    """Arguments that are needed, of the right kind; what they name does not exist."""
    return {
        "load_csv": {"path": "no.csv"},
        "load_task": {"name": "tiny-topic"},
        "add_noise": {"task": task},
        "find": {"model": "tiny-opt", "folder": "found", "data": "no.csv"},
        "repair": {"run": "no-run", "folder": "out"},
        "analyse": {"run": "no-run"},
        "localise": {"run": "no-run"},
        "report": {"study": "no-run"},
        "load_results": {"path": "no-run"},
        "adopt": {"folder": "new", "final": "no-final", "data": "no.csv"},
        "adopt_trainer": {"folder": "new", "output": "no-output"},
        "plant": {
            "model": "./no-model",
            "task": memloc.add_noise(task),
            "folder": "new",
            "layers": "1",
            "auxiliary": task,
        },
        "train": {"model": "./no-model", "task": memloc.add_noise(task), "folder": "new"},
        "register_stack": {"model_type": "odd", "blocks": list},
        "RunCallback": {"texts": ["a", "b"], "labels": [0, 1], "original": [1, 1]},
    }.get(name, {})


@pytest.mark.parametrize("name", sorted(set(memloc.__all__) - NO_CALL))
def test_arguments_of_a_wrong_kind_end_in_a_sentence(name, task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    function, needed = getattr(memloc, name), usual(name, task)
    parameters = list(inspect.signature(function).parameters)
    assert set(needed) <= set(parameters)
    escaped = []
    for parameter in parameters:
        for kind, value in ODD.items():
            try:
                with warnings.catch_warnings(action="ignore"):
                    function(**{**needed, parameter: value})
            except memloc.MemlocError as error:
                if len(str(error).split()) < 4:
                    escaped.append(f"{parameter}={kind}: {error}")
            except Exception as error:  # noqa: BLE001 - any other one is the fault looked for
                escaped.append(f"{parameter}={kind}: {type(error).__name__}: {error}")
    assert escaped == []
