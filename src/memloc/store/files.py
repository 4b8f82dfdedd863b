"""Writes files and folders whole or not at all, also when the power is cut.

A file or folder is written as a draft next to its place, synced to disk and renamed, and then the
folder around it is synced. Until then, readers see the previous version.
"""

import ctypes
import errno
import os
import re
import secrets
import shutil
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from memloc.errors import StoreError

_DRAFT = re.compile(r"\.memloc-[0-9a-f]{16}\.part")
_UNSUPPORTED = {errno.ENOSYS, errno.EINVAL, errno.ENOTSUP, errno.EPERM}
"""Errors of systems that cannot exchange two names or sync a folder."""


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a draft file; it becomes `path` if the block succeeds and is removed otherwise."""
    with _draft_of(path) as draft:
        os.close(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        yield draft
        sync(draft)
        os.replace(draft, path)
        sync(path.parent)


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Yield a draft folder; an existing folder stays whole until the draft replaces it."""
    with _draft_of(path) as draft:
        draft.mkdir()
        yield draft
        _sync_all(draft)
        if path.is_symlink() or path.exists():
            exchange(draft, path)
        else:
            draft.rename(path)
        sync(path.parent)


@contextmanager
def _draft_of(path: Path) -> Iterator[Path]:
    """Yield the name of a draft of `path` and remove it at the end; explain errors."""
    if not path.name:
        raise StoreError(f"Cannot write {path}: it is a folder that is there. Give a name.")
    draft = new_draft(path)
    try:
        make_folder(path.parent)
        yield draft
    except OSError as error:
        raise cannot_write(path, error) from error
    finally:
        with suppress(OSError):
            _delete(draft)


def new_draft(path: Path) -> Path:
    """Return a random name next to `path` that is recognised as a draft of memloc."""
    return path.with_name(f".memloc-{secrets.token_hex(8)}.part")


def is_draft(path: Path) -> bool:
    """Return whether a path is one of memloc's drafts, or inside one."""
    return any(_DRAFT.fullmatch(part) for part in path.parts)


def drafts_in(folder: Path) -> list[Path]:
    """Return the drafts below a folder, without those inside another draft."""
    drafts: list[Path] = []
    for place, folders, files in os.walk(folder):
        drafts += [Path(place, name) for name in (*folders, *files) if _DRAFT.fullmatch(name)]
        folders[:] = [name for name in folders if not _DRAFT.fullmatch(name)]
    return drafts


def make_folder(path: Path) -> None:
    """Create a folder and its parents in a way that survives a power cut."""
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    path.mkdir(parents=True, exist_ok=True)
    for folder in missing:
        sync(folder.parent)


def remove(path: Path) -> None:
    """Remove a file, a link or a folder if it exists: first its name at once, then file by file."""
    draft = path if _DRAFT.fullmatch(path.name) else new_draft(path)
    try:
        if draft != path:
            os.replace(path, draft)
            sync(path.parent)
        _delete(draft)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise cannot_write(path, error) from error


def check_place(path: Path) -> None:
    """Refuse, before work begins, a path at which nothing can be written; nothing is left there."""
    parent_folder = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    draft = new_draft(parent_folder / "draft")
    try:
        draft.mkdir()
        draft.rmdir()
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> StoreError:
    """Return the error for a full disk, a read-only folder or a missing permission."""
    reason = error.strerror or str(error)
    return StoreError(f"Cannot write {path}: {reason}. Free space or choose another folder.")


def sync(path: Path) -> None:
    """Wait until a file's contents, or a folder's list of names, are on the disk."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)
    except OSError as error:
        # Some file systems cannot sync folders; contents of files have to be synced.
        if error.errno not in _UNSUPPORTED or not stat.S_ISDIR(os.fstat(file).st_mode):
            raise
    finally:
        os.close(file)


def exchange(one: Path, other: Path) -> None:
    """Swap the contents of two existing paths.

    If the system or the file system cannot do that at once (on network drives, for example),
    `other` is absent for a moment, and absent for good if the process ends just then.
    """
    if not _exchanged_at_once(one, other):
        aside = new_draft(other)
        os.replace(other, aside)
        os.replace(one, other)
        os.replace(aside, one)


def _exchanged_at_once(one: Path, other: Path) -> bool:
    library = ctypes.CDLL(None, use_errno=True)
    names = os.fsencode(one), os.fsencode(other)
    if sys.platform == "darwin" and hasattr(library, "renamex_np"):
        failed = library.renamex_np(*names, 2)  # RENAME_SWAP
    elif hasattr(library, "renameat2"):
        here = -100  # AT_FDCWD
        failed = library.renameat2(here, names[0], here, names[1], 2)  # RENAME_EXCHANGE
    else:
        return False
    if not failed:
        return True
    number = ctypes.get_errno()
    if number in _UNSUPPORTED:
        return False
    raise OSError(number, os.strerror(number), str(other))


def _sync_all(folder: Path) -> None:
    for place, _, files in os.walk(folder):
        for name in files:
            sync(Path(place, name))
        sync(Path(place))


def _delete(path: Path) -> None:
    """Delete a draft; a link is removed, and its target stays."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
