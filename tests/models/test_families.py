"""Families that memloc cannot work with: the answer is a sentence, wherever they are given."""

import pytest
import torch
from transformers import AutoModelForSequenceClassification
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from memloc.adoption import adopt
from memloc.errors import ModelError
from memloc.models.check import check_model
from memloc.models.load import LoadOptions
from memloc.training.recipe import Recipe, train_run
from support import make_tokenizer
from tasks_support import make_task

SMALL = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 32,
    "max_position_embeddings": 64,
}
GROUPS = ("q", "k", "v", "post_attention", "intermediate", "output")
TEXT = SMALL | {"num_key_value_heads": 1, "head_dim": 16, "pad_token_id": 0, "vocab_size": 55}
VISION = SMALL | {"image_size": 28, "patch_size": 14}
PERCEIVER = {
    **{"num_latents": 4, "d_latents": 16, "d_model": 16, "num_blocks": 1},
    **{"num_self_attends_per_block": 2, "num_self_attention_heads": 2},
    **{"num_cross_attention_heads": 2, "max_position_embeddings": 64},
}

STRUCTURE = {
    "canine": (SMALL | {"num_hash_buckets": 64}, "canine.*configuration has no vocab_size"),
    "longformer": (SMALL | {"attention_window": 4}, r"state of shape \(2, 8, 32\)"),
    "funnel": (
        {"d_model": 32, "n_head": 2, "d_head": 16, "d_inner": 32, "block_sizes": [1, 1]},
        "calls the 2 blocks of its list 0 times",
    ),
    "squeezebert": (
        SMALL | {"embedding_size": 32} | {f"{part}_groups": 1 for part in GROUPS},
        "calls the 2 blocks of its list 0 times",
    ),
    "xmod": (SMALL, r"Input language unknown.*\(ValueError\)"),
    "gemma3": (
        {"text_config": TEXT, "vision_config": VISION},
        "no vocab_size, because it is divided into text_config and vision_config",
    ),
    "modernvbert": (
        {"text_config": TEXT, "vision_config": VISION},
        "no vocab_size, because it is divided into text_config and vision_config",
    ),
    "perceiver": (PERCEIVER, "perceiver.*configuration has no num_hidden_layers"),
}
"""What a family is made of, and what is said of it."""
READS_PADDING = {
    "convbert": SMALL | {"embedding_size": 32},
    "fnet": SMALL,
    "nystromformer": SMALL,
    "yoso": SMALL,
}


@pytest.fixture(scope="module")
def classifier_of(tmp_path_factory):
    """The folder of a tiny random classifier; a family that transformers lacks is skipped."""

    def make(family, values):
        if family not in CONFIG_MAPPING:
            pytest.skip(f"this transformers has no {family}")
        tokenizer = make_tokenizer("bert")
        kind = CONFIG_MAPPING[family]
        words = {"vocab_size": len(tokenizer)} if hasattr(kind(), "vocab_size") else {}
        config = kind(**values, **words, pad_token_id=0, bos_token_id=1, eos_token_id=2)
        with torch.random.fork_rng():
            torch.manual_seed(0)
            model = AutoModelForSequenceClassification.from_config(config)
            with torch.no_grad():
                for parameter in model.parameters():
                    if parameter.dim() > 1:
                        parameter.normal_(std=0.2)
        folder = tmp_path_factory.mktemp(family)
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.mark.parametrize("family", STRUCTURE)
def test_another_structure_is_refused_with_its_true_reason(classifier_of, family):
    values, reason = STRUCTURE[family]
    folder = str(classifier_of(family, values))
    for options in (LoadOptions(), LoadOptions(depth=1)):
        with pytest.raises(ModelError) as error:
            check_model(folder, options)
        assert "\n" not in str(error.value)
        if options.depth is None:
            error.match(reason)


@pytest.mark.parametrize("family", READS_PADDING)
def test_logits_that_change_with_padding_are_refused_everywhere(classifier_of, family, tmp_path):
    folder = classifier_of(family, READS_PADDING[family])
    reason = "run in a padded batch, its logits differ"
    with pytest.raises(ModelError, match=reason):
        check_model(str(folder))
    with pytest.raises(ModelError, match=reason):
        train_run(Recipe(str(folder), make_task(), device="cpu"), tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    data = tmp_path / "mine.csv"
    data.write_text("text,label,wrong\nred sky,0,1\nblue sea,1,0\n", encoding="utf-8")
    with pytest.raises(ModelError, match=reason):
        adopt(tmp_path / "run", final=folder, data=data, flag="wrong")
    assert list(tmp_path.iterdir()) == [data]
