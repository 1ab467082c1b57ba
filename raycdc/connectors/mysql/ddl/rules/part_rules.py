"""The rules that judge each part of an understood statement: its effect on a database, or on a table.

Parts are judged in order, each after the effect of the previous one. Renames are judged last and all together
(`name_rules`), because the names before the statement decide.
"""

from __future__ import annotations

from dataclasses import dataclass

from raycdc.connectors.mysql.ddl.alter import UnknownShapeError
from raycdc.connectors.mysql.ddl.apply import apply_ddl
from raycdc.connectors.mysql.ddl.parse.statements import (
    AlterTable,
    CreateOrAlterDatabase,
    CreateTable,
    DropDatabase,
    DropTable,
    TableDdl,
    TemporaryTable,
    TruncateTable,
)
from raycdc.connectors.mysql.ddl.rules import proofs
from raycdc.connectors.mysql.ddl.rules.facts import HistoryFacts, LoggedStatement, MySqlVerdict
from raycdc.connectors.mysql.ddl.rules.statement_rules import asked_of_server
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SchemaError
from raycdc.model.evolution import DropTableEvent
from raycdc.source.tables.table_life import ParkedPhase
from raycdc.source.tables.verdicts import Follow, Rule, TableEffect, judge


@dataclass(frozen=True, slots=True)
class StatementPart:
    """A part of a statement, with the word DEFAULT replaced by the database's defaults."""

    statement: LoggedStatement
    ddl: TableDdl


def is_of_temporary_table(part: StatementPart, _: HistoryFacts) -> MySqlVerdict | None:
    """Ignore all parts of a temporary table."""
    return proofs.OF_TEMPORARY if isinstance(part.ddl, TemporaryTable) else None


def is_of_database(part: StatementPart, facts: HistoryFacts) -> MySqlVerdict | None:
    """Record that a database is dropped with all its tables, or has other defaults."""
    ddl, session = part.ddl, part.statement.item.session
    if not isinstance(ddl, CreateOrAlterDatabase | DropDatabase):
        return None
    if isinstance(ddl, DropDatabase):
        facts.defaults.drop(ddl.db)
    else:
        facts.defaults.set(ddl, ("", "") if session.unknown else facts.server.default_of(session))
        if not ddl.or_replace:
            return proofs.OF_DEFAULTS
    facts.tools.shadows.drop_database(ddl.db)
    tables = [table for table in facts.tables if table.db == ddl.db]
    return Follow(tuple(TableEffect(table, None, (DropTableEvent(table),)) for table in tables))


def is_of_table(part: StatementPart, facts: HistoryFacts) -> MySqlVerdict:
    """Judge a part about one table by `TABLE_RULES`. All remaining parts are of this kind."""
    assert isinstance(part.ddl, CreateTable | AlterTable | TruncateTable | DropTable), (
        f"{part.ddl} is no part by itself"
    )
    return judge(TABLE_RULES, TablePart(part.statement, part.ddl), facts)


#: The rules for every part except renames, asked in this order.
PART_RULES: tuple[Rule[StatementPart, HistoryFacts, MySqlTable], ...] = (
    # The kinds of parts exclude each other. The last rule judges by further rules.
    is_of_temporary_table,
    is_of_database,
    is_of_table,
)


@dataclass(frozen=True, slots=True)
class TablePart:
    """A part of a statement that is about one table."""

    statement: LoggedStatement
    ddl: CreateTable | AlterTable | TruncateTable | DropTable


def is_like_a_temporary_table(part: TablePart, facts: HistoryFacts) -> MySqlVerdict | None:
    """Judge CREATE TABLE … LIKE a temporary table, whose columns are unknown here."""
    ddl, statement = part.ddl, part.statement
    if not isinstance(ddl, CreateTable) or ddl.like is None or not facts.temporary.may_mean(statement.item, ddl.like):
        return None
    why = f"{ddl.table} is created like a temporary table, whose columns are not known here"
    if facts.captures(ddl.table):
        return asked_of_server(statement, facts, why, (ddl.table,))
    facts.tools.doubt((ddl.table,), why)
    return proofs.OF_A_TOOL


def is_not_captured(part: TablePart, facts: HistoryFacts) -> MySqlVerdict | None:
    """Ignore a table that is not captured, unless the statement ends a tool that has renamed a captured one away."""
    ddl = part.ddl
    if facts.captures(ddl.table):
        return None
    given_up = facts.tools.apply(ddl, part.statement.dialect, facts.defaults.of(ddl.table.db))
    if given_up is None:
        return proofs.OF_A_TOOL
    why = f"{given_up} was renamed away, and what was to take its place is gone"
    return part.statement.refused(facts, why, phase=ParkedPhase.ENDED, tables=[given_up])


def drops_what_nobody_followed(part: TablePart, facts: HistoryFacts) -> MySqlVerdict | None:
    """Ignore DROP TABLE of a captured name whose table is not followed."""
    ddl = part.ddl
    return proofs.DROPS_NONE if isinstance(ddl, DropTable) and ddl.table not in facts.tables else None


def may_have_been_there(part: TablePart, facts: HistoryFacts) -> MySqlVerdict | None:
    """Resnapshot a table of CREATE TABLE IF NOT EXISTS that may have existed before."""
    ddl = part.ddl
    if not isinstance(ddl, CreateTable) or ddl.table in facts.tables or facts.parked.is_made(ddl.table):
        return None
    if not facts.server.was_there_before(part.statement.item, ddl):
        return None
    why = f"{ddl.table} may have been there before, unknown here, and then the log has not all of its rows"
    return part.statement.refused(facts, why, again=True, tables=[ddl.table])


def changes_the_table(part: TablePart, facts: HistoryFacts) -> MySqlVerdict:
    """Follow the part's effect on the table. Refuse it if it cannot have had this effect."""
    ddl, statement = part.ddl, part.statement
    try:
        applied = apply_ddl(
            facts.tables.get(ddl.table),
            ddl,
            find_table=facts.tools.shape,
            dialect=statement.dialect,
            default_charset=facts.defaults.of(ddl.table.db),
        )
    except SchemaError as cause:
        unknown = isinstance(ddl, CreateTable) or isinstance(cause, UnknownShapeError)
        return asked_of_server(statement, facts, str(cause), (ddl.table,) if unknown else ())
    if applied.rewrites is not None:
        return statement.refused(facts, applied.rewrites, again=True)
    return Follow((TableEffect(ddl.table, applied.table, applied.events),))


#: The rules for every part about a table, asked in this order.
TABLE_RULES: tuple[Rule[TablePart, HistoryFacts, MySqlTable], ...] = (
    # Asked before `is_not_captured`, because it also applies to tools' tables.
    is_like_a_temporary_table,
    # Asked before the rules that need a followed table, or would treat this one as new.
    is_not_captured,
    # Asked before `changes_the_table`, which needs the dropped table; the rule in between concerns created ones.
    drops_what_nobody_followed,
    # Asked before `changes_the_table`, which follows a new table from here on without its earlier rows.
    may_have_been_there,
    changes_the_table,
)
