"""The layout of a format's messages (its *envelope*), as a value and as arrays for compiled loops."""

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

#: The maximum number of repeated texts that are recognised. If there are more, all are forgotten.
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
    """A field of the envelope that may become a column: its path (``source.ts_ms``) and its type."""

    path: str
    type: LogicalType


TEXT = LogicalType(TypeKind.STRING)
NUMBER = LogicalType(TypeKind.INT64)
FLAG = LogicalType(TypeKind.BOOLEAN)
NESTED = LogicalType(TypeKind.JSON)


@dataclass(frozen=True, slots=True)
class EnvelopeSpec:
    """The layout of one format's messages.

    A path consists of keys joined by dots; alternative paths are separated by ``|``. An empty path means that the
    format has no such field. Most JSON formats differ only in the keys of the action, the table and the row's images.
    These flags describe the rows. `patch`: ``before`` has only the changed fields, and ``after`` supplies the rest.
    `overlay`: a field that one image of an update lacks is in the other image. `whole_row`: the message is the row.
    `documents`: rows are JSON inside strings. `extended`: values are MongoDB's extended JSON. `unavailable`: Debezium's
    placeholder may replace a value.

    `whole_images` is the advice about a row that lacks a field of earlier rows, in a format whose rows always have all
    fields; such a row is partial. The text is empty if rows may lack fields.

    `wrapper` names a key that may hold the whole envelope. `repeats` are keys of the outermost object whose value is
    the same text in many messages. Of these, `version` is the key whose text describes the columns, and `key_list` the
    key whose text lists the key columns. If `keyed` is True, the names of the fields in a message's key determine the
    key columns.
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
    key_list: str = ""
    keyed: bool = False


class EnvelopeLayout:
    """An `EnvelopeSpec` in arrays: `names` for the scan, and the slot of each path in `ScannedMessages.found`."""

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
        key_list = spec.repeats.index(spec.key_list) if spec.key_list else -1
        default = -1 if spec.default_action is None else int(spec.default_action)
        return loops.Names(
            data=data,
            entry=np.ascontiguousarray(np.concatenate([bounds[: len(keys)], described], axis=1)),
            remembered=np.full(group_count * loops.REMEMBERED_KEYS, -1, np.int64),
            kind=np.ascontiguousarray(np.concatenate([bounds[len(keys) :], meanings], axis=1)),
            flags=_flags(default, int(spec.documents), int(spec.whole_row), version, key_list, 0, loops.ASK),
        )


def _flags(*first: int) -> npt.NDArray[np.int64]:
    """Return `Names.flags` that begin with the values of `first`; the others are 0."""
    flags = np.zeros(loops.FLAGS_COUNT, np.int64)
    flags[: len(first)] = first
    return flags


class RepeatedTexts:
    """The repeated texts that the scan recognises, by number."""

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
        """Return the number of the present message's text under a name; negative if it is unknown or absent."""
        return int(self.view.name[name, FOUND])

    def unknown(self) -> list[tuple[int, int]]:
        """Return (name, token) of each text of the present message that is not known."""
        rows = self.view.name.tolist()
        return [(name, row[TOKEN]) for name, row in enumerate(rows) if row[FOUND] == UNKNOWN]

    def add(self, name: int, text: bytes) -> None:
        """Add a known text. Replaces `view`."""
        self._texts.append((name, text))
        self.view = self._view()

    def clear(self) -> None:
        """Forget all texts. Their numbers are used for new texts."""
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
    """The tables that the scan recognises.

    A table is identified by database, schema and name, and by the number of the text that describes its columns.
    """

    def __init__(self) -> None:
        self._entries: list[tuple[tuple[bytes, bytes, bytes], int, int, bool]] = []
        self.view = self._view()

    def add(self, names: tuple[bytes, bytes, bytes], version: int, index: int, *, documents: bool = False) -> None:
        """Add a version of a table under `index`: `NOT_TAKEN`, `UNREADABLE` or less, or the index of its shape.

        `documents` is True if its rows are MongoDB's documents.
        """
        self._entries.append((names, version, index, documents))
        self.view = self._view()

    def clear(self) -> None:
        self._entries.clear()
        self.view = self._view()

    def _view(self) -> loops.EnvelopeTables:
        count = len(self._entries)
        data, off = packed([b"".join(names) for names, *_ in self._entries])
        size = max(16, 1 << (4 * count).bit_length())
        # The last element is the table that was found last.
        bucket = np.full(size + 1, -1, np.int64)
        entry = np.zeros((count, 7), np.int64)
        for table, (names, version, index, documents) in enumerate(self._entries):
            entry[table] = (off[table], *(len(name) for name in names), version, index, documents)
            slot = (_hash(b"".join(names)) ^ (version + 2)) & (size - 1)
            while bucket[slot] >= 0:
                slot = (slot + 1) & (size - 1)
            bucket[slot] = table
        return loops.EnvelopeTables(data=data, entry=entry, bucket=bucket)


def _hash(data: bytes) -> int:
    """Return the same as `envelope_loops.hash_bytes`, for the few texts that Python registers."""
    value = 2166136261 & 0x7FFFFFFF
    for byte in data:
        value = ((value ^ byte) * 16777619) & 0x7FFFFFFF
    return value


def packed(texts: list[bytes]) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return the texts one after the other, padded for reads of eight bytes, and their boundaries."""
    data = np.frombuffer(b"".join(texts) + _PAD, np.uint8).copy()
    return data, np.cumsum([0, *(len(text) for text in texts)], dtype=np.int64)
