"""Files and folders are whole or absent, drafts are memloc's own, and nothing of a user's goes."""

import errno
import os
from pathlib import Path

import pytest

from memloc.errors import StoreError
from memloc.store import files as store
from memloc.store.files import (
    drafts_in,
    exchange,
    is_draft,
    make_folder,
    new_draft,
    remove,
    sync,
    whole_file,
    whole_folder,
)


def names_in(folder):
    return sorted(path.name for path in folder.iterdir())


def fail_after(work):
    work()
    raise ZeroDivisionError


def test_a_file_is_whole_or_as_before(tmp_path):
    path = tmp_path / "file"
    path.write_text("before")
    with pytest.raises(ZeroDivisionError), whole_file(path) as draft:
        fail_after(lambda: draft.write_text("half"))
    assert path.read_text() == "before"
    assert names_in(tmp_path) == ["file"]


def test_a_folder_is_whole_or_as_before(tmp_path):
    path = tmp_path / "folder"
    path.mkdir()
    (path / "old").write_text("before")
    with pytest.raises(ZeroDivisionError), whole_folder(path) as draft:
        fail_after(lambda: (draft / "new").write_text("half"))
    assert names_in(path) == ["old"]
    assert names_in(tmp_path) == ["folder"]


def test_a_new_folder_takes_the_place_of_the_old_one(tmp_path):
    path = tmp_path / "deep" / "folder"
    for name in ("one", "two"):
        with whole_folder(path) as draft:
            (draft / name).write_text(name)
    assert names_in(path) == ["two"]
    assert names_in(path.parent) == ["folder"]


@pytest.mark.parametrize("whole", [whole_file, whole_folder])
def test_a_full_disk_is_said_in_one_sentence(tmp_path, whole):
    with pytest.raises(StoreError) as error, whole(tmp_path / "result"):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert str(error.value) == (
        f"Cannot write {tmp_path / 'result'}: No space left on device. "
        "Free space or choose another folder."
    )
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("whole", [whole_file, whole_folder])
def test_a_folder_that_cannot_be_written_is_said_in_one_sentence(tmp_path, monkeypatch, whole):
    def refuse(*_args, **_kwargs):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    with pytest.raises(StoreError, match="Permission denied"), whole(tmp_path / "x" / "result"):
        pytest.fail("nothing can be written there")


@pytest.mark.parametrize("whole", [whole_file, whole_folder])
def test_a_file_where_a_folder_is_needed_is_said_in_one_sentence(tmp_path, whole):
    (tmp_path / "runs").write_text("a file")
    with pytest.raises(StoreError, match="Cannot write"), whole(tmp_path / "runs" / "result"):
        pytest.fail("nothing can be written there")
    assert (tmp_path / "runs").read_text() == "a file"


@pytest.mark.parametrize("whole", [whole_file, whole_folder])
def test_the_folder_one_stands_in_is_not_replaced(tmp_path, monkeypatch, whole):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(StoreError, match=r"^Cannot write \.: "), whole(Path()):
        pytest.fail("nothing can be written there")
    assert names_in(tmp_path) == ["mine"]


@pytest.fixture
def events(monkeypatch):
    """The syncs and renames that happened, in order, by the names of what was synced."""
    seen = []

    def note(kind, function, name):
        def noted(*args):
            seen.append((kind, name(args)))
            return function(*args)

        return noted

    def opened(args):
        return Path(f"/proc/self/fd/{args[0]}").readlink().name

    monkeypatch.setattr(os, "fsync", note("sync", os.fsync, opened))
    monkeypatch.setattr(os, "replace", note("rename", os.replace, lambda args: args[1].name))
    monkeypatch.setattr(store, "exchange", note("exchange", exchange, lambda args: args[1].name))
    return seen


def test_a_file_is_on_the_disk_before_it_has_its_name_and_then_its_name_is(tmp_path, events):
    with whole_file(tmp_path / "deep" / "file") as draft:
        draft.write_text("new")
    above = ("sync", tmp_path.name)
    assert events == [above, ("sync", draft.name), ("rename", "file"), ("sync", "deep")]


def test_all_files_of_a_folder_are_on_the_disk_before_it_takes_its_place(tmp_path, events):
    (tmp_path / "folder").mkdir()
    with whole_folder(tmp_path / "folder") as draft:
        (draft / "inner").mkdir()
        for name in ("a", "inner/b"):
            (draft / name).write_text(name)
    synced = {("sync", name) for name in ("a", "b", "inner", draft.name)}
    assert set(events[:4]) == synced
    assert events[4:] == [("exchange", "folder"), ("sync", tmp_path.name)]


def test_the_old_folder_is_whole_until_the_new_one_is_in_its_place(tmp_path, monkeypatch):
    path, seen = tmp_path / "folder", []
    path.mkdir()
    (path / "old").write_text("old")
    delete = store._delete
    monkeypatch.setattr(store, "_delete", lambda p: (seen.append(names_in(path)), delete(p)))
    with whole_folder(path) as draft:
        (draft / "new").write_text("new")
        assert names_in(path) == ["old"]
    assert seen == [["new"]]
    assert names_in(tmp_path) == ["folder"]


@pytest.mark.parametrize("at_once", [True, False])
def test_two_paths_swap_their_contents(tmp_path, monkeypatch, at_once):
    if not at_once:
        monkeypatch.setattr(store, "_exchanged_at_once", lambda *_: False)
    for name in ("one", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / f"of-{name}").touch()
    exchange(tmp_path / "one", tmp_path / "other")
    assert names_in(tmp_path / "one") == ["of-other"]
    assert names_in(tmp_path / "other") == ["of-one"]
    assert names_in(tmp_path) == ["one", "other"]


def test_a_swap_with_what_is_not_there_says_so(tmp_path):
    (tmp_path / "one").mkdir()
    with pytest.raises(FileNotFoundError):
        exchange(tmp_path / "one", tmp_path / "other")


def test_names_of_drafts_cannot_be_guessed_and_say_whose_they_are(tmp_path):
    one, other = new_draft(tmp_path / "file"), new_draft(tmp_path / "file")
    assert one != other
    assert one.parent == tmp_path
    assert is_draft(one)
    assert is_draft(one / "inside")
    for name in ("file.part", "x.4711.part", ".memloc-x.part", "memloc.part"):
        assert not is_draft(tmp_path / name)


def test_a_link_in_the_place_of_a_draft_is_not_followed(tmp_path, monkeypatch):
    link, target = tmp_path / f".memloc-{'0' * 16}.part", tmp_path / "precious"
    target.write_text("precious")
    link.symlink_to(target)
    monkeypatch.setattr(store, "new_draft", lambda _path: link)
    with pytest.raises(StoreError, match="File exists"), whole_file(tmp_path / "file"):
        pytest.fail("the draft is somebody else's")
    assert target.read_text() == "precious"


def test_drafts_are_found_and_files_of_users_are_not(tmp_path):
    mine, inner = new_draft(tmp_path / "x"), new_draft(tmp_path / "deep" / "x")
    inner.mkdir(parents=True)
    new_draft(inner / "nested").touch()
    mine.symlink_to(tmp_path / "deep")
    for name in ("x.part", "deep/final.13.part"):
        (tmp_path / name).touch()
    assert set(drafts_in(tmp_path)) == {mine, inner}


def test_removing_a_link_leaves_what_it_points_to(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").touch()
    (tmp_path / "link").symlink_to(tmp_path / "folder")
    remove(tmp_path / "link")
    assert names_in(tmp_path) == ["folder"]
    assert names_in(tmp_path / "folder") == ["file"]


def test_removing_is_on_the_disk_at_once_by_the_name(tmp_path, events):
    (tmp_path / "folder").mkdir()
    remove(tmp_path / "folder")
    assert [kind for kind, _ in events] == ["rename", "sync"]
    assert names_in(tmp_path) == []
    remove(tmp_path / "folder")  # which is gone


def test_new_folders_are_on_the_disk(tmp_path, events):
    make_folder(tmp_path / "a" / "b")
    assert {name for _, name in events} == {tmp_path.name, "a"}


def test_a_file_that_cannot_be_synced_is_an_error_and_a_folder_may_be(tmp_path, monkeypatch):
    def refuse(_file):
        raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))

    (tmp_path / "file").touch()
    monkeypatch.setattr(os, "fsync", refuse)
    sync(tmp_path)
    with pytest.raises(OSError, match="Invalid argument"):
        sync(tmp_path / "file")
