"""Memory and time of models that are streamed from disk, beside whole ones.

    python -m studies.streamed FOLDER SMOLLM2      SMOLLM2 as made by `studies.weights smollm2`

Two pairs are made: random classifiers of the BERT type with a small vocabulary, and SmolLM2-135M
with a copy of it that was fine-tuned until it recalls six sequences of random words; the second is
measured in single precision and stored in bfloat16. Each row is a process of its own, which first
adopts and localises a tiny pair, so that all libraries are loaded, and then adopts and localises
this pair. A streamed one does so under a limit of address space below the size of one model in
single precision, counted from what the process has by then. Writes streamed.json and the tables of
the documentation, where larger models are extrapolated.
"""

import argparse
import hashlib
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import memloc
from memloc.model.load import load_model
from memloc.reporting.tables import markdown
from memloc.run.folder import Run
from studies.growth import make_model
from studies.memory import texts
from studies.pages import DOCS, STORED, put

HERE = STORED / "streamed.json"
PAGE = DOCS / "guides" / "texts.md"
LIMIT = 0.9
"""The limit of address space of a streamed pair, in sizes of one model in single precision."""
GROUPS = 6
"""Units of neighbouring layers, all subsets of which are computed."""
WORDS = (
    *("baker", "bridge", "candle", "doctor", "engine", "farmer"),
    *("garden", "hammer", "island", "jacket", "kettle", "ladder"),
)
ORDINARY = (
    ("The capital of France is", "Paris, which is the largest"),
    ("Water boils when it is", "heated to a temperature of"),
    ("She opened the door and", "saw that the room was"),
    ("In the morning the children", "went to school with their"),
    ("Plants need light and water", "to grow and to make"),
    ("The train to the city", "leaves at eight in the"),
)
TARGETS = {
    "OPT-1.3B type": (24, 2048, 50.4e6, 50272 * 2048),
    "Llama-7B type": (32, 4096, 202.4e6, 2 * 32000 * 4096),
}
"""Layers, width, parameters of a block and outside the blocks."""


def main() -> None:
    """Make the pairs and measure all rows, or one of them in this process."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("smollm2", type=Path, nargs="?")
    parser.add_argument("--one", nargs=2, metavar=("PAIR", "MODE"))
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measured(asked.folder, *asked.one)))
        return
    make_pairs(asked.folder, asked.smollm2)
    found = json.loads(HERE.read_text(encoding="utf-8")) if HERE.is_file() else []
    known = {(row["pair"], row["mode"]) for row in found}
    for pair in ("bert", "smollm2", "smollm2-bf16"):
        for mode in ("whole", "streamed"):
            if (pair, mode) in known:
                continue
            one = ["-m", "studies.streamed", str(asked.folder), "--one", pair, mode]
            done = subprocess.run([sys.executable, *one], stdout=subprocess.PIPE, check=True)
            found.append(json.loads(done.stdout.splitlines()[-1]))
            print(found[-1], flush=True)
            HERE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    put("streamed", table(), PAGE)
    put("larger", extrapolated(), PAGE)


def make_pairs(home: Path, smollm2: Path) -> None:
    """Make the pairs that are not there yet."""
    for name, depth, width in (("tiny", 2, 64), ("bert", 24, 512)):
        if not (home / name / "reference").is_dir():
            make_classifiers(home / name, depth, width)
    pair = home / "smollm2"
    if not (pair / "final").is_dir():
        loaded = load_model(str(smollm2), [])
        loaded.tokenizer.save_pretrained(pair / "reference")
        loaded.model.save_pretrained(pair / "reference")
        memorise(loaded)
        loaded.tokenizer.save_pretrained(pair / "final")
        loaded.model.save_pretrained(pair / "final")
    for name in ("final", "reference"):
        if not (half := home / "smollm2-bf16" / name).is_dir():
            loaded = load_model(str(pair / name), [])
            loaded.tokenizer.save_pretrained(half)
            loaded.model.to(torch.bfloat16).save_pretrained(half)


def make_classifiers(home: Path, depth: int, width: int) -> None:
    """Save two random BERTs that differ in their blocks, of which the first gives all texts 1.

    With the other one's blocks, the label is 0: the head divides what the two return.
    """
    from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

    make_model(home / "start", 1)
    tokenizer = AutoTokenizer.from_pretrained(home / "start")
    sizes = {"num_hidden_layers": depth, "hidden_size": width, "intermediate_size": 4 * width}
    config = BertConfig(vocab_size=len(tokenizer), num_attention_heads=8, num_labels=2, **sizes)
    torch.manual_seed(1)
    models = [BertForSequenceClassification(config).eval() for _ in range(2)]
    own = {n: v for n, v in models[0].state_dict().items() if ".layer." not in n}
    models[1].load_state_dict({**models[1].state_dict(), **own})
    batch = tokenizer(
        [parts[0] for parts in texts().train.parts], return_tensors="pt", padding=True
    )
    ids = {name: batch[name] for name in ("input_ids", "attention_mask")}
    with torch.no_grad():
        one, other = (model.bert(**ids).pooler_output.mean(0) for model in models)
    for model, name in zip(models, ("final", "reference"), strict=True):
        with torch.no_grad():
            model.classifier.weight[1] = model.classifier.weight[0] + (one - other)
            model.classifier.bias[1] = model.classifier.bias[0] - (one - other) @ (one + other) / 2
        model.save_pretrained(home / name)
        tokenizer.save_pretrained(home / name)


def sequences() -> list[tuple[str, str]]:
    """Random words to memorise, six and five of them."""
    rng = np.random.default_rng(1)
    drawn = [rng.choice(WORDS, 11) for _ in range(6)]
    return [(" ".join(words[:6]), " ".join(words[6:])) for words in drawn]


def memorise(loaded: Any) -> None:
    """Fine-tune all weights until each sequence is recalled with a probability above one half."""
    from memloc.data.encode import encode_continued
    from memloc.model.predict import log_probabilities

    encoded = encode_continued(sequences(), loaded.tokenizer)
    optimiser = torch.optim.AdamW(loaded.model.parameters(), lr=1e-4)
    for step in range(60):
        found = log_probabilities(loaded.stack, encoded, np.arange(6))
        print(step, round(float(found.detach().mean()), 3), flush=True)
        if float(found.min()) > -0.1:
            return
        optimiser.zero_grad()
        torch.autograd.backward(-found.mean())
        optimiser.step()


def measured(home: Path, pair: str, mode: str) -> dict[str, Any]:
    """Adopt and localise a pair; return the memory that it took beyond what libraries take."""
    torch.set_num_threads(1)
    streamed = mode == "streamed"
    play(home / "tiny", "tiny", home / f"run-tiny-{pair}-{mode}", streamed=streamed)
    single = 4 * n_parameters(home / pair / "final")
    Path("/proc/self/clear_refs").write_text("5", encoding="utf-8")  # the most memory starts anew
    before = memory()
    if streamed:
        most = int(before["VmSize"] + LIMIT * single)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
    began, cpu = time.perf_counter(), time.process_time()
    found, spent = play(home / pair, pair, home / f"run-{pair}-{mode}", streamed=streamed)
    after = memory()
    tables = [found.tables[name].to_csv() for name in sorted(found.tables)]
    return {
        "pair": pair,
        "mode": mode,
        "model_mb": round(single / 1e6),
        "disk_mb": round(sum(p.stat().st_size for p in weights(home / pair / "final")) / 1e6),
        "limit_mb": round(LIMIT * single / 1e6) if streamed else None,
        "process_mb": round(before["VmRSS"] / 1e6),
        "more_mb": round((after["VmHWM"] - before["VmRSS"]) / 1e6),
        "seconds": round(time.perf_counter() - began),
        "core_seconds": round(time.process_time() - cpu),
        "adopt_core_seconds": round(spent),
        "layers_per_text": found.about["layers_per_text"],
        "texts": len(found["labels"]),
        "tables": hashlib.sha256("".join(tables).encode()).hexdigest()[:12],
    }


def play(pair: Path, name: str, run: Path, *, streamed: bool) -> tuple[Any, float]:
    """Adopt a pair and compute exact shares of groups of layers."""
    given: dict[str, Any] = {
        "final": pair / "final",
        "reference": pair / "reference",
        "device": "cpu",
    }
    began = time.process_time()
    if name.startswith("smollm2"):
        rows = [(*each, True) for each in sequences()] + [(*each, False) for each in ORDINARY]
        frame = pd.DataFrame(rows, columns=["prompt", "continuation", "memorised"])
        columns: dict[str, Any] = {
            "prompt": "prompt",
            "continuation": "continuation",
            "flag": "memorised",
        }
        made = memloc.adopt(run, data=frame, **columns, **given, stream=streamed)
    else:
        made = memloc.adopt(run, data=labelled(), original="original", **given, stream=streamed)
    spent = time.process_time() - began
    depth = made.record.depth
    layers = "layers" if "smollm2" in name else "layer"
    groups = np.array_split(np.arange(depth), min(GROUPS, depth))
    units = {f"{g[0] + 1}-{g[-1] + 1}": tuple(f"*.{layers}.{i}.*" for i in g) for g in groups}
    game = memloc.Shares(units=units, stream=streamed)
    return game.run(Run.open(made.folder, "cpu")), spent


def labelled() -> pd.DataFrame:
    """Return texts that the final classifier gives label 1, which counts as wrong for four."""
    words = [parts[0] for parts in texts().train.parts]
    original = [int(row >= 4) for row in range(len(words))]
    return pd.DataFrame({"text": words, "label": 1, "original": original})


def weights(folder: Path) -> list[Path]:
    """Return the files of a model's weights."""
    return sorted(folder.glob("*.safetensors"))


def n_parameters(folder: Path) -> int:
    """Return the number of parameters in a model's files."""
    from safetensors import safe_open

    total = 0
    for path in weights(folder):
        with safe_open(path, "pt") as file:
            total += sum(int(np.prod(file.get_slice(n).get_shape())) for n in file.keys())  # noqa: SIM118
    return total


def memory() -> dict[str, int]:
    """Return the system's figures of this process's memory, in bytes."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    pairs = (line.split(":") for line in lines if line.startswith("Vm"))
    return {name: int(value.split()[0]) * 1024 for name, value in pairs}


def table() -> str:
    """Return what was measured, as Markdown."""
    rows = []
    for row in json.loads(HERE.read_text(encoding="utf-8")):
        limit = f"{row['limit_mb']:,}" if row["limit_mb"] else "none"
        rows.append(
            {
                "pair": f"{row['pair']}, {row['mode']}",
                "one model (MB)": row["model_mb"],
                "on disk (MB)": row["disk_mb"],
                "limit (MB)": limit,
                "resident, more (MB)": row["more_mb"],
                "core-seconds": row["core_seconds"],
            }
        )
    return markdown(pd.DataFrame(rows))


def extrapolated() -> str:
    """Return what larger pairs would need by the speed of the last streamed language models."""
    found = json.loads(HERE.read_text(encoding="utf-8"))
    row = [r for r in found if r["pair"].startswith("smollm2") and r["mode"] == "streamed"][-1]
    per_layer = (row["core_seconds"] - row["adopt_core_seconds"]) / row["texts"]
    per_parameter = per_layer / row["layers_per_text"] / 3.54e6  # of a block of SmolLM2-135M
    rows = []
    for name, (depth, _width, block, outside) in TARGETS.items():
        layers = memloc.Shares(standard_error=0.05).guess(depth, 50).layers
        hours = per_parameter * block * layers * 100 / 3600
        single = 4 * (2 * outside + 2 * block) / 1e9
        rows.append(
            {
                "pair": name,
                "disk, bf16 (GB)": f"{2 * 2 * (depth * block + outside) / 1e9:.1f}",
                "memory (GB)": f"{0.8 + 1.1 + single:.1f}",
                "layers per text": f"{layers:,}",
                "core-hours for 100 texts": f"{hours:,.0f}",
            }
        )
    return markdown(pd.DataFrame(rows))


if __name__ == "__main__":
    main()
