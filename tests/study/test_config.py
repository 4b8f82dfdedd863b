"""A study's file: what it says, and what is refused with line, key and a suggestion."""

from pathlib import Path

import pytest

from memloc.errors import SettingsError, StoreError
from memloc.methods.registry import method_names
from memloc.study.config import (
    EXAMPLES,
    init_study,
    parse_study,
    read_study,
)

LEAST = "models: [tiny-opt]\ntasks: [tiny-topic]\n"
HERE = Path("here")


def refused(text):
    with pytest.raises(SettingsError) as error:
        parse_study(text, HERE)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_is_left_out_is_the_paper_s():
    study = parse_study(LEAST, HERE).study
    assert (study.preset, study.seeds, study.control) == ("paper", (1,), None)
    assert (study.methods, study.analyses) == (method_names("localiser"), method_names("analysis"))
    assert study.protocol.finetune.epochs == 50


def test_overrides_are_settings_by_their_dotted_names():
    text = LEAST + "overrides:\n  finetune.epochs: 3\n  finetune.learning_rate: 1e-4\n"
    protocol = parse_study(text, HERE).study.protocol
    assert protocol.for_run().changes() == {"finetune.epochs": 3, "finetune.learning_rate": 1e-4}


def test_a_study_cannot_be_changed_once_read():
    study = parse_study(LEAST, HERE).study
    with pytest.raises(ValueError, match="frozen"):
        study.examples = 3


@pytest.mark.parametrize(
    ("more", "line", "key", "message"),
    [
        ("metods: [swapping]\n", 3, "metods", "Did you mean 'methods'?"),
        ("also:\n  - seed: [1]\n", 4, "also[0].seed", "Did you mean 'seeds'?"),
        ("control:\n  window: [1-2]\n", 4, "control.window", "Did you mean 'windows'?"),
        ("control:\n  nulls: some\n", 4, "control.nulls", "'some': input should be 'none'"),
        ("preset: papper\n", 3, "preset", "Did you mean 'paper'?"),
        (
            "overrides:\n  finetune.epoch: 3\n",
            4,
            "overrides.finetune.epoch",
            "Did you mean 'finetune.epochs'? `memloc protocol` lists all.",
        ),
        ("overrides:\n  noise.rate: 2\n", 4, "overrides.noise.rate", "less than 1"),
        ("overrides:\n  preset: demo\n", 4, "overrides.preset", "it is set by `preset`"),
        ("seeds: []\n", 3, "seeds", "at least 1 item"),
        ("seeds: [1, one]\n", 3, "seeds[1]", "'one': input should be a valid integer"),
        ("seeds:\n- 1\n- 2\n- 1\n", 6, "seeds[2]", "1 is there twice"),
        ("seeds: 3\n", 3, "seeds", "3: a list is needed: write [3]."),
        ("seeds:\n", 3, "seeds", "empty: a list is needed, as in [a, b]."),
        ("overrides: 3\n", 3, "overrides", "3: keys with their values are needed, as in `key: v"),
        ("control: yes\n", 3, "control", "True: keys with their values are needed"),
        ("also: [x]\n", 3, "also[0]", "'x': keys with their values are needed"),
        ("methods: [1]\n", 3, "methods[0]", "a name is needed: put it in quotes, as in '1'."),
        (f"examples: {'x' * 999}\n", 3, "examples", f"'{'x' * 79}...: input should be"),
        ("examples: 2\n", 3, "examples", "greater than or equal to 4"),
        ("tasks: [tiny-sentiment]\n", 3, "tasks", "it is there twice"),
    ],
)
def test_what_is_wrong_is_said_with_line_and_key(more, line, key, message):
    said = refused(LEAST + more)
    assert said.startswith(f"here/study.yaml, line {line}, {key}: ")
    assert message in said


def test_what_is_missing_is_named():
    assert refused("tasks: [tiny-topic]\n") == "here/study.yaml, line 1, models: it is missing."


@pytest.mark.parametrize("text", ["", "- a\n- b\n", "just words"])
def test_a_file_that_is_no_mapping_is_refused(text):
    assert "holds no settings: `memloc init demo` shows" in refused(text)


def test_broken_yaml_is_said_with_its_line():
    assert "line 2 cannot be read as YAML" in refused("models: [tiny-opt\ntasks: [x]\n")


def test_a_name_where_a_list_belongs_is_shown_as_a_list():
    assert refused("models: tiny-opt\ntasks: [tiny-topic]\n") == (
        "here/study.yaml, line 1, models: 'tiny-opt': a list is needed: write [tiny-opt]."
    )


def test_a_few_aliases_are_fine():
    text = "models: &m [tiny-opt]\ntasks: [tiny-topic]\nalso:\n- {models: *m, seeds: [2]}\n"
    assert parse_study(text, HERE).study.parts[1].models == ("tiny-opt",)


def bomb(levels, each):
    """Few lines that stand for each ** levels values."""
    aliases = [", ".join([f"*a{i}"] * each) for i in range(levels)]
    return "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [{a}]\n" for i, a in enumerate(aliases, 1))


@pytest.mark.parametrize(
    ("more", "why"),
    [
        (bomb(9, 9), "line 6 cannot be read as YAML: it has more than 20 aliases"),
        (bomb(30, 2), "more than 20 aliases"),
        ("seeds: &x [*x]\n", "line 3 cannot be read as YAML: the alias *x is part of what"),
        ("seeds: " + "[" * 5000, "nested more than 20 levels deep"),
        ("a: " + "{a: " * 5000, "nested more than 20 levels deep"),
        ("examples: 2024-13-45\n", "cannot be read as YAML: month must be in 1..12."),
        (f"examples: {'9' * 5000}\n", "cannot be read as YAML: Exceeds the limit"),
    ],
    ids=["bomb", "thin bomb", "loop", "deep list", "deep mapping", "no date", "digits"],
)
def test_yaml_that_could_go_on_forever_is_refused_at_once(more, why):
    assert why in refused(LEAST + more)


def test_a_study_is_read_from_its_folder_or_file(tmp_path):
    (tmp_path / "study.yaml").write_text(LEAST, encoding="utf-8")
    assert read_study(tmp_path) == read_study(tmp_path / "study.yaml")
    assert read_study(str(tmp_path)).folder == tmp_path


@pytest.mark.parametrize(
    ("place", "message"),
    [("nowhere", "does not exist: `memloc init demo"), ("other.yaml", "must be called study.yaml")],
)
def test_a_study_that_is_not_there_is_refused(tmp_path, place, message):
    (tmp_path / "other.yaml").write_text(LEAST, encoding="utf-8")
    with pytest.raises(StoreError, match=message):
        read_study(tmp_path / place)


def test_a_path_that_begins_with_a_dot_is_beside_the_file(tmp_path):
    file = parse_study(LEAST, tmp_path)
    assert file.path_of("./model") == str(tmp_path.resolve() / "model")
    assert file.path_of("facebook/opt-125m") == "facebook/opt-125m"


@pytest.mark.parametrize(
    "value", ["2020-13-45", "!!int abc", "!!float x", "!!timestamp 1", "9" * 5000, "[" * 3000]
)
def test_values_that_yaml_itself_stumbles_over_are_refused(value):
    assert "cannot be read as YAML: " in refused(f"{LEAST}seeds: {value}\n")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        *[("seeds: [true]", "seeds"), ("depth: yes", "depth"), ("gpus: .inf", "gpus")],
        ("overrides: {finetune.epochs: true}", "overrides.finetune.epochs"),
        ("overrides: {finetune.learning_rate: .inf}", "overrides.finetune.learning_rate"),
    ],
)
def test_neither_true_nor_infinity_is_a_number(line, said):
    assert f"line 3, {said}" in refused(f"{LEAST}{line}\n")


def test_true_is_true_where_that_is_asked_for():
    assert parse_study(f"{LEAST}force: yes\nreport: false\n", HERE).study.force


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_is_written_once_and_never_over_another_one(tmp_path, name):
    path = init_study(name, tmp_path)
    assert init_study(name, tmp_path) == path
    path.write_text("models: [tiny-opt]\ntasks: [tiny-topic]\n")
    with pytest.raises(StoreError, match="describes another study"):
        init_study(name, tmp_path)
