"""The events of the source, and its enumerator, which is the only part that lists the folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from raycdc.errors import ProtocolError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import CreateTableEvent
from raycdc.source.partitions.assigner import PartitionAssigner
from raycdc.source.protocol.api import (
    EnumeratorPart,
    EnumeratorStart,
    EnumeratorStatistics,
    SplitEnumeratorContext,
    TableCounts,
    TableProgress,
)
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.split import PartitionSplit, SourceSplit
from raycdc.source.tables.parking import Refusal
from raycdc.state.manifests.manifest import TableEpoch
from raycdc.state.opaque import EnumeratorState, SealedSplit

TABLE = TableId("files", "lines")
SCHEMA = TableSchema(
    (
        Column("file", LogicalType(TypeKind.STRING), nullable=False),
        Column("position", LogicalType(TypeKind.INT64), nullable=False),
        Column("line", LogicalType(TypeKind.STRING), nullable=True),
    ),
    ("file", "position"),
)
#: Seconds between two listings of the folder.
POLL_EVERY_S = 0.2


@dataclass(frozen=True, slots=True)
class FileGrown(SourceEvent):
    """Enumerator to readers: the complete lines of this file now have this many bytes."""

    split_id: str
    size: int


@dataclass(frozen=True, slots=True)
class FileRead(SourceEvent):
    """Reader to enumerator, just before it reports a seal: this many bytes of this file are in epochs."""

    split_id: str
    position: int


@dataclass(frozen=True, slots=True)
class FilesRead:
    """The `TablesProgress` of the only table: the number of files, and the number of files that were read."""

    done: int
    total: int

    def counts(self) -> TableCounts:
        return TableCounts(tables=1)

    def tables(self) -> Mapping[TableId, TableProgress]:
        return {TABLE: TableProgress("stream", self.done, self.total)}


class LineFilesEnumerator:
    """The `raycdc.source.protocol.api.SplitEnumerator` of the source. One thread makes all calls."""

    def __init__(self, context: SplitEnumeratorContext, path: str, start: EnumeratorStart) -> None:
        self._context = context
        self._path = path
        self._bounded = start.until is not None
        self._announced = start.last is not None and bool(start.last.enumerator.to_json().get("announced"))
        #: The position of each file in the last manifest, its size at the last listing, and the position that a reader
        #: reported.
        self._sealed = (
            {} if start.last is None else {name: bytes_read(state) for name, state in start.last.to_splits.items()}
        )
        self._sizes: dict[str, int] = {}
        self._read: dict[str, int] = {}
        #: The sizes at which a bounded run ends; None before the first listing.
        self._ends: dict[str, int] | None = None
        self._final = False
        self._assigner = PartitionAssigner(context, self._split)

    def start(self) -> None:
        self._context.call_async(lambda: sizes_of(self._path), self._on_look)

    def add_reader(self, subtask_id: int) -> None:
        for name, size in self._sizes.items():
            self._context.send_event(subtask_id, FileGrown(name, size))
        self._assigner.give()
        self._assigner.balance()

    def add_splits_back(self, splits: Sequence[SourceSplit], subtask_id: int) -> None:
        for split in splits:
            if not isinstance(split, PartitionSplit):
                raise ProtocolError(f"{split.split_id} is none of this enumerator's splits")
            self._sealed[split.split_id] = bytes_read(split.state)
        self._assigner.back(split.split_id for split in splits)

    def handle_source_event(self, subtask_id: int, event: SourceEvent) -> None:
        match event:
            case FileRead(name, position):
                self._read[name] = position
            case _:
                raise ProtocolError(f"The enumerator does not know the event {type(event).__name__}")

    def epoch_sealed(self, epoch: int, splits: Mapping[str, SealedSplit]) -> EnumeratorPart:
        """Note a sealed epoch.

        The first manifest creates the table. The last one of a bounded run has everything that existed at its start.
        """
        self._sealed.update({name: bytes_read(state) for name, state in splits.items()})
        self._assigner.balance()
        self._final = self._all_read()
        fingerprint = SCHEMA.fingerprint()
        documents = {fingerprint: SchemaDocument.of(SCHEMA)}
        if self._announced:
            return EnumeratorPart(final=self._final)
        self._announced = True
        created = TableEpoch(fingerprint, snapshot=False, changes=(CreateTableEvent(TABLE, SCHEMA),))
        return EnumeratorPart({TABLE: created}, documents, final=self._final)

    @property
    def wants_seal(self) -> bool:
        """Return True if an epoch must be sealed: a bounded run without new lines also ends with an epoch."""
        return self._all_read() and not self._final

    def snapshot_state(self, checkpoint_id: int) -> EnumeratorState:
        return EnumeratorState.from_json({"kind": "line-files", "announced": self._announced})

    def statistics(self) -> EnumeratorStatistics:
        done = sum(self._read.get(name, self._sealed.get(name, 0)) >= size for name, size in self._sizes.items())
        return EnumeratorStatistics(FilesRead(done, len(self._sizes)))

    def handle_split_request(self, subtask_id: int) -> None:
        """Do nothing: files are assigned without requests."""

    def handle_splits_finished(self, split_ids: Sequence[str]) -> None:
        """Do nothing: no file ever ends."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Do nothing: nothing waits for a commit."""

    def park_tables(self, refusals: Sequence[Refusal]) -> None:
        """Do nothing: there is only one table, and the driver drops its rows."""

    def _on_look(self, sizes: Mapping[str, int]) -> None:
        grown = {name: size for name, size in sizes.items() if size != self._sizes.get(name)}
        self._sizes.update(grown)
        if self._ends is None and self._bounded:
            self._ends = dict(sizes)
        for reader in self._context.registered_readers():
            for name, size in grown.items():
                self._context.send_event(reader, FileGrown(name, size))
        self._assigner.add(sizes)
        self._context.call_async(lambda: sizes_of(self._path), self._on_look, after_s=POLL_EVERY_S)

    def _all_read(self) -> bool:
        return self._ends is not None and all(self._sealed.get(name, 0) >= end for name, end in self._ends.items())

    def _split(self, name: str) -> PartitionSplit:
        return PartitionSplit(name, sealed(self._sealed.get(name, 0)))


def sealed(bytes_read: int) -> SealedSplit:
    """Return the state of a file of which this many bytes were read."""
    return SealedSplit.from_json({"position": bytes_read})


def bytes_read(state: SealedSplit) -> int:
    """Return the number of bytes in a state that `sealed` made."""
    return int(state.to_json()["position"])


def sizes_of(path: str) -> dict[str, int]:
    """Return the bytes of complete lines of each file."""
    return {file.name: file.read_bytes().rfind(b"\n") + 1 for file in sorted(Path(path).glob("*.log"))}
