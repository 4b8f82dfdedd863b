"""Results as tables: everything comes back as it was."""

import shutil
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from memloc.errors import ScoreError, StoreError
from memloc.methods.result import (
    Outcomes,
    Result,
    from_outcomes,
    outcomes_from,
    read_about,
)
from memloc.reporting.sentences import sentence
from memloc.stats.answers import Answer
from memloc.stats.intervals import Interval
from memloc.stats.windows import windows
from memloc.store.records import read_json, read_table, write_json

PARTS = ("rows", "is_noisy", "wrong", "missed", "margin")


def outcomes(depth: int = 3) -> Outcomes:
    rng = np.random.default_rng(0)
    known = tuple(windows(depth))
    share = np.array([len(window) / depth for window in known])
    noisy_wrong = np.tile(share, (4, 1)) > np.array([[0.2], [0.4], [0.7], [0.9]])
    return Outcomes(
        known,
        np.array([1, 4, 5, 9, 0, 2]),
        np.arange(6) < 4,
        np.concatenate([noisy_wrong, rng.random((2, len(known))) < 0.3]),
        np.array([False, False, True, False, False, True]),
        np.array([1.5, 2.0, -0.5, 0.25, 3.0, -1.0]),
    )


def scores() -> Result:
    return from_outcomes("swapping", outcomes(), 3, normalise=True, about={"seed": 1})


def test_weights_are_column_means_of_the_normalised_matrix():
    # Windows of width 1 undo 1 of 4 labels, of width 2 two, the full one all four.
    found = scores()
    assert np.allclose(outcomes().errors, [0.25] * 3 + [0.5] * 2 + [1.0])
    assert np.allclose(found.matrix(), [[0.25] * 3, [0.5] * 3, [1.0] * 3])
    assert np.allclose(found.weights, (0.25 + 0.5 + 1) / 3)
    assert found.mcog.estimate == pytest.approx(2.0)


def test_errors_count_as_they_are_where_they_are_not_normalised():
    half = replace(outcomes(), wrong=outcomes().wrong & (np.arange(6) > 1)[:, None])
    plain, shared = (
        from_outcomes("swapping", half, 3, normalise=n, about={}) for n in (False, True)
    )
    assert plain["windows"]["error"].iloc[-1] == plain["windows"]["normalised"].iloc[-1] == 0.5
    assert shared["windows"]["normalised"].iloc[-1] == 1.0
    assert np.allclose(shared.weights, 2 * plain.weights)


def test_scores_read_back_equal(tmp_path):
    found = scores()
    found.write(tmp_path / "swapping")
    back = Result.read(tmp_path / "swapping")
    assert isinstance(back, Result)
    assert list(back.tables) == list(found.tables) == ["layers", "mcog", "windows", "outcomes"]
    for name, table in found.tables.items():
        pd.testing.assert_frame_equal(back[name], table)
    assert (back.method, back.about, back.mcog) == (found.method, found.about, found.mcog)
    assert np.array_equal(back.matrix(), found.matrix())
    assert back.outcomes.windows == found.outcomes.windows == outcomes().windows
    for name in PARTS:
        assert np.array_equal(getattr(back.outcomes, name), getattr(outcomes(), name))


def test_scores_without_windows_and_without_intervals_read_back_equal(tmp_path):
    unknown = np.full(2, np.nan)
    nowhere = Interval(np.nan, np.nan, np.nan, 0.95, 7)
    found = Result.of("mine", np.array([0.25, 0.5]), (unknown, unknown), nowhere)
    found.write(tmp_path / "mine")
    back = Result.read(tmp_path / "mine")
    assert back.outcomes is None
    assert back.matrix() is None
    assert (back.depth, back.about) == (2, {})
    assert np.array_equal(back.weights, found.weights)
    assert np.isnan(back.low).all()
    assert np.isnan(back.mcog.estimate)
    assert back.mcog.n_dropped == 7


def test_tables_of_any_kind_read_back_equal(tmp_path):
    tables = {
        "events": pd.DataFrame({"layer": [1.0, np.nan], "event": ["crossing", "initiation"]}),
        "nothing": pd.DataFrame({"example": np.zeros(0, dtype=np.int32)}),
    }
    found = Result("mine", tables, {"remarks": ["odd"], "level": 0.95})
    found.write(tmp_path / "mine")
    back = Result.read(tmp_path / "mine")
    assert type(back) is Result
    assert (back.method, back.about, back.remarks) == ("mine", found.about, ["odd"])
    for name, table in tables.items():
        pd.testing.assert_frame_equal(back[name], table)


def test_one_file_a_table_and_one_about_all(tmp_path):
    scores().write(tmp_path / "swapping")
    names = {path.name for path in (tmp_path / "swapping").iterdir()}
    tables = {"layers", "mcog", "windows", "outcomes"}
    assert names == {"about.json", *(f"{name}.parquet" for name in tables)}
    assert set(read_about(tmp_path / "swapping")["tables"]) == tables
    _, note = read_table(tmp_path / "swapping" / "layers.parquet")
    assert note["method"] == "swapping"
    assert "torch" in note["versions"]


@pytest.mark.parametrize("named", [["layers"], [], ["layers", "mcog", "windows", 3, None], "all"])
def test_a_result_whose_files_are_not_those_that_it_names_is_damaged(tmp_path, named):
    scores().write(tmp_path / "swapping")
    about = read_json(tmp_path / "swapping" / "about.json")
    write_json(tmp_path / "swapping" / "about.json", {**about, "tables": named})
    with pytest.raises(StoreError, match="swapping is damaged"):
        Result.read(tmp_path / "swapping")


def test_a_table_of_another_method_or_name_is_not_taken_for_this_one(tmp_path):
    for method in ("swapping", "retraining"):
        replace(scores(), method=method).write(tmp_path / method)
    for other in ("swapping/windows", "retraining/layers"):
        shutil.copy(tmp_path / f"{other}.parquet", tmp_path / "swapping" / "layers.parquet")
        with pytest.raises(StoreError, match=r"layers\.parquet is another table"):
            Result.read(tmp_path / "swapping")


def test_a_result_is_replaced_as_a_whole(tmp_path):
    scores().write(tmp_path / "swapping")
    nothing = Interval(np.nan, np.nan, np.nan, 0.95)
    Result.of("swapping", np.ones(2), (np.ones(2), np.ones(2)), nothing).write(
        tmp_path / "swapping"
    )
    assert not (tmp_path / "swapping" / "windows.parquet").exists()
    assert Result.read(tmp_path / "swapping").depth == 2
    assert not list(tmp_path.glob("*.part"))


def test_a_result_that_cannot_be_written_leaves_the_old_one(tmp_path):
    scores().write(tmp_path / "swapping")
    broken = replace(scores(), about={"strange": object()})
    with pytest.raises(TypeError):
        broken.write(tmp_path / "swapping")
    assert Result.read(tmp_path / "swapping").about == {"seed": 1}
    assert [path.name for path in tmp_path.iterdir()] == ["swapping"]


def test_the_tables_count_layers_from_one():
    found = scores()
    assert found["layers"]["layer"].tolist() == [1, 2, 3]
    ends = found["windows"][["first", "last"]].to_numpy().tolist()
    assert ends == [[1, 1], [2, 2], [3, 3], [1, 2], [2, 3], [1, 3]]
    assert set(found["windows"]["n_noisy"]) == {4}
    table = found["outcomes"]
    full = table[(table["first"] == 1) & (table["last"] == 3) & table["is_noisy"]]
    assert full["example"].tolist() == [1, 4, 5, 9]
    assert full["wrong"].all()


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_outcomes_come_back_from_their_table(depth):
    known = outcomes(depth)
    found = outcomes_from(from_outcomes("x", known, depth, normalise=False, about={})["outcomes"])
    assert found.windows == known.windows
    for name in PARTS:
        assert np.array_equal(getattr(found, name), getattr(known, name))


def test_without_clean_examples_there_is_no_clean_error():
    none = Outcomes(outcomes().windows, *(getattr(outcomes(), name)[:4] for name in PARTS))
    assert np.isnan(none.clean_errors).all()
    back = from_outcomes("swapping", none, 3, normalise=True, about={}).outcomes
    assert np.array_equal(back.wrong, none.wrong)


def test_partial_windows_keep_their_names(tmp_path):
    known = (range(0, 1), range(1, 2), range(2, 3), range(0, 3))
    wrong = np.array([[1, 0, 0, 1], [0, 0, 1, 1], [0, 0, 0, 0]], dtype=bool)
    some = Outcomes(known, np.arange(3), np.arange(3) < 2, wrong, np.zeros(3, bool), np.ones(3))
    found = from_outcomes("retraining", some, 3, normalise=True, about={})
    found.write(tmp_path / "x")
    assert Result.read(tmp_path / "x").outcomes.windows == known
    assert np.allclose(found.weights, [0.75, 0.5, 0.75])


def test_windows_that_undo_nothing_cannot_be_normalised():
    nothing = replace(outcomes(), wrong=np.zeros((6, 6), dtype=bool))
    with pytest.raises(ScoreError, match="undid no memorised label"):
        from_outcomes("swapping", nothing, 3, normalise=True, about={})


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(StoreError, match=r"about\.json does not exist"):
        Result.read(tmp_path)
    write_json(tmp_path / "about.json", {"method": "swapping"})
    with pytest.raises(StoreError, match="is damaged: delete it and run the method again"):
        Result.read(tmp_path)


def test_a_result_without_one_of_its_tables_is_refused(tmp_path):
    scores().write(tmp_path / "swapping")
    (tmp_path / "swapping" / "mcog.parquet").unlink()
    with pytest.raises(StoreError, match="is damaged: delete it"):
        Result.read(tmp_path / "swapping")
    (tmp_path / "swapping" / "mcog.parquet").write_bytes(b"nothing")
    with pytest.raises(StoreError, match="not Parquet"):
        Result.read(tmp_path / "swapping")


def test_a_result_of_a_newer_format_is_refused(tmp_path):
    scores().write(tmp_path / "swapping")
    path = tmp_path / "swapping" / "about.json"
    write_json(path, {**read_json(path), "format": 99})
    with pytest.raises(StoreError, match="format 99"):
        Result.read(tmp_path / "swapping")


def test_scores_can_be_made_of_weights_alone():
    found = Result.of("mine", np.array([1.0, 0.0, 3.0]))
    assert found.mcog.estimate == pytest.approx(2.5)
    assert np.isnan([*found.low, *found.high, found.mcog.low, found.mcog.high]).all()
    assert sentence(found) == (
        "mine: the centre of gravity is layer 2.5 of 3; layer 3 matters most."
    )


@pytest.mark.parametrize("stored", ["", {"word": "even"}, {"places": {}}])
def test_a_damaged_answer_is_refused(tmp_path, stored):
    found = scores()
    about = {**found.about, "answer": stored}
    Result(found.method, found.tables, about).write(tmp_path / "swapping")
    with pytest.raises(StoreError, match="does not hold what it should"):
        Result.read(tmp_path / "swapping")


@pytest.mark.parametrize(
    ("table", "column"),
    [("layers", "weight"), ("layers", "low"), ("mcog", "mcog"), ("mcog", "dropped")],
)
def test_scores_that_lack_a_column_are_refused(tmp_path, table, column):
    found = scores()
    tables = {**found.tables, table: found[table].drop(columns=column)}
    Result(found.method, tables, found.about).write(tmp_path / "swapping")
    with pytest.raises(StoreError, match=f"does not hold what it should.*{column}"):
        Result.read(tmp_path / "swapping")


def planted(layer: int = 2, n: int = 30, depth: int = 8) -> Result:
    """Noisy labels are lost where a window contains the layer (from 1), clean ones never."""
    known = tuple(windows(depth))
    is_noisy = np.arange(n + 20) < n
    lost = is_noisy[:, None] & [layer - 1 in window for window in known]
    never, margins = np.zeros(n + 20, dtype=bool), np.random.default_rng(0).normal(size=n + 20)
    found = Outcomes(known, np.arange(n + 20), is_noisy, lost, never, margins)
    return from_outcomes("swapping", found, depth, normalise=True, about={})


def test_labels_that_were_never_learnt_are_not_lost():
    """They are wrong under every window, which looks like shares in the first and last layer."""
    known, rows = tuple(windows(8)), np.arange(4000)
    missed = rows < 28
    wrong = np.tile(missed[:, None], len(known))
    found = Outcomes(known, rows, rows < 600, wrong, missed, np.zeros(4000))
    answer = from_outcomes("swapping", found, 8, normalise=True, about={}).answer
    assert (answer.word, answer.layers) == ("cannot tell", ())


def test_an_answer_comes_from_windows():
    answer = planted().answer
    assert (answer.word, answer.layers) == ("concentrated", (2,))
    assert answer.sentence.startswith("Layer 2 holds 100 % [100, 100] of the memorised labels")


def test_a_stored_answer_is_the_one_that_was_written(tmp_path):
    found = planted().with_answer(n_classes=2)
    found.write(tmp_path / "swapping")
    again = Result.read(tmp_path / "swapping")
    assert again.answer == Answer.of(found.about["answer"])
    assert len(again.answer.notes) == 2


def test_tables_without_weights_have_no_answer():
    found = Result("centroids", {"events": pd.DataFrame({"event": ["crossing"]})})
    assert not found.weighs_layers
    with pytest.raises(ScoreError, match="centroids weighs no layers: it has the tables events"):
        _ = found.answer


def test_what_another_reference_undoes_does_not_count():
    null = planted()  # where nothing is memorised, another reference undoes as much
    assert planted().answered(null=null).word == "cannot tell"


def test_a_null_of_other_examples_or_without_labels_is_refused():
    moved = planted()["outcomes"].assign(example=lambda table: table["example"] + 1)
    others = replace(planted(), tables={**planted().tables, "outcomes": moved})
    for null in (planted(n=31), others, Result.of("gradients", np.ones(8))):
        with pytest.raises(ScoreError, match=f"null is of {null.method} and of other noisy"):
            planted().answered(null=null)


def test_few_examples_some_windows_or_weights_alone_give_no_answer():
    assert "only 4 noisy examples" in scores().answer.why
    some = outcomes()
    narrow = [place for place, window in enumerate(some.windows) if len(window) != 2]
    fewer = replace(
        some,
        windows=tuple(some.windows[place] for place in narrow),
        wrong=some.wrong[:, narrow],
    )
    found = from_outcomes("retraining", fewer, 3, normalise=True, about={}).answer
    assert "need all 6 windows of 3 layers, found 4" in found.sentence
    alone = Result.of("mine", np.array([1.0, 0.0, 0.0])).answer
    assert "mine exchanges no layer" in alone.sentence
