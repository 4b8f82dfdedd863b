"""A file layer that is cut: what the disk may hold after power fails at each file event."""

import hashlib
import os
import shutil
from contextlib import contextmanager
from pathlib import Path

from memloc.store import files as store

EVENTS = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir")
WHAT = ("killed", "names without contents", "synced alone")


class Disk:
    """Notes what was synced of a folder, and what a cut at every event of its files leaves.

    Of each cut there are three states: all that was written (the process was killed), all names
    but only synced contents (as ext4 shows empty files), and only what was synced.
    """

    def __init__(self, root, place):
        self.root, self.place = Path(root), Path(place)
        self.contents, self.names, self.kept = {}, {}, []
        self.states, self.seen, self.events = [], set(), 0

    @contextmanager
    def recorded(self):
        """While active, every file event is a cut."""
        for place, _, files in os.walk(self.root):
            for path in (Path(place), *(Path(place, name) for name in files)):
                self._synced(os.open(path, os.O_RDONLY))
        before = {name: getattr(os, name) for name in EVENTS}
        swap = store._exchanged_at_once
        try:
            for name, function in before.items():
                setattr(os, name, self._cutting(function, name == "fsync"))
            store._exchanged_at_once = self._cutting(swap, False)
            yield self
        finally:
            for name, function in before.items():
                setattr(os, name, function)
            store._exchanged_at_once = swap
            for file in self.kept:
                os.close(file)

    def _cutting(self, function, is_sync):
        def cut(*args, **kwargs):
            self._cut()
            done = function(*args, **kwargs)
            if is_sync:
                self._synced(os.dup(args[0]))
            return done

        return cut

    def _synced(self, file):
        self.kept.append(file)  # while it is open, no other file has its number
        path, number = Path(f"/proc/self/fd/{file}").readlink(), os.fstat(file).st_ino
        if path.is_dir():
            self.names[number] = {e.name: (e.inode(), e.is_dir()) for e in os.scandir(path)}
        else:
            self.contents[number] = path.read_bytes()

    def _cut(self):
        self.events += 1
        for what in WHAT:
            tree = self.tree(what)
            key = hashlib.sha256(repr(sorted(tree.items())).encode()).digest()
            if key not in self.seen:
                self.seen.add(key)
                self.states.append((f"{what} at {self.events}", tree))

    @property
    def cuts(self):
        """How many cuts there were; those that leave the same are one state."""
        return len(WHAT) * self.events

    def tree(self, what):
        """What is there after a cut now, by path; folders have no contents."""
        if what == "synced alone":
            return dict(self._durable(self.root.stat().st_ino, Path()))
        return dict(self._written(what))

    def _written(self, what):
        for place, folders, files in os.walk(self.root):
            here = Path(place).relative_to(self.root)
            yield from ((str(here / name), None) for name in folders)
            for name in files:
                path = Path(place, name)
                whole = path.read_bytes() if what == "killed" else None
                synced = self.contents.get(path.stat().st_ino, b"")
                yield str(here / name), synced if whole is None else whole

    def _durable(self, number, here):
        for name, (inode, is_folder) in self.names.get(number, {}).items():
            yield str(here / name), None if is_folder else self.contents.get(inode, b"")
            if is_folder:
                yield from self._durable(inode, here / name)

    def written(self, tree):
        """A folder as a cut left it."""
        folder = self.place / "cut"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        for name, contents in sorted(tree.items()):
            path = folder / name
            if contents is None:
                path.mkdir(parents=True, exist_ok=True)
            else:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(contents)
        return folder
