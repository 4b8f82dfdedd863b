"""Tables and examples as blocks of a page."""

import base64
import gzip
import json

from memloc.reporting.blocks import LONGEST, columns_of, example_block, packed
from study_support import Study


def unpacked(text):
    return json.loads(gzip.decompress(base64.b64decode(text)))


def test_bits_say_which_window_reverts_which_example(findings):
    results = findings.results
    runs = [run for run in findings.first_runs() if run["task"].iloc[0] == "tiny-topic"]
    found = example_block(findings, runs)
    assert len(found["rows"]) == 7
    one = next(r for r in found["runs"] if (r["model"], r["method"]) == ("tiny-opt", "swapping"))
    data = base64.b64decode(one["bits"])
    bits = [bool(byte >> (7 - i) & 1) for byte in data for i in range(8)]
    wrong = results.only(task="tiny-topic", model="tiny-opt", seed=1).reverted
    wrong = wrong[wrong["method"] == "swapping"].set_index(["example", "first", "last"])["wrong"]
    for i, row in enumerate(found["rows"]):
        for w, (first, last) in enumerate(one["windows"]):
            assert bits[i * len(one["windows"]) + w] == wrong[row[0], first, last]


def test_long_texts_are_cut_and_say_so(tmp_path):
    from memloc.reporting.findings import Findings
    from memloc.results import load_results

    study = Study(methods=("swapping",), analyses=(), control=0, words=400)
    study.write_run(tmp_path / "run", "tiny-topic", "tiny-opt", 1)
    results = load_results(tmp_path)
    rows = example_block(Findings(results, resamples=5), [results.runs])["rows"]
    text = next(row[1] for row in rows if row[0] == 6)
    assert text[LONGEST:].startswith(" … (")
    assert text.endswith("characters)")


def test_missing_numbers_become_null_and_texts_levels():
    import pandas as pd

    rows = pd.DataFrame({"x": [1.0, float("nan"), float("inf")], "t": ["a", "b", "a"]})
    assert columns_of(rows) == {
        "n": 3,
        "columns": {
            "x": {"values": [1, None, None]},
            "t": {"levels": ["a", "b"], "values": [0, 1, 0]},
        },
    }
    assert unpacked(packed({"a": "ü"})) == {"a": "ü"}
