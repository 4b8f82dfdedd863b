"""Labels that nobody marked: what is suspected, how sure that is, and what is written."""

import os
import signal

import numpy as np
import pandas as pd
import pytest

import memloc
from fixtures.forked import ended, forked
from fixtures.tasks import FAST, make_task
from memloc.data.tables import read_values
from memloc.data.task import Examples
from memloc.engine import passes
from memloc.engine.fit import ONE_BY_ONE
from memloc.errors import (
    DataError,
    MemlocWarning,
    ModelError,
    SettingsError,
    StoreError,
)
from memloc.labels.find import (
    FITS,
    INSTEAD,
    UNCLEAR,
    WRONG,
    find,
    suspects_table,
)
from memloc.methods.halves import Half
from memloc.progress import telling
from memloc.store.records import read_table

QUICK = {
    **{name: value for name, value in FAST.items() if name not in INSTEAD},
    "generalisation.models": 3,
    "generalisation.epochs": 1,
    "generalisation.learning_rate": 1e-2,
}
NAMES = ("no", "yes")


def halves(*rows):
    """Models that say `yes` with these probabilities; a star marks what a model was trained on."""
    made = []
    for row in rows:
        chances = np.array([float(word.strip("*")) for word in row.split()])
        trained = np.array([word.endswith("*") for word in row.split()])
        logits = np.log(np.stack([1 - chances, chances], axis=1))
        made.append(Half(trained, logits.astype(np.float32)))
    return made


def examples(*labels):
    return Examples(tuple((f"text {i}",) for i in range(len(labels))), np.array(labels))


def table_of(rows, labels, names=NAMES):
    return suspects_table(halves(*rows), examples(*labels), names)[0]


def test_a_label_that_the_others_would_not_give_is_likely_wrong():
    says = "0.99 0.95 0.1 0.02 0.03 0.9 0.4 0.99*"
    found = table_of([says] * 6, (0, 1, 0, 0, 0, 1, 1, 0))
    by_row = found.set_index("row")
    assert by_row["group"].to_dict() == {
        **dict.fromkeys((2, 3, 4, 5, 6), FITS),
        **{1: WRONG, 7: UNCLEAR, 8: UNCLEAR},
    }
    assert found["row"].tolist()[0] == 1
    assert found["row"].tolist()[-1] == 8
    assert by_row.loc[1, ["label", "suggested", "corrected"]].tolist() == ["no", "yes", "yes"]
    assert by_row.loc[7, ["label", "suggested", "corrected"]].tolist() == ["yes", "no", "yes"]
    assert by_row.loc[8, ["suggested", "corrected"]].tolist() == ["no", "no"]
    assert np.isnan(by_row.loc[8, "held_out"])


def test_doubt_is_relative_to_what_is_usual_for_both_classes():
    """Models are sure of `yes` and never of `no`: .6 is much for a `no`, .9 little for a `yes`."""
    says = "0.6 0.6 0.2 0.99 0.99 0.9 0.9"
    doubt = table_of([says] * 6, (0, 0, 0, 1, 1, 1, 1)).set_index("row")["doubt"]
    usual = {"no": (0.4 + 0.4 + 0.8) / 3, "yes": (0.99 + 0.99 + 0.9 + 0.9) / 4}
    assert doubt[1] == pytest.approx((0.6 - usual["yes"]) - (0.4 - usual["no"]), abs=1e-6)
    assert doubt[6] == pytest.approx((0.1 - usual["no"]) - (0.9 - usual["yes"]), abs=1e-6)


@pytest.mark.parametrize("models", [1, 2, 8])
def test_any_number_of_models_calls_labels_wrong(models):
    says = "0.99 0.9 0.95 0.1 0.02 0.03 0.97"
    found = table_of([says] * models, (0, 1, 1, 0, 0, 0, 1)).set_index("row")
    assert found.index[found["group"] == WRONG].tolist() == [1]
    assert found.loc[1, "corrected"] == "yes"


def test_the_interval_of_a_difference_is_as_wide_as_thirty_models_make_it():
    """Half of 30 models see it: at a chance of one half the half-width is about a third."""
    rows = ["0.999", "0.001", "0.999*", "0.001*"] * 7 + ["0.5", "0.5*"]
    found = table_of(rows, (1,)).iloc[0]
    assert found["counterfactual"] == pytest.approx(0, abs=0.01)
    assert 0.3 < (found["high"] - found["low"]) / 2 < 0.37
    assert found["n_trained"] == found["n_held_out"] == 15


@pytest.fixture
def mine(tmp_path):
    """A file with an example that is there twice under two labels, and one of a rare class."""
    task = make_task(24)
    texts = [parts[0] for parts in task.train.parts]
    labels = [f"class {y}" for y in task.train.labels]
    table = pd.DataFrame({"review": [*texts, texts[0], "w1"], "stars": [*labels, "class 1", "odd"]})
    table.to_csv(tmp_path / "mine.csv", index=False)
    return tmp_path / "mine.csv"


@pytest.fixture
def model(tiny_model):
    return str(tiny_model("opt", depth=2))


def look(model, folder, data, **more):
    columns = {"text": "review", "label": "stars"}
    settings = {**QUICK, **more.pop("settings", {})}
    return find(data, model, folder, settings=settings, device="cpu", **columns, **more)


def test_the_file_to_correct_gives_back_every_text_and_label(tmp_path, model, mine):
    table = pd.read_csv(mine)
    odd = ["=1+1", "@SUM(A1)", "-x", "'=1", "a\rb", "[/foo]", "-1"]
    table.loc[: len(odd) - 1, "review"] = odd
    table["stars"] = "=" + table["stars"]
    table.to_parquet(tmp_path / "odd.parquet")
    with pytest.warns(MemlocWarning, match="none of them"):
        found = look(model, tmp_path / "found", tmp_path / "odd.parquet")
    written = tmp_path / "found/suspects.csv"
    again = read_values(written, ["row", "text", "label", "corrected"])
    rows = [int(row) - 1 for row in again["row"]]
    assert again["text"] == table["review"][rows].tolist() == found.table["text"].tolist()
    assert again["label"] == table["stars"][rows].tolist()
    task = memloc.load_csv(written, text="text", held_out=written)
    assert set(task.label_names) == set(table["stars"])


def test_a_file_becomes_a_table_a_page_and_a_file_to_correct(tmp_path, model, mine):
    said = []
    with telling(said.append), pytest.warns(MemlocWarning, match=r"none of them: odd \(1\)"):
        found = look(model, tmp_path / "found", mine)
    assert len(found.table) == 26
    assert said[0] == (
        "1 more copy of a text that is there already; all copies of a text go to the same half. "
        "1 text with different labels."
    )
    assert said[1].startswith("With 3 models, each example is judged by about 2")
    assert "about 3 of 26 by none" in said[1]
    stored, about = read_table(tmp_path / "found/suspects.parquet")
    returned = found.table
    assert (returned.index + 1).tolist() == returned["row"].tolist()
    pd.testing.assert_frame_equal(stored, returned.reset_index(drop=True), check_dtype=False)
    assert about["models"] == 3
    assert about["random_errors"] == list(found.random_errors)
    page = (tmp_path / "found/index.html").read_text(encoding="utf-8")
    assert found.table["text"].iloc[0] in page
    assert found.sentences()[0] in page
    copies = found.table[found.table["text"] == found.table["text"].mode()[0]]
    assert copies["n_held_out"].nunique() == 1


@pytest.mark.parametrize("given", ["pandas", "datasets"])
def test_a_table_in_memory_serves_as_a_file_does(tmp_path, model, mine, given):
    frame = pd.read_csv(mine)
    frame.index = [f"id {n}" for n in range(len(frame))]
    data = frame
    if given == "datasets":
        datasets = pytest.importorskip("datasets")
        data = datasets.Dataset.from_pandas(frame, preserve_index=False)
    with pytest.warns(MemlocWarning):
        of_file = look(model, tmp_path / "file", mine)
    with pytest.warns(MemlocWarning):
        found = look(model, tmp_path / "table", data)
    pd.testing.assert_frame_equal(
        found.table.reset_index(drop=True), of_file.table.reset_index(drop=True)
    )
    rows = found.table["row"] - 1
    if given == "pandas":
        assert found.table["text"].tolist() == frame.loc[found.table.index, "review"].tolist()
    else:
        assert found.table.index.tolist() == rows.tolist()


@pytest.mark.parametrize("index", ["duplicates", "levels"])
def test_every_row_comes_back_under_its_index(tmp_path, mine, index):
    frame = pd.read_csv(mine).sample(frac=1, random_state=0)
    numbers = np.arange(len(frame))
    if index == "duplicates":
        frame.index = pd.Index(numbers // 3, name="annotator")
    else:
        frame.index = pd.MultiIndex.from_arrays([numbers % 4, numbers // 4], names=["part", "row"])
    chances = np.random.default_rng(0).dirichlet([1] * frame["stars"].nunique(), len(frame))
    columns = {"text": "review", "label": "stars"}
    found = find(frame, folder=tmp_path / "found", predictions=chances, **columns)
    given = frame.iloc[found.table["row"] - 1]
    pd.testing.assert_index_equal(found.table.index, given.index)
    assert found.table["text"].tolist() == given["review"].tolist()
    assert found.table["label"].tolist() == given["stars"].tolist()
    assert sorted(found.table["row"]) == [*range(1, len(frame) + 1)]
    pd.testing.assert_index_equal(found.issues.index, frame.index)
    assert found.issues["given_label"].tolist() == frame["stars"].tolist()
    assert "Suspects in" in found._repr_html_()


def test_a_setting_that_decides_nothing_is_refused(tmp_path, model, mine):
    for name, advice in (
        ("finetune.epochs", "set generalisation.epochs"),
        ("finetune.learning_rate", "set generalisation.learning_rate"),
        ("finetune.near_ceiling", "leave it out"),
        ("noise.rate", "leave it out"),
        ("swapping.normalise", "leave it out"),
    ):
        value = {"finetune.epochs": 1, "swapping.normalise": True}.get(name, 0.5)
        with pytest.raises(SettingsError, match=f"{name} decides nothing for find: {advice}"):
            look(model, tmp_path / "found", mine, settings={name: value})


def test_what_was_corrected_is_read_back(tmp_path, model, mine):
    with pytest.warns(MemlocWarning):
        look(model, tmp_path / "found", mine)
    file = tmp_path / "found/suspects.csv"
    table = pd.read_csv(file)
    table["corrected"] = table["label"]
    table.loc[table["row"] == 2, "corrected"] = "class 0"
    table.to_csv(file, index=False)
    noisy = memloc.load_csv(file, original="corrected", held_out=file)
    assert noisy.labels.is_noisy.sum() == 1
    (row,) = np.flatnonzero(noisy.labels.is_noisy)
    assert noisy.train.parts[row] == (table.set_index("row").loc[2, "text"],)


def test_corrections_by_hand_are_not_overwritten(tmp_path, model, mine):
    with pytest.warns(MemlocWarning):
        look(model, tmp_path / "found", mine)
    file = tmp_path / "found/suspects.csv"
    corrected = file.read_text(encoding="utf-8") + "\n"
    file.write_text(corrected, encoding="utf-8")
    with pytest.raises(StoreError, match=r"suspects.csv was changed since memloc wrote it"):
        look(model, tmp_path / "found", mine)
    assert file.read_text(encoding="utf-8") == corrected


@pytest.mark.parametrize("given", [{"seed": 7}, {"settings": {"finetune.batch_size": 7}}])
def test_what_a_run_has_already_cannot_be_chosen(memorised_run, given):
    with pytest.raises(SettingsError, match=r"cannot be chosen for .*, which has its own"):
        find(memorised_run, **given)


def test_markup_in_a_text_is_shown_as_text(tmp_path, model, mine):
    table = pd.read_csv(mine)
    table.loc[0, "review"] = "<script>alert(1)</script>"
    table.to_csv(mine, index=False)
    with pytest.warns(MemlocWarning):
        look(model, tmp_path / "found", mine)
    page = (tmp_path / "found/index.html").read_text(encoding="utf-8")
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_killed_in_the_middle_it_goes_on_with_the_same_result(tmp_path, model, mine):
    n, whole = look_until(100, model, tmp_path / "whole", mine)
    assert n == 3
    killed = tmp_path / "killed"
    assert ended(forked(lambda: look_until(2, model, killed, mine))) == -signal.SIGKILL
    assert not (killed / "suspects.csv").exists()
    assert look_until(100, model, killed, mine) == (1, whole)
    assert look_until(0, model, killed, mine) == (0, whole)


def look_until(most, model, folder, data):
    """Look for suspects with models one by one; before one more this process is killed. How many
    were trained, and the file to correct."""
    plain, count = passes.Pass.objectives, 0

    def counted(*given):
        nonlocal count
        count += 1
        if count > most:
            os.kill(os.getpid(), signal.SIGKILL)
        return plain(*given)

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(ONE_BY_ONE, "1")
        patch.setattr(passes.Pass, "objectives", counted)
        with pytest.warns(MemlocWarning):
            look(model, folder, data)
    return count, (folder / "suspects.csv").read_text(encoding="utf-8")


def test_a_run_s_models_serve_generalisation_too(memorised_run, monkeypatch):
    settings = {k: v for k, v in QUICK.items() if k.startswith("generalisation")}
    found = find(memorised_run, settings=settings)
    assert found.folder == memorised_run.folder / "found"
    monkeypatch.setattr("memloc.methods.halves.train_halves", None)
    result = memloc.analyse(memorised_run, ["generalisation"], settings=settings)
    ours = found.table.sort_values("row", ignore_index=True)
    np.testing.assert_array_equal(
        result["generalisation"]["examples"]["counterfactual"], ours["counterfactual"]
    )


def test_a_fine_tuned_model_is_refused(tmp_path, mine, memorised_run):
    table = pd.read_csv(mine)[:24]
    table.to_csv(mine, index=False)
    with pytest.raises(ModelError, match=r"is fine-tuned already: .* may have seen every label"):
        look(str(memorised_run.path("final")), tmp_path / "found", mine)


def test_a_model_for_other_classes_may_have_seen_the_examples_too(tmp_path, mine, memorised_run):
    settings = {"generalisation.models": 2}
    with pytest.warns(MemlocWarning) as said:
        look(str(memorised_run.path("final")), tmp_path / "found", mine, settings=settings)
    assert any("has a head for other classes" in str(one.message) for one in said)


def test_a_model_is_needed_but_not_for_a_run(tmp_path, model, mine, memorised_run):
    with pytest.raises(SettingsError, match="Give the pre-trained model"):
        find(mine, folder=tmp_path)
    with pytest.raises(SettingsError, match="is a run, which has its model"):
        find(str(memorised_run.folder), model)


@pytest.fixture
def judged():
    """A frame with the index of its owner, and probabilities by which row `b` is wrong."""
    labels = ["yes", "no"] * 6
    frame = pd.DataFrame({"review": [f"text {i}" for i in range(12)], "stars": labels})
    frame.index = list("abcdefghijkl")
    chances = np.where(np.array(labels)[:, None] == ["no", "yes"], 0.9, 0.1)
    chances[1] = chances[1, ::-1]
    return frame, chances


def test_predictions_of_others_are_judged_and_given_back_as_issues(tmp_path, judged):
    frame, chances = judged
    columns = {"text": "review", "label": "stars"}
    named = pd.DataFrame(chances, columns=["no", "yes"])[["yes", "no"]]
    for predictions, folder in ((chances, "array"), (named, "frame")):
        found = find(frame, folder=tmp_path / folder, predictions=predictions, **columns)
        assert found.wrong.index.tolist() == ["b"]
        assert found.table.loc["b", "suggested"] == "yes"
        issues = found.issues
        assert issues.index.equals(frame.index)
        assert issues["is_label_issue"].sum() == 1
        assert issues.loc["b", "label_score"] == pytest.approx(0.1)
        assert "Suspects in" in repr(found)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda chances: chances[1:], r"shape \(11, 2\), and \(12, 2\) is needed"),
        (lambda chances: chances * 3, "Row 1 of the predictions sums to 3"),
        (lambda chances: pd.DataFrame(chances, columns=["yes", "maybe"]), "no column 'no'"),
        (lambda _chances: "many", "Predictions are numbers"),
    ],
)
def test_predictions_that_do_not_fit_are_refused(tmp_path, judged, change, said):
    frame, chances = judged
    with pytest.raises(DataError, match=said):
        find(frame, folder=tmp_path, predictions=change(chances), text="review", label="stars")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"stars": ["same"] * 26}, "has only the label 'same'"),
        ({"stars": [None, *["a", "b"] * 12, "a"]}, "has 1 empty label, the first in row 1"),
    ],
)
def test_labels_that_cannot_be_learnt_are_refused(tmp_path, model, mine, change, said):
    pd.read_csv(mine).assign(**change).to_csv(mine, index=False)
    with pytest.raises(DataError, match=said):
        look(model, tmp_path / "found", mine)
