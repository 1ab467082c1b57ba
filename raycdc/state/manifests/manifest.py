"""The epoch manifest, which lists everything that one sealed epoch consists of. *The manifest is the checkpoint.*

The coordinator writes it, atomically and durably, when every reader has sealed; from then on the epoch can be committed
to the sink, replayed, or read again, even if any process dies. `from_splits` and `to_splits` are the split states
before and after the epoch, `enumerator` the enumerator's state after it, `segments` the files holding the rows.

**`_seq`.** A row's number is ``segment.seq_base + row._seq``: 30 bits of epoch, one bit *log* (so that snapshot rows of
an epoch precede its log rows), 32 bits of a counter. It orders all changes of a key, never compares with a position of
the source, and is the same however often the segment is read.
"""

from __future__ import annotations

import hashlib
import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePath
from typing import Any

from raycdc.core.typed_codec import LEFT_OUT, Json, JsonObject, stored
from raycdc.errors import SchemaError
from raycdc.model import TableId
from raycdc.model.evolution.events import SchemaChangeEvent, event_from_json, event_to_json
from raycdc.model.view import RowView
from raycdc.state.opaque import EnumeratorState, Opaque, SealedSplit

#: The version of the manifest format. A newer one is refused, an older one is upgraded when it is read
#: (`raycdc.state.codec`).
MANIFEST_VERSION = 3

#: The split of a source's log, for sources that begin with a snapshot. Other sources have splits with names of their
#: own.
STREAM_SPLIT_ID = "stream"

#: The node name of segments in the state's own spool, on whichever machine it is. Spools of other nodes have the node's
#: name.
STATE_NODE = "state"

SEQ_COUNTER_BITS = 32
EPOCH_MAX = (1 << 30) - 1


def seq_base(epoch: int, *, log: bool, offset: int = 0) -> int:
    """Return the first `_seq` of a run of rows in `epoch`.

    `offset` is the number of rows in earlier runs of the same kind (snapshot or log).
    """
    if not 0 <= epoch <= EPOCH_MAX or not 0 <= offset < 1 << SEQ_COUNTER_BITS:
        raise ValueError(f"epoch {epoch} or row offset {offset} is out of range for _seq")
    return (epoch << (SEQ_COUNTER_BITS + 1)) | (int(log) << SEQ_COUNTER_BITS) | offset


@dataclass(frozen=True, slots=True)
class Segment(JsonObject):
    """One uncompressed Arrow IPC file of changelog rows: one table, one schema version, one hash partition.

    `node` names the spool that has the file: `STATE_NODE` for the state's own spool, otherwise the name of a Ray node's
    spool. In a running job, `path` is absolute on that node, and `flight` is the node's Arrow Flight endpoint
    (``grpc://host:port`` or empty). A manifest has neither (`stored`), because folders move and servers restart. A
    reader finds the spool by its name (`placed`). `kind` is ``"snapshot"`` (inserts of one chunk), ``"backfill"`` (rows
    of one chunk that the target may have, and deletes) or ``"log"``. `crc32` covers the whole file. `rows` and `bytes`
    are exact. `lost` is the number of values that differ from the source's (`raycdc.model.batch`); a manifest keeps
    only their sums. `view` converts the rows for a merged target; a manifest has no views, because it concerns source
    tables only.
    """

    node: str
    path: str
    flight: str = field(metadata=stored(older=""))
    table: TableId
    schema: str
    split_id: str
    partition: int
    kind: str
    seq_base: int
    rows: int
    bytes: int
    crc32: int
    lost: int = field(default=0, metadata=stored(older=0))
    view: RowView | None = field(default=None, metadata=LEFT_OUT)

    refuses_unknown_keys = True

    @property
    def name(self) -> str:
        """Return the file's name, which no other segment has."""
        return posixpath.basename(self.path)

    def stored(self) -> Mapping[str, Json]:
        """Return the part of `to_json` that stays valid when folders move and servers restart."""
        document = self.to_json()
        document["path"] = self.name
        del document["flight"], document["lost"]
        document.pop("view", None)
        return document

    def located(self, folder: PurePath | None, *, flight: str = "") -> Segment:
        """Return the segment with its present location: in `folder` (None: only the segment's node knows the folder),
        served by `flight`.
        """
        return replace(self, path=str(folder / self.name) if folder else self.name, flight=flight)


@dataclass(frozen=True, slots=True)
class UnknownChange:
    """A schema change that this version cannot read.

    It is the `index`-th change of its table in the epoch; `written` is its JSON.
    """

    index: int
    written: Opaque


@dataclass(frozen=True, slots=True)
class TableEpoch:
    """The share of one source table in one epoch.

    `schema` is the fingerprint of the schema version of all its rows. `changes` are the elementary schema changes that
    lead to this version from the one before. They are applied before any row; the first epoch of a table has its
    CreateTableEvent. `snapshot` is True while the table has chunks left to read *after* this epoch. `unknown` are
    changes that this version of raycdc cannot read; if there are any, no target can take the epoch.
    """

    schema: str
    snapshot: bool
    changes: tuple[SchemaChangeEvent, ...] = ()
    unknown: tuple[UnknownChange, ...] = ()

    def to_json(self) -> Mapping[str, Json]:
        changes: list[Any] = [*map(event_to_json, self.changes)]
        for change in self.unknown:
            # In ascending order, so that each change is inserted after all earlier ones.
            changes.insert(change.index, change.written.to_json())
        return {"schema": self.schema, "snapshot": self.snapshot, "changes": changes}

    @classmethod
    def from_json(cls, data: Any) -> TableEpoch:
        changes: list[SchemaChangeEvent] = []
        unknown: list[UnknownChange] = []
        for index, change in enumerate(data["changes"]):
            try:
                changes.append(event_from_json(change))
            except SchemaError:
                unknown.append(UnknownChange(index, Opaque.from_json(change)))
        return cls(data["schema"], data["snapshot"], tuple(changes), tuple(unknown))


def _stored_segments(segments: Sequence[Segment]) -> Sequence[Mapping[str, Json]]:
    return [segment.stored() for segment in segments]


@dataclass(frozen=True, slots=True)
class Manifest(JsonObject):
    """One sealed epoch; see the module's docstring. `final` marks the last epoch of a bounded run.

    `tables` names every table that must hold the epoch before it counts as committed: those with segments or schema
    changes in it. `lost` is the number of lost values of each table in this and all earlier epochs. `watermark_ms` is
    the minimum event time over active splits, or None when nothing was read yet.
    """

    epoch: int
    generation: int
    created_ms: int
    from_splits: Mapping[str, SealedSplit]
    to_splits: Mapping[str, SealedSplit]
    enumerator: EnumeratorState
    segments: tuple[Segment, ...] = field(default=(), metadata=stored(write=_stored_segments))
    tables: dict[TableId, TableEpoch] = field(default_factory=dict)
    watermark_ms: int | None = None
    final: bool = False
    lost: dict[TableId, int] = field(default_factory=dict, metadata=LEFT_OUT)

    written_first = ("version",)
    version = MANIFEST_VERSION

    @property
    def rows(self) -> int:
        return sum(segment.rows for segment in self.segments)

    @property
    def digest(self) -> int:
        """Return a number of 32 bits, not 0, that two manifests share only if they have the same effect on targets.

        Targets store a digest made from it (`target_digest`) together with the epoch's number, because copies of a
        state use the same numbers. The random names of the segments make digests differ; for an epoch without segments,
        its time and the changes of its tables do.
        """
        content = hashlib.sha256(f"{self.epoch} {self.generation} {self.created_ms}".encode())
        for segment in sorted(self.segments, key=lambda segment: segment.name):
            content.update(f"\n{segment.name} {segment.crc32}".encode())
        for table, part in sorted(self.tables.items()):
            content.update(f"\n{table} {part.schema} {len(part.changes)}".encode())
        return _number(content.digest())


def target_digest(digest: int, target: TableId) -> int:
    """Return the digest that `target` stores with an epoch whose manifest has this `digest`; never 0.

    It differs between targets, so that a target that was exchanged with another one of the same epoch is detected.
    """
    return _number(hashlib.sha256(f"{digest} {target}".encode()).digest())


def _number(hashed: bytes) -> int:
    return int.from_bytes(hashed[:4]) or 1
