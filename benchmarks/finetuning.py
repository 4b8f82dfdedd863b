"""Fine-tuning beside Hugging Face's `Trainer`: same weights, batches, order, optimiser, updates.

Both train what a run trains: a model on noisy labels, and one on the original labels. memloc
trains narrow ones as one, and wide ones one after the other.
"""

import os
import tempfile
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
import transformers
from torch import Tensor
from transformers import Trainer, TrainingArguments, get_linear_schedule_with_warmup

from benchmarks.harness import Measured, matmul_peak, middle, side_by_side, timed
from benchmarks.samples import SEED, bert, questions
from memloc.arrays import FloatArray, IntArray
from memloc.data.encode import Encoded, random_batches
from memloc.engine.fit import ONE_BY_ONE, fit_all
from memloc.engine.learner import Learner, Watch
from memloc.engine.passes import Trained
from memloc.methods.protocol import preset
from memloc.model.device import NARROW, suitable_threads
from memloc.model.load import Classifier
from memloc.protocol import FineTuneSettings
from memloc.seeds import generator


def measure(hidden: int, examples: int, epochs: int, repeats: int) -> Measured:
    """Return tokens per second of both ways, and how far apart their loss curves are."""
    transformers.logging.set_verbosity_error()
    encoded, original = questions(examples)
    labels = np.stack([_noisy(original), original])
    settings = preset("paper").finetune.replace({"learning_rate": 3e-4, "epochs": epochs})
    is_narrow = hidden < NARROW
    with suitable_threads(hidden) as threads:
        mine, plain = side_by_side(
            lambda: _memloc(hidden, encoded, labels, settings),
            lambda: _trainer(hidden, encoded, labels, settings),
            repeats,
        )
        one_by_one = mine
        if is_narrow:
            with patch.dict(os.environ, {ONE_BY_ONE: "1"}):
                one_by_one = [
                    timed(lambda: _memloc(hidden, encoded, labels, settings)) for _ in mine
                ]
        grouped = settings.replace({"length_grouped": True})
        by_length = [timed(lambda: _memloc(hidden, encoded, labels, grouped)) for _ in mine]
        peak = matmul_peak(threads)
    seconds, baseline = middle([m[0] for m in mine]), middle([p[0] for p in plain])
    tokens = len(labels) * int(encoded.lengths.sum()) * epochs
    # Six operations a weight and token, forward and backward; embeddings only look up.
    work = 6 * tokens * 12 * 12 * hidden**2
    return Measured(
        stage="finetuning",
        hidden=hidden,
        ratio=middle([p[0] / m[0] for m, p in zip(mine, plain, strict=True)]),
        seconds=seconds,
        baseline_seconds=baseline,
        baseline="transformers.Trainer",
        difference=float(np.abs(np.subtract(mine[0][2], plain[0][2])).max()),
        peak_mb=max(m[1] for m in mine),
        baseline_peak_mb=max(p[1] for p in plain),
        threads=threads,
        details={
            "tokens_per_second": tokens / seconds,
            "baseline_tokens_per_second": tokens / baseline,
            "share_of_matmul_peak": work / seconds / peak,
            "ratio_one_by_one": baseline / middle([m[0] for m in one_by_one]),
            "length_grouped_ratio": baseline / middle([g[0] for g in by_length]),
            "last_losses": {
                "memloc": mine[0][2][:, -1].tolist(),
                "baseline": plain[0][2][:, -1].tolist(),
                "memloc, length-grouped": by_length[0][2][:, -1].tolist(),
            },
            "trained_as_one": len(labels) if is_narrow else 1,
            "difference_is": "largest difference of the loss curves, averaged over 10 updates",
        },
    )


def _noisy(labels: IntArray) -> IntArray:
    """Give every seventh example another label."""
    return np.where(np.arange(len(labels)) % 7, labels, (labels + 1) % (labels.max() + 1))


def _memloc(
    hidden: int, encoded: Encoded, labels: IntArray, settings: FineTuneSettings
) -> FloatArray:
    """Return memloc's loss curves of models trained on each row of the labels."""
    losses: list[list[Tensor]] = [[] for _ in labels]

    def look(trained: Trained, update: int) -> None:
        if update:
            losses[int(trained.name)].append(trained.loss)

    learners = [
        Learner(str(k), lambda: Classifier("", bert(hidden), None), each, SEED)
        for k, each in enumerate(labels)
    ]
    fit_all(learners, encoded, settings, Watch(after_update=look))
    return _smooth([torch.stack(each).tolist() for each in losses])


class _SameOrder(Trainer):  # type: ignore[misc]
    """Trainer with the batches and the order of memloc, and every loss kept."""

    batches: list[list[int]]
    losses: list[float]

    def get_train_dataloader(self) -> Any:
        loader = torch.utils.data.DataLoader(
            self.train_dataset, batch_sampler=self.batches, collate_fn=self.data_collator
        )
        return self.accelerator.prepare(loader)

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)
        self.losses.append(float(loss))
        return loss


def _trainer(
    hidden: int, encoded: Encoded, labels: IntArray, settings: FineTuneSettings
) -> FloatArray:
    """Return the Trainer's loss curves of models trained on each row of the labels, one after the
    other.
    """
    return _smooth([_trained(hidden, encoded, each, settings) for each in labels])


def _trained(
    hidden: int, encoded: Encoded, labels: IntArray, settings: FineTuneSettings
) -> list[float]:
    model = bert(hidden)
    model.bert.embeddings.requires_grad_(False)
    learning = [p for p in model.parameters() if p.requires_grad]
    batches = [
        rows.tolist()
        for epoch in range(1, settings.epochs + 1)
        for rows in random_batches(
            len(labels), settings.batch_size, generator(SEED, "order", "first", epoch)
        )
    ]
    optimiser = torch.optim.AdamW(
        learning, lr=settings.learning_rate, weight_decay=settings.weight_decay, fused=True
    )
    warmup = int(settings.warmup * len(batches))
    rate = get_linear_schedule_with_warmup(optimiser, warmup, len(batches))
    texts = np.split(encoded.tokens.astype(np.int64), encoded.offsets[1:-1])
    trainer = _SameOrder(
        model=model,
        args=TrainingArguments(
            output_dir=tempfile.mkdtemp(),
            num_train_epochs=1,
            per_device_train_batch_size=settings.batch_size,
            max_grad_norm=settings.clip,
            report_to=[],
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
        ),
        train_dataset=list(zip(texts, labels.tolist(), strict=True)),
        data_collator=_collate,
        optimizers=(optimiser, rate),
    )
    trainer.batches, trainer.losses = batches, []
    trainer.train()
    return trainer.losses


def _collate(examples: list[tuple[Any, int]]) -> dict[str, torch.Tensor]:
    longest = max(len(text) for text, _ in examples)
    ids = torch.zeros(len(examples), longest, dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, (text, _) in enumerate(examples):
        ids[row, : len(text)] = torch.from_numpy(text)
        mask[row, : len(text)] = 1
    labels = torch.tensor([label for _, label in examples])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def _smooth(losses: list[list[float]]) -> FloatArray:
    """Return (models, updates // 10): means over ten updates."""
    curves = np.array(losses)
    whole = curves.shape[1] // 10 * 10
    means: FloatArray = curves[:, :whole].reshape(len(curves), -1, 10).mean(2)
    return means
