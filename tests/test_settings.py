"""Data files that come with memloc are checked when they are read; other rules: test_protocol."""

import pytest

from memloc.data.tasks import HubSource
from memloc.errors import SettingsError
from memloc.settings import packaged


def test_packaged_data_are_checked_like_settings(tmp_path):
    file = tmp_path / "hub.yaml"
    file.write_text("{repository: a/b, parts: [text]}")
    assert packaged(HubSource, file) == HubSource(repository="a/b", parts=("text",))
    file.write_text("{repository: a/b, parts: [text], rows: some}")
    with pytest.raises(SettingsError, match="Setting rows is 'some'"):
        packaged(HubSource, file)
    file.write_text("{repository: a/b, parts: [text], colour: red}")
    with pytest.raises(SettingsError, match="Setting colour is 'red'"):
        packaged(HubSource, file)
