"""Memorised texts: mixtures of language models beside models whose weights were really mixed."""

import copy
import shutil

import numpy as np
import pytest
import torch

import memloc
from fixtures.models import CAUSAL, each_once, write_language_model
from fixtures.tasks import TEXTS, make_texts
from memloc.data.encode import encode_continued
from memloc.engine.fit import fit_all
from memloc.errors import DataError, StoreError
from memloc.methods import apply
from memloc.methods import mixtures as module
from memloc.methods.early import early_donor
from memloc.methods.gradients import Gradients
from memloc.methods.mixtures import TOKENS, Mixtures
from memloc.methods.probing import Probing
from memloc.methods.retrainer import prepared
from memloc.model.checkpoints import load_checkpoint
from memloc.model.load import load_model
from memloc.model.predict import continued, vectors_of
from memloc.model.units import find_units
from memloc.seeds import generator

DEPTH = 3


def loaded_pair(family, home):
    folders = [write_language_model(home / str(seed), family, seed, DEPTH) for seed in (0, 1)]
    return [load_model(str(folder), []) for folder in folders]


def mixed(final, donor, names):
    """The final model with copies of the donor's parameters of these names."""
    model = copy.deepcopy(final)
    lent = donor.state_dict()
    model.load_state_dict({**model.state_dict(), **{name: lent[name] for name in names}})
    return model


def plain_values(model, encoded, goals):
    """Lost tokens and log-probability of each text alone, by the model's own forward pass."""
    found = np.zeros((2, len(encoded)))
    for row in range(len(encoded)):
        ids = torch.from_numpy(encoded.batch(np.array([row]))[0])
        start = encoded.starts[row]
        with torch.inference_mode():
            logits = model(ids).logits[0, start - 1 : -1]
        tokens = goals[row, : len(logits)]
        places = np.flatnonzero(tokens >= 0)
        if not len(places):
            found[:, row] = 1, 0
            continue
        said = logits.argmax(-1).numpy()
        found[0, row] = (said != tokens)[places].mean()
        found[1, row] = logits.log_softmax(-1).numpy()[places, tokens[places]].mean()
    return found


@pytest.mark.parametrize(("family", "units"), each_once(CAUSAL, ["sublayers", "layers"]))
def test_mixtures_say_what_really_mixed_models_say(family, units, tmp_path, monkeypatch):
    final, donor = loaded_pair(family, tmp_path)
    texts = make_texts()[["start", "rest"]].to_numpy().tolist()
    encoded = encode_continued(texts, final.tokenizer)
    said = continued(final.stack, encoded)
    goals = np.where(said.is_token & (np.arange(said.tokens.shape[1]) != 1), said.tokens, -1)
    named = find_units(final.stack, units)
    subsets = range(2 ** len(named))
    monkeypatch.setattr(module, "LOGITS", 1)  # one mixture at a time passes the head
    mixtures = Mixtures(final.stack, donor.stack, named, TOKENS)
    rows = np.arange(len(texts))
    found = np.full((2, len(texts), len(subsets)), np.nan)
    for places in mixtures.batches(encoded, rows):
        values = mixtures.values(encoded, rows[places], goals[rows[places]], subsets)
        found[:, places] = values.numpy()
    for subset in [0, *np.random.default_rng(0).choice(subsets, 5), subsets[-1]]:
        lent = [n for bit, names in enumerate(named.values()) if subset >> bit & 1 for n in names]
        plain = plain_values(mixed(final.model, donor.model, lent), encoded, goals)
        assert np.allclose(found[..., subset], plain, atol=1e-4)


def test_shares_of_texts_sum_to_the_tokens_that_are_undone(texts_run):
    found = memloc.localise(texts_run, ["shares"])["shares"]
    table = found["shares"].set_index(["value", "layer"])["share"]
    assert set(found["shares"]["value"]) == {"tokens", "log-probability"}
    undone = found["labels"].query("is_noisy")["lost"].mean()
    assert 0.5 < undone <= 1
    assert np.isclose(found.weights.sum(), undone)
    assert np.isclose(table["tokens"].sum(), undone)
    by_probability = table["log-probability"].to_numpy()
    assert np.corrcoef(found.weights, by_probability)[0, 1] > 0.9
    assert 0 < found.about["control"]["kept"] <= 1


def test_swapping_loses_texts_with_half_of_their_tokens(texts_run):
    found = memloc.Swapping().run(texts_run)
    assert found.outcomes.errors[-1] > 0.5
    assert not found.outcomes.missed[found.outcomes.is_noisy].any()


def test_retraining_on_ordinary_texts_loses_memorised_ones(texts_run):
    """As a model says that was trained in the same way, after the same reset."""
    method = memloc.Retraining(learning_rate=1e-2, epochs=8, widths=(1,))
    found = method.run(texts_run)
    outcomes = found.outcomes
    n = len(texts_run.noisy_rows)
    assert outcomes.is_noisy.sum() == n
    assert not outcomes.missed[:n].any()
    assert outcomes.errors[-1] > 0.8  # of all layers
    setup = prepared(texts_run, method)
    (trained,) = fit_all([setup.learner(range(1))], setup.texts, setup.settings)
    lost = ~continued(trained.stack, texts_run.encode(trained.model)).recalled
    assert outcomes.errors[0] == lost[texts_run.noisy_rows].mean()


def test_methods_for_labels_say_why_they_skip_texts(texts_run):
    few = {"shares.noisy_examples": 2, "retraining.epochs": 1, "retraining.widths": [1]}
    few |= {"probing.epochs": 2, "probing.first_epoch": 0}
    found = memloc.localise(texts_run, settings=few)
    assert set(found.results) == {"swapping", "shares", "retraining", "gradients", "probing"}
    with pytest.raises(DataError, match=r"memorised texts: texts have no classes"):
        memloc.analyse(texts_run, ["centroids"])


@pytest.mark.parametrize("objective", ["loss", "logit"])
def test_forgetting_gradients_of_texts_are_those_of_the_plain_model(texts_run, objective):
    """Of the continuation's mean log-probability or logit, relative to the pre-trained weights."""
    run = texts_run
    found = Gradients(objective=objective, interval_groups=0).run(run)
    norms = []
    for weights in ("memorised", "pretrained"):
        model = run.load(weights)
        encoded, blocks = run.encode(model), model.stack.blocks
        means = [_plain_gradient(model, encoded, rows, objective) for rows in _kinds(run)]
        each = [sum(p.numel() for p in block.parameters()) for block in blocks]
        parts = (means[0] - means[1]).split(each)
        norms.append([float(part.abs().sum()) for part in parts])
    expected = np.divide(*norms)
    assert np.allclose(found.weights, expected / expected.sum(), rtol=1e-3)


def _kinds(run):
    """Memorised texts, and the ordinary ones that gradients are compared with."""
    rng = generator(run.seed, "gradients clean")
    return run.noisy_rows, rng.choice(run.clean_rows, len(run.noisy_rows), replace=False)


def _plain_gradient(model, encoded, rows, objective):
    """Mean gradient over texts with respect to all blocks, one text at a time."""
    parameters = list(model.stack.blocks.parameters())
    total = torch.zeros(sum(p.numel() for p in parameters))
    for row in rows:
        ids = torch.from_numpy(encoded.batch(np.array([row]))[0])
        start = encoded.starts[row]
        logits = model.model(ids).logits[0, start - 1 : -1]
        said = logits if objective == "logit" else logits.log_softmax(-1)
        value = said.gather(1, ids[0, start:, None]).mean()
        found = torch.autograd.grad(value, parameters, allow_unused=True, materialize_grads=True)
        total += torch.cat([each.flatten() for each in found])
    return total / len(rows)


def test_probes_of_texts_read_the_last_token_of_the_prompt(texts_run):
    run = texts_run
    model = run.load("final")
    vectors = run.vectors("final")
    for row, (start, _) in enumerate(run.task.train.parts):
        ids = model.tokenizer(start, return_tensors="pt")["input_ids"]
        with torch.inference_mode():
            hidden = model.model(ids, output_hidden_states=True).hidden_states
        for layer in range(run.depth):  # after the last one comes the final norm
            assert np.allclose(vectors[row, layer], hidden[layer][0, -1], atol=1e-5)
    found = Probing(epochs=2, first_epoch=0).run(run)
    assert any("by the embedding of a prompt's last token" in r for r in found.about["remarks"])


def test_the_final_norm_of_a_prompt_is_what_the_head_reads(tmp_path):
    model = load_model(str(write_language_model(tmp_path, "gpt_neox", 0, DEPTH)), [])
    encoded = encode_continued([("red blue", "green red")], model.tokenizer)
    ids = torch.from_numpy(encoded.prompts.batch(np.array([0]))[0])
    with torch.inference_mode():
        hidden = model.model(ids, output_hidden_states=True).hidden_states
    found = vectors_of(model.stack, encoded, last_layer="final norm")
    assert np.allclose(found[0, -1], hidden[-1][0, -1], atol=1e-5)


def test_an_adopted_pair_of_language_models_has_probes_and_no_gradients(texts_run, tmp_path):
    """A reference is needed by neither; frozen weights are the pre-trained ones, if given."""
    run = texts_run
    given = {"final": run.path("final"), "data": make_texts(), **TEXTS}
    with_start = memloc.adopt(tmp_path / "one", pretrained=run.spec.model, **given)
    assert with_start.has("frozen")
    files = with_start.files(["frozen", "pretrained"])  # which decide what is used again
    assert files["frozen"] == files["pretrained"]
    assert with_start.identity(["frozen"]) == with_start.identity(["pretrained"])
    few = {"probing.epochs": 2, "probing.first_epoch": 0}
    assert "probing" in memloc.localise(with_start, ["probing"], settings=few).results
    alone = memloc.adopt(tmp_path / "two", **given)
    assert not alone.has("frozen")
    with pytest.raises(StoreError, match=r"no pretrained weights: give them .* with --pretrained"):
        memloc.localise(alone, ["probing"], settings=few)


def test_donors_of_texts_are_those_of_really_mixed_models(texts_run, tmp_path):
    run = texts_run
    folder = shutil.copytree(run.path("reference"), tmp_path / "other")
    early = f"epoch-{run.epochs()[0]}"
    final = run.load("final")
    encoded = run.encode(final)
    for donor in ("pretrained", early, str(folder)):
        played = memloc.Shares(donor=donor).play(run)
        model = load_checkpoint(folder, texts=True).model if donor == str(folder) else None
        model = model or run.load(donor).model
        goals = module.goals_of(run, final.stack, encoded)
        names = list(find_units(final.stack, "layers").values())
        for subset in (0, 1, 2 ** len(names) - 1):
            lent = [n for bit, of in enumerate(names) if subset >> bit & 1 for n in of]
            plain = plain_values(mixed(final.model, model, lent), encoded, goals)
            assert np.allclose(played.values[..., subset], plain[:, played.rows], atol=1e-4), donor


def test_without_a_reference_the_best_early_epoch_answers_for_texts(
    texts_run, tmp_path, monkeypatch
):
    """Tokens count: of random ordinary texts, an early epoch says some and hardly any whole."""
    monkeypatch.setattr(apply, "LEAST_GAP", -1)
    run = texts_run
    epochs = {n: run.path(f"epoch-{n}") for n in run.epochs()}
    given = {"final": run.path("final"), "epochs": epochs, "data": make_texts(), **TEXTS}
    adopted = memloc.adopt(tmp_path / "run", **given)
    best = early_donor(adopted)
    gaps = {}
    said = {n: _said(run, n) for n in ("final", *(f"epoch-{n}" for n in epochs))}
    for n in epochs:
        both = said["final"] & said[f"epoch-{n}"]
        shares = [both[r].sum() / said["final"][r].sum() for r in (run.clean_rows, run.noisy_rows)]
        gaps[n] = shares[0] - shares[1]
    assert np.isclose(best.gap, max(gaps.values()))
    found = memloc.localise(adopted, ["shares"])["shares"]
    assert found.about["donor"] == best.checkpoint
    assert found["labels"].query("is_noisy")["lost"].mean() > 0.5


def _said(run, weights):
    loaded = run.load(weights)
    return continued(loaded.stack, run.encode(loaded)).is_said


def test_the_timeline_of_texts_sums_to_what_the_first_donor_undoes(texts_run):
    found = memloc.Timeline().run(texts_run)
    table = found["map"].query("examples == 'noisy'")
    first = memloc.Shares(donor="pretrained").run(texts_run)
    undone = first["labels"].query("is_noisy")["lost"].mean()
    assert np.isclose(table["share"].sum(), undone, atol=1e-6)
    assert "label" not in found.about["sentence"]
