"""Adapters beside the same models merged by PEFT and saved as plain checkpoints."""

import contextlib
import json
import shutil
import sys

import pytest
import torch
from transformers import AutoModelForSequenceClassification
from typer.testing import CliRunner

from fixtures.mixtures import LOGITS, logits_of
from fixtures.models import DEPTH
from memloc.cli import app
from memloc.data.encode import encode
from memloc.errors import ModelError
from memloc.methods.mixtures import Mixtures
from memloc.methods.swapping import window_subsets
from memloc.model.check import check_model
from memloc.model.checkpoints import load_checkpoint
from memloc.model.load import LoadOptions, load_model

peft = pytest.importorskip("peft")
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning:peft")

TEXTS = [("red sky",), ("the old man was very sad",), ("a fish",)]
LINEAR = {
    "bert": ["query", "value", "dense"],
    "opt": ["q_proj", "v_proj", "fc1"],
    "gpt2": ["c_attn", "c_proj"],
    "llama": ["q_proj", "down_proj"],
}
KINDS = {
    "lora": lambda family: peft.LoraConfig(
        task_type="SEQ_CLS", r=4, lora_alpha=8, target_modules=LINEAR[family]
    ),
    "rslora": lambda family: peft.LoraConfig(
        task_type="SEQ_CLS", r=4, use_rslora=True, target_modules=LINEAR[family]
    ),
    "dora": lambda family: peft.LoraConfig(
        task_type="SEQ_CLS", r=2, use_dora=True, target_modules=LINEAR[family]
    ),
    "ia3": lambda family: peft.IA3Config(
        task_type="SEQ_CLS",
        target_modules=LINEAR[family],
        feedforward_modules=LINEAR[family][-1:],
    ),
    "head": lambda family: peft.LoraConfig(
        r=4, target_modules=LINEAR[family][:1], modules_to_save=["classifier", "score"]
    ),
    "some layers": lambda family: peft.LoraConfig(
        task_type="SEQ_CLS", r=4, target_modules=LINEAR[family][:1], layers_to_transform=[1]
    ),
}


def make_adapter(home, base, kind, family, seed, labels=3):
    """The folder of an adapter with random weights, and that of the same model merged."""
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=labels)
    adapted = peft.get_peft_model(model, KINDS[kind](family))
    rng = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in adapted.parameters():
            if parameter.requires_grad:
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=rng))
    folder, merged = home / f"adapter-{seed}", home / f"merged-{seed}"
    adapted.save_pretrained(folder)
    adapted.merge_and_unload().save_pretrained(merged)
    load_model(str(base), ["a"]).tokenizer.save_pretrained(merged)
    return folder, merged


@pytest.fixture
def base(tiny_model):
    return tiny_model("bert")


@pytest.fixture
def adapter(base, tmp_path):
    return make_adapter(tmp_path, base, "lora", "bert", 1)[0]


def swapped(final, reference):
    encoded = encode(TEXTS, final.tokenizer, final.separator, 32)
    mixtures = Mixtures(final.stack, reference.stack, outcome=LOGITS)
    return logits_of(mixtures, encoded, [*window_subsets(DEPTH), 0])


@pytest.mark.parametrize(
    ("kind", "family"),
    [*((kind, "bert") for kind in KINDS), *(("lora", family) for family in LINEAR), ("ia3", "opt")],
)
def test_adapters_swap_like_the_merged_models(tiny_model, tmp_path, kind, family):
    base = tiny_model(family)
    pairs = [make_adapter(tmp_path, base, kind, family, seed) for seed in (1, 2)]
    adapters, merged = ([load_checkpoint(pair[i]) for pair in pairs] for i in (0, 1))
    expected = swapped(*merged)
    assert expected.std(1).max() > 0.01 * expected.abs().max()  # windows matter
    assert (swapped(*adapters) - expected).abs().max() <= 1e-5 * expected.abs().max()
    assert adapters[0].weights_hash != adapters[1].weights_hash
    assert all(p.requires_grad for p in adapters[0].model.parameters())
    assert adapters[0].unchanged_layers == ((1, DEPTH) if kind == "some layers" else ())


def test_an_adapter_that_is_zero_is_named_by_its_layers(base, tmp_path):
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    peft.get_peft_model(model, KINDS["lora"]("bert")).save_pretrained(tmp_path / "new")
    assert load_checkpoint(tmp_path / "new").unchanged_layers == tuple(range(1, DEPTH + 1))


def test_an_adapter_is_checked_like_a_model(adapter):
    said = CliRunner().invoke(app, ["check", str(adapter), "--json"])
    assert json.loads(said.stdout)["depth"] == DEPTH
    report = check_model(str(adapter))
    assert (report.depth, report.readout) == (DEPTH, "first token")
    assert report.parity < 1e-5


def test_the_base_may_be_elsewhere_than_the_adapter_says(base, adapter, tmp_path):
    moved = shutil.copytree(base, tmp_path / "moved")
    about = json.loads((adapter / "adapter_config.json").read_text())
    for named, said in (("/nowhere/base", "no folder /nowhere/base"), (None, "give --pretrained")):
        about["base_model_name_or_path"] = named
        (adapter / "adapter_config.json").write_text(json.dumps(about))
        with pytest.raises(ModelError, match=said):
            load_checkpoint(adapter)
    assert load_checkpoint(adapter, LoadOptions(base=str(moved))).label_names[2] == "LABEL_2"


def test_an_adapter_for_another_model_is_refused(tiny_model, adapter):
    with pytest.raises(ModelError, match=r"cannot be merged|is damaged or of another base model"):
        load_checkpoint(adapter, LoadOptions(base=str(tiny_model("opt"))))


def test_an_adapter_without_head_is_refused_unless_its_base_has_one(base, tmp_path):
    config = peft.LoraConfig(r=2, target_modules=["query"])
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    peft.get_peft_model(model, config).save_pretrained(tmp_path / "headless")
    with pytest.raises(ModelError, match=r"no classification head \(classifier"):
        load_checkpoint(tmp_path / "headless")
    whole = tmp_path / "classifier"
    AutoModelForSequenceClassification.from_pretrained(base, num_labels=3).save_pretrained(whole)
    load_model(str(base), ["a"]).tokenizer.save_pretrained(whole)
    loaded = load_checkpoint(tmp_path / "headless", LoadOptions(base=str(whole)))
    assert len(loaded.label_names) == 3


def test_a_damaged_adapter_is_refused_in_one_sentence(adapter):
    weights = adapter / "adapter_model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ModelError, match="cannot be merged"):
        load_checkpoint(adapter)
    weights.unlink()
    with pytest.raises(ModelError, match="has no adapter_model"):
        load_checkpoint(adapter)
    (adapter / "adapter_config.json").write_text("{")
    with pytest.raises(ModelError, match=r"adapter_config\.json is damaged"):
        load_checkpoint(adapter, LoadOptions(any_format=True))


def test_a_weight_that_is_missing_is_named(adapter):
    from safetensors.torch import load_file, save_file

    weights = load_file(adapter / "adapter_model.safetensors")
    gone = next(name for name in weights if "lora_B" in name)
    save_file(
        {n: v for n, v in weights.items() if n != gone}, adapter / "adapter_model.safetensors"
    )
    with pytest.raises(ModelError, match=r"another base model.*lora_B"):
        load_checkpoint(adapter)


def test_prompts_are_no_adapters_of_layers(base, tmp_path):
    model = AutoModelForSequenceClassification.from_pretrained(base, num_labels=3)
    config = peft.PromptTuningConfig(task_type="SEQ_CLS", num_virtual_tokens=2)
    peft.get_peft_model(model, config).save_pretrained(tmp_path / "prompt")
    with pytest.raises(ModelError, match="cannot be merged"):
        load_checkpoint(tmp_path / "prompt")


def test_without_peft_it_is_said_how_to_get_it(adapter, monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ModelError, match=r"pip install 'memloc\[peft\]'"):
        load_checkpoint(adapter)


CODE = """open({marker!r}, "w").close()
from transformers import BertConfig
class MyConfig(BertConfig):
    model_type = "mine"
"""


@pytest.mark.parametrize("part", ["configuration", "tokenizer"])
def test_code_beside_an_adapter_neither_asks_nor_runs_unless_allowed(
    base, adapter, monkeypatch, part
):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked"))
    marker = adapter / "ran"
    (adapter / "custom.py").write_text(CODE.format(marker=str(marker)))
    for file in base.glob("tok*.json"):
        shutil.copy(file, adapter)
    name = "config.json" if part == "configuration" else "tokenizer_config.json"
    key = "AutoConfig" if part == "configuration" else "AutoTokenizer"
    about = json.loads((base / name).read_text())
    value = "custom.MyConfig" if part == "configuration" else ["custom.MyConfig", None]
    about |= {"auto_map": {key: value}, "model_type": "mine", "tokenizer_class": "MyConfig"}
    (adapter / name).write_text(json.dumps(about))
    with pytest.raises(ModelError, match="--remote-code"):
        load_checkpoint(adapter)
    assert not marker.exists()
    with contextlib.suppress(ModelError):  # what the code makes need not be a tokenizer
        load_checkpoint(adapter, LoadOptions(remote_code=True))
    assert marker.exists()


def test_code_of_an_adapters_base_does_not_ask(base, adapter, tmp_path, monkeypatch):
    monkeypatch.setattr("builtins.input", lambda *_: pytest.fail("it asked"))
    moved = shutil.copytree(base, tmp_path / "moved")
    (moved / "custom.py").write_text("raise AssertionError('it ran')")
    about = json.loads((moved / "config.json").read_text())
    about |= {"auto_map": {"AutoConfig": "custom.MyConfig"}, "model_type": "mine"}
    (moved / "config.json").write_text(json.dumps(about))
    with pytest.raises(ModelError, match="--remote-code"):
        load_checkpoint(adapter, LoadOptions(base=str(moved)))


def test_an_adapter_is_no_model_to_train(adapter, base):
    with pytest.raises(ModelError, match=rf"holds an adapter .* give its base model \({base}\)"):
        load_model(str(adapter), ["no", "yes"])
