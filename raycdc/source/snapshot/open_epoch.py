"""The epoch that a log reader has open: what is in it, and what its report says. Owned by the log reader."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from raycdc.checkpoint.manifest import Segment, TableEpoch
from raycdc.checkpoint.missing import MissingRow, MissingRows, MissingState
from raycdc.checkpoint.opaque import SealedSplit
from raycdc.checkpoint.patch import Patch
from raycdc.model import TableId
from raycdc.schema.events import SchemaChangeEvent
from raycdc.source.protocol.api import ReaderOutput
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.epoch_tables import EpochTables
from raycdc.source.snapshot.log_rows import LogRows
from raycdc.source.split import STREAM_SPLIT_ID, SnapshotSplit
from raycdc.source.table_life import Parked, TableLives, Unknown, is_announced

#: Missing rows of an epoch, which its manifest names one by one; about, as a unit may have some.
_MISSING_MAX = 10_000


@dataclass(frozen=True, slots=True)
class LogReport:
    """The log's part of `EpochSealed`, in its terms; `sealed` is its state, or what became another one of it."""

    tables: Mapping[str, TableEpoch] = field(default_factory=dict)
    schemas: Mapping[str, SchemaDocument] = field(default_factory=dict)
    finished: tuple[str, ...] = ()
    watermark_ms: int | None = None
    end_of_input: bool = False
    sealed: SealedSplit | Patch | None = field(default=None, compare=False)


class OpenEpoch:
    """Rows, published chunks and schema changes since the last cut.

    Invariant: `changed` is True from the first of them on, so an epoch that says something is never passed over.
    """

    def __init__(
        self,
        lives: TableLives,
        output: ReaderOutput,
        *,
        schemas: Mapping[str, SchemaDocument],
        missing: MissingState,
        bytes_max: int,
    ) -> None:
        self._lives, self._output, self._bytes_max = lives, output, bytes_max
        self.tables = EpochTables(lives, schemas)
        self._missing = MissingRows(missing)
        self._finished: list[str] = []
        self.changed = self.tables.has_news()

    @property
    def takes_chunks(self) -> bool:
        """Whether there is room for one."""
        return self._output.open_bytes < self._bytes_max

    @property
    def is_full(self) -> bool:
        """Whether the epoch takes no further transaction."""
        return not self.takes_chunks or len(self._missing.rows) >= _MISSING_MAX

    @property
    def missing(self) -> MissingState:
        """The rows that the source could not give, of this epoch and before."""
        return self._missing.state()

    def touch(self, table: TableId) -> None:
        """The epoch has something of the table."""
        self.tables.touch(table)
        self.changed = True

    def collect(self, rows: LogRows | None) -> None:
        """Rows of the log go out, if there are any."""
        if rows is None:
            return
        state = self._lives[rows.table]
        assert not isinstance(state, Parked | Unknown), f"rows of {rows.table} came, which is {state}"
        self.touch(rows.table)
        document = self.tables.document(rows.table)
        self._output.collect(
            rows.table,
            fingerprint=document.fingerprint,
            batch=rows.batch,
            split_id=STREAM_SPLIT_ID,
            key=document.primary_key,
        )

    def publish(self, split: SnapshotSplit, segments: Sequence[Segment], released: Iterable[LogRows]) -> None:
        """A chunk goes out, and behind it the rows that were held for it."""
        self.touch(split.table)
        self._output.publish(segments)
        for rows in released:
            self.collect(rows)
        self._finished.append(split.split_id)

    def write_delta(self, split: SnapshotSplit, delta: Iterable[LogRows]) -> tuple[Segment, ...]:
        """Segments of no epoch for the reader of a chunk, who folds them into it."""
        fingerprint = self.tables.document(split.table).fingerprint
        return self._output.write_delta(delta, fingerprint=fingerprint, split_id=split.split_id)

    def note_missing(self, rows: Sequence[MissingRow]) -> None:
        """The source cannot give these."""
        self._missing.add(rows)
        self.changed = True

    def note_changes(self, table: TableId, changes: Iterable[SchemaChangeEvent]) -> None:
        """The epoch begins with these schema changes; a table that is not announced yet is created as it is now."""
        if is_announced(self._lives[table]):
            self.tables.note_changes(table, changes)
        self.touch(table)

    def report(self, *, watermark_ms: int | None, end_of_input: bool) -> LogReport:
        """All that is in the epoch beside segments; call before `begin`."""
        tables, schemas = self.tables.report()
        return LogReport(tables, schemas, tuple(self._finished), watermark_ms, end_of_input)

    def begin(self) -> None:
        """A cut was made, and another epoch is open."""
        self._missing.begin_epoch()
        self.changed = False
        self.tables.begin_epoch()
        self._finished.clear()
