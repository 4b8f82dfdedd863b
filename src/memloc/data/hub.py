"""Access to the Hugging Face hub: asks once whether it answers, and stays offline if not."""

import logging
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

SECONDS = 10.0
"""Seconds that the hub is given to answer."""


def is_reachable() -> bool:
    """Return whether the hub answers; always false if HF_HUB_OFFLINE is set."""
    from huggingface_hub import constants, get_session

    try:
        get_session().head(constants.ENDPOINT, timeout=SECONDS)
    except Exception:  # noqa: BLE001 - which errors there are depends on the hub's HTTP client
        return False
    return True


@contextmanager
def asked_once(source: str) -> Iterator[None]:
    """Ask the hub once whether it answers; if it does not, work offline while this is active.

    The hub's own libraries would retry for half a minute and print each attempt. A `source` that is
    a folder needs no hub.
    """
    from huggingface_hub import constants

    if Path(source).is_dir():
        yield
        return
    places: list[Any] = [constants, *filter(None, [sys.modules.get("datasets.config")])]
    before = [place.HF_HUB_OFFLINE for place in places]
    is_offline = any(before) or not is_reachable()
    try:
        for place in places:
            place.HF_HUB_OFFLINE = is_offline
        yield
    finally:
        for place, value in zip(places, before, strict=True):
            place.HF_HUB_OFFLINE = value


def unreachable() -> str:
    """Return why the hub cannot be reached, for an error message; empty if it can."""
    from huggingface_hub import constants

    return "" if is_reachable() else f"{constants.ENDPOINT} cannot be reached"


@contextmanager
def quiet_hub() -> Iterator[None]:
    """Silence the hub's library while this is active: no progress bars, and only errors."""
    bars = import_module("huggingface_hub.utils.tqdm")  # a class hides it in its package
    logger = logging.getLogger("huggingface_hub")
    level = logger.level
    hidden = bars.are_progress_bars_disabled()
    logger.setLevel(logging.ERROR)
    bars.disable_progress_bars()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    finally:
        logger.setLevel(level)
        if not hidden:
            bars.enable_progress_bars()
