"""Keeps the schemas in force while the log is decoded: each DDL is applied at its position, or refused.

Called by the decoder at each statement of the log, before any row after it is decoded; the log reader then takes the
results. Rules judge a statement (`raycdc.source.tables.verdicts`), and this class carries out their verdicts:

| subject | rules | module |
|---|---|---|
| a parked table that the statement names | `PARKED_RULES` | `statement_rules` |
| a table whose rows may be changed by a statement that was logged instead of the rows | `ROWS_RULES` | \
`statement_rules` |
| any other statement as a whole | `STATEMENT_RULES` | `statement_rules` |
| each of its parts, if none of these has a verdict | `PART_RULES`, and of a table `TABLE_RULES` | `part_rules` |
| the names that its renames give to tables | `NAME_RULES` | `part_rules` |
| each effect that would be followed | `EFFECT_RULES` | `part_rules` |

If a statement cannot be followed, the captured tables that it concerns are parked (`raycdc.source.tables.parking`). A
table is resnapshotted if a statement rewrites its rows without logging them, or gives it another table's rows; all
other parked tables wait for a user's decision. Statements about parked tables are only noted, except for the creation
of a table that was never followed, because the log has all its rows from there on.

Tables of schema change tools are followed in addition to the captured ones (`tool_tables`). `take_state` returns the
facts, other than tables, that a restart needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import assert_never

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset, ordinal_of
from raycdc.connectors.mysql.ddl.apply import AffectedTables, RefusedStatement
from raycdc.connectors.mysql.ddl.follow.followed_tables import (
    DroppedTables,
    FollowedTables,
    SchemaMismatch,
    SchemaMismatches,
    SchemaSetter,
    Sequences,
    SnapshotChunkKeys,
    as_truncation,
)
from raycdc.connectors.mysql.ddl.follow.history_state import DatabaseDefaults, HistoryState, TemporaryTables
from raycdc.connectors.mysql.ddl.follow.indirect import is_change_of_rows
from raycdc.connectors.mysql.ddl.follow.log_server import LogServer
from raycdc.connectors.mysql.ddl.follow.masked_names import MaskedNames
from raycdc.connectors.mysql.ddl.follow.tool_tables import ToolTables
from raycdc.connectors.mysql.ddl.parse.statements import RenameTable, separated, with_defaults
from raycdc.connectors.mysql.ddl.rules.facts import HistoryFacts, LoggedStatement, MySqlVerdict, note_statement
from raycdc.connectors.mysql.ddl.rules.part_rules import (
    EFFECT_RULES,
    PART_RULES,
    StatementEffect,
    StatementPart,
    judge_names,
)
from raycdc.connectors.mysql.ddl.rules.statement_rules import (
    PARKED_RULES,
    ROWS_RULES,
    STATEMENT_RULES,
    NamedParked,
    reached_tables,
)
from raycdc.connectors.mysql.values.documents import Capture, document_of, version_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import DataError, PartialRowsError, SchemaError, SourceError
from raycdc.model import TableId
from raycdc.model.evolution import DropTableEvent, TruncateTableEvent
from raycdc.model.rules.selector import TableSelector
from raycdc.source.snapshot.log.log_rows import LogRows
from raycdc.source.snapshot.log.log_unit import (
    AlterTableUpdate,
    BeginTableUpdate,
    DropTableUpdate,
    ParkTableUpdate,
    SchemaUpdate,
)
from raycdc.source.tables.parked_tables import ParkedKind, ParkedTables, ParkingSetup
from raycdc.source.tables.resnapshots import (
    FollowableTable,
    StatementPosition,
    TableChange,
    begin,
    truncation,
    without_chunks,
)
from raycdc.source.tables.table_life import ParkedPhase
from raycdc.source.tables.verdicts import Follow, Ignore, Park, Resnapshot, TableEffect, first_verdict, judge
from raycdc.state.codec import NEW_STATE

_ENDS = f"\nNothing after it was passed on. Leave the table out (source.exclude), or {NEW_STATE}."


class RefusedStatementError(SchemaError):
    """A statement of the log cannot be followed for the captured tables that it names, and these cannot be parked."""

    cure = "Take a new snapshot of the tables that the text names: `raycdc tables resnapshot`."


class DdlHistory:
    """The schema history of one log; see the module's docstring. One thread: the decoder's.

    `state` comes from `begin_state`, or is the last result of `take_state` before the start position. `terms` define
    how tables are parked; if none may be parked, a statement that cannot be followed is an error. `snapshots` are the
    snapshots in progress.
    """

    def __init__(
        self,
        tables: Mapping[TableId, MySqlTable],
        *,
        selector: TableSelector,
        server: LogServer,
        terms: ParkingSetup[MySqlTable] | None = None,
        state: HistoryState | None = None,
        snapshots: SnapshotChunkKeys | None = None,
        captured: Mapping[TableId, Capture] | None = None,
    ) -> None:
        terms, state = terms or ParkingSetup(), state or HistoryState()
        followed = FollowedTables(tables)
        self.mismatches = SchemaMismatches()
        self.temporary = TemporaryTables(state.temporary)
        self._facts = HistoryFacts(
            server,
            selector,
            followed,
            # A merged target remembers a dropped table as well.
            ParkedTables(terms, followed=[*tables, *state.dropped]),
            ToolTables(followed, shadows=state.shadows, absent=state.absent),
            Sequences(server.is_sequence),
            DatabaseDefaults(state.databases, server.databases, server=server.default_charset),
            DroppedTables(state.dropped),
            MaskedNames(terms.rules.masks, state.former),
            self.temporary,
            snapshots or SnapshotChunkKeys(),
            captured or {},
        )

    def attach(self, decoder: SchemaSetter) -> None:
        """Set the `decoder` that gets every new schema."""
        self._facts.tables.attach(decoder)

    def table(self, table: TableId) -> MySqlTable | None:
        """Return the schema in force at the decoded position."""
        return self._facts.tables.get(table) or self.mismatches.schema(table)

    def take_updates(self) -> tuple[tuple[SchemaUpdate, ...], tuple[LogRows, ...]]:
        """Return the changes of the last statement and the truncation rows, once.

        Both are empty for other statements.
        """
        return self._facts.tables.take()

    def take_state(self) -> HistoryState | None:
        """Return the facts, without the tables, that a restart after the last statement needs.

        They are returned once; None if unchanged.
        """
        notes = (
            self._facts.tools.shadows,
            self._facts.defaults,
            self._facts.masked,
            self._facts.dropped,
            self.temporary,
        )
        if not any(note.changed for note in notes):
            return None
        for note in notes:
            note.changed = False
        return HistoryState(
            self._facts.tools.shadows.all(),
            self._facts.tools.absent,
            self._facts.defaults.all(),
            self._facts.masked.former(),
            self._facts.dropped.all(),
            self.temporary.all(),
        )

    def captures(self, table: TableId, *, has_rows: bool = False) -> bool:
        """Return True if rows of `table` are captured at the decoded position. Tables of tools are not, unless named.

        `has_rows` is True if there are rows of it in the log.
        """
        if has_rows and table not in self._facts.tables and self._facts.parked[table] is ParkedKind.ENDED:
            self.mismatches.alive.add(table)
        return self._facts.captures(table)

    def selects(self, table: TableId) -> bool:
        """Return True if `table` is captured, or may be again."""
        return self._facts.selects(table)

    # Statements -----------------------------------------------------------------------------------------------------

    def on_ddl(self, item: DdlItem) -> None:
        """Judge a statement and carry out the verdict: apply it, or park the tables that it concerns.

        Raises `SchemaError` or `DataError` if none may be parked.
        """
        facts = self._facts
        if is_change_of_rows(item.statement):
            emptied = as_truncation(item, facts.tables, facts.server.is_in_memory)
            if emptied is None:
                self._on_change_of_rows(item)
                return
            item = emptied
        statement = note_statement(item, facts)
        for table in statement.parked:
            self._carry_out(statement, judge(PARKED_RULES, NamedParked(statement, table), facts))
        verdict = first_verdict(STATEMENT_RULES, statement, facts)
        if verdict is not None:
            self._carry_out(statement, verdict)
        else:
            self._on_parts(statement)

    def _on_change_of_rows(self, item: DdlItem) -> None:
        """Handle a change of rows that was logged as a statement.

        The log lacks the rows of all tables that it reaches.
        """
        facts = self._facts
        reached = reached_tables(item, facts)
        statement = LoggedStatement(item, facts.server.dialect, AffectedTables())
        for each in reached:
            self._carry_out(statement, judge(ROWS_RULES, each, facts))
        for each in reached:
            facts.parked.invalidate(each.table, ordinal_of(item.position))

    def _on_parts(self, statement: LoggedStatement) -> None:
        """Judge the parts of an understood statement one by one, and its renames together."""
        assert not isinstance(statement.parsed, RefusedStatement), "a rule has a verdict on what is not understood"
        facts = self._facts
        renames: list[RenameTable] = []
        for ddl in separated(statement.parsed):
            if isinstance(ddl, RenameTable):
                renames.append(ddl)
                continue
            part = StatementPart(statement, with_defaults(ddl, facts.defaults.of))
            if not self._carry_out(statement, judge(PART_RULES, part, facts)):
                return
        for verdict in judge_names(statement, renames, facts) if renames else ():
            if not self._carry_out(statement, verdict) and isinstance(verdict, Follow):
                return

    def _carry_out(self, statement: LoggedStatement, verdict: MySqlVerdict) -> bool:
        """Carry out a verdict; return True if the statement is followed, False if its tables were parked."""
        match verdict:
            case Ignore():
                return True
            case Follow(effects):
                return all(self._follow(statement, effect) for effect in effects)
            case Park() | Resnapshot():
                self._park(statement.item, verdict)
                return False
            case _:
                assert_never(verdict)

    def _follow(self, statement: LoggedStatement, effect: TableEffect[MySqlTable]) -> bool:
        """Return True if the effect is followed: no rule objects to it."""
        before = self._facts.tables.get(effect.table)
        verdict = judge(EFFECT_RULES, StatementEffect(statement, effect, before), self._facts)
        if isinstance(verdict, Follow):
            self._take(statement.item, effect, before)
            return True
        return self._carry_out(statement, verdict)

    def _take(self, item: DdlItem, effect: TableEffect[MySqlTable], before: MySqlTable | None) -> None:
        """Apply an effect: update the table's schema, and report the change."""
        facts, table, now, events = self._facts, effect.table, effect.after, effect.events
        emptying = [event for event in events if isinstance(event, TruncateTableEvent | DropTableEvent)]
        if before is not None and any(isinstance(event, DropTableEvent) for event in events):
            facts.tables.remove(table)
            if now is None:
                facts.dropped.add(before, read=not facts.snapshots.under_way(table))
            facts.tables.report(TableChange(DropTableUpdate(table, events if now is None else events[:1])))
            events = events[1:]
        if now is not None:
            is_made = False
            if now != before or effect.replaces:
                facts.tables.put(now)
                is_made = facts.parked.follow(table)
            if is_made:
                facts.tables.report(TableChange(BeginTableUpdate(table, (), document_of(now), without_chunks())))
            else:
                facts.tables.report(TableChange(AlterTableUpdate(table, events, document_of(now))))
        if any(event.type not in facts.parked.rules.left_out for event in emptying):
            dropped = now or before
            assert dropped is not None
            seq, shown = facts.tables.decoder.take_seq(), parse_location(item.position, item.ts_ms)
            text = f"{item.position.file}:{item.position.pos}:0"
            facts.tables.report_truncated(truncation(dropped.id, dropped.schema(), shown, seq=seq, statement=text))

    def _park(self, item: DdlItem, verdict: Park | Resnapshot) -> None:
        """Park the tables of the verdict. Raises an error if there are none, or if none may be parked."""
        facts = self._facts
        if not facts.parked.parks:
            raise RefusedStatementError(f"{verdict.reason}{_ENDS}")
        if not verdict.tables:
            raise RefusedStatementError(verdict.reason)
        shown = parse_location(item.before, item.ts_ms)
        again = isinstance(verdict, Resnapshot)
        phase = verdict.phase if isinstance(verdict, Park) else ParkedPhase.PARKED
        for table in verdict.tables:
            facts.tools.forget(table)
            facts.dropped.refused(table)
            facts.tables.remove(table)
            facts.tables.untell(table)
            facts.tables.report(TableChange(facts.parked.park(table, verdict.reason, shown, again=again, phase=phase)))

    # Tables that are not followed ---------------------------------------------------------------------------------

    def on_schema_mismatch(self, table: TableId, error: DataError, before: BinlogOffset) -> None:
        """Park a table whose rows cannot be decoded by the schema in force. Raises `error` if none may be parked."""
        unknown = table not in self._facts.tables
        if unknown and self._facts.sequences.met(table):
            return
        if not self._facts.parked.parks:
            raise error
        if table in self.mismatches:
            return
        described = self._facts.tables.doubt(table)
        if unknown:
            # No schema of the table is known, so a probe will decide.
            update = self._facts.parked.met(table, str(error), parse_location(before, 0))
        else:
            again = isinstance(error, PartialRowsError) and self._facts.parked.rules.lost_rows_again
            update = self._facts.parked.park(table, str(error), parse_location(before, 0), again=again)
        self.mismatches.add(SchemaMismatch(update, described, ordinal_of(before)))

    def park_unlogged(self, tables: Mapping[TableId, str], position: BinlogOffset) -> None:
        """Park tables whose rows the server does not log, from some point after `position` on.

        The values are the reasons.

        Raises `SourceError` if nothing may be parked.
        """
        if tables and not self._facts.parked.parks:
            raise SourceError("\n".join(tables.values()))
        for table, why in tables.items():
            if table in self._facts.tables:
                self._facts.tools.forget(table)
                self._facts.tables.remove(table)
                self._facts.tables.report(TableChange(self._facts.parked.park(table, why, parse_location(position, 0))))

    def take_mismatches(self, position: BinlogOffset, ts_ms: int) -> tuple[ParkTableUpdate, ...]:
        """Return the updates that park tables with mismatching rows; called once between two transactions.

        A table may have rows after it was renamed. Then the RENAME TABLE concerned a temporary table: MariaDB logs such
        a statement without saying so, even if it logs nothing else about that table.
        """
        updates = self.mismatches.take(ts_ms)
        for table in self.mismatches.take_alive():
            if self._facts.parked[table] is ParkedKind.ENDED:
                why = f"{position}: rows of {table} came, after it was renamed: they are of another table of this name"
                updates = (*updates, self._facts.parked.met(table, why, parse_location(position, ts_ms)))
        for update in updates:
            self._facts.tables.remove(update.table)
        return updates

    def resnapshot_parked(self, position: BinlogOffset, ts_ms: int) -> None:
        """Resnapshot parked tables whose probe holds at this position. Called between two transactions; may block."""
        shown = parse_location(position, ts_ms)
        for table, probe in self._facts.parked.take_probed(shown):
            if not isinstance(probe, FollowableTable):
                self._facts.tables.report(TableChange(probe))
            elif why := self._facts.masked.shown_by(probe.described):
                self._facts.tables.report(TableChange(self._facts.parked.park(table, why, shown)))
            else:
                self._facts.parked.follow(table)
                self._facts.dropped.forget(table)
                self._facts.snapshots.begin(table, probe.snapshot.key)
                self._facts.tables.put(probe.described)
                seq = self._facts.tables.decoder.take_seq()
                self._facts.tables.report(begin(table, version_of(probe.described), probe.snapshot, shown, seq=seq))


def parse_location(position: BinlogOffset, ts_ms: int) -> StatementPosition:
    """Return a position of the log in the form for users."""
    shown_position = BinlogOffset(position.file, position.pos, position.gtid_set, mark=position.mark)
    return StatementPosition(shown_position.sealed(), ordinal_of(position), ts_ms)
