"""Data that come with memloc are checked when they are read; other rules: test_protocol."""

import pytest

from memloc.data.tasks import HubSource
from memloc.errors import SettingsError
from memloc.settings import checked, packaged


def test_data_are_checked_like_settings(tmp_path):
    (tmp_path / "hub.yaml").write_text("{repository: a/b, parts: [text]}")
    hub = packaged(str(tmp_path / "hub.py"))
    assert checked(HubSource, hub) == HubSource(repository="a/b", parts=("text",))
    with pytest.raises(SettingsError, match="Setting rows is 'some'"):
        checked(HubSource, {**hub, "rows": "some"})
    with pytest.raises(SettingsError, match="Setting colour is 'red'"):
        checked(HubSource, {**hub, "colour": "red"})
