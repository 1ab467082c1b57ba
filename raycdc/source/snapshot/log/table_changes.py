"""Applies changes of tables while their log is passed on: altered, dropped, parked and resnapshotted tables.

Changes come from the log (`SchemaUpdate`), from the driver (`Refusal`, because a target refused rows of the table), or
from the log reader itself (because a table cannot be read). Each change is applied in one step: open chunks are voided,
the table's state changes, and the open epoch records the change.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import assert_never

from raycdc.errors import SchemaError
from raycdc.model import TableId
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.source.snapshot.chunk_events import ChunkVoided, Fate, ResnapshotBegan
from raycdc.source.snapshot.handoff.hand_off import HandOff
from raycdc.source.snapshot.handoff.open_chunk import KeyOrder
from raycdc.source.snapshot.log.log_unit import (
    AlterTableUpdate,
    BeginTableUpdate,
    DropTableUpdate,
    ParkTableUpdate,
    SchemaUpdate,
)
from raycdc.source.snapshot.log.open_epoch import OpenEpoch
from raycdc.source.tables.parking import Refusal, RefusedTables
from raycdc.source.tables.table_life import Parked, ParkingCause, TableStates, Unknown


class TableChanges:
    """Applies changes of tables. If `parks` is False, a table that would be parked ends the run instead."""

    def __init__(
        self,
        table_states: TableStates,
        hand_off: HandOff,
        epoch: OpenEpoch,
        *,
        key_order: KeyOrder,
        send_event: Callable[[SourceEvent], None],
        parks: bool,
    ) -> None:
        self._table_states, self._hand_off, self._epoch = table_states, hand_off, epoch
        self._key_order = key_order
        self._send_event = send_event
        self._parks = parks
        #: Tables that were parked here while their log still delivers rows of them.
        self.refused = RefusedTables()

    def apply(self, update: SchemaUpdate, *, now_s: float) -> None:
        """Apply a change from the log."""
        fate = Fate.NEXT_MANIFEST if isinstance(update, ParkTableUpdate | BeginTableUpdate) else Fate.READ_AGAIN
        self._void(update.table, "the table's schema changed while the chunk was read", fate, now_s)
        match update:
            case ParkTableUpdate(table, parking):
                self._check_parking(table, parking)
                self._park(table, parking)
            case BeginTableUpdate():
                self._resnapshot(update)
            case DropTableUpdate(table, changes):
                was_followed = not isinstance(self._table_states[table], Unknown | Parked)
                self._hand_off.drop_table(table)
                self._table_states.dropped(table)
                if was_followed:
                    self._epoch.note_changes(table, changes)
            case AlterTableUpdate(table) if isinstance(self._table_states[table], Parked):
                # Changes of a parked table's schema are skipped, because its resnapshot comes with its present schema
                # before any row is passed on.
                return
            case AlterTableUpdate(table, changes, document):
                self._epoch.tables.know(update.fingerprint, document)
                if isinstance(self._table_states[table], Unknown):
                    self._table_states.found(table, update.fingerprint)
                    self._epoch.touch(table)
                else:
                    self._table_states.altered(table, update.fingerprint)
                    self._epoch.note_changes(table, changes)
            case _:
                assert_never(update)

    def refuse(self, refusal: Refusal, *, now_s: float) -> None:
        """Park the table at the present position, because its target refused an epoch. Does nothing if the table was
        already parked for that.
        """
        if refusal.acts_on(self._table_states[refusal.table]):
            self._park_here(refusal.table, refusal.parking, now_s=now_s, refused=True)

    def give_up(self, table: TableId, parking: ParkingCause, *, now_s: float) -> None:
        """Park the table at the present position, between two transactions, because it cannot be read. The connector's
        log is not notified.
        """
        self._check_parking(table, parking)
        self._park_here(table, parking, now_s=now_s)

    def leave(self, table: TableId, parking: ParkingCause) -> None:
        """Park a table that left the catch-up stream, because it was dropped or will be resnapshotted."""
        self._park(table, parking)

    def _park_here(self, table: TableId, parking: ParkingCause, *, now_s: float, refused: bool = False) -> None:
        self._void(table, "its table is parked", Fate.NEXT_MANIFEST, now_s)
        self.refused.add(table)
        self._park(table, parking, refused=refused)

    def _void(self, table: TableId, reason: str, fate: Fate, now_s: float) -> None:
        for split in self._hand_off.void_table(table, now_s=now_s):
            self._send_event(ChunkVoided(split.chunk_id, reason, fate))

    def _check_parking(self, table: TableId, parking: ParkingCause) -> None:
        if not self._parks:
            raise SchemaError(
                f'{parking.reason}\n{table} is not parked, because pipeline.schema_change = "fail", or '
                'on_table_error = "fail". Nothing after this position was passed on. Set it to another value, or '
                "leave the table out (source.exclude)."
            )

    def _park(self, table: TableId, parking: ParkingCause, *, refused: bool = False) -> None:
        """Park the table, and drop its chunks."""
        self._hand_off.drop_table(table)
        # The table counts as announced if the open epoch announces it. It also counts as announced if its target
        # `refused` an epoch, because that epoch announced it, even if the table was dropped since.
        self._table_states.parked(table, parking, announced=refused or table in self._epoch.tables)
        self._epoch.changed = True

    def _resnapshot(self, update: BeginTableUpdate) -> None:
        """Make all chunks of the table unopened. The truncations of the schema change empty its target. A table without
        chunks becomes live immediately: if an epoch were cut before that, the enumerator would plan chunks of it.
        """
        table, document, snapshot = update.table, update.document, update.snapshot
        # A table without changes was only awaited: it is followed from its creation in the log.
        if isinstance(was := self._table_states[table], Parked) and update.changes:
            self._send_event(ResnapshotBegan(table, was))
        self._hand_off.drop_table(table)
        self._epoch.tables.know(update.fingerprint, document)
        self._table_states.resnapshot(table, update.fingerprint, snapshot)
        self._key_order.use(table, snapshot.key, document)
        self._hand_off.add_table(table, primary_key=document.primary_key)
        # The target of a new table is emptied, too. An earlier table with its name may have been dropped, and its
        # target may still exist, with columns that can be replaced only after the target was emptied.
        if update.changes:
            self._epoch.tables.note_changes(table, update.changes)
        self._epoch.touch(table)
        self._hand_off.complete_tables()
