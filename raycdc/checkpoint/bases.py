"""Whole states beside the manifests, so that the way to the state of an epoch is short.

A manifest may hold only the change since the one before it (`raycdc.checkpoint.manifest_files`). To know the state of
such an epoch, a reader goes back to the last whole one and applies all changes since. A *base* is the state after a
manifest, written whole and beside it: readers begin there. Nothing waits for a base, so a process that dies while it
writes one only leaves them a longer way.

A base names its manifest's document by the checksum, and is believed only for that one. Its lines are written and read
one by one, because a process that must answer others in time may not be busy for as long as a large state takes at
once.

```
bases/%010d.jsonl    {"version", "epoch", "of": checksum of the manifest's document}
                     then a line for each part: [path, value], a path being names of objects inside each other
                     {"sha": SHA-256 of all lines before}
```
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from itertools import chain
from typing import Any

from raycdc.checkpoint import codec
from raycdc.checkpoint.sealed_state import Reference, SealedState
from raycdc.checkpoint.state_folder import StateFolder
from raycdc.model.json_value import Json

BASE_VERSION = 1

_FOLDER = "bases"
_FILE = re.compile(r"(\d{10})\.jsonl$")
#: How far down an object has a line for each of its parts: splits, their fields, and the tables in these.
_LEVELS = {"splits": 4, "enumerator": 3, "lost": 2}

_encode = json.JSONEncoder(ensure_ascii=False).encode


class Bases:
    """See the module's docstring. Errors of the storage, and damage of a base, are `StateError`."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder

    def __repr__(self) -> str:
        return f"Bases({self._folder.where!r})"

    def there(self) -> set[int]:
        """The epochs that have one."""
        return {int(found[1]) for name in self._folder.list(_FOLDER) if (found := _FILE.match(name))}

    def read(self, reference: Reference) -> SealedState | None:
        """The state behind an epoch; None where it has no base, or that of another document."""
        name = _name(reference.epoch)
        data = self._folder.read(name)
        if data is None:
            return None
        # Whoever goes on from it may be the only one to know of it, and others are about to be deleted for it.
        self._folder.sync(_FOLDER)
        return _decoded(data, reference, origin=self._folder.origin(name))

    def write(self, reference: Reference, state: SealedState) -> None:
        """Put the base of an epoch there, durably."""
        data = b"".join(_lines(reference, state))
        self._folder.create(_FOLDER)
        self._folder.write(_name(reference.epoch), data)

    def prune(self, before: int) -> None:
        """Delete those of epochs less than `before`."""
        for epoch in sorted(self.there()):
            if epoch < before:
                self._folder.delete(_name(epoch))


def _name(epoch: int) -> str:
    return f"{_FOLDER}/{epoch:010d}.jsonl"


def _lines(reference: Reference, state: SealedState) -> Iterator[bytes]:
    hashed = hashlib.sha256()
    head = {"version": BASE_VERSION, "epoch": reference.epoch, "of": reference.sha}
    for value in chain([head], map(list, _parts((), state.to_json()))):
        line = _line(value)
        hashed.update(line)
        yield line
    yield _line({"sha": hashed.hexdigest()})


def _parts(path: tuple[str, ...], value: Json) -> Iterator[tuple[tuple[str, ...], Json]]:
    """The value in parts, an object before what is in it."""
    whole = bool(path) and len(path) >= _LEVELS[path[0]]
    if whole or not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
        yield path, value
        return
    yield path, {}
    for key, inner in value.items():
        yield from _parts((*path, key), inner)


def _line(value: object) -> bytes:
    return (_encode(value) + "\n").encode()


def _decoded(data: bytes, reference: Reference, *, origin: str) -> SealedState | None:
    *lines, last = data.splitlines(keepends=True) or [b""]
    if not lines:
        raise codec.damaged(origin, "it ends before its checksum")
    hashed = hashlib.sha256()
    for line in lines:
        hashed.update(line)
    with codec.malformed_as_damage(origin):
        if json.loads(last) != {"sha": hashed.hexdigest()}:
            raise codec.damaged(origin, "its checksum does not match its content")
        head: Any = codec.upgrade(json.loads(lines[0]), origin=origin, current=BASE_VERSION, upgrades={})
        if head["epoch"] != reference.epoch or head["of"] != reference.sha:
            return None
        root: Any = {}
        for line in lines[1:]:
            path, value = json.loads(line)
            if not path:
                root = value
                continue
            inner = root
            for key in path[:-1]:
                inner = inner[key]
            inner[path[-1]] = value
        return SealedState.from_json(root)
