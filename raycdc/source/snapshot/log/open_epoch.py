"""The open epoch of a log reader, its tables, and its report.

Owned by `raycdc.source.snapshot.log.log_reader`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from raycdc.model import TableId
from raycdc.model.evolution.events import CreateTableEvent, SchemaChangeEvent
from raycdc.source.protocol.api import ReaderOutput
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log.log_rows import LogRows
from raycdc.source.split import STREAM_SPLIT_ID, SnapshotSplit
from raycdc.source.tables.table_life import Parked, TableStates, Unknown, is_announced, reading
from raycdc.state.manifests.manifest import Segment, TableEpoch
from raycdc.state.manifests.sealed_state import Patch
from raycdc.state.missing import MissingRow, MissingRows, MissingState
from raycdc.state.opaque import SealedSplit


class EpochTables:
    """The tables that the open epoch names, with the schema changes at its beginning.

    `documents` has all schema documents by fingerprint. The documents that are known at the start count as reported.
    """

    def __init__(self, table_states: TableStates, documents: Mapping[str, SchemaDocument]) -> None:
        self._table_states = table_states
        self.documents = dict(documents)
        #: The tables that the open epoch names, each with the schema of its rows in the epoch.
        self._affected: dict[TableId, str] = {}
        self._unreported: dict[str, SchemaDocument] = {}
        self._changes: dict[TableId, list[SchemaChangeEvent]] = {}

    def __contains__(self, table: object) -> bool:
        """Return True if the open epoch names the table."""
        return table in self._affected

    def document(self, table: TableId) -> SchemaDocument:
        """Return the schema of the table that is in force."""
        return self.documents[self._schema_of(table)]

    def know(self, fingerprint: str, document: SchemaDocument) -> None:
        """Record that a schema is in force from now on. The next report contains it, unless an earlier report did."""
        if fingerprint not in self.documents:
            self._unreported[fingerprint] = document
        self.documents[fingerprint] = document

    def touch(self, table: TableId) -> None:
        """Name the table in the open epoch. A table's first epoch carries its CreateTableEvent."""
        if not is_announced(self._table_states[table]) and table not in self._changes:
            self._changes[table] = [CreateTableEvent(table, self.document(table).schema, comment=None)]
        self._affected[table] = self._schema_of(table)

    def note_changes(self, table: TableId, changes: Iterable[SchemaChangeEvent]) -> None:
        """Add schema changes to the beginning of the open epoch."""
        self._changes.setdefault(table, []).extend(changes)

    def has_changes(self) -> bool:
        """Return True if a table is still to be announced."""
        return bool(self._table_states.changed.unannounced)

    def report(self) -> tuple[dict[str, TableEpoch], dict[str, SchemaDocument]]:
        """Return the epoch's tables for `EpochSealed`, and the schemas that no earlier epoch of this reader had. Tables
        without rows are announced, too, because an empty table has an empty target.
        """
        for table in self._table_states.changed.unannounced:
            if table not in self._affected:
                self.touch(table)
        tables = {
            str(table): TableEpoch(
                schema, reading(self._table_states[table]) is not None, tuple(self._changes.get(table, ()))
            )
            for table, schema in self._affected.items()
        }
        schemas, self._unreported = self._unreported, {}
        for table in self._affected:
            if not isinstance(self._table_states[table], Parked):
                self._table_states.announced(table)
        return tables, schemas

    def begin_epoch(self) -> None:
        """Start a new epoch after a cut."""
        self._changes.clear()
        self._affected.clear()

    def _schema_of(self, table: TableId) -> str:
        state = self._table_states[table]
        assert not isinstance(state, Unknown), f"{table} is not known"
        assert state.schema is not None, f"{table} was never followed"
        return state.schema


#: The number of missing rows that the manifest of an epoch lists individually. An epoch may exceed the limit a little,
#: because a unit may have several missing rows.
_MISSING_MAX = 10_000


@dataclass(frozen=True, slots=True)
class LogReport:
    """The log's part of `EpochSealed`. `sealed` is the state of the log, or its changes since the last cut."""

    tables: Mapping[str, TableEpoch] = field(default_factory=dict)
    schemas: Mapping[str, SchemaDocument] = field(default_factory=dict)
    finished: tuple[str, ...] = ()
    watermark_ms: int | None = None
    end_of_input: bool = False
    sealed: SealedSplit | Patch | None = field(default=None, compare=False)


class OpenEpoch:
    """The content of the open epoch: rows, published chunks and schema changes since the last cut. Invariant: if there
    is any content, `changed` is True, so an epoch with content is never skipped.
    """

    def __init__(
        self,
        table_states: TableStates,
        output: ReaderOutput,
        *,
        schemas: Mapping[str, SchemaDocument],
        missing: MissingState,
        bytes_max: int,
    ) -> None:
        self._table_states, self._output, self._bytes_max = table_states, output, bytes_max
        self.tables = EpochTables(table_states, schemas)
        self._missing = MissingRows(missing)
        self._finished: list[str] = []
        self.changed = self.tables.has_changes()

    @property
    def takes_chunks(self) -> bool:
        """Return True if there is room for a chunk."""
        return self._output.open_bytes < self._bytes_max

    @property
    def is_full(self) -> bool:
        """Return True if the epoch takes no further transaction."""
        return not self.takes_chunks or len(self._missing.rows) >= _MISSING_MAX

    @property
    def missing(self) -> MissingState:
        """Return the rows that the source could not deliver, in this epoch and before."""
        return self._missing.state()

    def touch(self, table: TableId) -> None:
        """Name the table in the epoch."""
        self.tables.touch(table)
        self.changed = True

    def collect(self, rows: LogRows | None) -> None:
        """Emit rows of the log, if there are any."""
        if rows is None:
            return
        state = self._table_states[rows.table]
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
        """Emit a chunk, and after it the rows that were held for it."""
        self.touch(split.table)
        self._output.publish(segments)
        for rows in released:
            self.collect(rows)
        self._finished.append(split.split_id)

    def write_delta(self, split: SnapshotSplit, delta: Iterable[LogRows]) -> tuple[Segment, ...]:
        """Write held rows as segments of no epoch, for the reader of a chunk, which folds them."""
        fingerprint = self.tables.document(split.table).fingerprint
        return self._output.write_delta(delta, fingerprint=fingerprint, split_id=split.split_id)

    def note_missing(self, rows: Sequence[MissingRow]) -> None:
        """Record rows that the source could not deliver."""
        self._missing.add(rows)
        self.changed = True

    def note_changes(self, table: TableId, changes: Iterable[SchemaChangeEvent]) -> None:
        """Add schema changes to the beginning of the epoch. If the table is not announced yet, the epoch creates it
        with its present schema instead.
        """
        if is_announced(self._table_states[table]):
            self.tables.note_changes(table, changes)
        self.touch(table)

    def report(self, *, watermark_ms: int | None, end_of_input: bool) -> LogReport:
        """Return the epoch's content without segments. Call it before `begin`."""
        tables, schemas = self.tables.report()
        return LogReport(tables, schemas, tuple(self._finished), watermark_ms, end_of_input)

    def begin(self) -> None:
        """Open the next epoch after a cut."""
        self._missing.begin_epoch()
        self.changed = False
        self.tables.begin_epoch()
        self._finished.clear()
