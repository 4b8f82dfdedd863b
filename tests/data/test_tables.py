import gzip
import json

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from memloc.data.tables import (
    GUARDED,
    labels_of,
    read_values,
    sorted_labels,
    texts_of,
    write_csv,
)
from memloc.errors import DataError, SettingsError

TEXTS = ["NA", "null", "None", 'a "quote"', "two\nlines", "tab\there, comma", "zażółć 🙂", "1"]
LABELS = ["b", "a", "b", "NA", "a", "b", "a", "b"]
SUFFIXES = [".csv", ".tsv", ".jsonl", ".parquet", ".csv.gz", ".tsv.gz", ".jsonl.gz"]


def write(path, frame):
    name = path.name
    if ".jsonl" in name:
        frame.to_json(path, orient="records", lines=True, force_ascii=False)
    elif name.endswith(".parquet"):
        frame.to_parquet(path)
    else:
        frame.to_csv(path, sep="\t" if ".tsv" in name else ",", index=False)
    return path


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_every_kind_of_file_gives_back_the_very_same_texts(tmp_path, suffix):
    frame = pd.DataFrame({"id": range(len(TEXTS)), "text": TEXTS, "label": LABELS})
    path = write(tmp_path / f"mine{suffix}", frame)
    assert read_values(path, ["text", "label"]) == {"text": TEXTS, "label": LABELS}


def test_suffixes_may_be_written_in_capitals(tmp_path):
    path = tmp_path / "MINE.CSV"
    path.write_text("text\na\n", encoding="utf-8")
    assert read_values(path, ["text"]) == {"text": ["a"]}


@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_a_byte_order_mark_is_not_part_of_the_first_column(tmp_path, suffix):
    content = "text\na\n" if suffix == ".csv" else '{"text": "a"}\n'
    path = tmp_path / f"mine{suffix}"
    path.write_bytes(b"\xef\xbb\xbf" + content.encode())
    assert read_values(path, ["text"]) == {"text": ["a"]}


def test_what_a_row_lacks_is_none(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"a": 1}\n\n{"b": null}\n{"a": NaN, "b": "x"}\n', encoding="utf-8")
    assert read_values(path, ["a", "b"]) == {"a": [1, None, None], "b": [None, None, "x"]}


def test_numbers_in_parquet_stay_numbers(tmp_path):
    path = write(tmp_path / "mine.parquet", pd.DataFrame({"label": [2, 10]}))
    assert read_values(path, ["label"]) == {"label": [2, 10]}


def test_a_file_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"mine\.csv is not there"):
        read_values(tmp_path / "mine.csv", ["text"])


@pytest.mark.parametrize("name", ["mine.xlsx", "mine", "mine.parquet.gz", "mine.json"])
def test_an_unknown_suffix_is_refused_with_the_known_ones(tmp_path, name):
    (tmp_path / name).write_text("text", encoding="utf-8")
    with pytest.raises(DataError, match=r"\.csv, \.tsv, \.jsonl"):
        read_values(tmp_path / name, ["text"])


def test_a_missing_column_is_refused_with_the_nearest_and_all_others(tmp_path):
    path = write(tmp_path / "mine.csv", pd.DataFrame({"sentence": ["a"], "label": ["b"]}))
    with pytest.raises(DataError) as caught:
        read_values(path, ["sentense"])
    assert str(caught.value) == (
        f"{path} has no column 'sentense'. Did you mean 'sentence'? It has: sentence, label."
    )


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("mine.csv", "text,label\nolé,1\n".encode("latin-1"), "decode"),
        ("mine.csv", b'text,label\n"open,1\n', "EOF inside string"),
        ("mine.csv", b"text,label\na,b,c\nd,e,f\n", "Expected 2 fields in line 2, saw 3"),
        ("mine.csv", b"text,label\na,b\nd,e,f\n", "Expected 2 fields"),
        ("mine.csv.gz", b"not gzip", "gzip"),
        ("mine.csv.gz", gzip.compress(b"text,label\n" * 50, mtime=0)[:-9], "end-of-stream|ended"),
        ("mine.csv.gz", gzip.compress(b"text,label\n", mtime=0)[:10] + b"\xff" * 20, "decompress"),
        ("mine.jsonl", b'{"text": "a"}\n{"text": \n', "line 2"),
        ("mine.jsonl", b'["a", "b"]\n', "line 1 is not a JSON object"),
        (
            "mine.jsonl.gz",
            gzip.compress(b'{"text": 1}\n' * 50, mtime=0)[:-9],
            "end-of-stream|ended",
        ),
        ("mine.parquet", b"text,label\n", "Parquet"),
    ],
)
def test_an_unreadable_file_is_refused_in_one_sentence(tmp_path, name, content, reason):
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=rf"could not be read \(.*({reason}).*\): check") as caught:
        read_values(tmp_path / name, ["text"])
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_file_without_rows_is_refused(tmp_path, suffix):
    path = write(tmp_path / f"mine{suffix}", pd.DataFrame({"text": []}))
    with pytest.raises(DataError, match="has columns but no rows"):
        read_values(path, ["text"])


def test_a_folder_is_not_a_file(tmp_path):
    (tmp_path / "mine.csv").mkdir()
    with pytest.raises(DataError, match="is a folder that save_to_disk"):
        read_values(tmp_path / "mine.csv", ["text"])


def test_empty_texts_are_counted_and_the_first_is_named():
    with pytest.raises(DataError, match=r"'text' of f\.csv has 3 .*row 2"):
        texts_of("f.csv", "text", ["a", "", " \n", "NA", None])


def test_numbers_are_no_texts():
    with pytest.raises(DataError, match=r"'id' of f .*such as 7"):
        texts_of("f", "id", [None, 7])


@pytest.mark.parametrize("missing", ["", None])
def test_missing_labels_are_counted_and_the_first_is_named(missing):
    with pytest.raises(DataError, match=r"'y' of f has 1 .*row 3"):
        labels_of("f", "y", ["a", "b", missing])


def test_labels_may_be_strings_integers_booleans_or_whole_floats():
    assert labels_of("f", "y", ["a", 3, True, 2.0, "NA"]) == ["a", "3", "True", "2", "NA"]


@pytest.mark.parametrize("strange", [0.5, ["a"], {"a": 1}])
def test_other_labels_are_refused(strange):
    with pytest.raises(DataError, match="labels must be strings or integers"):
        labels_of("f", "y", [strange])


def test_integer_labels_are_sorted_as_numbers_and_others_as_words():
    assert sorted_labels({"10", "9", "-1", "0"}) == ("-1", "0", "9", "10")
    assert sorted_labels({"10", "9", "b"}) == ("10", "9", "b")
    assert sorted_labels({"1", "01", "+1"}) == ("+1", "01", "1")
    assert sorted_labels({"2", "1", "01"}) == ("01", "1", "2")


@settings(max_examples=30)
@given(st.lists(st.text(), min_size=1))
def test_any_json_text_comes_back_as_it_was(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("json") / "mine.jsonl"
    path.write_text("".join(json.dumps({"t": t}) + "\n" for t in texts), encoding="utf-8")
    assert read_values(path, ["t"]) == {"t": texts}


@pytest.mark.parametrize("suffix", [".csv", ".tsv"])
@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_fields_may_be_separated_in_any_usual_way(tmp_path, suffix, separator):
    frame = pd.DataFrame({"text": TEXTS, "label": LABELS, "a,b": LABELS})
    path = tmp_path / f"mine{suffix}"
    frame.to_csv(path, sep=separator, index=False)
    assert read_values(path, ["text", "label"]) == {"text": TEXTS, "label": LABELS}


def test_commas_in_a_file_with_semicolons_need_no_quotes(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("text;label\nyes, well;1\nno\t|;0\n", encoding="utf-8")
    assert read_values(path, ["text", "label"]) == {
        "text": ["yes, well", "no\t|"],
        "label": ["1", "0"],
    }
    with pytest.raises(DataError, match=r"no column 'txt'\. Did you mean 'text'\? It has: text, l"):
        read_values(path, ["txt"])


def duplicate_parquet(path):
    arrays = [pa.array(["a"]), pa.array([1]), pa.array([2])]
    pq.write_table(pa.Table.from_arrays(arrays, names=["text", "label", "label"]), path)


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_column_that_is_there_twice_is_refused_where_it_is_asked_for(tmp_path, suffix):
    path = tmp_path / f"mine{suffix}"
    if suffix == ".parquet":
        duplicate_parquet(path)
    else:
        path.write_text("text,label,label\na,1,2\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"2 columns called 'label'"):
        read_values(path, ["text", "label"])
    assert read_values(path, ["text"]) == {"text": ["a"]}


def test_a_key_that_is_there_twice_is_refused_with_its_line(tmp_path):
    path = tmp_path / "mine.jsonl"
    path.write_text('{"a": 1}\n{"a": 1, "a": 2}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"line 2: the key 'a'"):
        read_values(path, ["a"])


@pytest.mark.parametrize("name", ["mine.csv", "mine.tsv.gz", "mine.jsonl"])
def test_files_in_utf_16_with_a_mark_are_read(tmp_path, name):
    text = '{"text": "olé", "label": "1"}\n' if "json" in name else "text,label\nolé,1\n"
    raw = text.encode("utf-16")
    (tmp_path / name).write_bytes(gzip.compress(raw) if name.endswith("gz") else raw)
    found = read_values(tmp_path / name, ["text", "label"])
    assert found == {"text": ["olé"], "label": ["1"]}


@pytest.mark.parametrize("encoding", ["utf-16-le", "utf-32", "latin-1"])
def test_other_encodings_are_refused_as_such(tmp_path, encoding):
    path = tmp_path / "mine.csv"
    path.write_bytes("text,label\nolé,1\n".encode(encoding))
    with pytest.raises(DataError, match="UTF-8"):
        read_values(path, ["text"])


@pytest.mark.parametrize("content", ["", "\n \n"])
@pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
def test_an_empty_file_is_called_empty(tmp_path, suffix, content):
    path = tmp_path / f"mine{suffix}"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(DataError, match="is empty"):
        read_values(path, ["text"])


def test_a_separator_in_a_text_without_quotes_is_not_called_a_wrong_encoding(tmp_path):
    path = tmp_path / "mine.csv"
    path.write_text("text,label\na,b\nyes, well,e\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"line 3, saw 3.* quotes"):
        read_values(path, ["text"])


def test_labels_may_have_spaces_around_them_and_be_written_as_floats():
    assert labels_of("f", "y", [" good", "bad "]) == ["good", "bad"]
    assert labels_of("f", "y", ["1.0", "0", "-2.00"]) == ["1", "0", "-2"]
    assert labels_of("f", "y", ["1.0", "1.5"]) == ["1.0", "1.5"]


@pytest.mark.parametrize("missing", ["nan", "NaN", "  "])
def test_nan_is_no_label(missing):
    with pytest.raises(DataError, match=r"1 empty label.*row 2"):
        labels_of("f", "y", ["a", missing])


FORMULAS = ["=1+1", "@SUM(A1)", "+x", "-x", "-", "\tx", "\rx", "\nx", "\uff1dx", "'=1", "''@x"]
HARMLESS = ["-1", "+.5", "-1e-3", "x=1", "'x", "'", "two\rlines", "two\r\nlines", "  =x", "NA"]


def test_a_spreadsheet_can_run_nothing_that_is_written_and_all_is_read_back(tmp_path):
    path = tmp_path / "x.csv"
    write_csv(path, pd.DataFrame({"text": [*FORMULAS, *HARMLESS], "label": "=a"}))
    cells = pd.read_csv(path, keep_default_na=False, dtype=str)
    assert all(cell.startswith("'") for cell in [*cells["text"][: len(FORMULAS)], *cells["label"]])
    assert cells["text"][len(FORMULAS) :].tolist() == HARMLESS
    assert set(cells[GUARDED]) == {"yes"}
    assert read_values(path, ["text"]) == {"text": [*FORMULAS, *HARMLESS]}
    assert set(read_values(path, ["label"])["label"]) == {"=a"}


def test_without_such_texts_there_is_no_mark_and_apostrophes_of_others_stay(tmp_path):
    write_csv(tmp_path / "x.csv", pd.DataFrame({"text": HARMLESS}))
    assert GUARDED not in pd.read_csv(tmp_path / "x.csv").columns
    assert read_values(tmp_path / "x.csv", ["text"]) == {"text": HARMLESS}
    (tmp_path / "y.csv").write_text("text\n'=1\n", encoding="utf-8")
    assert read_values(tmp_path / "y.csv", ["text"]) == {"text": ["'=1"]}


LETTERS = st.characters(codec="utf-8", exclude_characters="\0")


@given(st.lists(st.text(LETTERS, min_size=1) | st.sampled_from(FORMULAS), min_size=1))
@settings(max_examples=100, deadline=None)
def test_whatever_is_written_is_read_back(tmp_path_factory, texts):
    path = tmp_path_factory.mktemp("written") / "x.csv"
    write_csv(path, pd.DataFrame({"n": range(len(texts)), "text": texts}))
    assert read_values(path, ["text"])["text"] == texts


@pytest.mark.parametrize("read", [texts_of, labels_of])
def test_half_a_character_is_refused(tmp_path, read):
    path = tmp_path / "x.jsonl"
    path.write_text('{"text": "fine"}\n{"text": "half \\ud800"}\n', encoding="utf-8")
    with pytest.raises(DataError, match=r"half a character .* in row 2 "):
        read(path, "text", read_values(path, ["text"])["text"])


@pytest.mark.parametrize("name", ["mine.csv.gz", "mine.jsonl.gz", "mine.parquet"])
def test_what_a_file_unpacks_to_has_a_bound_that_can_be_raised(tmp_path, monkeypatch, name):
    path, rows = tmp_path / name, [{"text": "word " * 1000 + str(n), "label": n} for n in range(40)]
    if name.endswith("parquet"):
        pq.write_table(pa.Table.from_pylist(rows), path, compression="gzip", use_dictionary=False)
    elif name.startswith("mine.csv"):
        lines = [f"{row['text']},{row['label']}\n" for row in rows]
        path.write_bytes(gzip.compress("".join(["text,label\n", *lines]).encode()))
    else:
        path.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    assert path.stat().st_size < 50_000
    monkeypatch.setenv("MEMLOC_UNPACK_GB", "0.0001")
    with pytest.raises(DataError, match=r"unpacks to more than 0.0001 GB.*MEMLOC_UNPACK_GB=8"):
        read_values(path, ["text"])
    monkeypatch.setenv("MEMLOC_UNPACK_GB", "0.001")
    assert len(read_values(path, ["text"])["text"]) == 40
    monkeypatch.setenv("MEMLOC_UNPACK_GB", "much")
    with pytest.raises(SettingsError, match="a number of gigabytes is needed"):
        read_values(path, ["text"])
