"""The registered studies of real models: what is computed in which order, and what is stored."""

from collections import Counter
from pathlib import Path

import pandas as pd
import pytest
import yaml

from memloc.study.config import parse_study
from studies import evidence
from studies.evidence import Piece, Registered

STUDIES = [Registered(), Registered("wide", "mpnet")]


@pytest.fixture(params=STUDIES, ids=lambda study: study.name)
def study(request):
    return request.param


def test_each_piece_is_a_study_of_one_run_with_a_draw_of_noise_of_its_own(study):
    for piece in dict.fromkeys(study.order()):
        file = parse_study(yaml.safe_dump(study.study_of(piece)), Path()).study
        assert (file.tasks, file.seeds) == ((piece.task,), (piece.seed,))
        assert file.protocol.noise.seed == piece.seed


def test_every_task_has_its_shares_before_anything_is_probed_and_every_seed_counts_the_same():
    pieces = [*dict.fromkeys(Registered().order())]
    runs = Counter((piece.stage, piece.seed) for piece in pieces)
    first_probe = next(i for i, piece in enumerate(pieces) if piece.stage == "probes")
    assert {p.task for p in pieces[:first_probe]} == {p.task for p in pieces}
    assert [runs[stage, s] for stage in ("layers", "probes", "scaled") for s in (1, 2, 3)] == [
        12
    ] * 9
    assert runs["retraining", 1] == 4


def test_settings_of_a_task_and_of_a_stage_reach_their_pieces():
    found = [
        Registered().study_of(Piece(*piece))["overrides"]
        for piece in (("layers", "reuters", 2), ("float32", "trec", 1), ("scaled", "trec", 3))
    ]
    assert found[0]["finetune.epochs"] == 32
    assert found[1]["finetune.autocast"] == "none"
    assert found[2]["probing.standardise"]


def test_what_is_stored_is_not_computed_again(tmp_path, monkeypatch):
    (tmp_path / "evidence").mkdir()
    rules = Registered().folder / "study.yaml"
    (tmp_path / "evidence" / "study.yaml").write_text(rules.read_text("utf-8"), "utf-8")
    monkeypatch.setattr(evidence, "STORED", tmp_path)
    one, other = Registered(model="mine"), Registered(model="another")
    first = one.left()[0]
    (one.folder / first.stage).mkdir()
    runs = pd.DataFrame([{"task": first.task, "model": "mine", "seed": first.seed}])
    runs.to_parquet(one.folder / first.stage / "runs.parquet")
    assert first not in one.left()
    assert other.left()[0] == first


def test_rows_of_a_piece_replace_its_earlier_ones_alone(tmp_path, monkeypatch):
    (tmp_path / "evidence").mkdir()
    monkeypatch.setattr(evidence, "STORED", tmp_path)
    study, pieces = Registered(), [Piece("layers", task, 1) for task in ("trec", "sst2")]
    for value, piece in enumerate([*pieces, pieces[0]]):
        study.add("donors", piece, pd.DataFrame({"undone": [value, value]}, index=[5, 5]))
    found = pd.read_csv(tmp_path / "evidence" / "donors.csv")
    assert found[["task", "undone"]].to_numpy().tolist() == [["sst2", 1]] * 2 + [["trec", 2]] * 2


def test_stored_runs_have_the_noise_of_their_seed():
    runs = pd.read_parquet(Registered().folder / "layers" / "runs.parquet")
    drawn = runs["changes"].str.extract(r"noise\.seed=(\d+)")[0].fillna("1").astype(int)
    assert (drawn == runs["seed"]).all()
