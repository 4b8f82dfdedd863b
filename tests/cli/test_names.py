import json

from transformers import AutoConfig

from fixtures.commands import printed, refused
from memloc.model.known import TINY, tiny_folder
from memloc.protocol import PRESETS


def test_tasks_lists_the_suite_and_the_twelve(run):
    rows = json.loads(printed(run("tasks", "--json")))
    names = [row["name"] for row in rows]
    assert {"tiny-topic", "rte", "trec", "reuters", "wic"} <= set(names)
    shown = printed(run("tasks"))
    assert all(name in shown for name in names)
    nlu = json.loads(printed(run("tasks", "--category", "nlu", "--json")))
    assert 0 < len(nlu) < len(rows)
    assert {row["category"] for row in nlu} == {"nlu"}


def test_an_unknown_category_is_refused(run):
    assert "No category is called 'nlx'. Did you mean 'nlu'?" in refused(
        run("tasks", "--category", "nlx")
    )


def test_models_lists_the_embedded_and_the_paper_s(run):
    rows = json.loads(printed(run("models", "--json")))
    names = [row["name"] for row in rows]
    assert names[:4] == list(TINY)
    assert "EleutherAI/pythia-160m-deduped" in names
    assert {row["layers"] for row in rows} == {"12", "24"}
    for row in rows[:4]:
        config = AutoConfig.from_pretrained(tiny_folder(row["name"]))
        own = str(config.num_hidden_layers), str(config.hidden_size)
        assert (row["layers"], row["width"]) == own
    assert "facebook/opt-1.3b" in printed(run("models"))


def test_tasks_fit_a_terminal(run):
    assert max(map(len, printed(run("tasks")).splitlines())) <= 100


def test_check_prints_what_was_found(run, model):
    report = json.loads(printed(run("check", model, "--json")))
    assert (report["depth"], report["architecture"]) == (2, "OPTForSequenceClassification")
    assert report["parity"] < 1e-4
    shown = printed(run("check", model))
    for name in ("depth", "width", "block", "readout", "parity", "batch invariance", "shared"):
        assert name in shown
    assert json.loads(printed(run("check", model, "--depth", 1, "--json")))["depth"] == 1


def test_protocol_prints_every_setting_with_its_source(run):
    rows = json.loads(printed(run("protocol", "--json")))
    assert len(rows) > 60
    assert {"setting", "value", "source", "meaning"} == set(rows[0])
    shown = printed(run("protocol", "demo"))
    assert "finetune.near_ceiling" in shown
    assert "paper, appendix D" in shown


def test_protocol_shows_two_presets_side_by_side(run):
    rows = json.loads(printed(run("protocol", "paper", "--diff", "reference", "--json")))
    assert {row["setting"] for row in rows} == set(PRESETS["reference"])
    assert {"setting", "paper", "paper from", "reference", "reference from"} == set(rows[0])
    assert "gradients.objective" in printed(run("protocol", "paper", "--diff", "reference"))


def test_an_unknown_preset_is_refused(run):
    assert "Did you mean 'reference'?" in refused(run("protocol", "referense"))
    assert "Did you mean 'paper'?" in refused(run("protocol", "paper", "--diff", "papers"))
