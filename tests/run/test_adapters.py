"""Runs whose weights are adapters: what learns, what is on disk, and what methods see."""

import json
import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import memloc
from fixtures.tasks import Plant, fast_protocol, make_recipe, make_task, train_run
from memloc.errors import DataError
from memloc.methods.apply import localise
from memloc.methods.shares import Shares
from memloc.methods.swapping import Swapping
from memloc.model.load import load_model
from memloc.model.predict import encode_for, predict
from memloc.model.units import find_units
from memloc.progress import telling
from memloc.run.adopt import adopt
from memloc.run.folder import Run
from memloc.stats.subsets import units_of

peft = pytest.importorskip("peft")
LORA = {"finetune__adapter": "lora", "finetune__adapter_rank": 4, "finetune__epochs": 3}


def logits(loaded, examples):
    return predict(loaded.stack, encode_for(loaded, examples, 64))


@pytest.fixture(scope="module")
def trained(tiny_model, tmp_path_factory):
    model = str(tiny_model("opt", depth=2, dropout=0.1))
    settings = {"finetune__learning_rate": 5e-2, "finetune__near_ceiling": 0.1}
    protocol = fast_protocol(**LORA, **settings)
    recipe = make_recipe(model, make_task(), 1, protocol)
    return recipe, train_run(recipe, tmp_path_factory.mktemp("adapters") / "run")


def test_only_the_adapters_and_the_head_differ_from_the_base_model(trained):
    recipe, run = trained
    base = dict(load_model(recipe.model, recipe.task.label_names).model.named_parameters())
    for weights in ("memorised", "final", "reference"):
        found = dict(run.load(weights).model.named_parameters())
        changed = {name for name in base if not torch.equal(found[name], base[name])}
        assert "score.weight" in changed
        assert changed - {"score.weight"}
        assert all(
            ".layers." in name and name.endswith("weight") for name in changed - {"score.weight"}
        )
    frozen = dict(run.load("frozen").model.named_parameters())
    assert {n for n in base if not torch.equal(frozen[n], base[n])} == {"score.weight"}


def test_the_disk_holds_adapters_that_peft_reads(trained):
    recipe, run = trained
    folder = run.path("final")
    assert not (folder / "model.safetensors").exists()
    about = json.loads((folder / "adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == recipe.model
    plain = load_model(recipe.model, recipe.task.label_names).model
    theirs = peft.PeftModel.from_pretrained(plain, folder).eval()
    loaded = run.load("final")
    batch = loaded.tokenizer(["red sky"], return_tensors="pt", return_token_type_ids=False)
    with torch.no_grad():
        assert torch.allclose(theirs(**batch).logits, loaded.model(**batch).logits, atol=1e-5)


def test_the_saved_adapter_predicts_what_was_measured_while_it_was_trained(trained):
    _, run = trained
    hit = logits(run.load("final"), run.task.train).argmax(1) == run.noisy.assigned
    assert run.status.final.training == pytest.approx(hit.mean())


def test_every_method_works_on_adapters(trained):
    _, run = trained
    found = localise(run, ["swapping", "retraining", "gradients", "shares"], force=True)
    for name in ("swapping", "retraining", "gradients", "shares"):
        assert np.isfinite(found[name].weights).all()


def test_switched_off_in_all_layers_an_adapter_leaves_the_base_model(trained):
    recipe, run = trained
    found = localise(run, [Swapping(donor="base")], force=True)["swapping"]
    assert found.about["donor"] == "base"
    base, final = load_model(recipe.model, recipe.task.label_names), run.load("final")
    with torch.no_grad():
        base.model.score.weight.copy_(final.model.score.weight)
    outcomes, noisy = found.outcomes, run.noisy_rows
    assert outcomes.windows[-1] == range(run.depth)
    for one, switched in ((range(run.depth), range(run.depth)), (range(1), range(1))):
        mixed = run.load("final")
        for layer in switched:
            mixed.stack.blocks[layer].load_state_dict(base.stack.blocks[layer].state_dict())
        wrong = logits(mixed, run.task.train).argmax(1) != run.noisy.assigned
        place = outcomes.windows.index(one)
        np.testing.assert_array_equal(outcomes.noisy_wrong[:, place], wrong[noisy])
    said = logits(base, run.task.train).argmax(1) != run.noisy.assigned
    np.testing.assert_array_equal(outcomes.noisy_wrong[:, -1], said[noisy])


@pytest.mark.parametrize("units", ["sublayers", {"odd": ("*.0.*",), "even": ("*.1.*",)}])
def test_an_adapter_switched_off_in_units_is_that_of_really_mixed_models(trained, units):
    recipe, run = trained
    played = Shares(donor="base", units=units).play(run)
    base = load_model(recipe.model, recipe.task.label_names).model.state_dict()
    named = list(find_units(run.load("final").stack, units).values())
    for subset in (1, 2, 2 ** len(named) - 1):
        mixed = run.load("final")
        chosen = {name for unit in units_of(subset) for name in named[unit]}
        own = mixed.model.state_dict()
        mixed.model.load_state_dict({k: base[k] if k in chosen else own[k] for k in own})
        wrong = logits(mixed, run.task.train).argmax(1) != run.noisy.assigned
        np.testing.assert_array_equal(played.values[0, :, subset], wrong[played.rows])


def test_without_an_adapter_there_is_no_base(tiny_model, tmp_path):
    protocol = fast_protocol(finetune__epochs=1)
    recipe = make_recipe(str(tiny_model("opt", depth=2)), make_task(), 1, protocol)
    run = train_run(recipe, tmp_path / "run", ["final"])
    with pytest.raises(DataError, match="not an adapter, so they have no base"):
        localise(run, [Swapping(donor="base")], force=True)


def test_an_interrupted_training_continues_to_the_same_adapter(trained, tmp_path, monkeypatch):
    recipe, run = trained
    from memloc.engine import fit as module

    save, kept = module.save_state, []

    def stop_after_one(*args):
        save(*args)
        kept.append(args)
        if len(kept) == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(module, "save_state", stop_after_one)
    with pytest.raises(KeyboardInterrupt):
        train_run(recipe, tmp_path / "run")
    again = train_run(recipe, tmp_path / "run")
    one, two = (r.load("final").model.state_dict() for r in (run, again))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_two_adapters_that_learn_as_one_learn_as_alone(trained, tmp_path):
    recipe, as_one = trained
    for weights in ("final", "reference"):
        alone = train_run(recipe, tmp_path / weights, [weights])
        found = [json.loads((r.path(weights) / "memloc.json").read_text()) for r in (as_one, alone)]
        assert [len(about["trained_with"]) for about in found] == [2, 1]
        one, two = (r.load(weights).model.state_dict() for r in (as_one, alone))
        assert all(torch.allclose(one[name], two[name], atol=1e-3) for name in one)


def test_a_plant_changes_the_adapters_of_its_window_for_the_noisy_task(tiny_model, tmp_path):
    # The auxiliary task may change every layer, but hardly does: what differs is the noisy task's.
    rates = {"finetune__learning_rate": 1e-2, "control__auxiliary_learning_rate": 1e-30}
    recipe = make_recipe(
        str(tiny_model("bert", depth=3)), make_task(), 1, fast_protocol(**LORA, **rates),
        device="cpu", plant=Plant("2", make_task()),
    )  # fmt: skip
    run = train_run(recipe, tmp_path / "plant", ["final", "reference"])
    assert (run.path("final") / "adapter_config.json").is_file()
    final, reference = (run.load(name).stack.blocks for name in ("final", "reference"))
    differ = [
        any(not torch.equal(a, b) for a, b in zip(x.parameters(), y.parameters(), strict=True))
        for x, y in zip(final, reference, strict=True)
    ]
    assert differ == [False, True, False]


def test_an_adapter_of_an_embedded_model_names_it_and_asks_no_hub(tmp_path):
    """Warnings are errors here, and PEFT would warn that it cannot reach the hub."""
    task = memloc.add_noise(memloc.load_task("tiny-topic", examples=40), rate=0.2, seed=1)
    settings = {"finetune.adapter": "lora", "finetune.epochs": 1}
    run = memloc.train(
        "tiny-bert", task, tmp_path / "run", settings=settings, checkpoints=["final"], device="cpu"
    )
    about = json.loads((run.path("final") / "adapter_config.json").read_text())
    assert about["base_model_name_or_path"] == "tiny-bert"
    assert run.load("final").unchanged_layers == ()


def test_a_target_that_the_model_does_not_have_is_named(trained, tmp_path):
    recipe, _ = trained
    protocol = recipe.protocol.replace({"finetune.adapter_targets": ("q_proj", "query")})
    other = make_recipe(recipe.model, recipe.task, 1, protocol)
    with pytest.raises(Exception, match="is called 'query'; there are: fc1, fc2, k_proj"):
        train_run(other, tmp_path / "run")


def test_adapters_are_adopted_with_their_base_model(trained, tmp_path, write_data):
    _, run = trained
    mine = adopt(
        tmp_path / "mine", final=run.path("final"), reference=run.path("reference"),
        data=write_data(run), original="original", device="cpu",
    )  # fmt: skip
    assert mine.has("pretrained")
    ours, theirs = (localise(r, ["swapping"], force=True)["swapping"].weights for r in (run, mine))
    np.testing.assert_allclose(theirs, ours)
    assert Run.open(mine.folder).status.adopted["final"].path == str(run.path("final").resolve())


def test_layers_in_which_an_adopted_adapter_is_zero_are_named(trained, tmp_path, write_data):
    _, run = trained
    folder = shutil.copytree(run.path("final"), tmp_path / "final")
    weights = load_file(folder / "adapter_model.safetensors")
    for name in weights:
        if ".layers.0." in name and "lora_B" in name:
            weights[name].zero_()
    save_file(weights, folder / "adapter_model.safetensors")
    data, said = write_data(run), []
    with telling(said.append):
        adopt(tmp_path / "mine", final=folder, data=data, original="original", device="cpu")
    assert "The adapter of the final weights does nothing in layers 1." in said
