"""The layout of a format's messages as a value, and the arrays that compiled loops use for it.

An `EnvelopeSpec` says which keys hold the action, the table and the images of the row. The built-in formats differ in
nothing else, and a third party's JSON format needs to give nothing else.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import numpy.typing as npt

from raycdc.formats.loops import envelope_loops as loops
from raycdc.formats.loops.tape_loops import BEGIN, FOUND, OWNER, STOP, TOKEN, UNKNOWN, Repeats
from raycdc.model import LogicalType, TypeKind

_PAD = b"\0" * 8

#: Texts that come again are recognised up to this number; beyond, the oldest give way.
REPEATS_MAX = 256


class Action(IntEnum):
    """The effect of a message on its table."""

    INSERT = loops.INSERT
    UPDATE = loops.UPDATE
    DELETE = loops.DELETE
    TRUNCATE = loops.TRUNCATE
    DDL = loops.DDL
    IGNORE = loops.IGNORE


class TimeUnit(IntEnum):
    """The unit of the envelope's time of the change."""

    SECONDS = 0
    MILLIS = 1
    MICROS = 2
    TEXT = 3


@dataclass(frozen=True, slots=True)
class MetadataField:
    """A field of the envelope that may become a column: where it is (``source.ts_ms``) and what type it has."""

    path: str
    type: LogicalType


TEXT = LogicalType(TypeKind.STRING)
NUMBER = LogicalType(TypeKind.INT64)
FLAG = LogicalType(TypeKind.BOOLEAN)
NESTED = LogicalType(TypeKind.JSON)


@dataclass(frozen=True, slots=True)
class EnvelopeSpec:
    """One format's messages. Paths are keys joined by dots, alternatives by ``|``; empty: no such field.

    `patch`: ``before`` holds only what changed, to be laid over ``after``. `overlay`: the images of an update complete
    each other. `whole_row`: the message is the row. `documents`: rows are JSON inside strings. `extended`: values are
    MongoDB's extended JSON. `unavailable`: Debezium's stand-in may come in place of a value. `whole_images`: a field
    that rows before had is in every row, so that one without it tells a part of its row; the advice about such (empty:
    rows may lack fields).
    `wrapper` names a key that may hold the whole envelope. `repeats` are keys of the outermost object whose value is
    the same text message after message; `version` is the one of them that describes the columns.
    """

    actions: Mapping[str, Action] = field(default_factory=dict)
    type: str = ""
    after: str = ""
    before: str = ""
    database: str = ""
    schema: str = ""
    table: str = ""
    time: str = ""
    is_ddl: str = ""
    ddl: str = ""
    default_action: Action | None = None
    time_unit: TimeUnit = TimeUnit.MILLIS
    metadata: Mapping[str, MetadataField] = field(default_factory=dict)
    patch: bool = False
    overlay: bool = False
    whole_row: bool = False
    documents: bool = False
    extended: bool = False
    unavailable: bool = False
    whole_images: str = ""
    wrapper: str = ""
    repeats: tuple[str, ...] = ()
    version: str = ""


class EnvelopeLayout:
    """A specification in arrays: `names` for the scan, and which slot of `Messages.found` each path has."""

    def __init__(self, spec: EnvelopeSpec) -> None:
        self.spec = spec
        self.slots: dict[str, int] = {}
        own = {
            loops.TYPE: spec.type,
            loops.AFTER: spec.after,
            loops.BEFORE: spec.before,
            loops.DATABASE: spec.database,
            loops.SCHEMA: spec.schema,
            loops.TABLE: spec.table,
            loops.TIME: spec.time,
            loops.IS_DDL: spec.is_ddl,
            loops.DDL_TEXT: spec.ddl,
        }
        for slot, path in own.items():
            for one in filter(None, path.split("|")):
                self.slots[one] = slot
        following = loops.OWN_FIELDS
        for metadata in spec.metadata.values():
            if metadata.path not in self.slots:
                self.slots[metadata.path] = following
                following += 1
        self.slot_count = max([loops.OWN_FIELDS, *(slot + 1 for slot in self.slots.values())])
        self.names = self._names()

    def _names(self) -> loops.Names:
        keys: list[bytes] = []
        groups: list[int] = []
        slots: list[int] = []
        children: list[int] = []
        known: dict[tuple[int, str], int] = {}
        group_count = 1
        prefixes = ["", f"{self.spec.wrapper}."] if self.spec.wrapper else [""]
        for prefix in prefixes:
            for path, slot in self.slots.items():
                group = 0
                parts = (prefix + path).split(".")
                for i, part in enumerate(parts):
                    entry = known.get((group, part))
                    if entry is None:
                        entry = known[group, part] = len(keys)
                        keys.append(part.encode())
                        groups.append(group)
                        slots.append(-1)
                        children.append(-1)
                    if i == len(parts) - 1:
                        slots[entry] = slot
                    else:
                        if children[entry] < 0:
                            children[entry] = group_count
                            group_count += 1
                        group = children[entry]
        data, off = packed([*keys, *(name.encode() for name in self.spec.actions)])
        bounds = np.stack([off[:-1], off[1:]], axis=1)
        meanings = np.array([int(a) for a in self.spec.actions.values()], np.int64).reshape(-1, 1)
        described = np.array([groups, slots, children], np.int64).reshape(3, -1).T
        spec = self.spec
        version = spec.repeats.index(spec.version) if spec.version else -1
        default = -1 if spec.default_action is None else int(spec.default_action)
        return loops.Names(
            data=data,
            entry=np.ascontiguousarray(np.concatenate([bounds[: len(keys)], described], axis=1)),
            remembered=np.full(group_count * loops.REMEMBERED_KEYS, -1, np.int64),
            kind=np.ascontiguousarray(np.concatenate([bounds[len(keys) :], meanings], axis=1)),
            flags=np.array([default, int(spec.documents), int(spec.whole_row), version], np.int64),
        )


class RepeatedTexts:
    """The texts that the scan recognises, and their numbers."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._texts: list[tuple[int, bytes]] = []
        self._names = [name.encode() for name in names]
        self.view = self._view()

    def text(self, number: int) -> bytes:
        return self._texts[number][1]

    @property
    def is_full(self) -> bool:
        return len(self._texts) >= REPEATS_MAX

    def found(self, name: int) -> int:
        """The number of the text that the present message has under a name, or a negative one."""
        return int(self.view.name[name, FOUND])

    def unknown(self) -> list[tuple[int, int]]:
        """(name, token) of the texts of the present message that are not known."""
        rows = self.view.name.tolist()
        return [(name, row[TOKEN]) for name, row in enumerate(rows) if row[FOUND] == UNKNOWN]

    def add(self, name: int, text: bytes) -> None:
        """Add a known text; `view` is another one afterwards."""
        self._texts.append((name, text))
        self.view = self._view()

    def clear(self) -> None:
        """Forget all texts; their numbers will mean others."""
        self._texts.clear()
        self.view = self._view()

    def _view(self) -> Repeats:
        data, off = packed([*self._names, *(text for _, text in self._texts)])
        names = len(self._names)
        name = np.full((names, 5), -1, np.int64)
        name[:, BEGIN], name[:, STOP] = off[:names], off[1 : names + 1]
        text = np.zeros((len(self._texts), 3), np.int64)
        text[:, BEGIN], text[:, STOP] = off[names:-1], off[names + 1 :]
        text[:, OWNER] = [owner for owner, _ in self._texts]
        return Repeats(names=data, name=name, text=text)


class KnownTables:
    """The tables that the scan recognises: (database, schema, table) and the number of their version's text."""

    def __init__(self) -> None:
        self._entries: list[tuple[tuple[bytes, bytes, bytes], int, int]] = []
        self.view = self._view()

    def add(self, names: tuple[bytes, bytes, bytes], version: int, index: int) -> None:
        """Make a table known under the number `index`: `NOT_TAKEN`, `UNREADABLE` or less, or that of its shape."""
        self._entries.append((names, version, index))
        self.view = self._view()

    def clear(self) -> None:
        self._entries.clear()
        self.view = self._view()

    def _view(self) -> loops.EnvelopeTables:
        count = len(self._entries)
        data, off = packed([b"".join(names) for names, _, _ in self._entries])
        size = max(16, 1 << (4 * count).bit_length())
        # The last element is the table found last.
        bucket = np.full(size + 1, -1, np.int64)
        entry = np.zeros((count, 6), np.int64)
        for table, (names, version, index) in enumerate(self._entries):
            entry[table] = (off[table], *(len(name) for name in names), version, index)
            slot = (_hash(b"".join(names)) ^ (version + 2)) & (size - 1)
            while bucket[slot] >= 0:
                slot = (slot + 1) & (size - 1)
            bucket[slot] = table
        return loops.EnvelopeTables(data=data, entry=entry, bucket=bucket)


def _hash(data: bytes) -> int:
    """`envelope_loops.hash_bytes`, for the few texts that Python makes known."""
    value = 2166136261 & 0x7FFFFFFF
    for byte in data:
        value = ((value ^ byte) * 16777619) & 0x7FFFFFFF
    return value


def packed(texts: list[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Texts one after the other, padded for reads of eight bytes, and their boundaries."""
    data = np.frombuffer(b"".join(texts) + _PAD, np.uint8).copy()
    return data, np.cumsum([0, *(len(text) for text in texts)], dtype=np.int64)
