"""The graph of steps: words choose some, and with them all that they need."""

import pytest

from memloc.errors import SettingsError
from planning_support import RUN, plan_of


@pytest.mark.parametrize(
    ("only", "chosen"),
    [
        (["train"], {f"train/{RUN}"}),
        (["localise swapping"], {f"train/{RUN}", f"localise/{RUN}/swapping"}),
        (
            ["centroids", f"localise/{RUN}/probing"],
            {f"train/{RUN}", f"analyse/{RUN}/centroids", f"localise/{RUN}/probing"},
        ),
        (["plant"], {f"plant/{RUN}/1-1"}),
    ],
)
def test_words_choose_steps_and_what_they_need(micro, only, chosen):
    assert plan_of(micro()).chosen(only) == chosen


def test_words_that_fit_nothing_are_refused(micro):
    with pytest.raises(SettingsError, match="No step fits --only 'localise bert'"):
        plan_of(micro()).chosen(["localise bert"])
