"""The reader of the source: `LineSplitReader` blocks on files, `LinesEmitter` makes batches, and `LineFilesReader`
connects both.

The enumerator reports the sizes of files, so a fetcher only reads ranges of bytes that exist.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from line_files.enumerator import SCHEMA, TABLE, FileGrown, FileRead, bytes_read, sealed
from raycdc.model import RowKind, changelog_schema
from raycdc.source.partitions.partition_source_reader import PartitionSourceReader
from raycdc.source.protocol.api import ReaderOutput
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.source.reader.fetcher_manager import FetcherManager
from raycdc.source.reader.source_reader_base import ReaderCheckpoint, ReaderContext
from raycdc.source.reader.split_reader import (
    RecordsWithSplitIds,
    SplitRecords,
    SplitsAddition,
    SplitsChange,
    SplitsPause,
    SplitsRemoval,
    check_begin,
)
from raycdc.source.split import PartitionSplit
from raycdc.state.manifests.manifest import TableEpoch
from raycdc.state.opaque import SealedSplit

#: The number of bytes of a file that are read at once; a longer line is read completely.
BYTES_AT_ONCE = 4 << 20


@dataclass(frozen=True, slots=True)
class FileRange:
    """A range of bytes of a file to read next; it has complete lines."""

    split_id: str
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Lines:
    """Complete lines of a file from the byte `begin` on."""

    begin: int
    data: bytes


@dataclass(slots=True)
class FileState:
    """The position up to which a file was emitted, and the position up to which its fetcher was asked to read."""

    split_id: str
    position: int
    asked: int
    ended: bool = False

    def sealed(self) -> SealedSplit:
        return sealed(self.position)


class LineSplitReader:
    """Reads one range after the other, as a `raycdc.source.reader.split_reader.SplitReader`.

    It runs in the fetcher's thread.
    """

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._range: FileRange | None = None

    def handle_splits_changes(self, change: SplitsChange[FileRange]) -> None:
        match change:
            case SplitsAddition((added,)):
                self._range = added
            case SplitsAddition() | SplitsRemoval() | SplitsPause():
                self._range = None

    def fetch(self) -> RecordsWithSplitIds[Lines] | None:
        if self._range is None:
            return None
        name, begin, end = self._range.split_id, self._range.begin, self._range.end
        with (self._path / name).open("rb") as file:
            file.seek(begin)
            data = file.read(min(BYTES_AT_ONCE, end - begin))
            if begin + len(data) < end:
                data = data[: data.rfind(b"\n") + 1] or data + file.readline()
        self._range = FileRange(name, begin + len(data), end)
        finished = (name,) if self._range.begin >= end else ()
        records = (SplitRecords(name, Lines(begin, data)),)
        return RecordsWithSplitIds(records, finished, bytes=len(data), rows=data.count(b"\n"))

    def wake_up(self) -> None:
        """Do nothing: no read takes long."""

    def close(self) -> None:
        """Do nothing: nothing is open."""


class LinesEmitter:
    """Converts bytes to an Arrow batch and the position after it. It is a `RecordEmitter` (`split_reader`)."""

    def __init__(self) -> None:
        self._rows = 0

    def emit_record(self, batch: Lines, output: ReaderOutput, state: FileState) -> None:
        check_begin(state.split_id, begin=batch.begin, position=state.position)
        ends = np.flatnonzero(np.frombuffer(batch.data, np.uint8) == ord("\n")) + 1
        if not (count := ends.size):
            return
        offsets = np.concatenate([[0], ends]).astype(np.int64)
        texts = pa.Array.from_buffers(pa.large_string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(batch.data)])
        positions = offsets[:-1] + batch.begin
        columns = [
            pa.array([state.split_id]).take(pa.array(np.zeros(count, np.int64))),
            pa.array(positions),
            pc.utf8_rtrim(texts, "\n").cast(pa.string()),
            pa.array(np.full(count, RowKind.INSERT, np.int8)),
            pa.array(np.arange(self._rows, self._rows + count)),
            pa.array(np.full(count, time.time_ns() // 1_000_000, np.int64)),
            pc.binary_join_element_wise(state.split_id, pa.array(positions).cast(pa.string()), "@"),
        ]
        self._rows += count
        rows = pa.RecordBatch.from_arrays(columns, schema=changelog_schema(SCHEMA))
        output.collect(TABLE, fingerprint=SCHEMA.fingerprint(), batch=rows, split_id=state.split_id)
        state.position = batch.begin + len(batch.data)


class LineFilesReader(PartitionSourceReader[FileRange, Lines, FileState]):
    """Asks its fetcher for the new part of each file, and reports to the enumerator what was read."""

    def __init__(
        self, context: ReaderContext, fetchers: FetcherManager[FileRange, Lines], emitter: LinesEmitter
    ) -> None:
        super().__init__(context, fetchers, emitter)
        self._sizes: dict[str, int] = {}

    def initialized_state(self, split: PartitionSplit) -> FileState:
        position = bytes_read(split.state)
        return FileState(split.split_id, position, asked=position)

    def to_fetch(self, state: FileState) -> Sequence[FileRange]:
        """Return the part of the file that was added since its fetcher was last asked to read."""
        begin, state.asked = state.asked, max(state.asked, self._sizes.get(state.split_id, 0))
        return () if begin == state.asked else (FileRange(state.split_id, begin, state.asked),)

    def handle_source_event(self, event: SourceEvent) -> None:
        match event:
            case FileGrown(name, size):
                self._sizes[name] = size
                self.fetch_more(name)
            case _:
                super().handle_source_event(event)

    def report(self) -> ReaderCheckpoint:
        for name, state in self.splits.active():
            self.send_event(FileRead(name, state.position))
        tables = {str(TABLE): TableEpoch(SCHEMA.fingerprint(), snapshot=False)} if self.dirty else {}
        return ReaderCheckpoint(splits=self.splits.states(), tables=tables)
