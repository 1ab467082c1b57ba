"""The rules that judge a statement of the log as a whole, before its parts.

| subject | rules | without an earlier verdict |
|---|---|---|
| a parked table that a statement names | `PARKED_RULES` | it stays parked |
| a table whose rows may be changed by a logged statement | `ROWS_RULES` | it is parked |
| any other statement | `STATEMENT_RULES` | its parts are judged by `part_rules` |
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.ddl.apply import RefusedStatement
from raycdc.connectors.mysql.ddl.follow.indirect import SqlText, tables_reached
from raycdc.connectors.mysql.ddl.logged_otherwise import MERGED, tables_below
from raycdc.connectors.mysql.ddl.parse.tokens import CASCADES, LexRules, adds_cascade, begins_with, may_move_rows, shown
from raycdc.connectors.mysql.ddl.rules import facts as reasons
from raycdc.connectors.mysql.ddl.rules.facts import HistoryFacts, LoggedStatement, MySqlVerdict, StatementRule
from raycdc.connectors.mysql.ddl.shape import reshape
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import DataError
from raycdc.model import TableId
from raycdc.model.evolution import CreateTableEvent
from raycdc.source.tables.parked_tables import ParkedKind
from raycdc.source.tables.verdicts import Follow, Park, Resnapshot, Rule, TableEffect
from raycdc.state.codec import NEW_STATE

_REPAIRED = "REPAIR may have removed rows, which the log does not show"


@dataclass(frozen=True, slots=True)
class NamedParked:
    """A parked table, and a statement that names it or its database."""

    statement: LoggedStatement
    table: TableId


def name_is_taken_again(named: NamedParked, facts: HistoryFacts) -> MySqlVerdict | None:
    """Probe an ended table whose name may belong to another table from here on."""
    if facts.parked[named.table] is not ParkedKind.ENDED:
        return None
    item = named.statement.item
    return Resnapshot(f"{item.position}: the name may be taken again: {shown(item.statement)}", (named.table,))


def leaves_nothing_to_decide(named: NamedParked, facts: HistoryFacts) -> MySqlVerdict | None:
    """Remove a table that was never followed and is now dropped or renamed: no decision is needed."""
    item = named.statement.item
    leaves = begins_with("DROP", item.statement) or begins_with("RENAME", item.statement)
    if not leaves or not facts.parked.is_over(named.table):
        return None
    return Resnapshot(f"{item.position}: it may have been dropped or replaced: {shown(item.statement)}", (named.table,))


def stays_parked(_: NamedParked, __: HistoryFacts) -> MySqlVerdict:
    """Leave the table parked. Probes of it from before the statement are already noted as out of date."""
    return reasons.STAYS_PARKED


PARKED_RULES: tuple[Rule[NamedParked, HistoryFacts, MySqlTable], ...] = (
    # The first two rules exclude each other, because an ended table needs no decision.
    name_is_taken_again,
    leaves_nothing_to_decide,
    stays_parked,
)


@dataclass(frozen=True, slots=True)
class ReachedTable:
    """A table that a change of rows may concern. If it is not named, `unseen` is the reason why that is unknown."""

    item: DdlItem
    table: TableId
    unseen: str


def reached_tables(item: DdlItem, facts: HistoryFacts) -> tuple[ReachedTable, ...]:
    """Return the tables, followed or parked, that a change of rows may concern. It was logged as a statement."""
    session = item.session
    reached = tables_reached(
        SqlText(item.db, item.statement),
        facts.server.led_to,
        [*facts.tables, *facts.parked],
        databases=session.databases,
        shadowed=lambda table: item.thread_specific and facts.temporary.shadows(item.thread, table),
        rules=LexRules(session.ansi_quotes, session.backslash_escapes),
    )
    return tuple(ReachedTable(item, table, unseen) for table, unseen in reached.items())


def rows_of_parked(reached: ReachedTable, facts: HistoryFacts) -> MySqlVerdict | None:
    """Ignore rows of a parked table, because they are not needed."""
    return None if reached.table in facts.tables else reasons.ROWS_OF_PARKED


def rows_not_logged(reached: ReachedTable, facts: HistoryFacts) -> MySqlVerdict:
    """Park a table whose changed rows are not in the log. Raises `DataError` if none may be parked."""
    item, table, unseen = reached.item, reached.table, reached.unseen
    text = (
        f"{item.position}: a change that may concern {table} was logged as a statement, not as rows: "
        f"{shown(item.statement)}\n{unseen}{'. ' if unseen else ''}Set binlog_format = ROW for every session "
        "on the source, then take a new snapshot"
    )
    if not facts.parked.parks:
        raise DataError(f'{text}: set startup.mode = "initial" and {NEW_STATE}.')
    lost_rows_again = facts.parked.rules.lost_rows_again
    return Resnapshot(f"{text}.", (table,)) if lost_rows_again else Park(f"{text}.", (table,))


ROWS_RULES: tuple[Rule[ReachedTable, HistoryFacts, MySqlTable], ...] = (
    # A parked table keeps its first reason.
    rows_of_parked,
    rows_not_logged,
)


def is_of_temporary_tables(statement: LoggedStatement, _: HistoryFacts) -> MySqlVerdict | None:
    """Ignore CREATE and DROP TEMPORARY TABLE, and other statements about a temporary table."""
    return reasons.OF_TEMPORARY if statement.of_temporary else None


def has_unreadable_names(statement: LoggedStatement, facts: HistoryFacts) -> MySqlVerdict | None:
    """Resnapshot every followed table that an unreadable statement mentions."""
    if not statement.mentioned:
        return None
    reason = f"its names cannot be read: {statement.affected.unread}"
    return statement.refused(facts, reason, again=True, tables=statement.mentioned)


def merges_tables(statement: LoggedStatement, facts: HistoryFacts) -> MySqlVerdict | None:
    """Park captured tables if a MERGE table over them is created or changed."""
    below = tables_below(statement.text, statement.item.db, statement.dialect)
    merged = [table for table in (*statement.affected.tables, *below) if facts.captures(table)] if below else []
    return statement.refused(facts, MERGED, again=True, tables=merged) if merged else None


def names_nothing_captured(statement: LoggedStatement, facts: HistoryFacts) -> MySqlVerdict | None:
    """Ignore a statement without captured names. Most statements end here, and are never parsed."""
    affected, tables, shadows = statement.affected, facts.tables, facts.tools.shadows
    drops_tables = any(shadows.holds(db) or any(t.db == db for t in tables) for db in affected.databases)
    named = statement.captured or statement.tools or affected.defaults or drops_tables
    return None if named else reasons.NAMES_NONE


def repairs(statement: LoggedStatement, facts: HistoryFacts) -> MySqlVerdict | None:
    """Resnapshot repaired tables, because rows that could not be repaired were removed, which is not logged."""
    if statement.affected.verb != "REPAIR":
        return None
    repaired = tuple(table for table in statement.captured if facts.server.repairs(table))
    if not repaired:
        return reasons.REPAIRS_NONE if statement.captured else reasons.OF_A_TOOL
    of_repaired = replace(statement, affected=replace(statement.affected, tables=repaired))
    return of_repaired.refused(facts, _REPAIRED, again=True)


def may_mean_a_temporary_table(statement: LoggedStatement, facts: HistoryFacts) -> MySqlVerdict | None:
    """Resnapshot a table if the statement may concern a temporary table of its name. This is right in both cases."""
    doubt = facts.temporary.doubt(statement.item, statement.affected)
    if doubt is None:
        return None
    facts.tools.doubt(statement.tools, doubt)
    return statement.refused(facts, doubt, again=True) if statement.captured else reasons.OF_A_TOOL


def adds_an_unlogged_cascade(statement: LoggedStatement, facts: HistoryFacts) -> MySqlVerdict | None:
    """Park a table that gets a foreign key with a cascade, because the log will not show the changes."""
    if facts.server.cascades or not statement.captured or not adds_cascade(statement.text):
        return None
    return statement.refused(facts, CASCADES, tables=statement.captured[:1])


def makes_an_unlogged_table(statement: LoggedStatement, facts: HistoryFacts) -> MySqlVerdict | None:
    """Park a table with an engine or in a database whose rows are not in the log."""
    unlogged = facts.server.first_unlogged(statement.text, statement.captured)
    return None if unlogged is None else statement.refused(facts, unlogged[1], tables=[unlogged[0]])


def has_an_unknown_session(statement: LoggedStatement, facts: HistoryFacts) -> MySqlVerdict | None:
    """Park the tables of a statement whose event has an unknown session setting, which may change its meaning."""
    unknown = statement.item.session.unknown
    if not unknown or not (statement.captured or statement.tools):
        return None
    why = f"its event has {unknown}, which this version does not know"
    facts.tools.doubt(statement.tools, why)
    return asked_of_server(statement, facts, why, statement.captured) if statement.captured else reasons.OF_A_TOOL


def is_not_understood(statement: LoggedStatement, facts: HistoryFacts) -> MySqlVerdict | None:
    """Park the tables of a statement that is not understood, or that adds rows which the log does not have."""
    parsed = statement.parsed
    if not isinstance(parsed, RefusedStatement):
        return None
    facts.tools.doubt(statement.tools, parsed.reason)
    if statement.captured and parsed.filled:
        return statement.refused(facts, parsed.reason, again=True)
    if statement.captured or not statement.tools:
        return asked_of_server(statement, facts, parsed.reason, statement.captured)
    return reasons.OF_A_TOOL


#: The rules for every statement except changes of rows, asked in this order.
STATEMENT_RULES: tuple[StatementRule, ...] = (
    # Asked first, because the names of temporary tables are not those of captured tables.
    is_of_temporary_tables,
    # Asked before the rules that use the statement's names.
    has_unreadable_names,
    # Asked before `names_nothing_captured`, because tables below a MERGE table are named in an option only.
    merges_tables,
    # Asked before all rules that look closer, because statements about other tables are never parsed.
    names_nothing_captured,
    # Asked before the statement is parsed, because the parser does not know REPAIR.
    repairs,
    # Asked before the rules about the effect on a table, because another table may be meant.
    may_mean_a_temporary_table,
    # Asked before `makes_an_unlogged_table`, which queries the server.
    adds_an_unlogged_cascade,
    # Asked before the rules that may follow the table, because its rows will not be in the log.
    makes_an_unlogged_table,
    # Asked before the statement is parsed, because it is unknown how the session reads the text.
    has_an_unknown_session,
    # The last rule for the whole statement; afterwards its parts are judged one by one.
    is_not_understood,
)


def asked_of_server(
    statement: LoggedStatement, facts: HistoryFacts, reason: str, tables: tuple[TableId, ...]
) -> MySqlVerdict:
    """Return the verdict on a statement that cannot be read, for this `reason`.

    The server may be queried for the table that it creates or alters. Any other statement is refused.
    """
    table = tables[0] if len(tables) == 1 else None
    before = None if table is None else facts.tables.get(table)
    readable = begins_with("CREATE" if before is None else "ALTER", statement.text)
    if table is None or not readable or (before is not None and may_move_rows(statement.text)):
        return statement.refused(facts, reason)
    resolved = facts.server.looked_up(table, statement.item.position, reason)
    if isinstance(resolved, str):
        return statement.refused(facts, resolved)
    after = resolved.table
    if before is None:
        return Follow((TableEffect(table, after, (CreateTableEvent(table, after.schema()),)),))
    lineage = resolved.lineage(before)
    if isinstance(lineage, str):
        return statement.refused(facts, f"{reason}, and {lineage}")
    events, doubt = reshape(before, after, lineage, forgiving=not statement.dialect.strict)
    if doubt is not None:
        return statement.refused(facts, f"{reason}, and {doubt}")
    return Follow((TableEffect(table, after, events, replaces=True),))
