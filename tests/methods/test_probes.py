import warnings
from itertools import pairwise

import numpy as np
import pytest
import torch
from sklearn.metrics import f1_score

from fixtures.models import WORDS
from memloc.data.encode import encode
from memloc.errors import DataError, SettingsError
from memloc.methods.probes import (
    Perceptrons,
    Probes,
    Target,
    alike_remarks,
    drawn_f1,
    epoch_dropout,
    f1_scores,
    initial_weights,
    probe_order,
    shuffled,
    split_rows,
    standardised,
    train_probes,
)
from memloc.model import predict as evaluate
from memloc.model.load import load_model
from memloc.model.predict import vectors_of
from memloc.protocol import ProbeSettings

N, LAYERS, WIDTH = 90, 4, 8
FAST = {
    "epochs": 12,
    "first_epoch": 4,
    "hidden": 16,
    "learning_rate": 3e-3,
    "seeds": (0, 1, 2),
    "batch_size": 16,
}


def settings_with(**changes):
    return ProbeSettings(**{**FAST, **changes})


@pytest.fixture(scope="module")
def data():
    return planted(N)


def planted(n):
    """Two classes that a direction gives away from layer 2 on."""
    rng = np.random.default_rng(0)
    labels = (rng.random(n) < 0.35).astype(np.int64)
    vectors = rng.normal(size=(n, LAYERS, WIDTH)).astype(np.float32)
    vectors[:, 2:, 0] += 5 * labels[:, None]
    return vectors, labels


def noise_target(labels):
    return Target(labels, 2, (0.33, 0.67), f1_of=1)


def assert_same(one, other):
    for name in ("rows", "truth", "predicted", "best_epoch"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert np.allclose(one.f1, other.f1)


def pick(probes, layers, seeds):
    return {
        "rows": probes.rows[seeds],
        "predicted": probes.predicted[layers][:, seeds],
        "f1": probes.f1[layers][:, seeds],
        "best_epoch": probes.best_epoch[layers][:, seeds],
    }


@pytest.mark.parametrize("hidden_layers", [0, 1, 2])
def test_a_probe_alone_is_the_same_as_in_a_stack(data, hidden_layers):
    vectors, labels = data
    settings = settings_with(hidden_layers=hidden_layers)
    targets = {"noise": noise_target(labels), "other": Target(1 - labels, 2)}
    together = train_probes(vectors, targets, settings)["noise"]
    for layer, seed in ((0, 2), (3, 1)):
        one = settings.replace({"seeds": (seed,)})
        alone = train_probes(vectors[:, [layer]], {"noise": targets["noise"]}, one)["noise"]
        expected = pick(together, [layer], [seed])
        for name, value in expected.items():
            assert np.allclose(getattr(alone, name), value), name


def plain_probe(vectors, labels, settings, seed):
    """One probe in the usual way: modules, autograd, a plain optimiser."""
    from torch import nn

    train, validation, test = split_rows(len(vectors), settings.split, seed)
    sizes = [vectors.shape[1], *[settings.hidden] * settings.hidden_layers, 2]
    modules = []
    for entering, leaving in pairwise(sizes):
        modules += [nn.Linear(entering, leaving), nn.GELU()]
    model = nn.Sequential(*modules[:-1])
    with torch.no_grad():
        for own, drawn in zip(model.parameters(), initial_weights(sizes, seed), strict=True):
            own.copy_(drawn.view_as(own))
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    loss = nn.CrossEntropyLoss(weight=torch.tensor([0.33, 0.67]))
    x, y = torch.from_numpy(vectors), torch.from_numpy(labels)
    best, kept = 0.0, None
    for epoch in range(1, settings.epochs + 1):
        order = train[probe_order(len(train), seed, epoch)]
        factors = epoch_dropout(len(train), x.shape[1], settings.dropout, seed, epoch)
        for start in range(0, len(order), settings.batch_size):
            rows = order[start : start + settings.batch_size]
            given = x[rows] * torch.from_numpy(factors[start : start + settings.batch_size])
            optimiser.zero_grad()
            loss(model(given), y[rows]).backward()
            optimiser.step()
        if epoch > settings.first_epoch:
            found = model(x[validation]).argmax(1).numpy()
            score = f1_score(labels[validation], found, zero_division=0)
            if score > best:
                best, kept = score, model(x[test]).argmax(1).numpy()
    return test, model(x[test]).argmax(1).numpy() if kept is None else kept


@pytest.mark.parametrize("hidden_layers", [0, 1, 2])
def test_probes_are_those_of_plain_modules_and_autograd(data, hidden_layers):
    vectors, labels = data
    settings = settings_with(hidden_layers=hidden_layers)
    found = train_probes(vectors, {"noise": noise_target(labels)}, settings)["noise"]
    for at, seed in ((0, 0), (2, 2)):
        for layer in (1, 2):
            rows, predicted = plain_probe(vectors[:, layer], labels, settings, seed)
            assert np.array_equal(found.rows[at], rows)
            assert np.array_equal(found.predicted[layer, at], predicted)
            expected = f1_score(labels[rows], predicted, zero_division=0)
            assert found.f1[layer, at] == pytest.approx(expected)


def test_where_f1_is_always_0_the_last_epoch_counts(data):
    vectors, labels = data
    settings = settings_with(seeds=(0,))
    labels = labels.copy()
    labels[split_rows(N, settings.split, 0)[1]] = 0  # nothing to find among validation examples
    target = {"noise": noise_target(labels)}
    found = train_probes(vectors, target, settings)["noise"]
    assert (found.best_epoch == settings.epochs).all()
    only_last = settings.replace({"first_epoch": settings.epochs - 1})
    assert_same(found, train_probes(vectors, target, only_last)["noise"])
    first = train_probes(vectors, target, settings.replace({"epochs": 5}))["noise"]
    assert not np.array_equal(found.predicted, first.predicted)


def test_of_equal_epochs_above_0_the_first_counts(data):
    vectors, labels = data
    clear = vectors + 9 * (2 * labels[:, None, None] - 1).astype(np.float32)
    settings = settings_with(first_epoch=8, learning_rate=1e-2)  # F1 is 1 from the 9th epoch on
    found = train_probes(clear, {"noise": noise_target(labels)}, settings)["noise"]
    assert (found.f1 == 1).all()
    assert (found.best_epoch == 9).all()


def test_gradients_are_those_of_autograd():
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(3, 5, 4, generator=rng), torch.tensor([[0, 1, 2, 1, 0]] * 3)
    for sizes in ([4, 3], [4, 6, 3], [4, 6, 5, 3]):
        networks = Perceptrons([initial_weights(sizes, seed) for seed in range(3)])
        weights = torch.rand(3, 5, generator=rng)
        networks.differentiate(x, y, weights)
        found = networks.flat.grad.clone()
        leaves = [w.clone().requires_grad_() for w in networks._weights]
        state = x
        for weight, bias in zip(leaves[::2], leaves[1::2], strict=True):
            state = torch.nn.functional.gelu(state) if state is not x else state
            state = state @ weight.transpose(1, 2) + bias
        losses = torch.nn.functional.cross_entropy(
            state.flatten(0, 1), y.flatten(), reduction="none"
        )
        (losses * weights.flatten()).sum().backward()
        expected = torch.cat([leaf.grad.flatten() for leaf in leaves])
        assert torch.allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize("f1_of", [None, 0, 2])
def test_f1_agrees_with_scikit_learn(f1_of):
    rng = np.random.default_rng(1)
    for n_classes in (3, 5):
        truth, predicted = rng.integers(0, n_classes - 1, (2, 40, 6))
        found = f1_scores(truth, predicted, Target(truth, n_classes, f1_of=f1_of))
        for row in range(len(truth)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                expected = (
                    f1_score(truth[row], predicted[row], average="macro", zero_division=0)
                    if f1_of is None
                    else f1_score(
                        truth[row], predicted[row], labels=[f1_of], average="macro", zero_division=0
                    )
                )
            assert found[row] == pytest.approx(expected)


def random_probes(n=30, n_test=12, layers=3, seeds=2, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    rows = np.stack([rng.choice(n, n_test, replace=False) for _ in range(seeds)])
    truth = rng.integers(0, classes, (seeds, n_test))
    predicted = rng.integers(0, classes, (layers, seeds, n_test))
    return Probes(rows, truth, predicted, np.zeros((layers, seeds)), np.ones((layers, seeds), int))


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_f1_of_examples_drawn_several_times_is_that_of_repeated_ones(classes):
    probes = random_probes(classes=classes)
    counts = np.random.default_rng(1).integers(0, 3, (4, 30)).astype(float)
    found = drawn_f1(probes, counts, range(classes))
    for draw, times in enumerate(counts.astype(int)):
        for seed, rows in enumerate(probes.rows):
            truth = np.repeat(probes.truth[seed], times[rows])
            for layer in range(3):
                predicted = np.repeat(probes.predicted[layer, seed], times[rows])
                expected = f1_score(truth, predicted, average="macro", zero_division=0)
                assert found[draw, layer, seed] == pytest.approx(expected)


def test_the_probes_own_f1_is_what_all_their_test_examples_give():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 3, 40)
    settings = settings_with(epochs=4, first_epoch=0)
    vectors = rng.normal(size=(40, 2, 5)).astype(np.float32)
    probes = train_probes(vectors, {"original": Target(labels, 3)}, settings)["original"]
    found = drawn_f1(probes, np.ones((1, 40)), range(3))
    np.testing.assert_allclose(found[0], probes.f1)


def test_a_seed_without_such_test_examples_has_no_f1():
    probes = random_probes()
    counts = np.ones((1, 30))
    counts[0, probes.rows[1]] = 0
    found = drawn_f1(probes, counts, range(3))
    assert np.isnan(found[0, :, 1]).all()


def test_a_signal_is_found_where_it_is_and_shuffled_labels_are_not():
    vectors, labels = planted(400)
    settings = settings_with(epochs=15, seeds=(0, 1, 2, 3, 4))
    targets = {
        "noise": noise_target(labels),
        "chance": Target(shuffled(labels, settings.seeds), 2, (0.33, 0.67), f1_of=1),
    }
    found = train_probes(vectors, targets, settings)
    f1, chance = found["noise"].f1.mean(1), found["chance"].f1.mean(1)
    assert (f1[2:] > 0.95).all()
    # Calling everything noisy gives 2p / (1 + p), here .52.
    assert (f1[:2] < 0.6).all()
    assert (chance < 0.6).all()


def test_standardised_vectors_have_mean_0_and_deviation_1_or_are_0():
    vectors = np.array([[[1, 5, 0.1]], [[3, 5, 0.1]], [[5, 5, 0.1]]], dtype=np.float32)
    side = np.sqrt(1.5)
    expected = [[[-side, 0, 0]], [[0, 0, 0]], [[side, 0, 0]]]
    assert np.allclose(standardised(vectors), expected)


def test_a_large_number_that_hardly_varies_is_standardised_and_rounding_is_not():
    rng = np.random.default_rng(0)
    vectors = rng.normal(5, [2e-5, 1e-7, 1e-3], size=(3000, 2, 3)).astype(np.float32)
    found = standardised(vectors).astype(np.float64)
    assert np.abs(found.mean(0)).max() < 1e-6
    assert found.std(0)[:, [0, 2]] == pytest.approx(1)
    assert not found[..., 1].any()


def test_a_small_signal_beside_a_large_constant_is_read_if_standardised():
    vectors, labels = planted(400)
    vectors *= 1e-3
    vectors[..., 1] += 5
    settings = settings_with(epochs=15)
    found = {}
    for standardise in (False, True):
        changed = settings.replace({"standardise": standardise})
        found[standardise] = train_probes(vectors, {"noise": noise_target(labels)}, changed)
    assert (found[True]["noise"].f1[2:].mean(1) > 0.95).all()
    assert (found[False]["noise"].f1[2:].mean(1) < 0.7).all()


def test_layers_whose_vectors_are_nearly_the_same_are_named():
    vectors, _ = planted(N)
    assert alike_remarks(vectors, "probing") == []
    vectors[:, [0, 1, 3]] *= 1e-3
    vectors[..., 1] += 5
    (said,) = alike_remarks(vectors, "probing")
    assert said.startswith("Vectors of different examples differ by less than 1% of their length")
    assert "after layers 1, 3, so probes" in said  # 0 is what enters the first layer
    assert said.endswith("try `probing.standardise=true`.")


def test_label_probes_know_more_than_two_classes():
    rng = np.random.default_rng(2)
    labels = rng.integers(0, 3, N)
    vectors = rng.normal(size=(N, 2, WIDTH)).astype(np.float32)
    vectors[np.arange(N), 1, labels] += 4
    settings = settings_with(epochs=20, first_epoch=15)
    found = train_probes(vectors, {"label": Target(labels, 3)}, settings)["label"]
    assert (found.f1[1] > 0.8).all()
    expected = f1_score(found.truth[0], found.predicted[1, 0], average="macro")
    assert found.f1[1, 0] == pytest.approx(expected)


def test_probes_do_not_touch_torchs_global_generator(data):
    vectors, labels = data
    before = torch.get_rng_state()
    one = train_probes(vectors, {"noise": noise_target(labels)}, settings_with())["noise"]
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(7)
    assert_same(one, train_probes(vectors, {"n": noise_target(labels)}, settings_with())["n"])


def test_every_example_is_in_one_part_of_the_split():
    train, validation, test = split_rows(50, (0.7, 0.1, 0.2), seed=3)
    assert (len(train), len(validation), len(test)) == (35, 5, 10)
    assert sorted(np.concatenate([train, validation, test])) == list(range(50))
    assert not np.array_equal(test, split_rows(50, (0.7, 0.1, 0.2), seed=4)[2])
    assert [len(part) for part in split_rows(3, (0.7, 0.1, 0.2), seed=0)] == [1, 1, 1]


def test_test_examples_in_many_pieces_are_predicted_alike(data, monkeypatch):
    vectors, labels = data
    one = train_probes(vectors, {"noise": noise_target(labels)}, settings_with())["noise"]
    monkeypatch.setattr("memloc.methods.probes.ROWS_AT_ONCE", 5)
    assert_same(one, train_probes(vectors, {"n": noise_target(labels)}, settings_with())["n"])


def test_dropout_drops_its_share_and_keeps_the_mean():
    factors = epoch_dropout(400, 50, 0.1, seed=0, epoch=1)
    assert (factors == 0).mean() == pytest.approx(0.1, abs=0.01)
    assert factors.mean() == pytest.approx(1, abs=0.02)
    assert (epoch_dropout(4, 5, 0.0, seed=0, epoch=1) == 1).all()


def test_what_cannot_be_probed_is_refused(data):
    vectors, labels = data
    target = {"noise": noise_target(labels)}
    with pytest.raises(SettingsError, match="first_epoch"):
        train_probes(vectors, target, settings_with(epochs=4))
    with pytest.raises(DataError, match="not finite"):
        train_probes(np.full_like(vectors, np.nan), target, settings_with())
    with pytest.raises(DataError, match="found 2"):
        train_probes(vectors[:2], {"noise": Target(labels[:2], 2)}, settings_with())


def test_vectors_of_texts_come_in_their_order_whatever_the_batches(tiny_model, monkeypatch):
    loaded = load_model(str(tiny_model("opt", dropout=0.1)), ["no", "yes"])
    rng = np.random.default_rng(0)
    texts = [(" ".join(rng.choice(WORDS, int(size))),) for size in rng.integers(1, 12, 20)]
    encoded = encode(texts, loaded.tokenizer, loaded.separator)
    loaded.model.train()
    whole = vectors_of(loaded.stack, encoded)
    assert loaded.model.training
    monkeypatch.setattr(evaluate, "NUMBERS_PER_STATE", 1)  # one text a batch
    assert np.allclose(vectors_of(loaded.stack, encoded), whole, atol=1e-5)
    assert np.allclose(vectors_of(loaded.stack, encoded, up_to=1), whole[:, :2], atol=1e-5)
