import json
import shutil
import socket

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForSequenceClassification

from fixtures.models import FAMILIES, PAPER_FAMILIES, POSITIONS, make_tokenizer, watched
from memloc.errors import ModelError, UnknownName
from memloc.model.checkpoints import load_checkpoint
from memloc.model.known import TINY
from memloc.model.load import LoadOptions, load_model

LABELS = ["no", "maybe", "yes"]
SEPARATORS = {
    "bert": "[SEP]",
    "distilbert": "[SEP]",
    "electra": "[SEP]",
    "roberta": "</s>",
    "mpnet": "</s>",
    "opt": "</s>",
    "gpt_neo": "|",
    "gpt_neox": "|",
    "gpt2": "|",
    "llama": "</s>",
}


@pytest.fixture
def folder(tiny_model, tmp_path):
    """A copy of a tiny OPT that a test may damage."""
    return shutil.copytree(tiny_model("opt"), tmp_path / "mine")


@pytest.fixture
def checkpoint(tiny_model, tmp_path):
    """A whole classifier with its head, as training leaves it."""
    loaded = load_model(str(tiny_model("opt")), LABELS)
    loaded.model.save_pretrained(tmp_path / "checkpoint")
    loaded.tokenizer.save_pretrained(tmp_path / "checkpoint")
    return tmp_path / "checkpoint"


def head_of(loaded):
    return torch.cat(
        [dict(loaded.model.named_parameters())[n].flatten() for n in loaded.new_weights]
    )


def change_weights(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})


def change_config(folder, **values):
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def refusal(name, **kwargs):
    with pytest.raises(ModelError) as error:
        load_model(str(name), LABELS, **kwargs)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_the_hash_of_weights_is_of_what_was_loaded_and_not_of_a_new_head(tiny_model, checkpoint):
    one, two = (load_model(str(tiny_model("opt")), LABELS, seed=seed) for seed in (1, 2))
    assert not torch.equal(head_of(one), head_of(two))
    assert one.weights_hash == two.weights_hash != load_checkpoint(checkpoint).weights_hash


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_loads_with_a_new_head_for_the_labels(tiny_model, family):
    loaded = load_model(str(tiny_model(family)), LABELS)
    assert loaded.model.config.num_labels == 3
    assert loaded.model.config.id2label == {0: "no", 1: "maybe", 2: "yes"}
    assert loaded.model.config.label2id == {"no": 0, "maybe": 1, "yes": 2}
    assert loaded.new_weights
    assert all(n.startswith(("score", "classifier", "pre_classifier")) for n in loaded.new_weights)
    assert loaded.separator == SEPARATORS[family]
    assert loaded.max_tokens == POSITIONS
    assert not loaded.model.training
    assert {p.dtype for p in loaded.model.parameters()} == {torch.float32}


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_is_settled_on_the_right(tiny_model, family):
    loaded = load_model(str(tiny_model(family)), LABELS)
    assert loaded.tokenizer.pad_token_id is not None
    assert loaded.model.config.pad_token_id == loaded.tokenizer.pad_token_id
    assert loaded.tokenizer.padding_side == "right"
    if family in ("gpt_neo", "gpt_neox", "gpt2", "llama"):
        assert loaded.tokenizer.pad_token == loaded.tokenizer.eos_token


@pytest.mark.parametrize("name", TINY)
def test_the_embedded_models_load_by_name(name):
    loaded = load_model(name, LABELS)
    assert loaded.stack.depth == 12
    assert loaded.separator == {"tiny-bert": "[SEP]", "tiny-opt": "</s>"}.get(name, "|")


def test_a_folder_called_like_an_embedded_model_comes_first(tiny_model, tmp_path, monkeypatch):
    shutil.copytree(tiny_model("opt"), tmp_path / "tiny-opt")
    monkeypatch.chdir(tmp_path)
    assert load_model("tiny-opt", LABELS).stack.depth == 3


@pytest.mark.parametrize("family", PAPER_FAMILIES)
def test_the_head_comes_from_the_seed_and_nothing_else(tiny_model, family):
    name = str(tiny_model(family))
    first = load_model(name, LABELS, seed=1)
    torch.rand(17)
    assert torch.equal(head_of(load_model(name, LABELS, seed=1)), head_of(first))
    assert not torch.equal(head_of(load_model(name, LABELS, seed=2)), head_of(first))
    assert head_of(first).std() > 0


def test_loading_leaves_the_global_random_state_alone(tiny_model):
    before = torch.random.get_rng_state()
    load_model(str(tiny_model("bert")), LABELS)
    assert torch.equal(torch.random.get_rng_state(), before)


def test_loading_says_nothing_and_keeps_verbosity(tiny_model, capfd):
    import transformers

    level = transformers.logging.get_verbosity()
    bars = transformers.logging.is_progress_bar_enabled()
    load_model(str(tiny_model("bert")), LABELS)
    assert capfd.readouterr() == ("", "")
    assert transformers.logging.get_verbosity() == level
    assert transformers.logging.is_progress_bar_enabled() == bars


def test_an_embedded_name_with_a_typo_suggests_the_nearest():
    with pytest.raises(UnknownName, match="Did you mean 'tiny-opt'"):
        load_model("tiny-optt", LABELS)


def test_a_missing_folder_is_named():
    assert "There is no folder ./nowhere" in refusal("./nowhere")
    assert "There is no folder /no/such/folder" in refusal("/no/such/folder")


def test_without_the_hub_a_name_is_answered_by_how_to_give_a_folder():
    message = refusal("facebook/opt-125")
    assert "Did you mean 'facebook/opt-125m'" in message
    assert "give the path of a folder" in message


def test_no_network_is_touched_for_a_folder(tiny_model, monkeypatch):
    def refuse(*_args, **_kwargs):
        raise AssertionError("the network was asked")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
    load_model(str(tiny_model("gpt_neo")), LABELS)


def test_a_folder_without_a_model_is_refused(tmp_path):
    assert "no config.json" in refusal(tmp_path)


def test_adapters_are_refused_with_the_way_out(folder):
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "tiny-opt"}')
    assert "merge_and_unload" in refusal(folder)


def test_a_kind_without_classifier_is_refused_and_the_error_is_kept(folder):
    from transformers import ViTConfig

    ViTConfig(hidden_size=16, num_hidden_layers=2).save_pretrained(folder)
    with pytest.raises(ModelError, match=r"cannot be loaded.*\(ValueError\)") as error:
        load_model(str(folder), LABELS)
    assert isinstance(error.value.__cause__, ValueError)


def test_only_safetensors_are_read_unless_asked(folder):
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    whole = load_model(str(folder), LABELS).model.state_dict()
    (folder / "model.safetensors").unlink()
    assert "--any-format" in refusal(folder)
    asked = load_model(str(folder), LABELS, options=LoadOptions(any_format=True))
    assert all(torch.equal(v, whole[k]) for k, v in asked.model.state_dict().items())


def test_code_in_a_folder_does_not_run_unless_asked(folder):
    marker = folder / "ran"
    (folder / "custom.py").write_text(
        f"open({str(marker)!r}, 'w').close()\n"
        "from transformers import OPTConfig\n"
        "from transformers import OPTForSequenceClassification\n"
        "class MyConfig(OPTConfig):\n    model_type = 'mine'\n"
        "class MyModel(OPTForSequenceClassification):\n    config_class = MyConfig\n"
    )
    auto = {"AutoConfig": "custom.MyConfig"}
    auto["AutoModelForSequenceClassification"] = "custom.MyModel"
    change_config(folder, auto_map=auto, model_type="mine")
    refusal(folder)
    assert not marker.exists()
    loaded = load_model(str(folder), LABELS, options=LoadOptions(remote_code=True))
    assert type(loaded.model).__name__ == "MyModel"
    assert marker.exists()


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_truncated_file_is_refused(folder, share):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[: int(path.stat().st_size * share)])
    message = refusal(folder)
    assert str(folder) in message
    assert "damaged" in message


def test_a_missing_weight_is_named(folder):
    change_weights(folder, lambda tensors: tensors.pop("decoder.layers.1.fc1.weight"))
    assert "model.decoder.layers.1.fc1.weight" in refusal(folder)


def test_a_weight_of_another_size_is_named(folder):
    name = "decoder.layers.1.fc1.bias"
    change_weights(folder, lambda tensors: tensors.update({name: torch.zeros(3)}))
    assert f"model.{name}" in refusal(folder)


def test_weights_of_another_family_are_refused(folder, tiny_model):
    shutil.copy(tiny_model("gpt_neox") / "model.safetensors", folder / "model.safetensors")
    assert "damaged or of another model" in refusal(folder)


def test_a_tokenizer_of_another_model_is_refused(folder):
    tokenizer = make_tokenizer("opt")
    tokenizer.add_tokens(["more", "words"])
    tokenizer.save_pretrained(folder)
    assert "do not belong to each other" in refusal(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_without_tokenizer_is_refused(tiny_model, tmp_path, family):
    folder = shutil.copytree(tiny_model(family), tmp_path / "mine")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (folder / name).unlink()
    assert "tokenizer" in refusal(folder)


def test_a_configuration_that_is_no_json_is_refused(folder):
    (folder / "config.json").write_text("{")
    assert str(folder) in refusal(folder)


@pytest.mark.parametrize("family", FAMILIES)
def test_a_model_can_be_cut_to_its_first_layers(tiny_model, family):
    name = str(tiny_model(family))
    whole, cut = (load_model(name, LABELS, options=LoadOptions(depth=d)) for d in (None, 2))
    assert cut.stack.depth == 2
    ids = torch.arange(6, 12).unsqueeze(0)
    states = {}
    for loaded in (whole, cut):
        with (
            torch.no_grad(),
            watched(loaded.stack, states.setdefault(loaded.stack.depth, {}).__setitem__),
        ):
            loaded.stack.logits({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    assert torch.equal(states[2][1], states[3][1])  # also the kind of attention of each layer
    assert torch.equal(head_of(cut), head_of(whole))


def test_a_cut_model_saves_and_loads_as_what_it_is(tiny_model, tmp_path):
    cut = load_model(str(tiny_model("opt")), LABELS, options=LoadOptions(depth=2))
    cut.model.save_pretrained(tmp_path)
    cut.tokenizer.save_pretrained(tmp_path)
    assert load_checkpoint(tmp_path).stack.depth == 2


@pytest.mark.parametrize("depth", [0, -1, 4, 100])
def test_a_depth_that_the_model_does_not_have_is_refused(tiny_model, depth):
    message = refusal(tiny_model("opt"), options=LoadOptions(depth=depth))
    assert f"A depth of {depth} was asked for; this model has 1 to 3 layers." in message


def test_a_checkpoint_comes_back_with_its_head_and_labels(checkpoint, tiny_model):
    loaded = load_checkpoint(checkpoint)
    assert loaded.new_weights == ()
    assert loaded.model.config.id2label == {0: "no", 1: "maybe", 2: "yes"}
    made = load_model(str(tiny_model("opt")), LABELS)
    assert torch.equal(loaded.model.score.weight, made.model.score.weight)


def test_labels_keep_their_order_when_there_are_more_than_ten(tiny_model, tmp_path):
    labels = [f"label {i}" for i in range(12)]
    loaded = load_model(str(tiny_model("opt")), labels)
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    assert list(load_checkpoint(tmp_path).model.config.id2label.values()) == labels


def checkpoint_refusal(folder):
    with pytest.raises(ModelError) as error:
        load_checkpoint(folder)
    assert "\n" not in str(error.value)
    assert str(folder) in str(error.value)
    return str(error.value)


def test_a_checkpoint_without_its_head_is_said_to_have_none(checkpoint):
    change_weights(checkpoint, lambda tensors: tensors.pop("score.weight"))
    message = checkpoint_refusal(checkpoint)
    assert "no classification head (score.weight is not there)" in message
    assert "saved from a base model" in message
    assert "memloc train" in message
    assert "damaged" not in message


@pytest.mark.parametrize("family", FAMILIES)
def test_a_base_model_is_no_checkpoint_because_it_has_no_head(tiny_model, family):
    assert "no classification head" in checkpoint_refusal(tiny_model(family))


def test_a_checkpoint_without_a_part_of_its_head_is_damaged(tiny_model, tmp_path):
    loaded = load_model(str(tiny_model("bert")), LABELS)
    loaded.model.save_pretrained(tmp_path)
    loaded.tokenizer.save_pretrained(tmp_path)
    change_weights(tmp_path, lambda tensors: tensors.pop("classifier.bias"))
    assert "damaged or of another model: the weight classifier.bias is missing" in (
        checkpoint_refusal(tmp_path)
    )


def test_a_head_for_another_number_of_labels_is_named(checkpoint):
    change_weights(checkpoint, lambda t: t.update({"score.weight": torch.zeros(5, 16)}))
    assert "the weight score.weight is of another size" in checkpoint_refusal(checkpoint)


def test_weights_that_the_classifier_has_no_place_for_are_named(checkpoint):
    change_weights(checkpoint, lambda t: t.update({"other.weight": torch.zeros(2)}))
    assert "the weight other.weight is not part of the classifier" in checkpoint_refusal(checkpoint)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_checkpoint_with_weights_that_are_no_numbers_is_refused(checkpoint, value):
    change_weights(checkpoint, lambda t: t["model.decoder.layers.1.fc1.weight"][0].fill_(value))
    assert "model.decoder.layers.1.fc1.weight holds NaN" in checkpoint_refusal(checkpoint)


def test_a_checkpoint_with_fewer_layers_than_weights_is_refused(checkpoint):
    change_config(checkpoint, num_hidden_layers=2)
    assert "damaged or of another model" in checkpoint_refusal(checkpoint)


def test_a_checkpoint_with_code_does_not_ask_to_run_it(checkpoint, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked"))
    (checkpoint / "custom.py").write_text("raise AssertionError('it ran')")
    change_config(checkpoint, model_type="mine", auto_map={"AutoConfig": "custom.MyConfig"})
    assert "--remote-code" in checkpoint_refusal(checkpoint)


@pytest.mark.parametrize(
    "error",
    [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried ...")],
)
def test_a_model_that_does_not_fit_into_memory_is_not_called_damaged(folder, monkeypatch, error):
    def fail(*_args, **_options):
        raise error

    monkeypatch.setattr(AutoModelForSequenceClassification, "from_pretrained", fail)
    assert "not enough free memory" in refusal(folder)


def test_a_folder_that_is_no_checkpoint_is_refused(tmp_path):
    assert "no config.json" in checkpoint_refusal(tmp_path)
    assert "There is no folder" in checkpoint_refusal(tmp_path / "nowhere")


def test_a_model_that_is_loaded_in_inference_mode_can_be_trained(tiny_model):
    with torch.inference_mode():
        loaded = load_model(str(tiny_model("opt")), LABELS)
        assert loaded.stack.readout == "last"
    assert not any(p.is_inference() for p in loaded.model.parameters())
    ids = torch.ones(1, 4, dtype=torch.long)
    loaded.stack.logits({"input_ids": ids, "attention_mask": ids}).sum().backward()


def test_a_pretrained_model_with_weights_that_are_no_numbers_is_refused(folder):
    change_weights(folder, lambda t: t["decoder.layers.1.fc1.weight"][0].fill_(float("nan")))
    assert "decoder.layers.1.fc1.weight holds NaN" in refusal(folder)


@pytest.mark.parametrize("family", ["roberta", "mpnet", "bert", "opt", "gpt2"])
def test_the_longest_text_that_is_promised_can_be_read(tiny_model, family):
    loaded = load_model(str(tiny_model(family)), LABELS)
    loaded.tokenizer.model_max_length = 10**30  # many tokenizers do not say
    ids = torch.full((1, loaded.max_tokens), loaded.model.config.vocab_size - 1)
    with torch.no_grad():
        logits = loaded.stack.logits({"input_ids": ids, "attention_mask": torch.ones_like(ids)})
    assert logits.shape == (1, 3)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_of_half_precision_are_computed_with_in_full(checkpoint, tmp_path, dtype):
    loaded = load_checkpoint(checkpoint)
    loaded.model.to(dtype).save_pretrained(tmp_path / "half")
    loaded.tokenizer.save_pretrained(tmp_path / "half")
    assert {v.dtype for v in load_file(tmp_path / "half" / "model.safetensors").values()} == {dtype}
    again = dict(load_checkpoint(tmp_path / "half").model.named_parameters())
    for name, value in loaded.model.named_parameters():
        assert torch.equal(again[name], value.float()), name


def test_a_checkpoint_may_be_in_several_files(checkpoint, tmp_path):
    loaded = load_checkpoint(checkpoint)
    loaded.model.save_pretrained(tmp_path / "parts", max_shard_size="20KB")
    loaded.tokenizer.save_pretrained(tmp_path / "parts")
    assert len(list((tmp_path / "parts").glob("*.safetensors"))) > 1
    assert load_checkpoint(tmp_path / "parts").weights_hash == loaded.weights_hash
