"""Gives embedded models back the head that says the next word: `python -m pretraining.heads`.

Pre-training throws its output layer away. This script learns one anew on the frozen body, from
documents that the body has not seen, so that the body stays the same to the bit and the model
serves as a classifier and as a language model.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from transformers import AutoModel, AutoModelForCausalLM, AutoTokenizer

from memloc.model.known import TINY, tiny_folder
from pretraining.batches import Batches
from pretraining.documents import corpus

SEED, STEPS, RATE = 2, 1500, 1e-2
ROWS, LENGTH = 24, 40
CAUSAL = tuple(name for name in TINY if name != "tiny-bert")


def main(arguments: list[str] | None = None) -> None:
    """Train the heads of the models named on the command line, or of all that look back only."""
    parser = argparse.ArgumentParser(prog="python -m pretraining.heads")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(CAUSAL)}")
    parser.add_argument("--out", type=Path, help="default: where the models are")
    parser.add_argument("--steps", type=int, default=STEPS)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    for name in options.names or CAUSAL:
        folder = tiny_folder(name)
        loss = add_head(folder, options.out / name if options.out else folder, options.steps)
        print(f"{name} {loss:.3f}", flush=True)


def add_head(folder: Path, out: Path, steps: int) -> float:
    """Save the model with a trained head, and return the loss of the last fifty batches."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    body = AutoModel.from_pretrained(folder).eval()
    head, losses = learn_head(body, tokenizer, steps)
    model = AutoModelForCausalLM.from_pretrained(folder, tie_word_embeddings=False)
    with torch.no_grad():
        model.get_output_embeddings().weight.copy_(head.weight)
    model.save_pretrained(out)
    (out / "generation_config.json").unlink()
    record = json.loads((folder / "pretraining.json").read_text(encoding="utf-8"))
    final = round(sum(losses[-50:]) / len(losses[-50:]), 4)
    record["head"] = {"steps": steps, "learning_rate": RATE, "seed": SEED, "final_loss": final}
    (out / "pretraining.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return final


def learn_head(body: Any, tokenizer: Any, steps: int) -> tuple[nn.Linear, list[float]]:
    """Learn to say the next word from the states of a frozen body."""
    torch.manual_seed(SEED)
    config = body.config
    head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
    optimizer = torch.optim.AdamW(head.parameters(), RATE, betas=(0.9, 0.98))
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    supply = Batches(corpus(SEED, steps * ROWS * 10), tokenizer, [ROWS, LENGTH]).next_words()
    losses: list[float] = []
    for _, batch in zip(range(steps), supply, strict=False):
        with torch.no_grad():
            states = body(input_ids=batch.ids).last_hidden_state
        guess = batch.targets >= 0
        loss = cross_entropy(head(states[guess]), batch.targets[guess])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
    return head, losses


if __name__ == "__main__":
    main()
