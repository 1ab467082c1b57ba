"""The schemas in force while the log is decoded: each DDL applied at its place, or refused by name.

Called by the decoder at each statement of the log, before any row after it is decoded; the log reader fetches what
came of it. What cannot be followed parks the captured tables it is about (`raycdc.source.parking`): one whose rows a
statement rewrites without logging them begins again, and so does one that gets another table's rows; others wait for
somebody to decide. Statements about parked tables are noted, not followed.

Tables of schema change tools are followed beside the captured ones (`shadows`): the rename that puts one of them in a
captured table's place is the change of that table, at that place. `take_state` is what of this a restart must know.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.offset import BinlogOffset
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
from raycdc.connectors.mysql.ddl.indirect import is_change_of_rows, tables_reached
from raycdc.connectors.mysql.ddl.masked_names import MaskedNames
from raycdc.connectors.mysql.ddl.parked_tables import (
    ParkedTables,
    RefusedStatementError,
    SchemaSetter,
    new_beginning,
)
from raycdc.connectors.mysql.ddl.renames import places_after, separated, with_collations, with_defaults
from raycdc.connectors.mysql.ddl.resolver import Resolved
from raycdc.connectors.mysql.ddl.sequences import Sequences
from raycdc.connectors.mysql.ddl.shadows import Shadow, ShadowTables, role_of
from raycdc.connectors.mysql.ddl.shape import reshape
from raycdc.connectors.mysql.ddl.snapshot_keys import SnapshotKeys
from raycdc.connectors.mysql.ddl.statement_text import CASCADES, adds_cascade, begins_with, may_move_rows, shown
from raycdc.connectors.mysql.ddl.statements import (
    AlterTable,
    CreateTable,
    Database,
    DropDatabase,
    DropTable,
    RenameTable,
    TemporaryTable,
    TruncateTable,
)
from raycdc.connectors.mysql.ddl.truncation import truncation
from raycdc.connectors.mysql.table_look import TableLook
from raycdc.connectors.mysql.values.documents import document_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import DataError, SchemaError
from raycdc.model import TableId
from raycdc.model.batch import reserved_column
from raycdc.model.selector import TableSelector
from raycdc.schema import AlterTableCommentEvent, CreateTableEvent, DropTableEvent, TruncateTableEvent
from raycdc.source.snapshot.hand_off import LogRows
from raycdc.source.snapshot.log_unit import SchemaUpdate, TableAltered, TableDropped, TableParked
from raycdc.source.table_life import Phase
from raycdc.transform.followed import TargetRules

#: Asks the server for the table right after a place in the log; or says why that cannot be known (`resolver`).
Resolver = Callable[[TableId, BinlogOffset], Resolved | str]


class DdlHistory:
    """See the module's docstring. One thread: the decoder's.

    `databases` are the defaults of databases where `state` does not say them; `resolve` may be missing, then what does
    not say its columns is refused. `state` is `begin_state`, or what `take_state` gave last before the place in the log
    where this begins. Changes that are `left_out` make no rows. `parked` are the tables that are not followed, with
    their phase; None: what cannot be followed is raised, and parks nothing. `snapshots` are those under way. `led_to`
    tells what a change of rows that was logged as a statement makes run (`indirect`), `rules` what targets can follow.
    """

    def __init__(
        self,
        tables: Mapping[TableId, MySqlTable],
        *,
        selector: TableSelector,
        dialect: DdlDialect,
        default_charset: tuple[str, str],
        databases: Mapping[str, tuple[str, str]] | None = None,
        resolve: Resolver | None = None,
        state: Mapping[str, Any] | None = None,
        left_out: Collection[str] = (),
        parked: Mapping[TableId, Phase] | None = None,
        snapshots: SnapshotKeys | None = None,
        led_to: Callable[[str], str | None] | None = None,
        rules: TargetRules | None = None,
    ) -> None:
        #: A table that gets a foreign key with a cascade, which is not logged, is not followed.
        self.refuses_cascades = False
        self.sequences = Sequences()
        self._snapshots = snapshots or SnapshotKeys()
        #: Tables whose rows stopped to fit in what is being decoded: rows before that have this schema.
        self._misfits: dict[TableId, MySqlTable] = {}
        self._tables = dict(tables)
        self.parked = ParkedTables(parked, self._tables, rules)
        self._selector = selector
        self._dialect = dialect
        self._defaults = DatabaseDefaults(state, databases, server=default_charset)
        self._resolve = resolve
        self._led_to = led_to
        self._left_out = frozenset(left_out)
        self._decoder: SchemaSetter | None = None
        self._updates: list[SchemaUpdate] = []
        self._rows: list[LogRows] = []
        self._shadows = ShadowTables((state or {}).get("shadows"))
        self._dropped = DroppedTables((state or {}).get("dropped"))
        self._masked = MaskedNames(self.parked.rules.masks, state)
        #: Captured tables whose name nobody has, between the two renames of a tool that does them one by one.
        self._away = {TableId.parse(name) for name in (state or {}).get("away", ())}

    def attach(self, decoder: SchemaSetter) -> None:
        """`decoder` is told of every new schema."""
        self._decoder = decoder

    def table(self, table: TableId) -> MySqlTable | None:
        """The schema in force, as far as the log was decoded."""
        return self._tables.get(table) or self._misfits.get(table)

    def take_updates(self) -> tuple[tuple[SchemaUpdate, ...], tuple[LogRows, ...]]:
        """What the last statement changed, and the rows that say it truncated, once; nothing for other statements."""
        taken = tuple(self._updates), tuple(self._rows)
        self._updates, self._rows = [], []
        return taken

    def take_state(self) -> dict[str, Any] | None:
        """What a restart after the last statement must know beside the tables, once; None when that is as it was."""
        notes = (self._shadows, self._defaults, self._masked, self._dropped)
        if not any(note.changed for note in notes):
            return None
        for note in notes:
            note.changed = False
        tools = {"shadows": self._shadows.state(), "away": sorted(map(str, self._away))}
        return {**tools, **self._defaults.state(), **self._masked.state(), **self._dropped.state()}

    def captures(self, table: TableId) -> bool:
        """Whether rows of `table` are captured as far as the log was decoded: tools' tables are not, unless by name."""
        if table in self._tables:
            return True
        return table not in self.parked and table not in self.sequences and self.selects(table)

    def selects(self, table: TableId) -> bool:
        """Whether `table` is, or may again be, captured."""
        if table in self._tables or table in self.parked:
            return True
        return self._selector.matches(table) and (table in self._selector.plain_names or not self._is_tools(table))

    def on_ddl(self, item: DdlItem) -> None:
        """Apply a statement, or park the tables it is about. Raises `SchemaError` or `DataError` where none is."""
        if is_change_of_rows(item.statement):
            self._check_dml(item)
            return
        dialect = dialect_of_session(self._dialect, item.session)
        touched = touched_tables(item.statement, item.db, dialect=dialect)
        self._touch_parked(item, touched.tables, touched.databases)
        self.sequences.touched(touched.tables)
        self._masked.follow(item.statement, item.db, touched, dialect)
        try:
            self._follow(item, touched, dialect)
        except RefusedStatementError as refusal:
            named = [*refusal.tables, *(t for t in touched.tables if self.captures(t))]
            if not self.parked.allowed or not named:
                raise
            tables = list(dict.fromkeys(named))
            new = begins_with("CREATE", item.statement) and not any(t in self._tables for t in tables)
            # Of several tables nobody knows which are concerned how: each is looked at.
            again = refusal.again or new or len(tables) > 1
            for table in tables:
                self._park(item, table, str(refusal), again=again, phase=Phase.PARKED if again else refusal.phase)

    def _follow(self, item: DdlItem, touched: Touched, dialect: DdlDialect) -> None:
        captured = [t for t in touched.tables if self.captures(t)]
        tools = [t for t in touched.tables if t not in captured and self._is_tools(t)]
        dropped = any(self._shadows.holds(db) or any(t.db == db for t in self._tables) for db in touched.databases)
        if not captured and not tools and not touched.defaults and not dropped:
            return
        if self.refuses_cascades and captured and adds_cascade(item.statement):
            raise self._refusal(item, CASCADES, tables=captured[:1])
        parsed = parse_ddl(item.statement, item.db, dialect=dialect)
        if isinstance(parsed, Refused):
            for table in tools:
                self._shadows.forget(table, parsed.reason)
            if captured or not tools:
                self._refused(item, parsed.reason, captured, dialect)
            return
        renames: list[RenameTable] = []
        for ddl in separated(parsed):
            if isinstance(ddl, RenameTable):
                renames.append(ddl)
            else:
                self._apply(item, with_defaults(ddl, self._defaults.of), dialect)
        if renames:
            self._rename(item, renames)

    def _is_tools(self, table: TableId) -> bool:
        return self._shadows.get(table) is not None or role_of(table, self._tables) is not None

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
            self._apply_to_shadow(item, ddl, dialect, default_charset)
            return
        if (present := self._tables.get(ddl.table)) is None and isinstance(ddl, DropTable):
            return
        try:
            applied = apply_ddl(present, ddl, lookup=self._shape, dialect=dialect, default_charset=default_charset)
        except SchemaError as cause:
            unknown = isinstance(ddl, CreateTable) or isinstance(cause, UnknownShapeError)
            self._refused(item, str(cause), [ddl.table] if unknown else [], dialect)
            return
        if applied.rewrites is not None:
            raise self._refusal(item, applied.rewrites, again=True)
        self._take(item, ddl.table, applied)

    def _drop_database(self, item: DdlItem, db: str) -> None:
        for table in [t for t in self._tables if t.db == db]:
            self._take(item, table, AppliedDdl(None, (DropTableEvent(table),)))
        self._shadows.drop_database(db)

    def _shape(self, table: TableId) -> MySqlTable | None:
        return self._tables.get(table) or self._shadows.shape(table)

    def _apply_to_shadow(
        self,
        item: DdlItem,
        ddl: CreateTable | AlterTable | RenameTable | TruncateTable | DropTable,
        dialect: DdlDialect,
        default_charset: tuple[str, str],
    ) -> None:
        """A statement about a table that is not captured: of interest when it is a tool's."""
        found = role_of(ddl.table, self._tables)
        match ddl:
            case CreateTable() if found is not None and found[1] != "notes":
                self._shadows.create(
                    found[0], ddl, lookup=self._shape, dialect=dialect, default_charset=default_charset
                )
            case AlterTable():
                self._shadows.alter(ddl, dialect=dialect)
            case DropTable():
                gone = self._shadows.pop(ddl.table)
                if gone is not None and gone.owner in self._away and gone.table is not None:
                    why = f"{gone.owner} was renamed away, and what was to take its place is gone"
                    raise self._refusal(item, why, phase=Phase.ENDED, tables=[gone.owner])
            case _:
                pass

    # Tables that take another one's place -----------------------------------------------------------------------

    def _rename(self, item: DdlItem, pairs: list[RenameTable]) -> None:
        """All renames of a statement at once: who had which name before decides, not the names in between."""
        places = places_after(pairs)
        shapes = {name: self._tables[name] for name in places if name in self._tables}
        shadows = {name: shadow for name in places if (shadow := self._shadows.pop(name)) is not None}
        for name, before in places.items():
            if before == name or not self.captures(name):
                continue
            if before is None:
                to = next((new for new, old in places.items() if old == name), None)
                self._renamed_away(item, name, to)
            elif before in shapes:
                raise self._refusal(item, f"rename_table is not followed ({before} is captured as {name}, too)")
            else:
                self._replaced(item, name, before, shadows.get(before))
        for name, before in places.items():
            found = role_of(name, self._tables)
            if before is None or found is None or self.captures(name):
                continue
            if before in shapes and before == found[0]:
                self._shadows.put(name, Shadow(found[0], shapes[before]))
            elif before in shadows:
                self._shadows.put(name, shadows[before])

    def _renamed_away(self, item: DdlItem, table: TableId, to: TableId | None) -> None:
        """A tool that does not rename both at once leaves nobody with the name for a moment."""
        if table not in self._tables:
            return
        found = None if to is None else role_of(to, self._tables)
        if found is None or found[0] != table or not self._shadows.shadow_of(table):
            raise self._refusal(item, f"rename_table is not followed (to {to})", phase=Phase.ENDED)
        self._away.add(table)

    def _replaced(self, item: DdlItem, table: TableId, before: TableId, shadow: Shadow | None) -> None:
        """`before`, which is not captured, takes the name of `table`."""
        known = self._tables.get(table)
        found = role_of(before, self._tables)
        if known is None or (shadow is None and found != (table, "shadow")):
            why = f"the rows that {before} has were written under a name that is not captured"
            raise self._refusal(item, why, again=True)
        old = found is not None and found[1] == "old"
        if (shadow is not None and shadow.owner != table) or (old and "/* gh-ost */" not in item.statement):
            raise self._refusal(item, f"nothing says that the rows of {before} are those of {table}", again=True)
        if shadow is None or shadow.table is None:
            why = "the statement that made it came before this pipeline" if shadow is None else shadow.doubt
            shadow = self._looked_up(item, table, f"the columns of {before} are not known: {why}")
        elif doubted := shadow.doubt_under(before):
            raise self._refusal(item, doubted, again=True)
        assert shadow.table is not None
        after = with_collations(replace(shadow.table, id=table), known)
        events, doubt = reshape(known, after, shadow.origins)
        if doubt is not None:
            raise self._refusal(item, doubt, again=True)
        if shadow.comment is not None:
            events = (*events, AlterTableCommentEvent(table, shadow.comment))
        self._away.discard(table)
        # Always, even where the columns are the same: chunks being read may see the new table half filled.
        self._take(item, table, AppliedDdl(after, events), replaced=True)

    # What a statement does not say ------------------------------------------------------------------------------

    def _refused(self, item: DdlItem, reason: str, captured: list[TableId], dialect: DdlDialect) -> None:
        """A table that was created or altered in a way we cannot read may be looked up; anything else ends here."""
        table = captured[0] if len(captured) == 1 else None
        known = None if table is None else self._tables.get(table)
        readable = begins_with("CREATE" if known is None else "ALTER", item.statement)
        if table is None or not readable or (known is not None and may_move_rows(item.statement)):
            raise self._refusal(item, reason)
        found = self._lookup(item, table, reason)
        if known is None:
            self._take(item, table, AppliedDdl(found.table, (CreateTableEvent(table, found.table.schema()),)))
            return
        origins = found.origins(known)
        if isinstance(origins, str):
            raise self._refusal(item, f"{reason}, and {origins}")
        events, doubt = reshape(known, found.table, origins, forgiving=not dialect.strict)
        if doubt is not None:
            raise self._refusal(item, f"{reason}, and {doubt}")
        self._take(item, table, AppliedDdl(found.table, events), replaced=True)

    def _lookup(self, item: DdlItem, table: TableId, reason: str) -> Resolved:
        """The table as the server describes it, where that is as it was after the statement."""
        if self._resolve is None:
            raise self._refusal(item, reason)
        found = self._resolve(table, item.position)
        if isinstance(found, str):
            raise self._refusal(item, f"{reason}, and {found}")
        return replace(found, table=self._dialect.types.treat_table(found.table))

    def _looked_up(self, item: DdlItem, table: TableId, reason: str) -> Shadow:
        """What took the place of `table`, of which nothing else is known."""
        found = self._lookup(item, table, reason)
        origins = found.origins(self._tables[table])
        if isinstance(origins, str):
            raise self._refusal(item, f"{reason}, and {origins}")
        return Shadow(table, found.table, filled=origins.filled, computed=origins.computed)

    def _take(self, item: DdlItem, table: TableId, applied: AppliedDdl, *, replaced: bool = False) -> None:
        if applied.not_followed is not None:
            raise self._refusal(item, f"{applied.not_followed} is not followed")
        before, now = self._tables.get(table), applied.table
        if now is not None and before is None and (why := self._masked.shown_by(now)):
            raise self._refusal(item, why)
        if now is not None and before is None and self._dropped.differs(now) and self.parked.allowed:
            why = f"{table} was dropped, and is another table now, which is read from its beginning"
            raise self._refusal(item, why, again=True)
        if now is not None and (reserved := reserved_column(column.name for column in now.columns)):
            raise self._refusal(item, reserved)
        if before is not None and now is not None and (cut_by := self._snapshots.changed(before, now)) is not None:
            why = f"it changes column {cut_by!r}, which the table is cut by, while its snapshot is under way"
            raise self._refusal(item, why, again=True)
        if why := self.parked.objection(before, now, applied.events):
            raise self._refusal(item, why)
        emptying = [event for event in applied.events if isinstance(event, TruncateTableEvent | DropTableEvent)]
        if now == before and (now is None or not (applied.events or replaced)):
            return
        assert self._decoder is not None
        events = tuple(applied.events)
        if before is not None and any(isinstance(event, DropTableEvent) for event in applied.events):
            del self._tables[table]
            self._decoder.remove_table(table)
            if now is None:
                self._dropped.add(before, read=not self._snapshots.under_way(table))
            self._updates.append(TableDropped(table, events if now is None else events[:1]))
            events = events[1:]
        if now is not None:
            if now != before or replaced:
                self._tables[table] = now
                self._decoder.set_table(now)
            self._updates.append(TableAltered(table, events, document_of(now)))
        if any(event.type not in self._left_out for event in emptying):
            gone = now or before
            assert gone is not None
            self._rows.append(truncation(item, gone, seq=self._decoder.take_seq()))

    # Tables that are not followed ---------------------------------------------------------------------------------

    def on_misfit(self, table: TableId, error: DataError, before: BinlogOffset) -> None:
        """Rows cannot be decoded by the schema in force. Raises the error where nothing may be parked."""
        if table not in self._tables and self.sequences.met(table):
            return
        self.parked.misfit(table, error, before, unknown=table not in self._tables)
        known = self._tables.pop(table, None)
        if known is not None:
            self._misfits[table] = known

    def misfits(self, ts_ms: int) -> tuple[TableParked, ...]:
        """Between two transactions: the tables that are parked as their rows did not fit, once."""
        assert self._decoder is not None
        updates = self.parked.take_misfits(ts_ms)
        for update in updates:
            self._decoder.remove_table(update.table)
        self._misfits.clear()
        return tuple(updates)

    def begin_again(self, look: TableLook, position: BinlogOffset, ts_ms: int) -> None:
        """Follow a parked table from here on, as it was looked at; its target is emptied."""
        assert self._decoder is not None
        table = look.table
        if why := self._masked.shown_by(table):
            self.leave(replace(look, refused=why), position, ts_ms)
            return
        self.parked.follow(table.id)
        assert look.snapshot is not None, "a table that is not refused has a snapshot"
        self._snapshots.begin(table.id, look.snapshot.key)
        self._tables[table.id] = table
        self._decoder.set_table(table)
        update, rows = new_beginning(table, look.snapshot, position, ts_ms=ts_ms, seq=self._decoder.take_seq())
        self._updates.append(update)
        self._rows.append(rows)

    def end(self, table: TableId, position: BinlogOffset, ts_ms: int) -> None:
        """A parked table that was to begin again, and is not there any more."""
        why = f"there is no table {table} any more; the target keeps what it had"
        self._updates.append(self.parked.park(table, why, position, ts_ms, phase=Phase.ENDED))

    def leave(self, look: TableLook, position: BinlogOffset, ts_ms: int) -> None:
        """A parked table that was to begin again, and is one that cannot be followed."""
        self._updates.append(self.parked.park(look.table.id, look.refused, position, ts_ms))

    def _park(self, item: DdlItem, table: TableId, reason: str, **how: Any) -> None:
        assert self._decoder is not None
        self._tables.pop(table, None)
        self._away.discard(table)
        self._dropped.forget(table)
        self._decoder.remove_table(table)
        self._updates = [update for update in self._updates if update.table != table]
        self._rows = [rows for rows in self._rows if rows.table != table]
        self._updates.append(self.parked.park(table, reason, item.before, item.ts_ms, **how))

    def _touch_parked(self, item: DdlItem, tables: Collection[TableId], databases: Collection[str] = ()) -> None:
        for table in self.parked.touch(tables, databases, item.position):
            self._park(
                item, table, f"{item.position}: the name may be taken again: {shown(item.statement)}", again=True
            )

    def _check_dml(self, item: DdlItem) -> None:
        """A change of rows that was logged as a statement leads to a captured table: its rows are not in the log."""
        reached = tables_reached(item.statement, self._led_to, [*self._tables, *self.parked])
        for table in [table for table in reached if table in self._tables]:
            text = (
                f"{item.position}: a change that may concern {table} was logged as a statement, not as rows: "
                f"{shown(item.statement)}\nSet binlog_format = ROW for every session on the source, then take a "
                "new snapshot"
            )
            if not self.parked.allowed:
                raise DataError(f'{text} (startup.mode = "initial" with a new pipeline.state).')
            self._park(item, table, f"{text}.", again=self.parked.rules.lost_rows_again)
        self.parked.touch(reached, (), item.position)

    def _refusal(
        self,
        item: DdlItem,
        reason: str,
        *,
        again: bool = False,
        phase: Phase = Phase.PARKED,
        tables: Sequence[TableId] = (),
    ) -> RefusedStatementError:
        text = f"{item.position}: this statement cannot be followed: {reason}.\n  {shown(item.statement)}"
        if not self.parked.allowed:
            text += (
                "\nNothing after it was passed on. Leave the table out (source.exclude), or take a new snapshot "
                "(a new pipeline.state)."
            )
        return RefusedStatementError(text, again=again, phase=phase, tables=tables)
