"""What a result says of where it came from, and whether one that is there is of the same."""

import json
from collections.abc import Mapping
from typing import Any

from memloc.protocol import Protocol


def provenance(
    subject: str, seed: int, protocol: Protocol, inputs: Mapping[str, str], **more: Any
) -> dict[str, Any]:
    """The facts to keep beside a result; `subject` is a name for people."""
    return plain(
        {
            "subject": subject,
            "seed": seed,
            **more,
            "preset": protocol.preset,
            "changes": protocol.changes(),
            "inputs": dict(inputs),
        }
    )


def of_the_same(kept: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Whether a result with the facts `kept` is what `now` gives; its name does not matter."""
    return all(kept.get(key) == value for key, value in now.items() if key != "subject")


def plain(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Facts as they read back from a file."""
    found: dict[str, Any] = json.loads(json.dumps(facts))
    return found
