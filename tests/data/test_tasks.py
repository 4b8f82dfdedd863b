from memloc.data.tasks import EMBEDDED_TASKS, PAPER_TASKS, known_tasks

PARQUET = "refs/convert/parquet"

TABLE_1 = {
    "wic": ("nlu", "5.4k", 2),
    "rte": ("nlu", "2.5k", 2),
    "mrpc": ("nlu", "3.7k", 2),
    "cola": ("nlu", "8.5k", 2),
    "boolq": ("nlu", "9.4k", 2),
    "sst2": ("sentiment", "6.9k", 2),
    "sst5": ("sentiment", "8.5k", 5),
    "emotion": ("sentiment", "16k", 6),
    "implicithate": ("hate", "5.1k", 7),
    "stormfront": ("hate", "8.6k", 2),
    "reuters": ("topic", "5k", 8),
    "trec": ("topic", "5.5k", 6),
}


def test_the_table_of_tasks_is_table_1_in_its_order():
    found = {n: (s.category, s.train_size, len(s.label_names)) for n, s in PAPER_TASKS.items()}
    assert found == TABLE_1
    assert list(found) == list(TABLE_1)


def test_only_the_two_hate_tasks_have_their_held_out_data_split_off():
    assert [n for n, s in PAPER_TASKS.items() if s.held_out is None] == [
        "implicithate",
        "stormfront",
    ]


def test_tasks_without_validation_split_hold_out_their_test_split():
    assert [n for n, s in PAPER_TASKS.items() if s.held_out == "test"] == ["reuters", "trec"]


def test_loading_scripts_are_avoided_by_the_parquet_branch_which_has_folders_not_configs():
    scripts = {n for n, s in PAPER_TASKS.items() if s.hub.revision == PARQUET}
    assert scripts == {"wic", "boolq", "stormfront", "reuters", "trec"}
    for spec in PAPER_TASKS.values():
        assert (spec.hub.subfolder is not None) == (spec.name in scripts)
        assert not (spec.hub.subfolder and spec.hub.config)


def test_every_task_has_distinct_labels():
    for spec in PAPER_TASKS.values():
        assert len(set(spec.label_names)) == len(spec.label_names)


def test_a_task_has_as_many_parts_in_a_folder_as_on_the_hub():
    for spec in PAPER_TASKS.values():
        assert len(spec.columns) == len(spec.hub.parts)


def test_wic_puts_its_word_before_its_two_sentences():
    wic = PAPER_TASKS["wic"]
    assert wic.hub.parts == ("word", "sentence1", "sentence2")
    assert wic.columns == ("word", "text_a", "text_b")


def test_the_list_holds_the_embedded_suite_the_twelve_and_the_binary_variants_of_five():
    names = list(known_tasks())
    assert names[: len(EMBEDDED_TASKS)] == list(EMBEDDED_TASKS)
    assert set(PAPER_TASKS) < set(names)
    binary = [n for n in names if n.endswith("-binary") and not n.startswith("tiny-")]
    assert binary == [f"{n}-binary" for n in ("sst5", "emotion", "implicithate", "reuters", "trec")]


def test_every_listed_task_says_what_it_is_and_where_it_comes_from():
    for name, row in known_tasks().items():
        assert row.name == name
        assert row.category in {"nlu", "sentiment", "hate", "topic"}
        assert row.description
        assert row.train_size
        assert row.source
        assert len(row.label_names) == (0 if name.endswith("-binary") else row.n_classes)
