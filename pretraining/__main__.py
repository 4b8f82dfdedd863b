"""Makes the embedded models: `python -m pretraining [NAME ...] [--out DIR]`.

Each model learns to continue documents of the embedded suite's generator. BERT, which sees both
sides, starts with that too, looking back only; later half of its rows are for filling in masked
words and for telling the gist (words there and in the next sentence) from the first token.
The output layers are thrown away.
"""

import argparse
import csv
import json
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path

import torch
import transformers
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModel, PreTrainedModel, PreTrainedTokenizerFast

from memloc.model.known import TINY
from pretraining.batches import Batch, Batches
from pretraining.documents import corpus
from pretraining.families import FAMILIES, Family, make_config, make_tokenizer
from pretraining.language import vocabulary


@dataclass(frozen=True)
class Recipe:
    """Everything that a pre-training depends on, besides the family."""

    steps: int
    learning_rate: float
    seed: int = 1
    rows: int = 24
    length: int = 40
    warm_up: float = 0.1
    weight_decay: float = 0.01
    next_word_share: float = 0.5
    """Share of the steps that a model of masked words spends on next words alone, at first."""
    embedding_scale: float = 1.5
    """Standard deviation of initial word vectors; large ones keep the first layer from ruling."""
    residual_scale: float = 0.35
    """Shrinks what each layer initially adds to the residual stream."""


def main(arguments: list[str] | None = None) -> None:
    """Pre-trains the models named on the command line, or all four."""
    parser = argparse.ArgumentParser(prog="python -m pretraining")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"one of {', '.join(TINY)}")
    parser.add_argument("--out", type=Path, default=Path("pretrained"))
    parser.add_argument("--steps", type=int, help="instead of the family's own number")
    options = parser.parse_args(arguments)

    torch.set_num_threads(1)
    for name in options.names or TINY:
        family = FAMILIES[name]
        recipe = Recipe(options.steps or family.steps, family.learning_rate)
        tokenizer = make_tokenizer(family, vocabulary())
        documents = corpus(recipe.seed, recipe.steps * recipe.rows * 10)
        supply = Batches(documents, tokenizer, [recipe.rows, recipe.length])
        n_next = round(recipe.next_word_share * recipe.steps)
        source = supply.next_then_masked_words(n_next) if family.masked else supply.next_words()
        pretrain(family, recipe, tokenizer, source, options.out / name)


def pretrain(
    family: Family,
    recipe: Recipe,
    tokenizer: PreTrainedTokenizerFast,
    source: Iterator[Batch],
    out: Path,
) -> None:
    """Trains a new model and saves it with the record of how it came to be."""
    torch.manual_seed(recipe.seed)
    model = new_model(family, recipe, tokenizer)
    start = time.process_time()
    losses = train(model, recipe, source)
    seconds = time.process_time() - start
    model.save_pretrained(out)
    tokenizer.save_pretrained(out)
    record = asdict(recipe) | {
        "seconds": round(seconds, 1),
        "final_loss": round(sum(losses[-50:]) / len(losses[-50:]), 4),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    (out / "pretraining.json").write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    with (out / "pretraining.csv").open("w", newline="", encoding="utf-8") as file:
        rows = [(step, f"{loss:.4f}") for step, loss in enumerate(losses, start=1)]
        csv.writer(file, lineterminator="\n").writerows([("step", "loss"), *rows[9::10]])


def new_model(
    family: Family, recipe: Recipe, tokenizer: PreTrainedTokenizerFast
) -> PreTrainedModel:
    """A model with random weights: large word vectors, small contributions of every layer."""
    model: PreTrainedModel = AutoModel.from_config(make_config(family, tokenizer))
    with torch.no_grad():
        model.get_input_embeddings().weight.normal_(std=recipe.embedding_scale)
        for name, parameter in model.named_parameters():
            if name.removesuffix(".weight").endswith(family.residual_outputs):
                parameter.mul_(recipe.residual_scale)
    return model


def train(model: PreTrainedModel, recipe: Recipe, source: Iterator[Batch]) -> list[float]:
    """Trains for the recipe's number of steps, without dropout; returns the loss of each step."""
    model.eval()
    config = model.config
    words, gist = (nn.Linear(config.hidden_size, config.vocab_size) for _ in range(2))
    parameters = [*model.parameters(), *words.parameters(), *gist.parameters()]
    optimizer = torch.optim.AdamW(
        parameters, recipe.learning_rate, betas=(0.9, 0.98), weight_decay=recipe.weight_decay
    )
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, cosine(recipe))
    losses: list[float] = []
    for step, batch in enumerate(islice(source, recipe.steps)):
        loss = batch_loss(model, words, gist, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
        losses.append(loss.item())
        if step % 100 == 99:
            print(
                f"{model.config.model_type} {step + 1} {sum(losses[-100:]) / 100:.3f}", flush=True
            )
    return losses


def batch_loss(model: PreTrainedModel, words: nn.Linear, gist: nn.Linear, batch: Batch) -> Tensor:
    """Loss of the words to guess, plus that of the gist as read off the first token, if asked."""
    output = model(input_ids=batch.ids, attention_mask=batch.attention)
    guess = batch.targets >= 0
    loss = cross_entropy(words(output.last_hidden_state[guess]), batch.targets[guess])
    if batch.gist is not None:
        summary = output.pooler_output[-len(batch.gist) :]
        loss = loss + cross_entropy(gist(summary), batch.gist)
    return loss


def cosine(recipe: Recipe) -> Callable[[int], float]:
    """Linear warm-up, then half a cosine down to zero."""
    warm = recipe.warm_up * recipe.steps

    def factor(step: int) -> float:
        if step < warm:
            return (step + 1) / warm
        return 0.5 * (1 + math.cos(math.pi * (step - warm) / (recipe.steps - warm)))

    return factor


if __name__ == "__main__":
    main()
