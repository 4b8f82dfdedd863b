"""Studies from end to end: examples are written, plans opened, states and logs read."""

import pytest

from memloc.errors import StoreError
from memloc.study.manage import (
    EXAMPLES,
    init_study,
)


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_written_once_and_never_over_another_one(tmp_path, name):
    path = init_study(name, tmp_path)
    assert init_study(name, tmp_path) == path
    path.write_text(path.read_text() + "seeds: [7]\n")
    with pytest.raises(StoreError, match="is there already and is another one"):
        init_study(name, tmp_path)
