"""Every constant of the method, against the number written out here."""

import pickle
import re
from pathlib import Path

import pytest

import memloc
from memloc.errors import SettingsError, UnknownName
from memloc.methods.gradients import Gradients
from memloc.methods.protocol import compare, preset, preset_rows
from memloc.protocol import PRESETS, RunSettings, readable, settings_of_run

PROBES = {
    "hidden_layers": 1,
    "hidden": 128,
    "dropout": 0.1,
    "learning_rate": 2e-4,
    "weight_decay": 1e-5,
    "batch_size": 32,
    "epochs": 100,
    "first_epoch": 25,
    "split": (0.7, 0.1, 0.2),
    "seeds": (0, 1, 2, 3, 4),
    "last_layer": "block output",
    "standardise": False,
}
"""Of probing and of label probes."""
PAPER = {
    "noise.rate": 0.15,
    "noise.pattern": "uniform",
    "noise.seed": 1,
    "text.max_tokens": 512,
    "finetune.learning_rate": 1e-5,
    "finetune.batch_size": 8,
    "finetune.accumulate": 1,
    "finetune.epochs": 50,
    "finetune.warmup": 0.1,
    "finetune.weight_decay": 0.01,
    "finetune.clip": 1.0,
    "finetune.clip_over": "trained",
    "finetune.freeze_embeddings": True,
    "finetune.frozen_dropout": False,
    "finetune.frozen_seed": None,
    "finetune.length_grouped": False,
    "finetune.autocast": "none",
    "finetune.gradient_checkpointing": False,
    "finetune.adapter": "none",
    "finetune.adapter_rank": 8,
    "finetune.adapter_alpha": 16,
    "finetune.adapter_targets": None,
    "finetune.adapter_dropout": 0.0,
    "finetune.keep_epochs": "none",
    "finetune.repeat": 1,
    "finetune.measure_every": 1,
    "finetune.near_ceiling": 0.993,
    "finetune.near_ceiling_score": "accuracy",
    "finetune.without_near_ceiling": "report",
    "verdict.noisy_at_least": 0.95,
    "control.width": 2,
    "control.auxiliary": "rte",
    "control.auxiliary_learning_rate": 5e-6,
    "control.trains_pooler_and_norm": False,
    "control.frozen_with_auxiliary": False,
    "control.auxiliary_examples": None,
    "control.learning_rate": None,
    "control.epochs": None,
    "control.seed": 1,
    "control.accuracy_above": 0.99,
    "control.rate_factor": 2.0,
    "control.tries": 4,
    "control.validation_tasks": ("mrpc", "trec"),
    "control.ks": (1, 2),
    "agreement.between_methods": "spearman",
    "agreement.between_models": "spearman",
    "agreement.significance": 0.05,
    "summary.mcog": "mean over seeds",
    "summary.single_layer": "mean of largest",
    "summary.binarised_events": "tasks and models",
    "swapping.units": "layers",
    "swapping.donor": "reference",
    "swapping.clean_examples": None,
    "swapping.stream": False,
    "swapping.normalise": True,
    "retraining.learning_rate": 3e-5,
    "retraining.batch_size": 8,
    "retraining.epochs": 5,
    "retraining.seed": 42,
    "retraining.frozen_dropout": False,
    "retraining.trains_pooler": True,
    "retraining.normalise": True,
    "retraining.widths": None,
    "gradients.objective": "loss",
    "gradients.norm": "L1",
    "gradients.subtract_clean": True,
    "gradients.divide_frozen": True,
    "gradients.interval_groups": 8,
    **{f"probing.{name}": value for name, value in PROBES.items()},
    "probing.class_weights": (0.33, 0.67),
    "shares.units": "layers",
    "shares.donor": "reference",
    "shares.clean_examples": None,
    "shares.stream": False,
    "shares.noisy_examples": 500,
    "shares.subsets": "auto",
    "shares.standard_error": 0.015,
    "centroids.crossing_at": 0.5,
    "centroids.events": "first",
    "centroids.central": 0.75,
    "centroids.last_layer": "block output",
    "centroids.windows": (),
    **{f"label_probes.{name}": value for name, value in PROBES.items()},
    "label_probes.margin": 0.10,
    "label_probes.share": 0.9,
    "label_probes.first_layer": 1,
    "label_probes.chance": "probes of shuffled labels",
    "generalisation.models": 30,
    "generalisation.share": 0.5,
    "generalisation.epochs": 10,
    "generalisation.learning_rate": 3e-5,
    "timeline.epochs": (),
    "timeline.noisy_examples": 100,
    "timeline.clean_examples": None,
}
PUBLISHED_CODE = {
    "gradients.objective": "logit",
    "finetune.near_ceiling_score": "macro F1",
    "finetune.without_near_ceiling": "use last epoch",
    "probing.hidden_layers": 2,
    "label_probes.hidden_layers": 2,
    "swapping.normalise": False,
    "centroids.events": "last",
    "agreement.between_methods": "pearson",
    "probing.last_layer": "final norm",
    "label_probes.last_layer": "final norm",
    "centroids.last_layer": "final norm",
    "retraining.frozen_dropout": True,
    "probing.first_epoch": 26,
    "label_probes.first_epoch": 26,
    "label_probes.first_layer": 0,
    "label_probes.chance": "shuffled labels",
    "finetune.clip_over": "all",
    "finetune.frozen_dropout": True,
    "finetune.frozen_seed": 1,
    "control.trains_pooler_and_norm": True,
    "control.frozen_with_auxiliary": True,
    "retraining.trains_pooler": False,
    "summary.mcog": "of mean weights",
    "summary.single_layer": "largest mean",
    "summary.binarised_events": "task means",
}
"""Where the published code and the text disagree."""


def settings_of(name: str) -> dict[str, object]:
    flat = preset(name).flat()
    assert flat.pop("preset") == name
    return flat


def test_paper_is_the_text():
    assert settings_of("paper") == PAPER
    assert preset("paper") == type(preset("paper"))()


def test_reference_differs_where_the_published_code_does_and_nowhere_else():
    assert settings_of("reference") == PAPER | PUBLISHED_CODE


def test_the_page_lists_every_setting_in_which_the_two_differ():
    page = (Path(__file__).parents[1] / "docs" / "reference" / "protocol.md").read_text(
        encoding="utf-8"
    )
    cells = re.findall(r"^\| ((?:\w+\.\w+(?:, )?)+) \|", page, re.MULTILINE)
    listed = [name for cell in cells for name in cell.split(", ")]
    assert sorted(listed) == sorted(PUBLISHED_CODE)


def test_the_page_names_every_point_in_which_memloc_differs_from_both():
    page = (Path(__file__).parents[1] / "docs" / "reference" / "protocol.md").read_text(
        encoding="utf-8"
    )
    section = page.partition("## Where memloc differs from both")[2]
    assert re.findall(r"^- \*\*(.+?)\.\*\*", section, re.MULTILINE) == [
        "Runs that did not memorise",
        "p-values of correlations",
        "Halves for the generalisation score",
        "OPT-1.3B",
        "Batches that do not fit into memory",
        "Plants that do not learn",
    ]
    assert "in one point" not in page


def test_the_paper_study_trains_opt_13b_as_the_page_says():
    import yaml

    file = Path(memloc.__file__).parent / "study" / "examples" / "paper.yaml"
    blocks = yaml.safe_load(file.read_text(encoding="utf-8"))["also"]
    (large,) = [block for block in blocks if "facebook/opt-1.3b" in block.get("models", [])]
    assert large["overrides"] == {"finetune.learning_rate": 5e-6, "finetune.batch_size": 16}


def test_demo_changes_sizes_and_rates_and_no_method():
    changed = {k for k, v in settings_of("demo").items() if v != PAPER[k]}
    methods = {"objective", "norm", "normalise", "events", "pattern", "rate", "subtract_clean"}
    assert {"control.auxiliary", "finetune.epochs", "finetune.learning_rate"} <= changed
    assert not {name.split(".")[1] for name in changed} & methods


def updates_of_probes(n_examples, probes):
    return -(-round(probes.split[0] * n_examples) // probes.batch_size) * probes.epochs


@pytest.mark.parametrize("method", ["probing", "label_probes"])
@pytest.mark.parametrize("n_examples", [160, 200, 400])
def test_demo_trains_probes_as_far_as_the_paper_does(n_examples, method):
    """Updates times rate is within a factor of two of what the paper's TREC gives."""
    paper, demo = (preset(name).method(method) for name in ("paper", "demo"))
    there = updates_of_probes(5452, paper) * paper.learning_rate
    assert there == pytest.approx(2.4)
    here = updates_of_probes(n_examples, demo) * demo.learning_rate
    assert 0.5 < here / there < 2


def test_the_noisy_threshold_follows_from_the_ceiling():
    # At most 1 - .993 of all examples are wrong; were all of those noisy, 15 % being noisy:
    assert pytest.approx(0.953, abs=1e-3) == 1 - (1 - 0.993) / 0.15
    assert preset("paper").verdict.noisy_at_least <= 0.953


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_changes_nothing_from_itself(name):
    assert preset(name).for_run().changes() == {}


def test_replace_takes_dotted_names_and_leaves_the_original_alone():
    base = preset("paper")
    other = base.replace({"finetune.epochs": 3, "noise.rate": "0.2", "control.ks": [1]})
    assert (other.finetune.epochs, other.noise.rate, other.control.ks) == (3, 0.2, (1,))
    assert base == preset("paper")
    assert other.for_run().changes() == {"finetune.epochs": 3, "noise.rate": 0.2}
    assert other.preset == "paper"


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        preset("paper").noise.rate = 0.3


@pytest.mark.parametrize(
    ("wrong", "near"),
    [
        ("finetune.epoch", "finetune.epochs"),
        ("noise.rte", "noise.rate"),
        ("epochs", "probing.epochs"),
    ],
)
def test_an_unknown_setting_suggests_the_nearest(wrong, near):
    with pytest.raises(UnknownName, match=f"No setting is called '{wrong}'") as error:
        preset("paper").replace({wrong: 1})
    assert near in str(error.value)


def test_an_unknown_preset_suggests_the_nearest():
    with pytest.raises(UnknownName, match="Did you mean 'paper'"):
        preset("papr")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("noise.rate", 0),
        ("noise.rate", 1),
        ("noise.rate", 1.5),
        ("noise.rate", float("nan")),
        ("noise.pattern", "random"),
        ("finetune.epochs", 0),
        ("finetune.epochs", "many"),
        ("finetune.learning_rate", -1e-5),
        ("finetune.batch_size", 2.5),
        ("finetune.clip", None),
        ("probing.split", (0.5, 0.5)),
        ("text.max_tokens", 1),
    ],
)
def test_a_value_out_of_range_is_refused_in_one_sentence(name, value):
    with pytest.raises(SettingsError) as error:
        preset("paper").replace({name: value})
    message = str(error.value)
    assert message.startswith(f"Setting {name}")
    assert "\n" not in message
    assert message.endswith(".")


@pytest.mark.parametrize("name", PRESETS)
def test_every_setting_has_a_source_and_a_meaning(name):
    rows = preset_rows(name)
    assert [row["setting"] for row in rows] == list(PAPER)
    for row in rows:
        assert row["source"].startswith(("paper, ", "published code", "our choice")), row
        assert len(row["meaning"]) > 5, row
        assert row["value"], row


def test_sources_say_who_decided():
    by_name = {row["setting"]: row["source"] for row in preset_rows("reference")}
    assert by_name["gradients.objective"] == "published code"
    assert by_name["noise.rate"] == "paper, §3; per class, rounded down: published code"
    paper = {row["setting"]: row["source"] for row in preset_rows("paper")}
    assert (paper["finetune.clip"], paper["finetune.clip_over"]) == ("published code", "our choice")
    assert paper["swapping.normalise"] == "paper, §3.1"
    demo = {row["setting"]: row["source"] for row in preset_rows("demo")}
    assert demo["finetune.epochs"] == "our choice"


def test_compare_shows_what_differs_side_by_side():
    rows = compare("paper", "reference")
    assert {row["setting"] for row in rows} == set(PUBLISHED_CODE)
    row = next(row for row in rows if row["setting"] == "gradients.objective")
    assert (row["paper"], row["reference"]) == ("loss", "logit")
    assert (row["paper from"], row["reference from"]) == ("paper, §3.1", "published code")
    assert compare("paper", "paper") == []


@pytest.mark.parametrize(
    ("value", "text"),
    [((), "none"), ((1, 2), "1, 2"), (True, "yes"), (False, "no"), (1e-5, "1e-05"), (8, "8")],
)
def test_values_read_as_people_write_them(value, text):
    assert readable(value) == text


def test_settings_survive_json():
    protocol = preset("demo").replace({"noise.rate": 0.3})
    assert type(protocol).model_validate_json(protocol.model_dump_json()) == protocol


def test_settings_go_to_other_processes():
    protocol = preset("demo").replace({"noise.rate": 0.3, "gradients.norm": "L2"})
    copied = pickle.loads(pickle.dumps(protocol))  # noqa: S301 - of our own
    assert copied == protocol


def test_the_part_that_decides_weights_survives_json_and_knows_its_changes():
    settings = preset("demo").replace({"noise.rate": 0.3, "gradients.norm": "L2"}).for_run()
    assert RunSettings.model_validate_json(settings.model_dump_json()) == settings
    assert settings.changes() == {"noise.rate": 0.3}


def test_what_decides_weights_leaves_out_how_they_are_computed():
    paper = preset("paper")
    for name, value, memorised, others in (
        ("finetune.epochs", 3, True, True),
        ("noise.rate", 0.3, True, True),
        ("finetune.near_ceiling", 0.9, True, False),
        ("finetune.accumulate", 2, False, False),
    ):
        other = paper.replace({name: value}).for_run()
        for asked, decides in ((True, memorised), (False, others)):
            differ = paper.for_run().deciding(memorised=asked) != other.deciding(memorised=asked)
            assert differ == decides, name


def test_a_method_has_its_settings_in_the_protocol():
    gradients = preset("paper").replace({"gradients.norm": "L2"}).method("gradients")
    assert gradients == Gradients(norm="L2")
    with pytest.raises(UnknownName, match="Did you mean 'gradients'"):
        preset("paper").method("gradient")


@pytest.mark.parametrize(
    ("changes", "has_noise", "said"),
    [
        ({"finetune.adapter_rank": 4}, False, "training without an adapter: set finetune.adapter"),
        ({"noise.rate": 0.2}, True, "data that say which labels are wrong: leave it out"),
    ],
)
def test_a_setting_that_decides_nothing_for_a_run_is_refused(changes, has_noise, said):
    name = next(iter(changes))
    with pytest.raises(SettingsError, match=f"{name} decides nothing for {said}"):
        settings_of_run("demo", changes, has_noise=has_noise)


def test_settings_that_decide_something_are_taken():
    changed = settings_of_run("demo", {"finetune.adapter": "lora", "finetune.adapter_rank": 4})
    assert changed.finetune.adapter_rank == 4
    assert settings_of_run("demo", {"noise.rate": 0.2}).noise.rate == 0.2
