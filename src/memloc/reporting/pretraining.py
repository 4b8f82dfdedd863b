"""What is known of models before they were fine-tuned: the paper's Table 3."""

import json
import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from memloc.models import tiny

OPT = {"corpus": "BookCorpus, CC-Stories, The Pile, Reddit, CCNewsV2", "tokens": 180e9}
KNOWN: dict[str, dict[str, Any]] = {
    "bert-base-cased": {"corpus": "BooksCorpus, Wikipedia", "tokens": 3.3e9, "steps": 1e6},
    "EleutherAI/pythia-160m-deduped": {
        "corpus": "The Pile (deduplicated)",
        "tokens": 300e9,
        "steps": 143e3,
    },
    "EleutherAI/gpt-neo-125m": {"corpus": "The Pile", "tokens": 300e9, "steps": 572e3},
    "facebook/opt-125m": OPT,
    "facebook/opt-1.3b": OPT,
}
"""As the paper has it; how many steps OPT took it does not say."""
BLOCK = re.compile(r"(^|\.)\d+\.")
"""In the name of a parameter: blocks stand in a list, so theirs are numbered."""


def pretraining(model: str) -> Mapping[str, Any]:
    """Corpus, tokens and steps of an embedded model or one of the paper's; others are not known."""
    if model not in tiny.NAMES:
        return KNOWN.get(model, {})
    note = json.loads((tiny.folder(model) / "pretraining.json").read_text(encoding="utf-8"))
    tokens = note["rows"] * note["length"] * note["steps"]
    return {"corpus": "embedded texts", "tokens": tokens, "steps": note["steps"]}


def layer_parameters(model: str, run: Path) -> int | None:
    """Parameters of all blocks, by the weights of the run or the embedded ones; None without."""
    places = [
        *(run / "checkpoints").glob("*"),
        *([tiny.folder(model)] if model in tiny.NAMES else []),
    ]
    for folder in places:
        files = sorted(folder.glob("*.safetensors"))
        if files:
            return sum(map(_in_blocks, files))
    return None


def rounded(number: float | None) -> str:
    """1,234,000 as 1.2M, the way papers have it."""
    if number is None:
        return "–"
    for size, sign in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return (
                f"{number / size:.2g}{sign}"
                if number < 100 * size
                else f"{number / size:.0f}{sign}"
            )
    return f"{number:.0f}"


def _in_blocks(file: Path) -> int:
    """The head of a safetensors file says the shape of everything in it."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        shapes = json.loads(opened.read(length))
    return sum(math.prod(v["shape"]) for name, v in shapes.items() if BLOCK.search(name))
