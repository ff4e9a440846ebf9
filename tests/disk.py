"""A stand-in for a disk that forgets: which trees of files a crash may leave of what a test writes in a folder.

Only what was synced is sure: a file's bytes by fsync of the file, a name (made, renamed, taken away) by fsync of its
folder. Everything later may be there or not, each piece for itself. Real calls are carried out, and noted on the way.

Pillai et al., "All File Systems Are Not Created Equal", 2014; Mohan et al., "CrashMonkey and ACE", 2018.
"""

import os
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from threading import RLock
from unittest.mock import patch


@dataclass(eq=False)
class File:
    """A file's bytes when it was last synced, and, once its last name is gone, what it then held."""

    synced: bytes = b""
    last: bytes = b""


@dataclass(eq=False)
class Folder:
    """A folder's entries, by name, when it was last synced, what has been done to it since, and its entries now."""

    synced: dict = field(default_factory=dict)
    since: list = field(default_factory=list)
    now: dict = field(default_factory=dict)

    def entries(self, done):
        """Return the entries if of what was done since the last sync only `done` has reached the disk."""
        entries = dict(self.synced)
        for change in self.since:
            if change in done:
                change.apply(entries)
        return entries


@dataclass(eq=False)
class Change:
    """`node` got the name `new` and lost the name `old`, either of which may be None."""

    node: object
    old: str | None
    new: str | None

    def apply(self, entries):
        if self.old is not None and entries.get(self.old) is self.node:
            del entries[self.old]
        if self.new is not None:
            entries[self.new] = self.node


class Disk:
    """Notes what is written below `root` while it is entered. `allowed`: whatever the test wants to remember of an
    instant; `crashes` yields (instant in words, `allowed` at that time, {path: bytes, or None for a folder}) for each
    tree that a crash may leave, equal ones once for each `allowed`."""

    def __init__(self, root):
        self.root, self.allowed = Path(root).resolve(), None
        self.tree = self._found(self.root, synced=True)
        self._lock, self._patches, self._noted = RLock(), ExitStack(), {}

    def _found(self, path, synced=False):
        """Return a node for what a test has put at `path`."""
        if not path.is_dir():
            return File(path.read_bytes() if synced else b"")
        found = {child.name: self._found(child, synced) for child in path.iterdir()}
        if synced:
            return Folder(found, [], dict(found))
        return Folder({}, [Change(node, None, name) for name, node in found.items()], found)

    def __enter__(self):
        for name in ("rename", "replace"):
            self._wrap(name, self._renamed)
        for name in ("unlink", "remove", "rmdir"):
            self._wrap(name, self._removed)
        self._wrap("fsync", self._synced)
        return self

    def __exit__(self, *failure):
        self._patches.close()
        self._look()
        self.note("at the end")

    def _wrap(self, name, note):
        real = getattr(os, name)

        def wrapped(*arguments, **keywords):
            with self._lock:
                paths = [self._path(argument) for argument in arguments]
                if not all(path is not None and path != self.root.parent for path in paths):
                    return real(*arguments, **keywords)
                self._look()
                self.note(f"before {name} {' '.join(path.name for path in paths)}")
                keep = note(*paths)  # may raise: what is not there cannot be renamed
                result = real(*arguments, **keywords)
                keep()
                self.note(f"after {name} {' '.join(path.name for path in paths)}")
                return result

        self._patches.enter_context(patch.object(os, name, wrapped))

    def _path(self, argument):
        """Return what a path or an open file means; None if that is not below the root."""
        if isinstance(argument, int):
            argument = os.readlink(f"/proc/self/fd/{argument}")
        path = Path(os.path.abspath(argument))
        return path if path.is_relative_to(self.root) else None

    def _node(self, path):
        node = self.tree
        for name in path.relative_to(self.root).parts:
            node = node.now.get(name) if isinstance(node, Folder) else None
        return node

    # -- what was done -----------------------------------------------------------------------------------------------

    def _look(self, path=None, folder=None):
        """Take note of files and folders that were made since the last look."""
        path, folder = path or self.root, folder or self.tree
        for child in sorted(path.iterdir()):
            node = folder.now.get(child.name)
            if node is None:
                node = folder.now[child.name] = self._found(child)
                folder.since.append(Change(node, None, child.name))
            elif isinstance(node, Folder):
                self._look(child, node)

    def _change(self, folder, change):
        folder.since.append(change)
        change.apply(folder.now)

    def _renamed(self, old, new):
        assert old.parent == new.parent, "moved between folders: not modelled"
        folder, node, gone = self._node(old.parent), self._node(old), self._node(new)
        if isinstance(gone, File):
            gone.last = new.read_bytes()
        return lambda: node is not None and self._change(folder, Change(node, old.name, new.name))

    def _removed(self, path):
        folder, node = self._node(path.parent), self._node(path)
        if isinstance(node, File):
            node.last = path.read_bytes()
        return lambda: self._change(folder, Change(node, path.name, None))

    def _synced(self, path):
        node = self._node(path)
        content = None if isinstance(node, Folder) else path.read_bytes()

        def keep():
            if isinstance(node, Folder):
                node.synced, node.since = dict(node.now), []
            elif node is not None:
                node.synced = content

        return keep

    # -- what may be there -------------------------------------------------------------------------------------------

    def note(self, instant):
        """Take note of all that a crash may leave at this instant."""
        self._look()
        contents, changes = {}, []
        self._contents(self.tree, self.root, contents)
        self._changes(self.tree, changes, set())
        done = [changes, [], *([change] for change in changes)]
        done += [[other for other in changes if other is not change] for change in changes]
        for names in {frozenset(some) for some in done}:
            for data in ("as written", "as synced", "empty", "zeros"):
                found = {}
                self._state(self.tree, Path(), names, data, contents, found)
                key = (repr(self.allowed), tuple(sorted(found.items(), key=lambda item: item[0])))
                self._noted.setdefault(key, (f"{instant}, {len(names)} of {len(changes)} names, data {data}", found))
                self._noted[key] += (self.allowed,) if len(self._noted[key]) == 2 else ()

    def _contents(self, folder, path, contents):
        for name, node in folder.now.items():
            if isinstance(node, Folder):
                self._contents(node, path / name, contents)
            else:
                contents[node] = (path / name).read_bytes()

    def _changes(self, folder, changes, seen):
        if id(folder) not in seen:
            seen.add(id(folder))
            changes += folder.since
            nodes = [*folder.now.values(), *folder.synced.values(), *(change.node for change in folder.since)]
            for node in nodes:
                if isinstance(node, Folder):
                    self._changes(node, changes, seen)

    def _state(self, folder, path, names, data, contents, found):
        for name, node in folder.entries(names).items():
            if isinstance(node, Folder):
                found[str(path / name)] = None
                self._state(node, path / name, names, data, contents, found)
                continue
            now = contents.get(node, node.last)
            if now == node.synced or data == "as written":
                found[str(path / name)] = now
            else:
                found[str(path / name)] = {"as synced": node.synced, "empty": b"", "zeros": bytes(len(now))}[data]

    def crashes(self):
        for instant, found, allowed in self._noted.values():
            yield instant, allowed, found

    @staticmethod
    def write(found, root):
        """Make the tree that a crash left, in the empty folder `root`."""
        for name, content in found.items():
            path = root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            if content is None:
                path.mkdir(exist_ok=True)
            else:
                path.write_bytes(content)
