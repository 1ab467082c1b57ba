"""A pipeline without a sink, for tests of sources.

It has a real coordinator and readers (as threads), and applies epochs to rows.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from raycdc.driver.consumer import Epoch, Ledger
from raycdc.model import META_COLUMNS, RowKind, TableId
from raycdc.model.batch import SYMBOLS
from raycdc.model.rules.rate_limit import Until
from raycdc.runtime.launcher import JobSpec, LocalLauncher
from raycdc.runtime.scaling import ReaderLimits
from raycdc.runtime.supervisor import Supervisor, SupervisorSettings
from raycdc.segments.access import HERE
from raycdc.segments.bad_rows import BadRecords
from raycdc.source.connector import Source
from raycdc.source.protocol.coordinator import CoordinatorSettings
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log.stream_state import StreamState, stream_of
from raycdc.source.split import StreamSplit
from raycdc.source.tables.parking import TableRequest
from raycdc.source.tables.table_requests import ask
from raycdc.state.drivers.driver_generation import DriverGeneration
from raycdc.state.manifests.manifest import STREAM_SPLIT_ID
from raycdc.state.store import CheckpointStore

Row = dict[str, Any]

#: Epochs are sealed often, so that a short run has several of them.
_SETTINGS = CoordinatorSettings(epoch_interval_s=0.05, epoch_bytes_max=1 << 20, epoch_bytes_idle=1 << 14)
_EMPTIES = SYMBOLS[RowKind.TRUNCATE]
_REMOVES = (SYMBOLS[RowKind.UPDATE_BEFORE], SYMBOLS[RowKind.DELETE])


class SourcePlay:
    """Runs of one source with one state. Its epochs are applied to rows in memory, one after the other."""

    def __init__(
        self, folder: Path, make_source: Callable[[], Source[Any]], *, readers: int = 2, fetchers: int = 1
    ) -> None:
        """Create the play. Its `readers` share the splits, and each may read `fetchers` chunks at the same time."""
        folder.mkdir(parents=True, exist_ok=True)
        self.store = CheckpointStore(folder / "state", pipeline="conformance")
        self.warnings: list[str] = []
        #: The rows that a target would hold, by table and key.
        self.target: dict[TableId, dict[tuple[Any, ...], Row]] = {}
        #: The positions of the log rows that came, with table and kind.
        self.positions: list[tuple[TableId, str, str]] = []
        self._make_source = make_source
        self._readers = readers
        self._fetchers = fetchers

    def run(self, on_epoch: Callable[[Epoch], None] = lambda _: None, *, timeout_s: float | None = None) -> None:
        """Follow the source until its present end; `on_epoch` is called with each epoch before it counts as committed.

        Raises `AssertionError` if the end is not reached within `timeout_s`.
        """
        with self.running(timeout_s=timeout_s) as ledger:
            for epoch in ledger.epochs():
                self._apply(epoch)
                on_epoch(epoch)
                epoch.ack()

    def ask(self, table: TableId, request: TableRequest) -> None:
        """Request an action on a table, as ``raycdc tables`` does. The next run carries it out at its start."""
        ask(self.store, [str(table)], request)

    @contextmanager
    def running(self, *, until: Until | None = Until.CAUGHT_UP, timeout_s: float | None = None) -> Iterator[Ledger]:
        """Run the source side while the block lasts; with `timeout_s` it ends with an error after that time."""
        with ExitStack() as stack:
            lease = self.store.lease()
            stack.callback(lease.release)
            term = DriverGeneration(self.store)
            spec = JobSpec(self.store.location, self._make_source, _SETTINGS, until, fetchers=self._fetchers)
            self.store.sweep_spool()
            sealed_before = self.store.next_epoch() - 1
            launcher = LocalLauncher(spec)
            supervisor = Supervisor(
                launcher,
                SupervisorSettings(
                    limits=ReaderLimits(self._readers, self._readers),
                    next_generation=term.for_coordinator,
                    committed=lambda: self.committed,
                    on_processes=lambda *_: None,
                    on_warning=self.warnings.append,
                ),
            )
            stack.callback(supervisor.close)
            if timeout_s is not None:
                timer = threading.Timer(timeout_s, supervisor.fail, [AssertionError(_no_end(timeout_s))])
                timer.daemon = True
                timer.start()
                stack.callback(timer.cancel)
            yield Ledger(
                self.store,
                supervisor,
                BadRecords("fail"),
                access=lambda: HERE,
                generation=term.generation,
                sealed_before=sealed_before,
            )

    @property
    def committed(self) -> int:
        """Return the last epoch that counts as committed; 0 before the first."""
        record = self.store.last_commit()
        return record.epoch if record else 0

    @property
    def committed_ordinal(self) -> int:
        """Return the ordinal of the log in the last committed epoch."""
        state = stream_of(self.store.manifest(self.committed)) if self.committed else None
        return state.ordinal if state is not None else 0

    @property
    def split(self) -> StreamSplit:
        """Return the log from the last epoch on."""
        document = self.store.document
        return StreamSplit.of(self.stream, lambda fingerprint: SchemaDocument.from_json(document(fingerprint)))

    @property
    def stream(self) -> StreamState:
        state = stream_of(self.store.last_manifest())
        assert state is not None, f"no epoch has the split {STREAM_SPLIT_ID!r}"
        return state

    def _apply(self, epoch: Epoch) -> None:
        for table, schema in epoch.tables.items():
            batches = list(epoch.batches(table))
            if not batches:
                continue
            rows = self.target.setdefault(table, {})
            names = schema.arrow().names
            for row in sorted(pa.Table.from_batches(batches).to_pylist(), key=lambda one: one["_seq"]):
                kind = row["_op"]
                if row["_pos"] is not None:
                    self.positions.append((table, row["_pos"], kind))
                key = tuple(row[name] for name in schema.primary_key)
                if kind == _EMPTIES:
                    rows.clear()
                elif kind in _REMOVES:
                    rows.pop(key, None)
                else:
                    rows[key] = {name: row[name] for name in names}
            for key, row in rows.items():
                # Rows from before a column was added have NULL in it. A dropped column is removed from all rows.
                rows[key] = {name: row.get(name) for name in names if name not in META_COLUMNS}


def _no_end(timeout_s: float) -> str:
    return (
        f"The log did not come to the source's present end within {timeout_s:g} s. Its units must reach the ordinal "
        "that `EnumeratorDialect.current_ordinal` says, though nothing is told of a parked table (`Progress`)."
    )
