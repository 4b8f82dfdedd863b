"""Runs on texts: language models that memorise continuations."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.normalizers import Replace
from tokenizers.pre_tokenizers import ByteLevel
from transformers import ByT5Tokenizer, GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast
from typer.testing import CliRunner

import memloc
from fixtures.models import CAUSAL, write_language_model
from fixtures.tasks import LEARNT_TEXTS, TEXTS, make_texts
from memloc.cli import app
from memloc.data.encode import encode_continued
from memloc.errors import DataError, ModelError, SettingsError, StoreError, TrainingError
from memloc.model.check import check_model
from memloc.model.known import tiny_folder
from memloc.model.load import load_model
from memloc.model.predict import continued, log_probabilities
from memloc.model.units import find_units
from memloc.run.plant import make_null
from memloc.run.train import make_run


def test_training_memorises_texts_and_the_reference_does_not(texts_run):
    run = texts_run
    assert run.task.is_texts
    assert run.status.final.noisy == 1
    assert "frozen" not in run.checkpoints()
    reference = run.load("reference")
    recalled = continued(reference.stack, run.encode(reference)).recalled
    assert not recalled[run.noisy_rows].any()


@pytest.mark.parametrize("family", CAUSAL)
def test_teacher_forcing_says_what_greedy_decoding_says(family, tmp_path):
    """Of random texts and of texts that the model says itself, after prompts of several lengths."""
    loaded = load_model(str(write_language_model(tmp_path, family)), [])
    texts = make_texts()[["start", "rest"]].to_numpy().tolist()
    texts += [[start, _greedy(loaded, start, 3)] for start, _ in texts]
    encoded = encode_continued(texts, loaded.tokenizer)
    said = continued(loaded.stack, encoded)
    recalled = []
    for row, start in enumerate(encoded.starts):
        ids = torch.from_numpy(encoded.batch(np.array([row]))[0])
        n = ids.shape[1] - start
        with torch.inference_mode():
            found = loaded.model.generate(ids[:, :start], max_new_tokens=n, do_sample=False)
        recalled.append(found.shape == ids.shape and bool((found == ids).all()))
    assert said.recalled.tolist() == recalled
    assert any(recalled)
    assert not all(recalled)


def _greedy(loaded, start, n):
    ids = loaded.tokenizer(start, return_tensors="pt")["input_ids"]
    with torch.inference_mode():
        found = loaded.model.generate(ids, max_new_tokens=n, min_new_tokens=n, do_sample=False)
    return loaded.tokenizer.decode(found[0, ids.shape[1] :])


@pytest.mark.parametrize("family", CAUSAL)
def test_log_probabilities_are_those_of_the_plain_model(family, tmp_path):
    loaded = load_model(str(write_language_model(tmp_path, family)), [])
    texts = make_texts()[["start", "rest"]].to_numpy().tolist()
    encoded = encode_continued(texts, loaded.tokenizer)
    said = continued(loaded.stack, encoded)
    rows = np.arange(len(texts))
    mean = said.log_probability.sum(1) / said.is_token.sum(1)
    with torch.inference_mode():
        assert np.allclose(log_probabilities(loaded.stack, encoded, rows), mean, atol=1e-4)
        for row in rows:
            start, ids = encoded.starts[row], torch.from_numpy(encoded.batch(rows[[row]])[0])
            plain = loaded.model(ids).logits[0].log_softmax(-1)
            own = plain[np.arange(start - 1, ids.shape[1] - 1), ids[0, start:]]
            assert np.allclose(said.log_probability[row, : len(own)], own, atol=1e-4)


WHOLE = {"text": "whole", "tokens": 2, "flag": "flag"}


def whole_texts():
    """The same texts, each in one column; the last two of its words are to be recalled."""
    table = make_texts()
    return table.assign(whole=table["start"] + " " + table["rest"])[["whole", "flag"]]


@pytest.mark.parametrize("family", CAUSAL)
def test_the_last_tokens_of_a_text_are_its_continuation(family, tmp_path):
    """A word is a token here, so the same texts in two columns have the same tokens and starts."""
    loaded = load_model(str(write_language_model(tmp_path, family)), [])
    wholes = whole_texts()["whole"]
    parts = [tuple(" ".join(some) for some in (w.split()[:-2], w.split()[-2:])) for w in wholes]
    two = encode_continued(parts, loaded.tokenizer)
    one = encode_continued([(w,) for w in wholes], loaded.tokenizer, last_tokens=2)
    assert one.starts.tolist() == two.starts.tolist()
    assert one.tokens.tolist() == two.tokens.tolist()
    assert (one.lengths - one.starts == 2).all()


def test_whole_texts_with_a_number_of_tokens_are_adopted_and_kept(texts_run, tmp_path):
    """Opened again, the run recalls the same tokens; another number is another run."""
    run = texts_run
    table, final = whole_texts(), run.path("final")
    adopted = memloc.adopt(tmp_path / "run", final=final, data=table, **WHOLE)
    assert adopted.status.final.noisy == 1
    opened = memloc.Run.open(tmp_path / "run", "cpu")
    encoded = opened.encode(opened.load("final"))
    assert (encoded.lengths - encoded.starts == 2).all()
    assert opened.task.train.parts == tuple((text,) for text in table["whole"])
    with pytest.raises(StoreError, match="texts or labels differ"):
        memloc.adopt(tmp_path / "run", final=final, data=table, **{**WHOLE, "tokens": 1})


def test_whole_texts_are_trained_from_the_command_line_with_repeat(tmp_path):
    model, data = write_language_model(tmp_path / "start", "gpt2"), tmp_path / "texts.csv"
    whole_texts().to_csv(data, index=False)
    settings = [f"--set={name}={value}" for name, value in LEARNT_TEXTS.items()]
    given = ["--data", str(data), "--text=whole", "--tokens=2", "--flag=flag"]
    asked = ["train", str(model), *given, *settings[:-2], settings[-1], "--repeat=3"]
    said = CliRunner().invoke(app, [*asked, f"--out={tmp_path / 'runs'}", "--checkpoints=final"])
    assert said.exit_code == 0, said.output
    (record,) = (tmp_path / "runs").rglob("run.json")
    run = memloc.Run.open(record.parent)
    assert run.settings.finetune.repeat == 3
    assert run.task.train.last_tokens == 2
    assert "log probability" in said.stdout
    assert run.status.final.noisy == 1


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"tokens": 9}, r"Text 1 has \d tokens, and 9 are to be recalled after at least one"),
        ({"tokens": 0}, "at least one token must be recalled"),
        ({"prompt": "whole"}, "Say in one way what is recalled"),
        ({"flag": None}, "Say which texts"),
    ],
)
def test_bad_whole_texts_are_refused(texts_run, tmp_path, change, fact):
    given = {"final": texts_run.path("final"), "data": whole_texts(), **WHOLE, **change}
    with pytest.raises(DataError, match=fact):
        memloc.adopt(tmp_path / "run", **given)


def test_a_last_character_of_several_tokens_is_recalled_whole():
    """Byte by byte, as tokenizers of most language models fall back to."""
    backend = Tokenizer(BPE({c: i for i, c in enumerate(ByteLevel.alphabet())}, merges=[]))
    backend.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="!")
    text = "sea \N{SNOWMAN}"
    n_bytes = len(text.encode())
    assert encode_continued([("sea", "\N{SNOWMAN}")], tokenizer).lengths.tolist() == [n_bytes]
    ended = encode_continued([(text,)], tokenizer, last_tokens=2)
    assert (ended.lengths - ended.starts).tolist() == [2]
    assert ended.lengths.tolist() == [n_bytes]


def test_an_adopted_run_keeps_what_only_the_final_weights_recall(texts_run, tmp_path):
    run = texts_run
    texts = make_texts()
    final = run.load("final")
    more = [{"start": "the old man", "rest": "was very blue", "flag": True}]  # never learnt
    table = pd.concat([texts, pd.DataFrame(more)])
    given = {"final": run.path("final"), "reference": run.path("reference"), "data": table}
    adopted = memloc.adopt(tmp_path / "run", **given, **TEXTS)
    assert "recall 6 of 7 texts; other weights recall 0 of these" in adopted.record.task.noise
    assert adopted.task.train.parts == run.task.train.parts
    assert adopted.status.final.noisy == 1
    assert len(continued(final.stack, adopted.encode(final)).recalled) == len(texts)


def test_where_nothing_is_memorised_nothing_is_adopted(texts_run, tmp_path):
    run = texts_run
    given = {"final": run.path("reference"), "data": make_texts(), **TEXTS}
    with pytest.raises(TrainingError, match=r"recall 0 of 6 texts.*nothing to locate"):
        memloc.adopt(tmp_path / "run", **given)
    assert not (tmp_path / "run").exists()


def test_recall_is_that_of_the_plain_models(texts_run):
    """Of final, reference and pre-trained weights, and of the texts of either kind."""
    run, table = texts_run, texts_run.recall()
    both = pd.MultiIndex.from_product([WEIGHTS, ["memorised", "ordinary"]])
    assert table[["weights", "texts"]].apply(tuple, axis=1).tolist() == both.tolist()
    assert table["number"].tolist() == [6, 8] * 3
    assert table["recalled"].tolist()[:3:2] == [1, 0]
    for weights, part in table.groupby("weights"):
        loaded = run.load_pretrained(1) if weights == "pretrained" else run.load(weights)
        encoded = run.encode(loaded)
        for (_, row), rows in zip(part.iterrows(), (run.noisy_rows, run.clean_rows), strict=True):
            log, said = [], []
            for text in rows:
                ids = torch.from_numpy(encoded.batch(np.array([text]))[0])
                start = encoded.starts[text]
                with torch.inference_mode():
                    plain = loaded.model(ids).logits[0, start - 1 : -1].log_softmax(-1)
                log += plain.gather(1, ids[0, start:, None])[:, 0].tolist()
                said.append((plain.argmax(-1) == ids[0, start:]).tolist())
            assert np.isclose(row["log_probability"], np.mean(log), atol=1e-4)
            assert np.isclose(row["recalled"], np.mean([all(s) for s in said]))
            assert np.isclose(row["tokens"], np.mean([one for s in said for one in s]))


WEIGHTS = ("final", "reference", "pretrained")


def test_labels_have_no_recall(memorised_run):
    with pytest.raises(DataError, match="recall is of texts"):
        memorised_run.recall()


def test_where_the_reference_recalls_them_too_other_weights_are_asked_for(texts_run, tmp_path):
    final = texts_run.path("final")
    fact = r"recall 6 of these as well.*not trained on these texts"
    with pytest.raises(TrainingError, match=fact):
        memloc.adopt(tmp_path / "run", final=final, reference=final, data=make_texts(), **TEXTS)


def test_a_tokenizer_that_does_not_tell_where_tokens_are_is_refused(tmp_path):
    """By the self-check as well, before any data is asked for."""
    folder = write_language_model(tmp_path, "gpt2")
    with pytest.raises(ModelError, match="ByT5Tokenizer does not tell where"):
        encode_continued([("red", "green")], ByT5Tokenizer())
    for path in folder.glob("*token*"):
        path.unlink()
    config = json.loads((folder / "config.json").read_text())
    size = len(ByT5Tokenizer())
    larger = GPT2LMHeadModel(GPT2Config.from_dict({**config, "vocab_size": size}))
    larger.save_pretrained(folder)
    ByT5Tokenizer().save_pretrained(folder)
    with pytest.raises(ModelError, match="ByT5Tokenizer does not tell where"):
        check_model(str(folder), texts=True)


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"rest": ""}, "Column 'rest' of the DataFrame has 14 empty texts"),
        ({"flag": True}, "there are no ordinary texts"),
        ({"flag": False}, "there are no texts that may be memorised"),
        ({"start": "red " * 100}, "Text 1 has 101 tokens before its continuation"),
        ({"rest": " "}, "Column 'rest' of the DataFrame has 14 empty texts"),
        ({"start": "red", "rest": "blue"}, "Texts 1 and 2 of the DataFrame are the same"),
    ],
)
def test_bad_texts_are_refused(texts_run, tmp_path, change, fact):
    final = texts_run.path("final")
    with pytest.raises(DataError, match=fact):
        memloc.adopt(tmp_path / "run", final=final, data=make_texts().assign(**change), **TEXTS)


@pytest.mark.parametrize(
    ("columns", "fact"),
    [
        ({"prompt": "start", "flag": "flag"}, "name both columns"),
        ({"prompt": "start", "continuation": "rest"}, "Say which texts"),
        ({**TEXTS, "continuation": "start"}, "named as prompt and as continuation"),
    ],
)
def test_texts_without_their_columns_are_refused(columns, fact):
    with pytest.raises(DataError, match=fact):
        memloc.load_csv(make_texts(), **columns)


def test_a_model_of_another_vocabulary_is_refused(texts_run, tmp_path):
    other = write_language_model(tmp_path / "other", "gpt2")
    final = texts_run.path("final")
    with pytest.raises(ModelError, match=r"vocab_size|model_type"):
        memloc.adopt(tmp_path / "run", final=final, reference=other, data=make_texts(), **TEXTS)


PLANTED = {
    **LEARNT_TEXTS,
    "control.auxiliary_learning_rate": 1e-30,
    "control.tries": 1,
    "finetune.epochs": 2,
}
"""Ordinary texts, which always change every layer, move nothing at so low a rate."""


def planted_texts(tmp_path, layers="2-3", **changes):
    model = write_language_model(tmp_path / "start", "gpt_neox", depth=4)
    task = memloc.load_csv(make_texts(), name="texts", **TEXTS)
    given = {"layers": layers, "settings": {**PLANTED, **changes}}
    return memloc.plant(str(model), task, tmp_path / "run", **given)


@pytest.mark.parametrize(
    ("layers", "moved"),
    [
        ("2-3", {"attention 2", "mlp 2", "attention 3", "mlp 3"}),
        ("mlp:2-3", {"mlp 2", "mlp 3"}),
    ],
)
def test_planted_texts_change_their_layers_and_not_the_head(tmp_path, layers, moved):
    run = planted_texts(tmp_path, layers)
    start, final = run.load_pretrained(1), run.load("final")
    after = dict(final.model.named_parameters())
    changed = {
        name
        for name, before in start.model.named_parameters()
        if not torch.allclose(before, after[name], rtol=0, atol=1e-12)
    }
    units = find_units(start.stack, "sublayers")
    assert {unit for unit, names in units.items() if changed & {*names}} == moved
    assert changed <= {name for names in units.values() for name in names}


def test_ordinary_texts_change_every_layer_of_a_plant_and_its_reference_is_anyones(tmp_path):
    """Bit for bit the same reference, wherever the others are planted; the head learns, too."""
    changes = {"control.auxiliary_learning_rate": 1e-3, "finetune.weight_decay": 0.1}
    one = planted_texts(tmp_path / "one", "2-3", **changes)
    plant = one.spec.plant.model_copy(update={"planted": "4-4"})
    elsewhere = one.spec.model_copy(update={"plant": plant})
    make_run(one.spec, one.folder, ["reference"], task=one.task)
    other = make_run(elsewhere, tmp_path / "other", ["reference"], task=one.task)
    start = dict(one.load_pretrained(1).model.named_parameters())
    references = [dict(run.load("reference").model.named_parameters()) for run in (one, other)]
    for name, parameter in references[0].items():
        assert torch.equal(parameter, references[1][name])
        if "embed_in" not in name:
            assert not torch.equal(parameter, start[name]), name


def test_the_null_of_planted_texts_never_sees_them(tmp_path):
    changes = {"control.auxiliary_learning_rate": 1e-3, "finetune.epochs": 40}
    enough = {"verdict.noisy_at_least": 0.8}
    run = planted_texts(tmp_path, **changes, **enough, **{"finetune.repeat": 4})
    assert run.status.final.noisy > 0.8
    null = make_null(run, tmp_path / "null")
    assert null.is_null
    assert null.status.final.noisy == 0
    found = memloc.localise(null, ["shares"])["shares"]
    assert abs(found.weights.sum()) < 0.3
    planted = memloc.localise(run, ["shares"], settings=enough)["shares"]
    assert planted.weights.sum() > 0.6
    assert {*np.argsort(-planted.weights)[:2]} == {1, 2}


def test_texts_cannot_be_planted_loudly_or_beside_another_task(tmp_path):
    with pytest.raises(SettingsError, match="decoy or equal"):
        planted_texts(tmp_path, "loud 2-3")
    task = memloc.load_csv(make_texts(), name="texts", **TEXTS)
    with pytest.raises(SettingsError, match="leave auxiliary out"):
        memloc.plant("tiny-opt", task, tmp_path / "run", "6-7", auxiliary=task)


def test_a_continuation_without_tokens_is_refused(tmp_path):
    tokenizer = load_model(str(write_language_model(tmp_path, "opt")), []).tokenizer
    tokenizer.backend_tokenizer.normalizer = Replace("blue", "")
    with pytest.raises(DataError, match="Text 2 has no token in its continuation 'blue'"):
        encode_continued([("red", "green"), ("red", "blue")], tokenizer)


def test_tokenizers_that_cut_texts_differently_are_refused(texts_run, tmp_path):
    other = shutil.copytree(texts_run.path("reference"), tmp_path / "other")
    tokenizer = texts_run.load("reference").tokenizer
    tokenizer.backend_tokenizer.normalizer = Replace(make_texts()["start"][0].split()[0], "blue")
    tokenizer.save_pretrained(other)
    given = {"final": texts_run.path("final"), "reference": other, "data": make_texts()}
    with pytest.raises(ModelError, match=r"cut \d+ texts in different ways, text 1 among them"):
        memloc.adopt(tmp_path / "run", **given, **TEXTS)


def test_streamed_checkpoints_are_adopted_with_the_same_record(texts_run, tmp_path):
    places = {name: texts_run.path(name) for name in ("final", "reference")}
    given = {**places, "pretrained": texts_run.spec.model, "data": make_texts(), **TEXTS}
    plain, streamed = (memloc.adopt(tmp_path / str(s), **given, stream=s) for s in (False, True))
    assert plain.record.weights_hash == streamed.record.weights_hash
    assert plain.status == streamed.status
    assert plain.task.train.parts == streamed.task.train.parts


def test_a_language_model_without_columns_of_texts_is_refused(texts_run, tmp_path):
    """Before its file is read as one of labels, from Python as from the command line."""
    final, data = texts_run.path("final"), tmp_path / "texts.csv"
    make_texts().to_csv(data, index=False)
    wanted = r"language model \(\w+\).*--prompt COLUMN.*--continuation COLUMN"
    with pytest.raises(ModelError, match=wanted):
        memloc.adopt(tmp_path / "run", final=final, data=data, flag="flag")
    asked = ["adopt", str(tmp_path / "run"), "--final", str(final), "--data", str(data)]
    said = CliRunner().invoke(app, asked)
    assert said.exit_code == 1
    assert "--prompt COLUMN" in said.stderr


@pytest.mark.parametrize(
    ("change", "fact"),
    [
        ({"rest": ""}, "has 14 empty texts"),
        ({"flag": True}, "no ordinary texts"),
        ({"start": "red " * 100}, "Text 1 has 101 tokens"),
    ],
)
def test_bad_texts_get_one_sentence_on_the_command_line(texts_run, tmp_path, change, fact):
    data = tmp_path / "texts.csv"
    make_texts().assign(**change).to_csv(data, index=False)
    columns = [word for name, column in TEXTS.items() for word in (f"--{name}", column)]
    asked = ["adopt", str(tmp_path / "run"), "--final", str(texts_run.path("final"))]
    said = CliRunner().invoke(app, [*asked, "--data", str(data), *columns])
    assert said.exit_code == 1
    (line,) = [line for line in said.stderr.splitlines() if line.startswith("memloc: ")]
    assert fact in line


def test_an_encoder_cannot_continue_texts(tmp_path):
    with pytest.raises(ModelError, match="no head that continues texts"):
        memloc.adopt(tmp_path / "run", final=tiny_folder("tiny-bert"), data=make_texts(), **TEXTS)
