"""The page of findings is made of tables that are kept, without training anything."""

from types import SimpleNamespace

import pandas as pd
import pytest

from studies.answers import FAILS, HOLDS, UNKNOWN, answers, mean, rho
from studies.findings import (
    FILES,
    KEPT,
    PAGE,
    PICTURES,
    PROBES,
    SCALED,
    draw,
    files,
    from_kept,
    noise_read,
    repeated,
    results_of_studies,
    seeds_agree,
    with_probes,
)
from studies.stored import keep, kept


def test_what_stands_on_the_page_is_made_of_the_kept_tables():
    for path, texts in from_kept().items():
        page = path.read_text(encoding="utf-8")
        for part, text in texts.items():
            written = page.split(f"<!-- {part}: begin -->\n")[1].split(f"<!-- {part}: end -->")[0]
            assert text == written, part


def test_the_files_to_download_are_made_of_the_kept_tables():
    written = {p.relative_to(FILES).as_posix(): p for p in FILES.rglob("*.csv")}
    made = files()
    assert written.keys() == made.keys()
    assert not [name for name, text in made.items() if written[name].read_text("utf-8") != text]


def test_the_figures_of_the_page_are_made_of_the_kept_tables(tmp_path):
    found = results_of_studies()
    for name, (figure, choice) in PICTURES.items():
        assert (PAGE.parents[1] / "images" / name).is_file()
        draw(found[name.split("-")[0]], figure, choice, tmp_path / name)
        assert "</svg>" in (tmp_path / name).read_text(encoding="utf-8")


def test_pieces_of_a_study_are_put_together_and_a_run_is_kept_once(tmp_path):
    whole = kept(KEPT)
    tasks = whole.runs["task"].unique()
    for task in [*tasks, tasks[0]]:
        keep(whole.only(task=task), tmp_path / "kept")
    found, key = kept(tmp_path / "kept"), ["task", "model", "seed"]
    for name in ("runs", "layers", "windows", "events"):
        one, other = (
            getattr(results, name).sort_values(key, kind="stable").reset_index(drop=True)
            for results in (whole, found)
        )
        pd.testing.assert_frame_equal(one, other)
    here, there = (answers(results) for results in (found, whole))
    for title, table in here.items():
        assert table.equals(there[title])


def of_tasks(*values: float) -> "pd.Series[float]":
    tasks = pd.Index([f"task-{i}" for i in range(len(values))], name="task")
    return pd.Series(values, index=tasks)


def test_a_mean_holds_if_its_interval_is_within_the_bounds():
    assert mean(of_tasks(0.1, 0.1, 0.1, 0.1, 0.1), 0, 0.15) == (
        "0.10 [0.10, 0.10]",
        "–",
        "–",
        HOLDS,
    )
    assert mean(of_tasks(0.2, 0.2, 0.2, 0.2, 0.2), 0, 0.15)[-1] == FAILS
    assert mean(of_tasks(0.0, 0.3, 0.0, 0.3, 0.0), 0, 0.15)[-1] == UNKNOWN


def test_seeds_of_a_task_count_once():
    values = pd.concat([of_tasks(0.1, 0.1, 0.1, 0.1, 0.2), of_tasks(*[0.1] * 4)])
    assert mean(values, 0, 1)[0].startswith("0.12 ")


def test_seeds_are_compared_within_a_task_and_tasks_within_a_seed():
    profiles = {("a", 1): [3, 2, 1], ("a", 2): [6, 4, 2], ("b", 1): [1, 2, 3]}
    rows = [
        {"task": task, "model": "m", "seed": seed, "method": "shares", "layer": i, "weight": w}
        for (task, seed), weights in profiles.items()
        for i, w in enumerate(weights, start=1)
    ]
    found = SimpleNamespace(memorised=lambda _: pd.DataFrame(rows))
    expected = {
        "method": "shares",
        "seeds of one task": "1.00 (1.00–1.00)",
        "tasks of one seed": "-1.00 (-1.00–-1.00)",
    }
    assert seeds_agree(found).to_dict("records") == [expected]


def test_runs_with_other_settings_than_most_are_listed():
    epochs = [16, 16, 32, 16]
    row = {"model": "m", "seed": 1, "noisy_accuracy": 1.0, "reference_accuracy": 1.0}
    runs = pd.DataFrame(
        {**row, "task": f"task-{i}", "changes": f"finetune.learning_rate=1e-4, finetune.epochs={n}"}
        for i, n in enumerate(epochs)
    )
    found = repeated(SimpleNamespace(runs=runs))
    assert found[["task", "changed"]].to_numpy().tolist() == [["task-2", "finetune.epochs=32"]]
    runs["changes"] = ""
    assert repeated(SimpleNamespace(runs=runs)).empty


def test_other_probes_take_the_place_of_the_studys_own():
    real, scaled = kept(KEPT), kept(SCALED)
    both = with_probes(real, scaled)
    assert both.noise_probes is scaled.noise_probes
    for name, (by, probes) in PROBES.items():
        table, own, theirs = (getattr(results, name) for results in (both, real, scaled))
        is_probe = table[by] == probes
        assert len(table[is_probe]) == len(theirs) > 0
        assert set(theirs[by]) == {probes}
        assert len(table[~is_probe]) == len(own[own[by] != probes]) > 0


def test_what_probes_read_is_a_mean_over_tasks_of_means_over_seeds():
    values = {("a", 1): 0.2, ("a", 2): 0.4, ("b", 1): 0.9}
    rows = [
        {"task": task, "seed": seed, "layer": layer, "f1": f1 * layer, "chance": 0.1}
        for (task, seed), f1 in values.items()
        for layer in (0, 1)
    ]
    found = SimpleNamespace(memorised=lambda _: pd.DataFrame(rows))
    table = noise_read({"as they are": found})
    assert table["1"].tolist() == ["0.60", "0.10"]
    assert "0" not in table


def test_few_tasks_tell_nothing():
    assert mean(of_tasks(0.1, 0.1), 0, 0.15) == ("0.10", "–", "–", UNKNOWN)


@pytest.mark.parametrize(
    ("number", "significant", "verdict"),
    [(0.8, True, HOLDS), (-0.8, True, FAILS), (0.8, False, "not shown")],
)
def test_a_coefficient_holds_if_it_is_significant(number, significant, verdict):
    row = {"rho": number, "low": 0.1, "high": 0.9, "significant": significant, "n": 6, "why": ""}
    cells = rho({**row, "p": 0.0004, "corrected": 0.012})
    assert cells[1:] == ("< .001", "0.012", verdict)
