"""When and where labels were learnt, by shares against the epochs of a training."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from typer.testing import CliRunner

import memloc
from fixtures.tasks import fast_protocol, make_recipe, make_task, train_run
from memloc.cli import app
from memloc.errors import StoreError
from memloc.methods.early import EarlyDonor, early_donor
from memloc.methods.timeline import Timeline, differences, learnt_after
from memloc.model.checkpoints import save_checkpoint
from memloc.model.load import load_model
from memloc.model.predict import predicted
from memloc.reporting.figures import FIGURES
from memloc.reporting.page import write_report

NEEDED = {"verdict.noisy_at_least": 0.5}


def make(folder, tiny_model, family="opt", weights=("final",), **changes):
    protocol = fast_protocol(finetune__keep_epochs="early", **changes)
    model = str(tiny_model(family, depth=3))
    return train_run(make_recipe(model, make_task(40), 1, protocol), folder, weights)


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_model):
    return make(tmp_path_factory.mktemp("runs") / "run", tiny_model)


@pytest.fixture(scope="module")
def found(run):
    return Timeline().run(run)


def test_differences_of_shares_sum_to_the_first_shares():
    shares = np.random.default_rng(0).normal(size=(5, 4, 3))
    np.testing.assert_allclose(differences(shares).sum(0), shares[0])


@pytest.mark.parametrize(
    ("lost_by", "expected"),
    [
        ("xx...", 2),
        (".....", 0),
        ("xxxxx", 5),
        (".xx..", 3),
        ("xx.x......", 4),
        ("xx..x.....", 2),
        ("..xxxxx...", 7),
    ],
)
def test_a_label_is_learnt_where_one_step_divides_the_donors_best(lost_by, expected):
    lost = np.array([letter == "x" for letter in lost_by])
    assert learnt_after(lost[:, None]).tolist() == [expected]


@pytest.mark.parametrize("family", ["bert", "opt"])
def test_the_map_sums_to_what_the_first_donor_undoes(family, tiny_model, tmp_path):
    run = make(tmp_path, tiny_model, family, finetune__epochs=6)
    found = Timeline().run(run)
    learnt = found["learnt"]
    played = Timeline()._against("pretrained").play(run)
    shares, _ = played.design.shares(played.values)
    for kind, is_noisy in (("noisy", True), ("clean", False)):
        examples = learnt["example"][learnt["is_noisy"] == is_noisy]
        known = shares[0, np.isin(played.rows, examples)].mean(0)
        summed = found["map"].query("examples == @kind").groupby("layer")["share"].sum()
        np.testing.assert_allclose(summed, known, atol=1e-6)
        undone = found["summary"].set_index("examples")["undone"][kind]
        assert known.sum() == pytest.approx(undone, abs=1e-6)


def test_every_known_example_has_an_epoch_and_layers(run, found):
    learnt = found["learnt"]
    assert set(learnt["epoch"]) <= {0, *run.epochs(), 12}
    has_layer = learnt["layer"].notna()
    assert (learnt["epoch"][has_layer] > 0).all()
    assert (learnt["centre"].notna() == has_layer).all()
    assert learnt["layer"][has_layer].between(1, 3).all()
    assert learnt["centre"][has_layer].between(1, 3).all()
    assert list(found["summary"]["examples"]) == ["noisy", "clean"]


def test_the_answer_is_a_sentence_and_the_picture_has_a_line_per_epoch(run, found):
    assert "learnt" in Timeline.told(found)
    assert "layer" in Timeline.told(found)
    lines = Timeline.picture(found).splitlines()
    assert len(lines) == 1 + 1 + len(run.epochs())
    assert not any("-0%" in line for line in lines)


def test_the_map_is_drawn_below_the_accuracies(found):
    figure = next(f for f in FIGURES if f.name == "timeline")
    key = {"task": "words", "category": "words", "model": "tiny", "seed": 1}
    spec = figure.draw(found["map"].assign(**key)).to_dict()
    assert len(spec["vconcat"]) == 2


def test_a_label_is_learnt_when_the_checkpoints_themselves_predict_it(run, found):
    wrong = []
    for epoch in run.epochs():
        loaded = run.load(f"epoch-{epoch}")
        wrong.append(predicted(loaded.stack, run.encode(loaded)) != run.noisy.assigned)
    start = run.load("pretrained")
    wrong.insert(0, predicted(start.stack, run.encode(start)) != run.noisy.assigned)
    ends = np.array([0, *run.epochs(), 12])
    learnt = found["learnt"]
    assert (
        learnt["epoch"].tolist() == ends[learnt_after(np.array(wrong))[learnt["example"]]].tolist()
    )


def test_results_are_kept_and_depend_on_the_epochs(run):
    settings = {**NEEDED, "timeline.epochs": [1, 2]}
    one = memloc.analyse(run, "timeline", settings=settings)
    again = memloc.analyse(run, "timeline", settings=settings)
    assert again.reused == ("timeline",)
    assert set(one["timeline"]["map"]["after"]) == {1, 2}
    other = memloc.analyse(run, "timeline", settings={**settings, "timeline.epochs": [1]})
    assert not other.reused


@pytest.mark.parametrize("method", [Timeline, memloc.Shares])
def test_half_done_work_of_another_version_is_not_used(run, monkeypatch, method):
    one = Timeline(epochs=(1,))
    one.run(run)
    monkeypatch.setattr(memloc.Shares, "play", None)
    one.run(run)  # what is kept is used
    monkeypatch.setattr(method, "version", method.version + 1)
    with pytest.raises(TypeError):  # computed again
        one.run(run)


def test_epochs_that_were_not_kept_are_refused(run, tiny_model, tmp_path):
    with pytest.raises(StoreError, match="has no epoch-11 weights: the epochs that were kept"):
        Timeline(epochs=(1, 11)).run(run)
    model = str(tiny_model("opt", depth=3))
    bare = train_run(make_recipe(model, make_task(40), 1, fast_protocol()), tmp_path, ["final"])
    with pytest.raises(StoreError, match="no early epochs were kept"):
        Timeline().run(bare)


def test_the_best_early_donor_knows_clean_labels_and_no_noisy_ones(run):
    best = early_donor(run)
    table = run.training()
    gaps = (table["clean_accuracy"] - table["noisy_accuracy"]).set_axis(table["epoch"])
    assert best.gap == pytest.approx(gaps[run.epochs()].max())


def test_without_a_reference_the_best_early_epoch_takes_its_place(run, monkeypatch):
    best = EarlyDonor(2, noisy=0.1, clean=0.9)
    monkeypatch.setattr("memloc.methods.apply.early_donor", lambda _run: best)
    found = memloc.localise(run, ["shares", "swapping"], settings=NEEDED)
    for name in ("shares", "swapping"):
        about = found[name].about
        assert about["donor"] == "epoch-2"
        assert "The donor is epoch 2" in about["early_donor"]
    monkeypatch.setattr(
        "memloc.methods.apply.early_donor", lambda _run: EarlyDonor(2, noisy=0.5, clean=0.6)
    )
    with pytest.raises(StoreError, match="has no reference weights"):
        memloc.localise(run, ["shares"], settings=NEEDED)


def test_a_run_with_a_timeline_is_reported(run, tmp_path):
    memloc.analyse(run, "timeline", settings=NEEDED)
    results = memloc.load_results(run.folder)
    assert len(results.timeline)
    assert "timeline" not in set(results.answers["method"])  # it weighs no layers
    page = write_report(run.folder, tmp_path / "page.html").path.read_text("utf-8")
    assert "When and where labels were learnt" in page


def test_a_run_with_nothing_but_sublayers_is_reported(run, tmp_path):
    own = replace(run, folder=shutil.copytree(run.folder, tmp_path / "run"))
    shutil.rmtree(own.folder / "results", ignore_errors=True)
    chosen = {"shares.units": "sublayers", "shares.donor": "epoch-1", **NEEDED}
    memloc.localise(own, ["shares"], settings=chosen)
    page = write_report(own.folder, tmp_path / "page.html").path.read_text("utf-8")
    assert "attention" in page
    assert "figure-units" in page


FIRST = "*.layers.0.*"
BAD = {
    "another architecture": ({"shares.donor": "{home}/bert"}, "have model_type opt"),
    "another depth": ({"shares.donor": "{home}/depth"}, "have depth 3"),
    "another vocabulary": ({"shares.donor": "{home}/words"}, "must have the same vocabulary"),
    "labels in another order": ({"shares.donor": "{home}/labels"}, "with the labels in one order"),
    "an epoch that was not kept": ({"shares.donor": "epoch-11"}, "epochs that were kept are 1, 2"),
    "no epoch": ({"shares.donor": "epoch-0"}, "Known: .*, epoch-2"),
    "no name": ({"shares.donor": ""}, "shares.donor is ''"),
    "the final weights": ({"shares.donor": "{final}"}, "nothing can be exchanged"),
    "units that overlap": ({"shares.units": {"a": [FIRST], "b": [FIRST]}}, "to one unit"),
    "parameters left out": ({"shares.units": {"a": [FIRST]}}, "are in no unit"),
    "units that do not exist": ({"shares.units": {"a": ["*.layers.7.*"]}}, "no parameter of"),
    "a kind of unit that does not exist": ({"shares.units": "heads"}, "use layers or sublayers"),
}


@pytest.fixture(scope="module")
def donors(run, tmp_path_factory, tiny_model):
    """Checkpoints that do not fit the run, each by its fault."""
    home = tmp_path_factory.mktemp("donors")
    final = run.path("final")
    for fault, family, depth in (("bert", "bert", 3), ("depth", "opt", 2)):
        task = run.task.label_names
        other = load_model(str(tiny_model(family, depth=depth)), task, seed=1)
        save_checkpoint(home / fault, other, {})
    for fault, file in (("labels", "config.json"), ("words", "tokenizer.json")):
        shutil.copytree(final, home / fault)
        text = (home / fault / file).read_text("utf-8")
        record = json.loads(text)
        if fault == "labels":
            names = list(record["id2label"].values())[::-1]
            record |= {"id2label": dict(enumerate(names)), "label2id": {}}
            record["label2id"] = {name: i for i, name in enumerate(names)}
        else:
            words = record["model"]["vocab"]
            one, other = list(words)[-2:]
            words[one], words[other] = words[other], words[one]
        (home / fault / file).write_text(json.dumps(record), "utf-8")
    return {"home": home, "final": final}


@pytest.mark.parametrize("fault", BAD)
def test_bad_choices_end_in_one_sentence_and_lose_nothing(run, donors, fault):
    given, fact = BAD[fault]
    changes = {k: v.format(**donors) if isinstance(v, str) else v for k, v in given.items()}
    settings = {"shares.donor": "epoch-1", "shares.subsets": "exact", **NEEDED, **changes}
    before = contents(run.folder)
    with pytest.raises(memloc.MemlocError, match=fact) as raised:
        memloc.localise(run, ["shares"], settings=settings)
    assert contents(run.folder) == before
    sets = [f"--set={name}={json.dumps(value)}" for name, value in settings.items()]
    shown = CliRunner().invoke(app, ["localise", str(run.folder), "shares", "--device=cpu", *sets])
    assert shown.exit_code == 1
    assert str(raised.value) in shown.output.replace("\n", " ")
    assert contents(run.folder) == before


def contents(folder):
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_command_shows_the_timeline(run):
    shown = CliRunner().invoke(app, ["timeline", str(run.folder), "--device=cpu"])
    assert shown.exit_code == 0, shown.output
    assert "noisy labels learnt, layer 1 to 3" in shown.output
    refused = CliRunner().invoke(app, ["timeline", str(run.folder), "--set=timeline.epochs=[11]"])
    assert refused.exit_code != 0
