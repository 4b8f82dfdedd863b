"""Parts of files, against the whole of them."""

import numpy as np
import pandas as pd
import pytest
from memloc.analyse.store import Analysis
from memloc.localise.scores import LayerScores
from memloc.results.reading import read_note, read_reverted, read_scores, read_tables

from memloc.errors import StoreError
from memloc.records import write_table
from study_support import METHODS, Study


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    return Study(control=0).write_run(folder, "tiny-topic", "tiny-opt", 1).folder


@pytest.mark.parametrize("method", METHODS)
def test_scores_are_those_of_the_whole_file(run, method):
    path = run / "localise" / f"{method}.parquet"
    part, whole = read_scores(path), LayerScores.read(path)
    assert (part.method, part.depth, part.about) == (whole.method, whole.depth, whole.about)
    assert part.values["weight"].tolist() == whole.weights.tolist()
    assert part.values["mcog"].tolist() == [whole.mcog.estimate]
    details = {name.removeprefix("detail "): part.values[name] for name in part.details()}
    assert {n: v.tolist() for n, v in details.items()} == {
        name: values.ravel().tolist() for name, values in whole.details.items()
    }


@pytest.mark.parametrize("method", ["swapping", "retraining"])
def test_windows_lose_what_their_examples_lose(run, method):
    path = run / "localise" / f"{method}.parquet"
    part, outcomes = read_scores(path).windows, LayerScores.read(path).outcomes
    ends = [(w.start + 1, w.stop) for w in outcomes.windows]
    assert list(zip(part["first"], part["last"], strict=True)) == ends
    assert part["error"].tolist() == pytest.approx(outcomes.errors.tolist())
    assert part["clean_error"].tolist() == pytest.approx(outcomes.clean_errors.tolist())
    assert set(part["n_noisy"]) == {7}
    reverted = read_reverted(path)
    assert np.array_equal(reverted.wrong, outcomes.noisy_wrong)
    assert reverted.examples.tolist() == outcomes.noisy_rows.tolist()
    assert list(map(tuple, reverted.windows)) == ends


@pytest.mark.parametrize("method", ["gradients", "probing"])
def test_methods_without_windows_have_none(run, method):
    path = run / "localise" / f"{method}.parquet"
    assert read_scores(path).windows is None
    assert read_reverted(path) is None


@pytest.mark.parametrize("name", ["centroids", "label_probes", "generalisation"])
def test_tables_of_an_analysis_are_those_of_the_whole_file(run, name):
    path = run / "analyse" / f"{name}.parquet"
    whole = Analysis.read(path)
    for inside, (table, types) in read_tables(path, list(whole.tables)).items():
        pd.testing.assert_frame_equal(table.to_pandas().astype(types), whole[inside])


def test_a_table_that_an_analysis_lacks_is_refused(run):
    with pytest.raises(StoreError, match="holds no analysis"):
        read_tables(run / "analyse" / "centroids.parquet", ["summary"])


@pytest.mark.parametrize(
    ("text", "words"), [(b"PAR1 and no more", "is not Parquet"), (None, "does not exist")]
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, text, words):
    path = tmp_path / "swapping.parquet"
    if text is not None:
        path.write_bytes(text)
    for read in (read_scores, read_reverted, read_note):
        with pytest.raises(StoreError, match=words):
            read(path)


def test_a_file_of_another_kind_or_a_newer_format_is_refused(tmp_path):
    path = tmp_path / "swapping.parquet"
    write_table(path, pd.DataFrame({"quantity": ["weight"]}), {})
    with pytest.raises(StoreError, match="holds no layer scores"):
        read_scores(path)
    with pytest.raises(StoreError, match="does not hold what it should"):
        read_reverted(path)
    write_table(path, pd.DataFrame({"quantity": ["weight"]}), {"format": 99})
    with pytest.raises(StoreError, match="format 99, this memloc reads up to 1: update it"):
        read_scores(path)
