"""Compares the results of two studies."""

import pandas as pd

from memloc.store.records import read_table


def assert_same_results(one, other):
    """Every table and every weight, bit for bit; only times may differ."""
    for pattern in ("*.parquet", "*.safetensors"):
        paths = [sorted(p.relative_to(f) for p in f.rglob(pattern)) for f in (one, other)]
        # Work that was half done when it was killed may be kept beside the results.
        assert set(paths[0]) <= set(paths[1])
        assert paths[0]
        for path in paths[0]:
            assert_same_file(one / path, other / path)


def assert_same_file(one, other):
    if one.suffix == ".safetensors":
        assert one.read_bytes() == other.read_bytes(), one
        return
    left, right = (read_table(path)[0] for path in (one, other))
    without = [table.drop(columns="seconds", errors="ignore") for table in (left, right)]
    pd.testing.assert_frame_equal(*without, check_exact=True, obj=str(one))
