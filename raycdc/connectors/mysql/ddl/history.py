"""The schemas in force while the log is decoded: each DDL applied at its place, or refused by name.

Called by the decoder at each statement of the log, before any row after it is decoded; the log reader fetches what
came of it. A statement that cannot be followed parks the captured tables it is about (`raycdc.source.parking`): one
whose rows a statement rewrites without logging them begins again, and so does one that gets another table's rows;
others wait for somebody to decide. Statements about parked tables are noted, not followed.

Tables of schema change tools are followed beside the captured ones (`tool_tables`). `take_state` is what of this a
restart must know.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.position import BinlogOffset, ordinal_of
from raycdc.connectors.mysql.ddl.alter import UnknownShapeError
from raycdc.connectors.mysql.ddl.apply import (
    AppliedDdl,
    DdlDialect,
    Refused,
    TableDdl,
    Touched,
    apply_ddl,
    parse_ddl,
    touched_tables,
)
from raycdc.connectors.mysql.ddl.database_defaults import DatabaseDefaults
from raycdc.connectors.mysql.ddl.dialect import dialect_of_session
from raycdc.connectors.mysql.ddl.dropped_tables import DroppedTables
from raycdc.connectors.mysql.ddl.followed_tables import FollowedTables, SchemaSetter
from raycdc.connectors.mysql.ddl.history_state import HistoryState
from raycdc.connectors.mysql.ddl.indirect import is_change_of_rows, tables_reached
from raycdc.connectors.mysql.ddl.log_server import LogServer
from raycdc.connectors.mysql.ddl.masked_names import MaskedNames
from raycdc.connectors.mysql.ddl.misfits import Misfit, Misfits
from raycdc.connectors.mysql.ddl.refusal import RefusedStatementError, refusal
from raycdc.connectors.mysql.ddl.renames import separated, with_defaults
from raycdc.connectors.mysql.ddl.sequences import Sequences
from raycdc.connectors.mysql.ddl.shape import reshape
from raycdc.connectors.mysql.ddl.snapshot_keys import SnapshotKeys
from raycdc.connectors.mysql.ddl.statement_text import CASCADES, adds_cascade, begins_with, may_move_rows, shown
from raycdc.connectors.mysql.ddl.statements import (
    CreateTable,
    Database,
    DropDatabase,
    DropTable,
    RenameTable,
    TemporaryTable,
)
from raycdc.connectors.mysql.ddl.tool_tables import ToolTables
from raycdc.connectors.mysql.values.documents import document_of, version_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import DataError, PartialRowsError, SchemaError
from raycdc.model import TableId
from raycdc.model.batch import reserved_column
from raycdc.model.selector import TableSelector
from raycdc.schema import CreateTableEvent, DropTableEvent, TruncateTableEvent
from raycdc.source.new_beginnings import Fit, Place, TableChange, begin, truncation
from raycdc.source.parked_tables import ParkedTables, ParkingTerms, Standing
from raycdc.source.snapshot.log_rows import LogRows
from raycdc.source.snapshot.log_unit import SchemaUpdate, TableAltered, TableDropped, TableParked
from raycdc.source.table_life import Phase

_ENDS = (
    "\nNothing after it was passed on. Leave the table out (source.exclude), or take a new snapshot (a new "
    "pipeline.state)."
)


class DdlHistory:
    """See the module's docstring. One thread: the decoder's.

    `state` is that of `begin_state`, or the one that `take_state` gave last before the place in the log where this
    begins. `terms` say how tables are parked; where none may be, a statement that cannot be followed is an error.
    `snapshots` are those under way.
    """

    def __init__(
        self,
        tables: Mapping[TableId, MySqlTable],
        *,
        selector: TableSelector,
        server: LogServer,
        terms: ParkingTerms[MySqlTable] | None = None,
        state: HistoryState | None = None,
        snapshots: SnapshotKeys | None = None,
    ) -> None:
        terms, state = terms or ParkingTerms(), state or HistoryState()
        self._parks = terms.parked is not None
        self._selector = selector
        self._server = server
        self._snapshots = snapshots or SnapshotKeys()
        self._tables = FollowedTables(tables)
        # A merged target remembers a table that was dropped, too.
        self._parked = ParkedTables(terms, followed=[*tables, *state.dropped])
        self.misfits = Misfits()
        self._sequences = Sequences(server.is_sequence)
        self._tools = ToolTables(self._tables, self.captures, server, shadows=state.shadows, away=state.away)
        self._defaults = DatabaseDefaults(state.databases, server.databases, server=server.default_charset)
        self._dropped = DroppedTables(state.dropped)
        self._masked = MaskedNames(terms.rules.masks, state.former)

    def attach(self, decoder: SchemaSetter) -> None:
        """`decoder` is told of every new schema."""
        self._tables.attach(decoder)

    def table(self, table: TableId) -> MySqlTable | None:
        """The schema in force, as far as the log was decoded."""
        return self._tables.get(table) or self.misfits.schema(table)

    def take_updates(self) -> tuple[tuple[SchemaUpdate, ...], tuple[LogRows, ...]]:
        """The changes of the last statement, and the rows that say it truncated, once; none for other statements."""
        return self._tables.take()

    def take_state(self) -> HistoryState | None:
        """The facts beside the tables that a restart after the last statement must know, once; None if they are as
        before.
        """
        notes = (self._tools.shadows, self._defaults, self._masked, self._dropped)
        if not any(note.changed for note in notes):
            return None
        for note in notes:
            note.changed = False
        return HistoryState(
            self._tools.shadows.all(),
            self._tools.away,
            self._defaults.all(),
            self._masked.former(),
            self._dropped.all(),
        )

    def captures(self, table: TableId) -> bool:
        """Whether rows of `table` are captured as far as the log was decoded: tools' tables are not, unless by name."""
        if table in self._tables:
            return True
        return table not in self._parked and table not in self._sequences and self.selects(table)

    def selects(self, table: TableId) -> bool:
        """Whether `table` is, or may again be, captured."""
        if table in self._tables or table in self._parked:
            return True
        return self._selector.matches(table) and (table in self._selector.plain_names or table not in self._tools)

    def on_ddl(self, item: DdlItem) -> None:
        """Apply a statement, or park the tables it is about. Raises `SchemaError` or `DataError` where none is."""
        if is_change_of_rows(item.statement):
            self._check_dml(item)
            return
        dialect = dialect_of_session(self._server.dialect, item.session)
        touched = touched_tables(item.statement, item.db, dialect=dialect)
        self._touch_parked(item, touched.tables, touched.databases)
        self._sequences.touched(touched.tables)
        self._masked.follow(item.statement, item.db, touched, dialect)
        try:
            self._follow(item, touched, dialect)
        except RefusedStatementError as refused:
            if not self._parks:
                raise RefusedStatementError(f"{refused}{_ENDS}") from refused
            named = [*refused.tables, *(t for t in touched.tables if self.captures(t))]
            if not named:
                raise
            tables = list(dict.fromkeys(named))
            new = begins_with("CREATE", item.statement) and not any(t in self._tables for t in tables)
            # Of several tables nobody knows which are concerned how: each is looked at.
            again = refused.again or new or len(tables) > 1
            for table in tables:
                self._park(item, table, str(refused), again=again, phase=Phase.PARKED if again else refused.phase)

    def _follow(self, item: DdlItem, touched: Touched, dialect: DdlDialect) -> None:
        captured = [t for t in touched.tables if self.captures(t)]
        tools = [t for t in touched.tables if t not in captured and t in self._tools]
        shadows = self._tools.shadows
        dropped = any(shadows.holds(db) or any(t.db == db for t in self._tables) for db in touched.databases)
        if not captured and not tools and not touched.defaults and not dropped:
            return
        if not self._server.cascades and captured and adds_cascade(item.statement):
            raise refusal(item, CASCADES, tables=captured[:1])
        parsed = parse_ddl(item.statement, item.db, dialect=dialect)
        if isinstance(parsed, Refused):
            for table in tools:
                shadows.forget(table, parsed.reason)
            if captured or not tools:
                self._refused(item, parsed.reason, captured, dialect)
            return
        renames: list[RenameTable] = []
        for ddl in separated(parsed):
            if isinstance(ddl, RenameTable):
                renames.append(ddl)
            else:
                self._apply(item, with_defaults(ddl, self._defaults.of), dialect)
        for table, applied in self._tools.rename(item, renames):
            # Always, even where the columns are the same: chunks being read may see the new table half filled.
            self._take(item, table, applied, replaced=True)

    def _apply(self, item: DdlItem, ddl: TableDdl, dialect: DdlDialect) -> None:
        match ddl:
            case TemporaryTable():
                return
            case Database(db):
                if ddl.or_replace:
                    self._drop_database(item, db)
                self._defaults.set(ddl)
                return
            case DropDatabase(db):
                self._defaults.drop(db)
                self._drop_database(item, db)
                return
        default_charset = self._defaults.of(ddl.table.db)
        if not self.captures(ddl.table):
            self._tools.apply(item, ddl, dialect, default_charset)
            return
        if (present := self._tables.get(ddl.table)) is None and isinstance(ddl, DropTable):
            return
        try:
            applied = apply_ddl(
                present, ddl, find_table=self._tools.shape, dialect=dialect, default_charset=default_charset
            )
        except SchemaError as cause:
            unknown = isinstance(ddl, CreateTable) or isinstance(cause, UnknownShapeError)
            self._refused(item, str(cause), [ddl.table] if unknown else [], dialect)
            return
        if applied.rewrites is not None:
            raise refusal(item, applied.rewrites, again=True)
        self._take(item, ddl.table, applied)

    def _drop_database(self, item: DdlItem, db: str) -> None:
        for table in [t for t in self._tables if t.db == db]:
            self._take(item, table, AppliedDdl(None, (DropTableEvent(table),)))
        self._tools.shadows.drop_database(db)

    def _refused(self, item: DdlItem, reason: str, captured: list[TableId], dialect: DdlDialect) -> None:
        """A table that was created or altered in a way we cannot read may be looked up; anything else ends here."""
        table = captured[0] if len(captured) == 1 else None
        before = None if table is None else self._tables.get(table)
        readable = begins_with("CREATE" if before is None else "ALTER", item.statement)
        if table is None or not readable or (before is not None and may_move_rows(item.statement)):
            raise refusal(item, reason)
        resolved = self._server.looked_up(item, table, reason)
        if before is None:
            self._take(item, table, AppliedDdl(resolved.table, (CreateTableEvent(table, resolved.table.schema()),)))
            return
        origins = resolved.origins(before)
        if isinstance(origins, str):
            raise refusal(item, f"{reason}, and {origins}")
        events, doubt = reshape(before, resolved.table, origins, forgiving=not dialect.strict)
        if doubt is not None:
            raise refusal(item, f"{reason}, and {doubt}")
        self._take(item, table, AppliedDdl(resolved.table, events), replaced=True)

    def _take(self, item: DdlItem, table: TableId, applied: AppliedDdl, *, replaced: bool = False) -> None:
        """`applied` is what becomes of the table, as far as its targets follow."""
        before, now = self._tables.get(table), applied.table
        self._require_followed(item, before, applied)
        emptying = [event for event in applied.events if isinstance(event, TruncateTableEvent | DropTableEvent)]
        if now == before and (now is None or not (applied.events or replaced)):
            return
        events = tuple(applied.events)
        if before is not None and any(isinstance(event, DropTableEvent) for event in applied.events):
            self._tables.remove(table)
            if now is None:
                self._dropped.add(before, read=not self._snapshots.under_way(table))
            self._tables.tell(TableChange(TableDropped(table, events if now is None else events[:1])))
            events = events[1:]
        if now is not None:
            if now != before or replaced:
                self._tables.put(now)
                self._parked.follow(table)
            self._tables.tell(TableChange(TableAltered(table, events, document_of(now))))
        if any(event.type not in self._parked.rules.left_out for event in emptying):
            gone = now or before
            assert gone is not None
            seq, place = self._tables.decoder.take_seq(), place_of(item.position, item.ts_ms)
            statement = f"{item.position.file}:{item.position.pos}:0"
            self._tables.tell_gone(truncation(gone.id, gone.schema(), place, seq=seq, statement=statement))

    def _require_followed(self, item: DdlItem, before: MySqlTable | None, applied: AppliedDdl) -> None:
        """Raises `RefusedStatementError` for what no target could follow, and what none may show."""
        now = applied.table
        if applied.not_followed is not None:
            raise refusal(item, f"{applied.not_followed} is not followed")
        if now is not None and before is None and (why := self._masked.shown_by(now)):
            raise refusal(item, why)
        if now is not None and before is None and self._dropped.differs(now) and self._parks:
            why = f"{now.id} was dropped, and is another table now, which is read from its beginning"
            raise refusal(item, why, again=True)
        if now is not None and (reserved := reserved_column(column.name for column in now.columns)):
            raise refusal(item, reserved)
        if before is not None and now is not None and (cut_by := self._snapshots.changed(before, now)) is not None:
            why = f"it changes column {cut_by!r}, which the table is cut by, while its snapshot is under way"
            raise refusal(item, why, again=True)
        table = before or now
        made = None if now is None else now.schema()
        schema = None if before is None else before.schema()
        if table is not None and (why := self._parked.objection(table.id, schema, made, applied.events)):
            raise refusal(item, why)

    # Tables that are not followed ---------------------------------------------------------------------------------

    def on_misfit(self, table: TableId, error: DataError, before: BinlogOffset) -> None:
        """Rows cannot be decoded by the schema in force. Raises the error where nothing may be parked."""
        unknown = table not in self._tables
        if unknown and self._sequences.met(table):
            return
        if not self._parks:
            raise error
        if table in self.misfits:
            return
        # Of an unknown table no schema is known: one look at it tells more than anybody.
        again = unknown or (isinstance(error, PartialRowsError) and self._parked.rules.lost_rows_again)
        described = self._tables.doubt(table)
        update = self._parked.park(table, str(error), place_of(before, 0), again=again)
        self.misfits.add(Misfit(update, described, ordinal_of(before)))

    def take_misfits(self, ts_ms: int) -> tuple[TableParked, ...]:
        """Between two transactions: the tables that are parked as their rows did not fit, once."""
        updates = self.misfits.take(ts_ms)
        for update in updates:
            self._tables.remove(update.table)
        return updates

    def begin_again(self, position: BinlogOffset, ts_ms: int) -> None:
        """Between two transactions: follow parked tables from here on whose look holds here. It may block."""
        place = place_of(position, ts_ms)
        for table, look in self._parked.looked_at(place):
            if not isinstance(look, Fit):
                self._tables.tell(TableChange(look))
            elif why := self._masked.shown_by(look.described):
                self._tables.tell(TableChange(self._parked.park(table, why, place)))
            else:
                self._parked.follow(table)
                self._snapshots.begin(table, look.snapshot.key)
                self._tables.put(look.described)
                seq = self._tables.decoder.take_seq()
                self._tables.tell(begin(table, version_of(look.described), look.snapshot, place, seq=seq))

    def _park(
        self, item: DdlItem, table: TableId, reason: str, *, again: bool = False, phase: Phase = Phase.PARKED
    ) -> None:
        self._tools.forget(table)
        self._dropped.forget(table)
        self._tables.remove(table)
        self._tables.untell(table)
        place = place_of(item.before, item.ts_ms)
        self._tables.tell(TableChange(self._parked.park(table, reason, place, again=again, phase=phase)))

    def _touch_parked(self, item: DdlItem, tables: Collection[TableId], databases: Collection[str] = ()) -> None:
        """The statement names these: looks at parked ones are out of date, and an ended one may be another table."""
        for table in [table for table in self._parked if table in tables or table.db in databases]:
            self._parked.touched(table, ordinal_of(item.position))
            if self._parked[table] is Standing.ENDED:
                why = f"{item.position}: the name may be taken again: {shown(item.statement)}"
                self._park(item, table, why, again=True)

    def _check_dml(self, item: DdlItem) -> None:
        """A change of rows that was logged as a statement leads to a captured table: its rows are not in the log."""
        reached = tables_reached(item.statement, self._server.led_to, [*self._tables, *self._parked])
        for table in [table for table in reached if table in self._tables]:
            text = (
                f"{item.position}: a change that may concern {table} was logged as a statement, not as rows: "
                f"{shown(item.statement)}\nSet binlog_format = ROW for every session on the source, then take a "
                "new snapshot"
            )
            if not self._parks:
                raise DataError(f'{text} (startup.mode = "initial" with a new pipeline.state).')
            self._park(item, table, f"{text}.", again=self._parked.rules.lost_rows_again)
        for table in reached:
            self._parked.touched(table, ordinal_of(item.position))


def place_of(position: BinlogOffset, ts_ms: int) -> Place:
    """A place of the log, as people are shown it."""
    shown_position = BinlogOffset(position.file, position.pos, position.gtid_set)
    return Place(shown_position.sealed(), ordinal_of(position), ts_ms)
