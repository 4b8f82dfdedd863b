import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import save_file

from fixtures.studies import write_adopted
from memloc.errors import UnknownName
from memloc.reporting import about, tables
from memloc.reporting.about import layer_parameters, pretraining
from memloc.reporting.results import load_results
from memloc.reporting.tables import (
    TABLES,
    as_text,
    cell,
    latex,
    markdown,
    rounded,
    write_tables,
)
from memloc.stats.intervals import wilson
from memloc.store.records import read_table

BY_NAME = {table.name: table for table in TABLES}
EACH = pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)


@pytest.fixture
def with_large(results):
    """The results if one of the models counted as large."""
    runs = results.runs
    return results.with_tables(runs=runs.assign(depth=4 + (runs["model"] == "tiny-bert")))


@EACH
def test_every_table_has_rows_and_a_layout_of_texts(table, results, with_large):
    tidy = table.shown(with_large if table.name == "sizes" else results)
    text = as_text(table, tidy)
    assert len(tidy)
    assert len(text)
    assert text.map(lambda value: isinstance(value, str)).all().all()


def test_plants_without_any_verdict_are_shown_as_cannot_tell(results):
    table = BY_NAME["control-answers"]
    untold = table.shown(results).assign(told=0)
    assert set(table.layout(untold)["right layers"]) == {"cannot tell"}


@EACH
def test_without_results_a_table_is_empty(table, nothing):
    assert table.shown(nothing).empty


def test_the_papers_four_are_there():
    assert {table.number for table in TABLES} >= {"1", "2", "3", "4"}


def test_table_1_lists_the_tasks_of_the_study(results):
    tidy = BY_NAME["tasks"].shown(results)
    row = tidy[tidy["dataset"] == "tiny-topic"].iloc[0]
    assert (row["size"], row["noisy"], row["labels"]) == (40, 7, 6)
    assert list(tidy.columns)[:4] == ["category", "dataset", "task", "domain"]


def test_table_2_stars_what_is_significant(results):
    tidy = BY_NAME["generalisation"].shown(results)
    tidy = tidy.assign(significant=tidy["measure"] == "M-CoG")
    laid = BY_NAME["generalisation"].layout(tidy)
    assert list(laid.columns) == ["score", "measure", "all", "tiny-bert", "tiny-opt"]
    row = tidy[(tidy["score"] == "validation") & (tidy["measure"] == "M-CoG")].iloc[0]
    shown = laid[(laid["score"] == "validation") & (laid["measure"] == "M-CoG")]["all"].item()
    assert shown == f"{row['rho']:.2f}*"
    shown = laid[(laid["score"] == "validation") & (laid["measure"] == "crossing")]["all"].item()
    assert "*" not in shown
    assert laid["measure"].tolist()[:3] == ["crossing", "memorisation", "M-CoG"]


def test_table_2_says_once_why_there_is_no_interval(results):
    table = BY_NAME["generalisation"]
    tidy = table.shown(results)
    text = markdown(as_text(table, tidy), table.said_of(tidy))
    assert "nan" not in text.lower().replace("dominan", "")
    assert "[" not in text
    assert text.count("No interval: fewer than 5 tasks.") == 1
    five = tidy.assign(low=0.1, high=0.9)
    assert "95 % interval over tasks" in table.said_of(five)
    assert "No interval" not in table.said_of(five)
    assert table.layout(five)["all"].str.endswith("[0.10, 0.90]").all()


def test_a_note_names_what_the_coefficients_have():
    row = {"rho": 0.5, "low": np.nan, "high": np.nan, "significant": False, "n_inseparable": 0}
    said = BY_NAME["agreement"].said_of
    alone = said(pd.DataFrame([row]))
    assert "No interval: fewer than 5 tasks." in alone
    assert "In brackets" not in alone
    both = said(pd.DataFrame([row, {**row, "low": 0.1, "n_inseparable": 2}]))
    assert "In brackets: 95 % interval over tasks." in both
    assert "†: some events are at layers" in both


def test_table_2_names_the_methods_of_its_mean(results):
    table = BY_NAME["generalisation"]
    said = table.said_of(table.shown(results))
    assert "M-CoG is the mean over swapping, retraining, gradients and probing" in said
    assert "always predicts the most frequent label" in said


def test_a_mean_of_one_method_is_that_method_s(results):
    table = BY_NAME["generalisation"]
    tidy = table.shown(results)
    assert " M-CoG is that of probing." in table.said_of(tidy.assign(methods="probing"))
    assert "M-CoG is" not in table.said_of(tidy.assign(methods=""))


def test_scores_stand_beside_that_of_the_most_frequent_label(results):
    table = BY_NAME["scores"]
    tidy = table.shown(results)
    row, text = tidy.iloc[0], as_text(table, tidy).iloc[0]
    assert text["majority"] == f"{row['majority']:.2f}"
    low, high = row["normalised_low"], row["normalised_high"]
    assert text["normalised"] == f"{row['normalised']:.2f} [{low:.2f}, {high:.2f}]"
    assert "(score − majority) / (1 − majority)" in table.said_of(tidy)


def test_the_order_of_tasks_is_told_by_method(results):
    table = BY_NAME["orders"]
    laid = table.layout(table.shown(results)).set_index("method")
    assert laid.index.tolist() == ["shares", "swapping", "retraining", "gradients", "probing"]
    mcog = results.whole("mcog")
    wide = mcog[mcog["method"] == "probing"].pivot_table("mcog", "task", "model")
    assert laid.loc["probing", "mean ρ"] == f"{wide.rank().corr().iloc[0, 1]:.2f}"


def test_what_is_another_quantity_than_the_papers_says_so(results):
    table = BY_NAME["binarised"]
    said = table.said_of(table.shown(results))
    assert "the five tasks' means over models, so they are another quantity" in said


def test_table_3_has_the_papers_columns(results):
    table = BY_NAME["models"]
    tidy = table.shown(results).set_index("model")
    assert tidy.loc["tiny-opt", ["corpus", "tokens", "steps"]].tolist() == [
        "embedded texts",
        1500 * 24 * 40,
        1500,
    ]
    assert (tidy.loc["tiny-opt", "parameters"], tidy.loc["tiny-opt", "layers"]) == (599808, 4)
    laid = table.layout(table.shown(results)).set_index("model")
    shown = ["tokens", "steps", "parameters"]
    assert laid.loc["tiny-opt", shown].tolist() == ["1.4M", "1.5k", "600k"]


def test_table_4_has_a_row_a_choice_of_steps(results):
    tidy = BY_NAME["post-processing"].shown(results)
    laid = as_text(BY_NAME["post-processing"], tidy)
    assert laid["subtracting clean"].tolist() == ["no", "no", "yes", "yes"]
    chosen = (
        (tidy["model"] == "tiny-opt")
        & (tidy["norm"] == "L2")
        & ~tidy["subtract_clean"]
        & tidy["divide_frozen"]
    )
    found = wilson(tidy[chosen]["accuracy"].item(), tidy[chosen]["plants"].item())
    expected = f"{found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]"
    assert laid["tiny-opt L2"].iloc[1] == expected


def test_ranks_of_planted_layers_have_intervals_over_plants(results):
    row = BY_NAME["control"].shown(results).iloc[0]
    control = results.control
    plants = control[(control["method"] == row["method"]) & (control["k"] == row["k"])]
    tested = plants[~plants["validation"]]
    for name in ("mrr", "auroc"):
        assert tested[name].min() <= row[f"{name}_low"] <= row[name] <= row[f"{name}_high"]
        assert row[name] == pytest.approx(tested[name].mean())


def test_nulls_have_intervals_over_plants_and_nulls(results):
    tidy = BY_NAME["nulls"].shown(results).set_index("method")
    assert ((tidy["apart_low"] <= tidy["apart"]) & (tidy["apart"] <= tidy["apart_high"])).all()
    row = tidy.loc["swapping"]
    assert row["undone_null_low"] <= row["undone_null"] <= row["undone_null_high"]
    assert tidy.loc["gradients", ["undone_null", "undone_null_low"]].isna().all()


def test_binarised_tasks_differ_by_means_with_intervals(results):
    tidy = BY_NAME["binarised"].shown(results).set_index("measure")
    depths = results.depths.set_index(["measure", "task", "model"])["depth"].sort_index()
    both = [depths["M-CoG", task] for task in ("tiny-topic-binary", "tiny-topic")]
    difference = both[0] - both[1]
    assert tidy.loc["M-CoG", "mean_difference"] == pytest.approx(difference.mean())
    assert np.isnan(tidy.loc["M-CoG", "mean_difference_low"])  # one task


def test_without_a_large_model_sizes_are_not_compared(results):
    assert BY_NAME["sizes"].shown(results).empty


def test_a_deeper_model_is_a_large_one(results):
    """So that the command which the page names makes the table."""
    runs = results.runs.copy()
    runs.loc[runs["model"] == "tiny-bert", "depth"] = 8
    tidy = BY_NAME["sizes"].shown(results.with_tables(runs=runs))
    assert set(tidy["large"]) == {"tiny-bert"}


def test_a_large_model_is_compared_with_the_small_ones(with_large):
    tidy = BY_NAME["sizes"].shown(with_large)
    assert set(tidy["large"]) == {"tiny-bert"}
    assert set(tidy["model"]) == {"tiny-opt", "all"}
    depths = with_large.depths[with_large.depths["measure"] == "crossing"]
    wide = depths[~depths["task"].str.endswith("-binary")].pivot(
        index="task", columns="model", values="depth"
    )
    row = tidy[(tidy["measure"] == "crossing") & (tidy["model"] == "tiny-opt")].iloc[0]
    assert row["n"] == len(wide)
    assert row["rho"] == pytest.approx(wide.rank().corr().iloc[0, 1])


def test_events_that_never_happen_count_and_are_named():
    def made(event, seed, layer, low, high, separable=True):
        key = {"task": "a", "model": "m", "seed": seed, "event": event, "depth": 12}
        numbers = {"layer": layer, "low": low, "high": high, "never": float(np.isnan(layer))}
        return {**key, **numbers, "separable": separable}

    never = (np.nan, 11, np.nan)
    rows = [made("crossing", 1, 5, 4, 7, separable=False), made("crossing", 2, *never)]
    rows += [made("initiation", seed, np.nan, np.nan, np.nan) for seed in (1, 2)]
    rows += [made("ninety", seed, 3, 2, 4) for seed in (1, 2)]
    (row,) = BY_NAME["events"].layout(pd.DataFrame(rows)).to_dict("records")
    assert row["crossing"] == "9.00 [4.00, 13.00]; 1 never; 1 not separable"
    assert row["initiation"] == "13.00 [13.00, 13.00]; 2 never"
    assert row["ninety"] == "3.00 [2.00, 4.00]"


def test_coefficients_of_events_that_mean_nothing_have_a_dagger(results):
    tidy = (
        BY_NAME["generalisation"]
        .shown(results)
        .assign(n_inseparable=[1, *[0] * 100][: len(results.table_2)])
    )
    text = BY_NAME["generalisation"].layout(tidy)
    assert sum("†" in cell for cell in text.to_numpy().ravel()) == 1
    assert "†: some events are at layers" in BY_NAME["generalisation"].said_of(tidy)


def test_unseen_accuracies_have_wilson_intervals(results):
    tidy = BY_NAME["runs"].shown(results)
    found = wilson(tidy["validation_accuracy"].iloc[0], 4)
    shown = BY_NAME["runs"].layout(tidy)["validation_accuracy"].iloc[0]
    assert shown == f"{found.estimate:.2f} [{found.low:.2f}, {found.high:.2f}]"


def test_the_centre_of_gravity_is_a_mean_with_its_seeds_interval(results):
    tidy = BY_NAME["mcog"].shown(results)
    laid = BY_NAME["mcog"].layout(tidy).set_index(["task", "model"])
    part = tidy[
        (tidy["task"] == "tiny-topic")
        & (tidy["model"] == "tiny-opt")
        & (tidy["method"] == "swapping")
    ]
    expected = f"{part['mcog'].mean():.2f} [{part['low'].min():.2f}, {part['high'].max():.2f}]"
    assert laid.loc[("tiny-topic", "tiny-opt"), "swapping"] == expected


@pytest.mark.parametrize(
    ("kind", "ending"),
    [("csv", "csv"), ("parquet", "parquet"), ("markdown", "md"), ("latex", "tex")],
)
def test_tables_are_written_in_every_format(results, tmp_path, kind, ending):
    written, missing = write_tables(results, tmp_path, kind, ["mcog", "tasks"])
    assert [path.name for path in written] == [f"mcog.{ending}", f"tasks.{ending}"]
    assert missing == []
    assert all(path.stat().st_size for path in written)


def test_csv_and_parquet_hold_the_numbers_as_they_are(results, tmp_path):
    tidy = BY_NAME["mcog"].shown(results)
    (csv,), _ = write_tables(results, tmp_path, "csv", ["mcog"])
    (parquet,), _ = write_tables(results, tmp_path, "parquet", ["mcog"])
    assert pd.read_csv(csv)["mcog"].tolist() == tidy["mcog"].tolist()
    table, about = read_table(parquet)
    assert table["mcog"].tolist() == tidy["mcog"].tolist()
    assert about["table"] == "mcog"


def test_markdown_ends_with_the_note():
    assert markdown(pd.DataFrame({"a": ["x"]}), "A note.").endswith("| x |\n\nA note.\n")


def test_markdown_escapes_bars():
    assert markdown(pd.DataFrame({"a": ["x|y"]})) == "| a |\n| --- |\n| x\\|y |\n"


def test_latex_has_booktabs_rules_and_escapes_what_tex_reads():
    text = latex(pd.DataFrame({"a_b": ["50 % & ρ", "{–}"]}), "Two_words", "two", "95 % of it.")
    assert text.splitlines() == [
        "\\begin{table}",
        "\\centering",
        "\\caption{Two\\_words. 95 \\% of it.}",
        "\\label{tab:two}",
        "\\begin{tabular}{l}",
        "\\toprule",
        "a\\_b \\\\",
        "\\midrule",
        "50 \\% \\& $\\rho$ \\\\",
        "\\{--\\} \\\\",
        "\\bottomrule",
        "\\end{tabular}",
        "\\end{table}",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(True, "yes"), (False, "no"), (None, "–"), (float("nan"), "–"), (0.0, "0.00"), (3, "3")],
    ids=str,
)
def test_cells_are_words_where_that_is_clearer(value, text):
    assert cell(value) == text


def test_small_numbers_keep_their_size():
    assert cell(0.0004) == "4.0e-04"


def test_an_unknown_format_is_refused(nothing, tmp_path):
    with pytest.raises(UnknownName, match="Did you mean 'latex'"):
        write_tables(nothing, tmp_path, "latx")


def test_tables_without_results_are_named(nothing, tmp_path):
    written, missing = write_tables(nothing, tmp_path, "csv")
    assert written == []
    assert len(missing) == len(TABLES)


def test_numbers_have_marks_and_intervals_where_there_are_some():
    values = pd.Series([0.5, 0.25, np.nan])
    low, high = np.array([0.4, np.nan, 0.1]), np.array([0.6, 0.9, 0.2])
    found = tables.estimates(values, low, high, ["*", "", ""])
    assert found == ["0.50* [0.40, 0.60]", "0.25", "–"]


def test_what_was_adopted_is_own_data_without_an_accuracy_on_unseen_ones(tmp_path):
    results = load_results(write_adopted(tmp_path / "mine").folder)
    (task,) = about.tasks(results).to_dict("records")
    assert (task["dataset"], task["task"], task["size"]) == ("mine", "own data", 40)
    (table,) = [table for table in TABLES if table.name == "runs"]
    (run,) = table.layout(table.shown(results)).to_dict("records")
    assert run["validation_accuracy"] == "–"
    assert run["memorised"]
    (model,) = tables.table_3(about.models(results)).to_dict("records")
    assert (model["layers"], model["parameters"], model["tokens"]) == (4, "–", "–")


def test_parameters_of_blocks_are_counted_without_embeddings_and_head(tmp_path):
    weights = {
        "model.layers.0.fc.weight": np.zeros((3, 4), np.float32),
        "model.layers.11.fc.bias": np.zeros(5, np.float32),
        "model.embed.weight": np.zeros((7, 7), np.float32),
        "score.weight": np.zeros((2, 2), np.float32),
    }
    place = tmp_path / "checkpoints" / "final"
    place.mkdir(parents=True)
    save_file(weights, place / "model.safetensors")
    assert layer_parameters("somebody/model", tmp_path) == 17


def test_without_weights_nothing_is_counted(tmp_path):
    assert layer_parameters("somebody/model", tmp_path) is None
    assert pretraining("somebody/model") == {}


@pytest.mark.parametrize(
    ("number", "text"),
    [(None, "–"), (12, "12"), (1_500, "1.5k"), (1_234_000, "1.2M"), (180e9, "180B")],
)
def test_large_numbers_are_short(number, text):
    assert rounded(number) == text
