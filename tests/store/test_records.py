import errno
import json
import os

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from memloc.data.task import Examples
from memloc.errors import SettingsError, StoreError
from memloc.store.records import (
    CHECKSUM,
    FORMAT,
    NOTE,
    as_path,
    as_stored,
    read_columns,
    read_json,
    read_table,
    write_json,
    write_table,
)

TABLE = pd.DataFrame({"epoch": [1, 2], "accuracy": [0.5, 1.0], "name": ["θ", "noisy"]})


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def fail_after(work):
    work()
    raise ZeroDivisionError


def test_a_record_comes_back_as_it_was(tmp_path):
    path = tmp_path / "new" / "run.json"
    record = {"model": "θ", "n": 3, "rate": 0.1, "names": ["a", "b"], "inner": {"x": None}}
    write_json(path, record)
    assert read_json(path) == {"format": FORMAT, **record}
    assert names_in(path.parent) == ["run.json"]
    assert "θ" in path.read_text(encoding="utf-8")


def test_a_table_comes_back_as_it_was(tmp_path):
    path = tmp_path / "new" / "t.parquet"
    write_table(path, TABLE, {"seed": 1, "model": "θ"})
    table, about = read_table(path)
    pd.testing.assert_frame_equal(table, TABLE)
    assert about["seed"] == 1
    assert about["model"] == "θ"
    assert about["versions"]["memloc"]
    assert about["format"] == FORMAT
    assert names_in(path.parent) == ["t.parquet"]


def test_a_table_can_be_read_without_memloc(tmp_path):
    write_table(tmp_path / "t.parquet", TABLE, {"seed": 1})
    pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / "t.parquet"), TABLE)


def test_any_reader_of_parquet_can_verify_the_pages(tmp_path):
    path = tmp_path / "t.parquet"
    write_table(path, TABLE, {"seed": 1})
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)
    start = column.dictionary_page_offset or column.data_page_offset
    raw = bytearray(path.read_bytes())
    raw[start + column.total_compressed_size - 1] ^= 1
    path.write_bytes(raw)
    with pytest.raises(OSError, match="checksum"):
        pq.ParquetFile(path, page_checksum_verification=True).read()


def test_a_full_disk_leaves_the_old_table(tmp_path, monkeypatch):
    path = tmp_path / "t.parquet"
    write_table(path, TABLE, {"seed": 1})

    def fill(_writer, _table):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(pq.ParquetWriter, "write_table", fill)
    with pytest.raises(StoreError, match="No space left"):
        write_table(path, TABLE, {"seed": 2})
    assert read_table(path)[1]["seed"] == 1
    assert names_in(tmp_path) == ["t.parquet"]


def test_a_record_that_is_no_json_leaves_nothing(tmp_path):
    with pytest.raises(TypeError):
        write_json(tmp_path / "run.json", {"array": np.zeros(2)})
    assert names_in(tmp_path) == []


def test_a_newer_format_is_refused(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"format": FORMAT + 1}))
    with pytest.raises(StoreError, match=f"has format {FORMAT + 1}.*update"):
        read_json(tmp_path / "run.json")
    arrow = pa.table({"a": [1]}).replace_schema_metadata(
        {"memloc": json.dumps({"format": FORMAT + 1})}
    )
    pq.write_table(arrow, tmp_path / "t.parquet")
    with pytest.raises(StoreError, match=f"has format {FORMAT + 1}.*update"):
        read_table(tmp_path / "t.parquet")


@pytest.mark.parametrize("text", ["[1, 2]", '{"model": "x"}', "3", '{"format": "A4"}', "null"])
def test_json_that_is_not_ours_is_refused(tmp_path, text):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(StoreError, match="was not written by memloc"):
        read_json(tmp_path / "run.json")


@pytest.mark.parametrize("content", [b"", b'{"format": 1, "mod', b"\xff\xfe\x00"])
def test_damaged_json_is_refused(tmp_path, content):
    (tmp_path / "run.json").write_bytes(content)
    with pytest.raises(StoreError, match="is not JSON"):
        read_json(tmp_path / "run.json")


def test_a_table_that_is_not_ours_is_refused(tmp_path):
    TABLE.to_parquet(tmp_path / "t.parquet")
    with pytest.raises(StoreError, match="was not written by memloc"):
        read_table(tmp_path / "t.parquet")


def test_a_missing_file_is_named(tmp_path):
    for read, name in ((read_json, "run.json"), (read_table, "t.parquet")):
        with pytest.raises(StoreError, match=f"{name} does not exist"):
            read(tmp_path / name)


def test_a_damaged_table_is_refused_wherever_the_damage_is(tmp_path):
    write_table(tmp_path / "t.parquet", TABLE, {"seed": 1})
    whole = (tmp_path / "t.parquet").read_bytes()
    damaged = [whole[:n] for n in range(0, len(whole), 97)]
    damaged += [whole[:n] + bytes(40) + whole[n + 40 :] for n in range(0, len(whole) - 40, 97)]
    for content in damaged:
        (tmp_path / "d.parquet").write_bytes(content)
        assert is_refused_or_the_same(tmp_path / "d.parquet")


def test_a_flipped_bit_of_a_table_is_noticed_wherever_it_is(tmp_path):
    path = tmp_path / "t.parquet"
    write_table(path, TABLE, {"seed": 1})
    whole = path.read_bytes()
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 16]) + whole[place + 1 :])
        assert is_refused_or_the_same(path)


def test_a_table_that_another_program_changed_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    write_table(path, TABLE, {"seed": 1})
    pq.write_table(pq.read_table(path).slice(1), path)  # which drops what memloc noted
    with pytest.raises(StoreError, match="was not written by memloc"):
        read_table(path)


def test_a_table_whose_values_another_program_changed_is_refused(tmp_path):
    path = tmp_path / "t.parquet"
    write_table(path, TABLE, {"seed": 1})
    notes = pq.ParquetFile(path).metadata.metadata
    other = pa.Table.from_pandas(TABLE.assign(accuracy=[0.5, 0.9]), preserve_index=False)
    note = {name: notes[name] for name in (NOTE, CHECKSUM, b"pandas")}
    pq.write_table(other.replace_schema_metadata(note), path, write_page_checksum=True)
    for read in (read_table, read_columns):
        with pytest.raises(StoreError, match="its checksum differs"):
            read(path)


def test_a_table_without_a_checksum_is_refused(tmp_path):
    arrow = pa.Table.from_pandas(TABLE, preserve_index=False)
    note = {**arrow.schema.metadata, NOTE: json.dumps({"format": FORMAT, "seed": 3}).encode()}
    pq.write_table(arrow.replace_schema_metadata(note), tmp_path / "t.parquet")
    for read in (read_table, read_columns):
        with pytest.raises(StoreError, match="its checksum differs"):
            read(tmp_path / "t.parquet")


def test_some_columns_and_rows_of_a_table_can_be_read(tmp_path):
    write_table(tmp_path / "t.parquet", TABLE, {"seed": 1})
    found = read_columns(tmp_path / "t.parquet", ["name"], [("epoch", "==", 2)])
    assert found.to_pylist() == [{"name": "noisy"}]
    assert json.loads(found.schema.metadata[NOTE])["seed"] == 1


@pytest.mark.parametrize("text", ['"seed": 1', '"rate": 0.1', '"format"'])
def test_an_edited_record_is_refused(tmp_path, text):
    path = tmp_path / "run.json"
    write_json(path, {"seed": 1, "rate": 0.1})
    whole = path.read_text()
    assert text in whole
    path.write_text(whole.replace(text, text.replace("1", "2").replace("format", "former")))
    with pytest.raises(StoreError, match=r"checksum differs|not written by memloc"):
        read_json(path)


def test_a_record_that_was_only_indented_otherwise_is_the_same(tmp_path):
    write_json(tmp_path / "run.json", {"seed": 1, 3: "θ", "t": (1, 2.5)})
    record = json.loads((tmp_path / "run.json").read_text())
    (tmp_path / "run.json").write_text(json.dumps(record))
    assert read_json(tmp_path / "run.json")["t"] == [1, 2.5]


@pytest.mark.parametrize("note", [b"{", b"", b"\xff", b"[]", b'{"format": true}'])
def test_a_table_with_a_damaged_note_is_refused(tmp_path, note):
    arrow = pa.Table.from_pandas(TABLE, preserve_index=False)
    pq.write_table(arrow.replace_schema_metadata({b"memloc": note}), tmp_path / "t.parquet")
    with pytest.raises(StoreError):
        read_table(tmp_path / "t.parquet")


def test_a_column_of_another_type_than_it_says_is_refused(tmp_path):
    arrow = pa.Table.from_pandas(pd.DataFrame({"layer": pd.array([1], "Int32")}))
    note = {**arrow.schema.metadata, b"memloc": json.dumps({"format": FORMAT}).encode()}
    texts = arrow.set_column(0, "layer", pa.array(["x"])).replace_schema_metadata(note)
    pq.write_table(texts, tmp_path / "t.parquet")
    with pytest.raises(StoreError, match="its checksum differs"):
        read_table(tmp_path / "t.parquet")


@pytest.mark.parametrize("error", [KeyError("weight"), TypeError("no"), NotImplementedError("x")])
def test_what_a_file_lacks_is_said_with_its_name(tmp_path, error):
    said = rf"t.parquet does not hold what it should \({type(error).__name__}: .*delete it"
    with pytest.raises(StoreError, match=said), as_stored(tmp_path / "t.parquet"):
        raise error


def is_refused_or_the_same(path):
    """The same: some bits of a footer decide nothing, such as the name of the writer."""
    try:
        table, about = read_table(path)
    except StoreError as error:
        return "\n" not in str(error)
    pd.testing.assert_frame_equal(table, TABLE)
    return about["seed"] == 1


def test_examples_are_taken_in_the_order_asked_for():
    examples = Examples((("a",), ("b",), ("c",)), np.array([0, 1, 2]))
    taken = examples.take(np.array([2, 0]))
    assert taken.parts == (("c",), ("a",))
    assert taken.labels.tolist() == [2, 0]
    assert len(taken) == 2


@pytest.mark.parametrize("given", [None, 3, "", ["runs"]])
def test_what_is_no_path_is_refused_in_a_sentence(given):
    with pytest.raises(SettingsError, match="Give a folder as a string or path, not"):
        as_path(given, "a folder")
