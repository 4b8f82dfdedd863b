import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memloc.errors import ScoreError, SettingsError
from memloc.seeds import generator
from memloc.stats.windows import (
    Group,
    check_plant,
    every_window,
    full_window,
    layer_weights,
    named_plant,
    normalised,
    plant_name,
    planted_layers,
    read_plant,
    read_window,
    split_kind,
    usual_plants,
    window_matrix,
    windows,
)

quick = settings(max_examples=50, deadline=None)  # a busy machine is no failure

# Windows 0, 1, 2, 01, 12, 012 of three layers.
ERRORS = np.array([0.1, 0.2, 0.3, 0.4, 0.6, 0.8])
MATRIX = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6], [0.8, 0.8, 0.8]])
NAN = np.nan


def brute_force(errors, depth, known):
    matrix = np.full((depth, depth), NAN)
    for width in range(1, depth + 1):
        for layer in range(depth):
            found = [
                error
                for error, window in zip(errors, known, strict=True)
                if len(window) == width and layer in window
            ]
            if found:
                matrix[width - 1, layer] = sum(found) / len(found)
    return matrix


def test_windows_are_all_runs_narrow_ones_first():
    found = windows(3)
    assert found == [range(1), range(1, 2), range(2, 3), range(2), range(1, 3), range(3)]


@pytest.mark.parametrize(("depth", "n"), [(0, 0), (1, 1), (12, 78), (24, 300)])
def test_there_are_as_many_windows_as_the_paper_counts(depth, n):
    assert len(set(windows(depth))) == len(windows(depth)) == n


def test_a_cell_is_the_mean_over_windows_of_that_width_with_that_layer():
    np.testing.assert_allclose(window_matrix(ERRORS, 3), MATRIX)


def test_a_layer_weighs_the_mean_of_its_column():
    np.testing.assert_allclose(layer_weights(MATRIX), [1.3 / 3, 1.5 / 3, 1.7 / 3])


@pytest.mark.parametrize("depth", [1, 4, 6, 12, 24])
def test_the_matrix_equals_the_definition_read_aloud(depth):
    errors = generator(depth).random(len(windows(depth)))
    expected = brute_force(errors, depth, windows(depth))
    np.testing.assert_allclose(window_matrix(errors, depth), expected)


def test_a_batch_gives_what_its_rows_give():
    errors = generator(1).random((2, 5, 21))
    matrix = window_matrix(errors, 6)
    weights = layer_weights(matrix)
    assert matrix.shape == (2, 5, 6, 6)
    assert weights.shape == (2, 5, 6)
    np.testing.assert_allclose(matrix[1, 3], window_matrix(errors[1, 3], 6))
    np.testing.assert_allclose(weights[1, 3], layer_weights(matrix[1, 3]))


def test_errors_are_left_as_they_were():
    before = ERRORS.copy()
    window_matrix(ERRORS, 3)[:] = 9
    normalised(ERRORS)[:] = 9
    np.testing.assert_array_equal(ERRORS, before)
    np.testing.assert_allclose(window_matrix(ERRORS, 3), MATRIX)


def test_normalised_errors_make_the_full_window_one():
    np.testing.assert_allclose(normalised(ERRORS), [0.125, 0.25, 0.375, 0.5, 0.75, 1])
    batch = normalised(np.array([[0.1, 0.2, 0.5], [0.2, 0.0, 0.2]]))
    np.testing.assert_allclose(batch, [[0.2, 0.4, 1], [1, 0, 1]])


@pytest.mark.parametrize("errors", [[0.1, 0.2, 0.0], [[0.1, 0.2, 0.3], [0.1, 0.2, 0.0]]])
def test_errors_are_not_normalised_where_nothing_was_undone(errors):
    with pytest.raises(ScoreError, match="undid no memorised label"):
        normalised(np.array(errors))


def test_widths_that_were_not_run_are_nan_and_weigh_nothing():
    known = [window for window in windows(3) if len(window) != 2]
    matrix = window_matrix(ERRORS[[0, 1, 2, 5]], 3, known)
    np.testing.assert_allclose(matrix, [MATRIX[0], [NAN] * 3, MATRIX[2]])
    np.testing.assert_allclose(layer_weights(matrix), [0.45, 0.5, 0.55])


def test_a_width_without_some_layer_counts_for_no_layer():
    known = [range(1), range(1, 2), range(2, 3), range(2)]
    matrix = window_matrix(ERRORS[:4], 3, known)
    np.testing.assert_allclose(matrix, [MATRIX[0], [0.4, 0.4, NAN], [NAN] * 3])
    np.testing.assert_allclose(layer_weights(matrix), MATRIX[0])


def test_without_any_complete_width_weights_are_nan():
    assert np.isnan(layer_weights(window_matrix(ERRORS[:1], 3, [range(1)]))).all()


@quick
@given(st.sets(st.sampled_from(windows(5)), min_size=1), st.integers(0, 9))
def test_any_choice_of_windows_in_any_order_equals_the_definition(chosen, seed):
    known = [list(chosen)[i] for i in generator(seed).permutation(len(chosen))]
    errors = generator(seed, "errors").random(len(known))
    np.testing.assert_allclose(window_matrix(errors, 5, known), brute_force(errors, 5, known))


def test_the_full_window_is_found_or_asked_for():
    assert full_window(3, [range(1), range(3), range(2)]) == 1
    with pytest.raises(ScoreError, match="window of all 4 layers"):
        full_window(4, windows(3))


@pytest.mark.parametrize(
    ("errors", "known", "words"),
    [
        ([0.1, 0.2], None, "Expected errors of 6 windows, found shape"),
        (0.1, None, "found shape"),
        ([0.1, 0.2, 0.3, 0.4, NAN, 0.8], None, "not a number"),
        ([0.1], [range(2, 4)], "not a window of consecutive layers among 3"),
        ([0.1], [range(0, 3, 2)], "not a window of consecutive layers among 3"),
        ([0.1], [range(0)], "not a window of consecutive layers among 3"),
        ([0.1, 0.2], [range(1), range(1)], "once"),
        ([], [], "at least one"),
    ],
)
def test_what_makes_no_matrix_is_refused(errors, known, words):
    with pytest.raises(ScoreError, match=words):
        window_matrix(np.array(errors), 3, known)


@pytest.mark.parametrize(
    ("depth", "wanted"),
    [
        (12, ["1-2", "6-7", "11-12"]),
        (24, ["1-2", "12-13", "23-24"]),
        (6, ["1-2", "3-4", "5-6"]),
        (4, ["1-2", "2-3", "3-4"]),
        (3, ["1-2", "2-3"]),
    ],
)
def test_the_usual_windows_are_the_first_middle_and_last_two(depth, wanted):
    assert usual_plants(depth, 2) == wanted


def test_windows_at_every_position():
    assert every_window(4, 1) == ["1-1", "2-2", "3-3", "4-4"]
    assert every_window(6, 4) == ["1-4", "2-5", "3-6"]


def test_windows_are_read_as_people_write_them():
    assert read_window("6-7") == range(5, 7)
    assert read_window(" 3 ") == range(2, 3)


@pytest.mark.parametrize("text", ["", "a", "6-", "-2", "0-1", "6..7", "0"])
def test_what_is_no_window_is_refused(text):
    with pytest.raises(SettingsError, match="no window of layers"):
        read_window(text)


def test_an_empty_window_is_refused():
    with pytest.raises(SettingsError, match="7-6 is empty"):
        read_window("7-6")


@pytest.mark.parametrize(
    ("text", "groups", "name"),
    [
        ("6-7", [(5, 6)], "6-7"),
        ("3", [(2,)], "3-3"),
        ("2+9", [(1, 8)], "2+9"),
        ("9 + 2", [(1, 8)], "2+9"),
        ("2+3", [(1, 2)], "2-3"),
        ("1-2+5+7-8", [(0, 1, 4, 6, 7)], "1-2+5+7-8"),
        ("2-3/9-10", [(1, 2), (8, 9)], "2-3/9-10"),
        ("9/2+4", [(8,), (1, 3)], "9-9/2+4"),
    ],
)
def test_plants_are_read_as_people_write_them_and_have_one_name(text, groups, name):
    found = tuple(map(Group, groups))
    assert read_plant(text) == found
    assert plant_name(found) == name
    assert read_plant(name) == found
    assert planted_layers(text) == sorted(layer for group in groups for layer in group)


@pytest.mark.parametrize(
    ("text", "groups", "name"),
    [
        ("mlp:6-7", [Group((5, 6), "mlp")], "mlp:6-7"),
        ("attention: 3", [Group((2,), "attention")], "attention:3-3"),
        ("2-3/9-10 @ 21", [Group((1, 2)), Group((8, 9), "", 21)], "2-3/9-10@21"),
        ("2@1/mlp:2+9@4", [Group((1,)), Group((1, 8), "mlp", 4)], "2-2/mlp:2+9@4"),
        ("2@1-3/4@4-9", [Group((1,), "", 1, 3), Group((3,), "", 4, 9)], "2-2@1-3/4-4@4-9"),
    ],
)
def test_plants_of_parts_and_in_stages(text, groups, name):
    assert read_plant(text) == tuple(groups)
    assert plant_name(groups) == name
    assert read_plant(name) == tuple(groups)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("head:6-7", "names no part of a layer"),
        (":6-7", "names no part of a layer"),
        ("2-3/9-10@", "in which epochs"),
        ("2-3/9-10@0", "in which epochs"),
        ("2-3/9-10@a", "in which epochs"),
        ("2-3/9-10@4-", "in which epochs"),
        ("2-3/9-10@4-3", "in which epochs"),
        ("mlp:", "no window of layers"),
    ],
)
def test_parts_and_stages_that_do_not_exist_are_refused(text, message):
    with pytest.raises(SettingsError, match=message):
        read_plant(text)


def test_a_word_before_the_layers_is_the_kind_of_the_plant():
    assert split_kind("decoy 9 + 2") == ("decoy", "9 + 2")
    assert split_kind("6-7") == split_kind("easy 6-7") == ("easy", "6-7")
    assert named_plant(" decoy  9 + 2") == "decoy 2+9"
    assert named_plant("easy 6-7") == "6-7"
    assert planted_layers("loud 2-3") == [1, 2]
    with pytest.raises(SettingsError, match="kind of plant is called 'quiet'"):
        read_plant("quiet 6-7")


@pytest.mark.parametrize("text", ["", "2+", "/3", "2-3/", "2,9", "2 9", "+"])
def test_what_is_no_plant_is_refused(text):
    with pytest.raises(SettingsError, match="no window of layers"):
        read_plant(text)


@pytest.mark.parametrize(
    ("plant", "message"),
    [
        ("12-13", "12-13 is outside the model, which has layers 1-12"),
        ("2+13", "2\\+13 is outside the model"),
        ("1-12", "12 of 12 layers"),
        ("1-6/7-12", "12 of 12 layers"),
        ("2-3/3-4", "share a layer"),
        ("mlp:12-13", "outside the model"),
        ("2-3@1-21", "needs epoch 21, but training has 20 epochs"),
        ("2-3/9-10@21", "needs epoch 21, but training has 20 epochs"),
    ],
)
def test_layers_that_cannot_be_planted_in_are_refused(plant, message):
    with pytest.raises(SettingsError, match=message):
        check_plant(plant, 12, epochs=20)


@pytest.mark.parametrize("plant", ["1-2", "1-11", "2+9", "2-3/9-10@20", "mlp:1-12"])
def test_some_layers_can_be_planted_in(plant):
    check_plant(plant, 12, epochs=20)


def test_a_window_wider_than_the_model_is_refused():
    with pytest.raises(SettingsError, match="2 of 2 layers"):
        usual_plants(2, 2)
    with pytest.raises(SettingsError, match="outside the model"):
        every_window(3, 5)
