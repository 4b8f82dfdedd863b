"""Which labels swapping says are lost, beside predictions of models mixed by hand."""

import numpy as np
import pytest

from fixtures.mixtures import CLASSES, DEPTH, make_pair, mixed_logits
from fixtures.models import PAPER_FAMILIES, WORDS, make_tokenizer
from fixtures.runs import make_run
from memloc.data.task import Examples, NoisyLabels
from memloc.errors import StoreError
from memloc.methods import Sizes
from memloc.methods.result import Result
from memloc.methods.swapping import Swapping
from memloc.model.load import Classifier
from memloc.progress import _shown
from memloc.stats.windows import windows

N, NOISY = 24, (1, 4, 9, 10, 20)
METHOD = Swapping(normalise=False)


def swappable(home, family="bert", pair=None, **more):
    """A run whose final and reference weights are random models."""
    rng = np.random.default_rng(3)
    parts = tuple((" ".join(rng.choice(WORDS, rng.integers(1, 9))),) for _ in range(N))
    original = np.arange(N) % CLASSES
    is_noisy = np.isin(np.arange(N), NOISY)
    assigned = np.where(is_noisy, (original + 1) % CLASSES, original)
    data = Examples(parts, original), NoisyLabels(original, assigned, is_noisy)
    tokenizer = make_tokenizer(family)
    tokenizer.pad_token = tokenizer.pad_token or tokenizer.eos_token
    final, reference = pair or make_pair(family)
    loaders = {
        "final": lambda: Classifier("final", final, tokenizer),
        "reference": lambda: Classifier("reference", reference, tokenizer),
    }
    return make_run(home, data, loaders=loaders, depth=DEPTH, **more)


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_outcomes_say_which_labels_are_lost_under_which_window(tmp_path, family):
    run = swappable(tmp_path, family)
    final, reference = run.load("final"), run.load("reference")
    encoded = run.encode(final)
    predicted = mixed_logits(final.model, reference.model, encoded).argmax(-1).numpy()
    wrong = predicted != run.noisy.assigned[:, np.newaxis]
    scores = METHOD.run(run)
    outcomes = scores.outcomes
    assert list(outcomes.windows) == windows(DEPTH)
    assert outcomes.noisy_rows.tolist() == list(NOISY)
    assert clean_rows(outcomes) == [i for i in range(N) if i not in NOISY]
    assert np.array_equal(outcomes.wrong, wrong[outcomes.rows, :-1])
    right = 1 - wrong[clean_rows(outcomes), -1]
    assert scores.about["final_clean_accuracy"] == pytest.approx(right.mean())


def clean_rows(outcomes):
    return outcomes.rows[~outcomes.is_noisy].tolist()


def test_layers_weigh_what_their_windows_undo(tmp_path):
    scores = METHOD.run(swappable(tmp_path))
    errors = dict(zip(scores.outcomes.windows, scores.outcomes.errors, strict=True))
    column = [
        np.mean([e for w, e in errors.items() if len(w) == width and 2 in w])
        for width in range(1, DEPTH + 1)
    ]
    assert scores.weights.shape == (DEPTH,)
    assert scores.weights[2] == pytest.approx(np.mean(column))


def test_scores_read_back_equal(tmp_path):
    scores = METHOD.replace({"clean_examples": 4}).run(swappable(tmp_path))
    scores.write(tmp_path / "swapping")
    read = Result.read(tmp_path / "swapping")
    assert read.about == scores.about
    assert read.outcomes.windows == scores.outcomes.windows
    assert np.array_equal(read.outcomes.rows, scores.outcomes.rows)
    assert np.array_equal(read.outcomes.wrong, scores.outcomes.wrong)


def test_some_clean_examples_are_drawn_by_the_seed(tmp_path):
    pair = make_pair()
    every = METHOD.run(swappable(tmp_path, pair=pair)).outcomes

    def drawn(seed, n):
        run = swappable(tmp_path, pair=pair, seed=seed)
        return METHOD.replace({"clean_examples": n}).run(run).outcomes

    some = drawn(1, 6)
    assert len(set(clean_rows(some))) == 6
    assert (np.diff(clean_rows(some)) > 0).all()
    assert np.array_equal(some.wrong, every.wrong[np.isin(every.rows, some.rows)])
    assert np.array_equal(some.noisy_wrong, every.noisy_wrong)
    assert clean_rows(drawn(1, 6)) == clean_rows(some)
    assert clean_rows(drawn(2, 6)) != clean_rows(some)
    assert clean_rows(drawn(1, 1000)) == clean_rows(every)


def test_missing_weights_are_a_sentence(tmp_path):
    with pytest.raises(StoreError, match="has no final weights: "):
        METHOD.run(make_run(tmp_path))


def test_progress_ends_at_its_total(tmp_path):
    from contextlib import contextmanager

    seen = []

    @contextmanager
    def show(_label, total):
        seen.append(-total)
        yield seen.append

    token = _shown.set(show)
    try:
        METHOD.run(swappable(tmp_path))
    finally:
        _shown.reset(token)
    assert seen[0] < 0
    assert sum(seen) == 0


@pytest.mark.parametrize(("depth", "blocks", "windows"), [(12, 376, 78), (24, 2624, 300)])
def test_a_sweep_costs_the_blocks_that_it_runs(depth, blocks, windows):
    sizes = Sizes(
        examples=50,
        noisy=7,
        depth=depth,
        update=1,
        predict=0.1,
        layer=0.1,
        last_layer=0.05,
        probe=1,
    )
    assert Swapping().cost(sizes) == pytest.approx(
        ((blocks - windows - 1) * 0.1 + (windows + 1) * 0.05) * 50
    )
