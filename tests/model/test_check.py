import shutil

import pytest
import torch
from transformers import AutoModelForCausalLM

from fixtures.models import DEPTH, FAMILIES, POSITIONS, WIDTH
from fixtures.runs import make_classifier
from memloc.errors import ModelError
from memloc.model import check
from memloc.model.check import check_model, check_pair, examine
from memloc.model.load import LoadOptions, load_model


@pytest.mark.parametrize("family", FAMILIES)
def test_the_report_says_what_is_there(tiny_model, family):
    name = str(tiny_model(family))
    report = check_model(name)
    model = load_model(name, ["no", "yes"]).model
    assert report.model == name
    assert report.architecture == type(model).__name__
    assert (report.depth, report.width, report.max_tokens) == (DEPTH, WIDTH, POSITIONS)
    assert report.parameters == sum(p.numel() for p in model.parameters())
    assert report.readout in ("first token", "last attended token")
    assert 0 <= report.parity < 1e-5
    assert 0 <= report.batch_invariance < 1e-5
    assert report.shared_weights == ()


def test_the_report_says_that_a_language_model_gets_a_new_head(tiny_model, tmp_path):
    base = tiny_model("opt")
    shutil.copytree(base, tmp_path / "lm")
    AutoModelForCausalLM.from_pretrained(base).save_pretrained(tmp_path / "lm")
    head = check_model(str(tmp_path / "lm")).head
    assert head.startswith("new (score.weight)")
    assert "OPTForCausalLM" in head
    assert examine(make_classifier("opt")).head == "saved with the model"


def test_the_report_follows_the_options(tiny_model):
    assert check_model(str(tiny_model("bert")), LoadOptions(depth=2)).depth == 2


def test_shared_weights_are_named(tiny_model):
    loaded = load_model(str(tiny_model("bert")), ["no", "yes"])
    layer = loaded.model.bert.encoder.layer[1]
    layer.attention.self.key.weight = layer.attention.self.query.weight
    (shared,) = examine(loaded).shared_weights
    inside = "bert.encoder.layer.1.attention.self"
    assert shared == f"{inside}.query.weight = {inside}.key.weight"


def test_weights_that_two_layers_share_are_refused(tiny_model):
    loaded = load_model(str(tiny_model("bert")), ["no", "yes"])
    one, two, _ = loaded.model.bert.encoder.layer
    two.output.dense.weight = one.output.dense.weight
    with pytest.raises(ModelError, match=r"layers 1 and 2 share.*output.dense.weight"):
        examine(loaded)


@pytest.mark.parametrize(
    ("method", "what"), [("finish", "run block by block"), ("logits", "run in a padded batch")]
)
def test_a_difference_from_the_plain_forward_is_refused(tiny_model, monkeypatch, method, what):
    plain = getattr(check.Stack, method)
    monkeypatch.setattr(check.Stack, method, lambda self, *given: plain(self, *given) * 1.01)
    with pytest.raises(ModelError, match=f"not supported: {what}, its logits differ"):
        check_model(str(tiny_model("opt")))


def test_logits_that_are_no_numbers_are_refused(tiny_model, monkeypatch):
    monkeypatch.setattr(check.Stack, "logits", lambda _self, given: torch.full((4, 2), torch.nan))
    with pytest.raises(ModelError, match="differ by nan"):
        check_model(str(tiny_model("opt")))


def test_a_model_with_another_structure_is_refused_in_one_sentence(tiny_model, tmp_path):
    from transformers import AlbertConfig, AlbertModel

    config = AlbertConfig(
        vocab_size=len(load_model(str(tiny_model("bert")), ["a", "b"]).tokenizer),
        embedding_size=8,
        hidden_size=16,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=16,
    )
    folder = shutil.copytree(tiny_model("bert"), tmp_path / "albert")
    AlbertModel(config).save_pretrained(folder)
    with pytest.raises(ModelError, match="AlbertForSequenceClassification is not supported"):
        check_model(str(folder))


def test_a_pair_of_the_same_model_is_accepted():
    check_pair(make_classifier(), make_classifier(seed=1), "reference")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"depth": 2}, "The final weights have depth 3, the reference ones 2"),
        ({"family": "electra"}, "The final weights have model_type bert, .* electra"),
    ],
)
def test_a_pair_of_other_models_is_refused(other, said):
    with pytest.raises(ModelError, match=said):
        check_pair(make_classifier(), make_classifier(**other), "reference")


def test_a_pair_with_labels_in_another_order_is_refused():
    final, other = make_classifier(), make_classifier(seed=1)
    final.model.config.id2label = {0: "no", 1: "maybe", 2: "yes"}
    check_pair(final, other, "reference")  # names that nobody gave are not compared
    other.model.config.id2label = {0: "yes", 1: "maybe", 2: "no"}
    with pytest.raises(ModelError, match=r"Label 0 is 'no' .* 'yes' for the reference ones"):
        check_pair(final, other, "reference")
