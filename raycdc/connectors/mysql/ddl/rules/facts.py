"""The facts by which statements of the log are judged: known tables, and the statement itself.

`DdlHistory` keeps them up to date, statement by statement, in the decoder's thread. The rules read them
(`statement_rules`, `part_rules`), and change only facts about tables that are not
captured: schema change tools' tables, temporary ones, and databases' defaults.

The constants are the reasons why a statement of the log, or a part of it, changes no captured table. A rule that
ignores something returns one of these. A statement without such a reason is followed, or parks its tables.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.binlog.positions.position import ordinal_of
from raycdc.connectors.mysql.binlog.session import dialect_of_session
from raycdc.connectors.mysql.ddl.apply import (
    AffectedTables,
    DdlDialect,
    RefusedStatement,
    TableDdl,
    affected_tables,
    parse_ddl,
)
from raycdc.connectors.mysql.ddl.follow.followed_tables import (
    DroppedTables,
    FollowedTables,
    Sequences,
    SnapshotChunkKeys,
    note_made,
)
from raycdc.connectors.mysql.ddl.follow.history_state import DatabaseDefaults, TemporaryTables
from raycdc.connectors.mysql.ddl.follow.log_server import LogServer
from raycdc.connectors.mysql.ddl.follow.masked_names import MaskedNames
from raycdc.connectors.mysql.ddl.follow.tool_tables import ToolTables
from raycdc.connectors.mysql.ddl.parse.tokens import begins_with, mentions, shown
from raycdc.connectors.mysql.values.documents import Capture
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.model.rules.selector import TableSelector
from raycdc.source.tables.parked_tables import ParkedTables
from raycdc.source.tables.table_life import ParkedPhase
from raycdc.source.tables.verdicts import Ignore, Park, Resnapshot, Rule, Verdict

OF_TEMPORARY = Ignore("only its session sees a temporary table, and the log has none of its rows")
NAMES_NONE = Ignore("it names no captured table, nor a tool's table beside one, nor a database that has such tables")
OF_A_TOOL = Ignore("rows of a schema change tool's table are never read; what is known of its columns was noted")
REPAIRS_NONE = Ignore("REPAIR TABLE does nothing to tables of this engine")
OF_DEFAULTS = Ignore("a database's defaults are for tables that are created later")
DROPS_NONE = Ignore("no table of the dropped name was followed, so that its target has no rows of one")
CHANGES_NOTHING = Ignore("the table is the same before and after it, in everything that targets get")
STAYS_PARKED = Ignore("the table is parked, and the event that it waits for is the same as before")
ROWS_OF_PARKED = Ignore("no row of a parked table is passed on, and it is probed again before its rows are")
KEEPS_ITS_NAME = Ignore("after all renames of the statement the table has the same name as before")
OF_ANOTHER_NAME = Ignore("the name is not captured")
BETWEEN_RENAMES = Ignore("a tool will give the name to its copy next, and a name without a table has no rows")
NOT_FOLLOWED = Ignore("no table of the name was followed, so that its target has no rows of one")


#: A verdict on a statement of the MySQL log.
MySqlVerdict = Verdict[MySqlTable]


@dataclass(frozen=True, slots=True)
class HistoryFacts:
    """The facts about tables at the log's position. Used by the decoder's thread only."""

    server: LogServer
    selector: TableSelector
    tables: FollowedTables
    parked: ParkedTables[MySqlTable]
    tools: ToolTables
    sequences: Sequences
    defaults: DatabaseDefaults
    dropped: DroppedTables
    masked: MaskedNames
    temporary: TemporaryTables
    snapshots: SnapshotChunkKeys
    #: The captured parts of tables that are not captured completely.
    captured: Mapping[TableId, Capture] = field(default_factory=dict)

    def captures(self, table: TableId) -> bool:
        """Return True if rows of `table` are captured at the decoded position. Tools' tables are not, unless named."""
        if table in self.tables:
            return True
        return table not in self.parked and table not in self.sequences and self.selects(table)

    def selects(self, table: TableId) -> bool:
        """Return True if `table` is, or may be again, captured."""
        if table in self.tables or table in self.parked:
            return True
        return self.selector.matches(table) and (table in self.selector.plain_names or table not in self.tools)


@dataclass(frozen=True)
class LoggedStatement:
    """A statement of the log, as its session meant it, and the tables that it names.

    `of_temporary` is True if it concerns temporary tables only. `mentioned` are the followed tables in its text if its
    names cannot be read. The tables of `affected` are `captured`, or of a schema change tool (`tools`), or irrelevant.
    `parked` are named tables that are parked.
    """

    item: DdlItem
    dialect: DdlDialect
    affected: AffectedTables
    of_temporary: bool = False
    mentioned: tuple[TableId, ...] = ()
    captured: tuple[TableId, ...] = ()
    tools: tuple[TableId, ...] = ()
    parked: tuple[TableId, ...] = ()

    @property
    def text(self) -> str:
        return self.item.statement

    @cached_property
    def parsed(self) -> tuple[TableDdl, ...] | RefusedStatement:
        """Return the parts of the statement, or why it is not understood."""
        return parse_ddl(self.item.statement, self.item.db, dialect=self.dialect)

    def refusal(self, reason: str) -> str:
        """Return the text for users about why the statement cannot be followed."""
        what = f"{self.item.position}: this statement cannot be followed: {reason.removesuffix('.')}."
        return f"{what}\n  {shown(self.text)}"

    def refused(
        self,
        facts: HistoryFacts,
        reason: str,
        *,
        again: bool = False,
        phase: ParkedPhase = ParkedPhase.PARKED,
        tables: Sequence[TableId] = (),
    ) -> Park | Resnapshot:
        """Return the verdict that the captured tables named by the statement, and `tables`, cannot be followed.

        They are resnapshotted if `again` is set, if the statement creates them, and if there are several, because it is
        unknown which of them it concerns.
        """
        text = self.refusal(reason)
        concerned = tuple(dict.fromkeys((*tables, *(t for t in self.affected.tables if facts.captures(t)))))
        new = begins_with("CREATE", self.text) and not any(t in facts.tables for t in concerned)
        if again or new or len(concerned) > 1:
            return Resnapshot(text, concerned)
        return Park(text, concerned, phase)


def note_statement(item: DdlItem, facts: HistoryFacts) -> LoggedStatement:
    """Return the statement with the tables that it names. Note its facts about names, whatever the verdict will be."""
    dialect = dialect_of_session(facts.server.dialect, item.session)
    affected = affected_tables(item.statement, item.db, dialect=dialect)
    if facts.temporary.follow(item, affected):
        return LoggedStatement(item, dialect, affected, of_temporary=True)
    note_made(facts.parked, item, affected, dialect, facts.server.was_there_before)
    named: Collection[TableId] = affected.tables
    if affected.unread:
        named = [t for t in (*facts.tables, *facts.parked) if mentions(item.statement, t, db=item.db)]
    asked = {*named, *affected.dropped_sequences}
    parked = tuple(table for table in facts.parked if table in asked or table.db in affected.databases)
    # The statement makes earlier probes of parked tables out of date.
    dropped = begins_with("DROP", item.statement)
    leaves = dropped or begins_with("RENAME", item.statement)
    for table in parked:
        facts.parked.invalidate(table, ordinal_of(item.position), stays_absent=dropped, leaves=leaves)
    facts.sequences.note_statement(affected)
    facts.masked.follow(item.statement, item.db, affected, dialect)
    captured = tuple(table for table in affected.tables if facts.captures(table))
    return LoggedStatement(
        item,
        dialect,
        affected,
        mentioned=tuple(table for table in named if table in facts.tables) if affected.unread else (),
        captured=captured,
        tools=tuple(table for table in affected.tables if table not in captured and table in facts.tools),
        parked=parked,
    )


StatementRule = Rule[LoggedStatement, HistoryFacts, MySqlTable]
