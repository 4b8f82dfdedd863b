"""Windows of layers: as people write them, the usual ones, and which can be planted in."""

import re
from collections.abc import Sequence

from memloc.errors import SettingsError, counted


def read_window(text: str) -> range:
    """A window as people write it: `6-7`, or `3` for one layer."""
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", text.strip())
    if found is None or int(found[1]) < 1:
        raise SettingsError(f"{text!r} is no window of layers: write 6-7, or 3 for one layer.")
    window = range(int(found[1]) - 1, int(found[2] or found[1]))
    if not window:
        raise SettingsError(f"Window {text} is empty: its first layer comes after its last.")
    return window


def window_name(window: range) -> str:
    """A window as people write it, both ends given."""
    return f"{window.start + 1}-{window.stop}"


def usual_windows(depth: int, width: int) -> list[range]:
    """The first, the middle and the last `width` layers."""
    starts = dict.fromkeys((0, (depth - width) // 2, depth - width))
    found = [range(start, start + width) for start in starts]
    check_windows(found[:1], depth)
    return found


def every_window(depth: int, width: int) -> list[range]:
    """The windows of `width` layers at every position."""
    check_windows([range(width)], depth)
    return [range(start, start + width) for start in range(depth - width + 1)]


def check_inside(window: range, depth: int) -> None:
    """Refuse a window with layers that the model does not have."""
    if window.start < 0 or window.stop > depth:
        raise SettingsError(
            f"Window {window_name(window)} is outside the model, which has layers 1-{depth}."
        )


def check_windows(windows: Sequence[range], depth: int) -> None:
    """Refuse windows outside the model and windows that are all of it."""
    for window in windows:
        check_inside(window, depth)
        if not window or len(window) == depth:
            raise SettingsError(
                f"Window {window_name(window)} has {len(window)} of {counted(depth, 'layer')}: "
                "plant in some, not in all."
            )
