"""The first question: does exchanging all layers lose more noisy labels than clean ones?

A model is less sure of labels that it memorised than of labels that it understands, and labels of
which a model is less sure are lost more easily, whatever is exchanged. Noisy and clean examples are
therefore compared at equal margins (logit of the label minus the largest other logit): a logistic
regression predicts from the margin whether a label is lost, and a score test asks whether being
noisy adds to that prediction. The score test does not fit the alternative, so it also works where
all noisy labels are lost and no clean one is.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from memloc.arrays import FloatArray, IntArray

RIDGE = 0.05
"""Penalty on the slope of the standardised margin, so that a fit exists for separable examples."""
STEPS = 50
NEAR = 1e-9


@dataclass(frozen=True)
class Undone:
    """Labels that exchanging all layers loses, compared with clean ones."""

    noisy: float
    """Share of the noisy labels that are lost."""
    clean: float
    """Share of the clean labels that are lost."""
    n_noisy: int
    n_clean: int
    p: float
    """P-value of the score test; with a second reference, the larger one of both tests."""
    elsewhere: float | None = None
    """Share of the noisy labels that a second reference undoes in the first one, if known."""

    @property
    def sentence(self) -> str:
        """Return a sentence on how many labels are lost."""
        text = (
            f"Exchanging all layers undoes {self.noisy:.0%} of {self.n_noisy} noisy labels and "
            f"{self.clean:.0%} of {self.n_clean} clean ones"
        )
        if self.elsewhere is not None:
            text += f"; a second reference undoes {self.elsewhere:.0%} in the first one"
        return f"{text} ({p_text(self.p)})."


def is_anything_undone(
    noisy: FloatArray, clean: FloatArray, margins: FloatArray, elsewhere: FloatArray | None = None
) -> Undone:
    """Compare lost labels (1: lost, 0: kept) of noisy and clean examples at equal margins.

    Args:
        noisy: For each noisy example, whether its label is lost when all layers are exchanged.
        clean: For each clean example, whether its label is lost when all layers are exchanged.
        margins: Margins of the unchanged model, noisy examples first.
        elsewhere: For each noisy example, whether its label is lost when a second reference is put
            into the first one.
    """
    is_noisy = np.arange(len(margins)) < len(noisy)
    p = score_p(np.concatenate([noisy, clean]), is_noisy.astype(np.float64), margins)
    beyond = None
    if elsewhere is not None:
        p = max(p, sign_p(noisy - elsewhere))
        beyond = float(elsewhere.mean())
    return Undone(float(noisy.mean()), float(clean.mean()), len(noisy), len(clean), p, beyond)


def score_p(lost: FloatArray, is_noisy: FloatArray, margins: FloatArray) -> float:
    """Return the one-sided p that noisy labels are lost more often than others of equal margin.

    The score is the sum of lost minus expected over the noisy examples; its variance is what
    remains after the regression on the margin. It is compared with Student's t.
    """
    from scipy.stats import t

    spread = float(margins.std())
    scaled = (margins - margins.mean()) / spread if spread > NEAR else np.zeros_like(margins)
    design = np.stack([np.ones_like(scaled), scaled], axis=1)
    happened = (lost > 0.5).astype(np.float64)
    expected = _logistic(design, happened)
    weight = expected * (1 - expected)
    score = float(is_noisy @ (happened - expected))
    weighted = design * weight[:, np.newaxis]
    shared = is_noisy @ weighted
    information = weighted.T @ design + NEAR * np.eye(2)
    variance = float(is_noisy @ (weight * is_noisy) - shared @ np.linalg.solve(information, shared))
    return float(t.sf(score / np.sqrt(max(variance, NEAR)), max(1, len(lost) - 3)))


def label_margins(logits: Any, labels: IntArray) -> FloatArray:
    """Return each label's logit minus the largest other logit: (n, ..., classes) to (n, ...).

    The margin is positive where the label is predicted.
    """
    places = labels.reshape(-1, *[1] * (logits.ndim - 1))
    of_label = np.take_along_axis(logits, places, axis=-1)[..., 0]
    others = np.array(logits)
    np.put_along_axis(others, places, -np.inf, axis=-1)
    return np.asarray(of_label - others.max(-1))


def _logistic(design: FloatArray, happened: FloatArray) -> FloatArray:
    """Return the fitted probabilities of a logistic regression with a small ridge on the slope."""
    from scipy.special import expit

    coefficients = np.zeros(design.shape[1])
    penalty = np.diag([NEAR, RIDGE])
    for _ in range(STEPS):
        fitted = expit(design @ coefficients)
        weight = np.maximum(fitted * (1 - fitted), NEAR)
        gradient = design.T @ (happened - fitted) - penalty @ coefficients
        step = np.linalg.solve((design * weight[:, np.newaxis]).T @ design + penalty, gradient)
        coefficients = coefficients + np.clip(step, -3, 3)
        if np.abs(step).max() < NEAR:
            break
    return np.asarray(expit(design @ coefficients))


def sign_p(differences: FloatArray) -> float:
    """Return the one-sided p of the exact sign test that most differences are positive."""
    from scipy.stats import binom

    more = int(np.count_nonzero(differences > 0.5))
    fewer = int(np.count_nonzero(differences < -0.5))
    return float(binom.sf(more - 1, more + fewer, 0.5)) if more + fewer else 1.0


def p_text(p: float) -> str:
    """Write a p-value for readers: `p < 0.001` or `p = 0.020`."""
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"
