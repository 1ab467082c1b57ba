"""The rules that judge the parts of an understood statement, the names in its renames, and each effect.

`PART_RULES` judge each part of a statement. `TABLE_RULES` judge a part that is about a table. The parts are judged in
order, and the effect of a part is applied before the next part is judged.

`NAME_RULES` judge the names in renames last and all together: RENAME TABLE, and RENAME inside ALTER TABLE. All renames
of a statement count together: only the names before the statement matter, not the names in between. Renames of
temporary tables, which MariaDB logs like others, are noted and left out before.

`EFFECT_RULES` judge each effect of a statement on a captured table before it is applied. A statement may be understood,
but have an effect that targets cannot follow, or must not show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from raycdc.connectors.mysql.ddl.alter import UnknownShapeError
from raycdc.connectors.mysql.ddl.apply import apply_ddl
from raycdc.connectors.mysql.ddl.follow.tool_tables import NewNames
from raycdc.connectors.mysql.ddl.logged_otherwise import unlogged_reason
from raycdc.connectors.mysql.ddl.parse.statements import (
    AlterTable,
    CreateOrAlterDatabase,
    CreateTable,
    DropDatabase,
    DropTable,
    RenameTable,
    TableDdl,
    TemporaryTable,
    TruncateTable,
    with_collations,
)
from raycdc.connectors.mysql.ddl.rules import facts as reasons
from raycdc.connectors.mysql.ddl.rules.facts import HistoryFacts, LoggedStatement, MySqlVerdict
from raycdc.connectors.mysql.ddl.rules.statement_rules import asked_of_server
from raycdc.connectors.mysql.ddl.shape import reassigned_names, reshape
from raycdc.connectors.mysql.snapshot.row_filter import ANOTHER_CAPTURE, changed_meaning, uncapturable
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import SchemaError
from raycdc.model import TableId
from raycdc.model.batch import reserved_column
from raycdc.model.evolution import (
    AlterPrimaryKeyEvent,
    AlterTableCommentEvent,
    DropTableEvent,
    RenameColumnEvent,
    RenameTableEvent,
)
from raycdc.source.tables.table_life import ParkedPhase
from raycdc.source.tables.verdicts import Follow, Ignore, Park, Resnapshot, Rule, TableEffect, judge


@dataclass(frozen=True, slots=True)
class StatementPart:
    """A part of a statement, with the word DEFAULT replaced by the database's defaults."""

    statement: LoggedStatement
    ddl: TableDdl


def is_of_temporary_table(part: StatementPart, _: HistoryFacts) -> MySqlVerdict | None:
    """Ignore all parts of a temporary table."""
    return reasons.OF_TEMPORARY if isinstance(part.ddl, TemporaryTable) else None


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
            return reasons.OF_DEFAULTS
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
    return reasons.OF_A_TOOL


def is_not_captured(part: TablePart, facts: HistoryFacts) -> MySqlVerdict | None:
    """Ignore a table that is not captured, unless the statement ends a tool's exchange of a captured table."""
    ddl = part.ddl
    if facts.captures(ddl.table):
        return None
    given_up = facts.tools.apply(ddl, part.statement.dialect, facts.defaults.of(ddl.table.db))
    if given_up is None:
        return reasons.OF_A_TOOL
    why = f"{given_up} was renamed away, and the table that was to replace it is unknown"
    return part.statement.refused(facts, why, phase=ParkedPhase.ENDED, tables=[given_up])


def drops_what_nobody_followed(part: TablePart, facts: HistoryFacts) -> MySqlVerdict | None:
    """Ignore DROP TABLE of a captured name whose table is not followed."""
    ddl = part.ddl
    return reasons.DROPS_NONE if isinstance(ddl, DropTable) and ddl.table not in facts.tables else None


def may_have_been_there(part: TablePart, facts: HistoryFacts) -> MySqlVerdict | None:
    """Resnapshot a table of CREATE TABLE IF NOT EXISTS that may have existed before."""
    ddl = part.ddl
    if not isinstance(ddl, CreateTable) or ddl.table in facts.tables or facts.parked.is_made(ddl.table):
        return None
    if not facts.server.was_there_before(part.statement.item, ddl):
        return None
    why = f"{ddl.table} may have existed before, and then the log lacks some of its rows"
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
    # Asked before the rules that need a followed table, or would treat this table as new.
    is_not_captured,
    # Asked before `changes_the_table`, which needs the dropped table; the rule in between concerns created tables only.
    drops_what_nobody_followed,
    # Asked before `changes_the_table`, which follows a new table from here on without its earlier rows.
    may_have_been_there,
    changes_the_table,
)


@dataclass(frozen=True, slots=True)
class GivenName:
    """A name after all renames of a statement, and the earlier name `before` of its table; None: the name is unused."""

    statement: LoggedStatement
    name: TableId
    before: TableId | None
    names: NewNames

    def refusal(self, reason: str) -> str:
        return self.statement.refusal(reason)


def judge_names(
    statement: LoggedStatement, pairs: Sequence[RenameTable], facts: HistoryFacts
) -> tuple[MySqlVerdict, ...]:
    """Return one verdict for each captured name that the renames of a statement give or take."""
    if statement.dialect.mariadb:
        pairs = [pair for pair in pairs if not facts.temporary.renames(statement.item, pair)]
    names = facts.tools.take_names(pairs)
    given = [GivenName(statement, name, before, names) for name, before in names.previous_names.items()]
    verdicts = [judge(NAME_RULES, each, facts) for each in given]
    facts.tools.keep_shadows(names, facts.captures)
    concerned = [verdict for verdict in verdicts if not isinstance(verdict, Ignore)]
    if len(concerned) < 2:
        return tuple(concerned)
    # It is unknown which of several tables the statement concerns, so each one is resnapshotted.
    return tuple(Resnapshot(each.reason, each.tables) if isinstance(each, Park) else each for each in concerned)


def keeps_its_name(given: GivenName, _: HistoryFacts) -> MySqlVerdict | None:
    """Ignore a table that has its old name after all renames."""
    return reasons.KEEPS_ITS_NAME if given.before == given.name else None


def is_another_name(given: GivenName, facts: HistoryFacts) -> MySqlVerdict | None:
    """Ignore a name that is not captured."""
    return None if facts.captures(given.name) else reasons.OF_ANOTHER_NAME


def leaves_the_name(given: GivenName, facts: HistoryFacts) -> MySqlVerdict | None:
    """End a table whose name is unused now, unless a tool exchanges its tables one by one."""
    if given.before is not None:
        return None
    if given.name not in facts.tables:
        return reasons.NOT_FOLLOWED
    to = given.names.new_name_of(given.name)
    if facts.tools.leaves(given.name, to):
        return reasons.BETWEEN_RENAMES
    return Park(given.refusal(f"rename_table is not followed (to {to})"), (given.name,), ParkedPhase.ENDED)


def was_captured_before(given: GivenName, _: HistoryFacts) -> MySqlVerdict | None:
    """Resnapshot a table that was captured under its former name, because its rows are in that name's target."""
    if given.before not in given.names.shapes:
        return None
    why = f"the rows that {given.before} has were captured under that name"
    return Resnapshot(given.refusal(why), (given.name,))


def was_not_captured_before(given: GivenName, facts: HistoryFacts) -> MySqlVerdict | None:
    """Park the table if its rows under its former name are in no target, unless it is a tool's copy of this table."""
    assert given.before is not None
    is_shadow = given.before in given.names.shadows or facts.tools.role(given.before) == (given.name, "shadow")
    if given.name in facts.tables and is_shadow:
        return None
    why = f"the rows that {given.before} has were written under a name that is not captured"
    return Resnapshot(given.refusal(why), (given.name,))


def may_have_other_rows(given: GivenName, facts: HistoryFacts) -> MySqlVerdict | None:
    """Resnapshot a table that was replaced by a tool's copy of another table, or by the old table that was put back by
    hand.
    """
    assert given.before is not None
    shadow, role = given.names.shadows.get(given.before), facts.tools.role(given.before)
    old = role is not None and role[1] == "old" and "/* gh-ost */" not in given.statement.text
    if not old and (shadow is None or shadow.owner == given.name):
        return None
    why = f"it is unknown if the rows of {given.before} are those of {given.name}"
    return Resnapshot(given.refusal(why), (given.name,))


def takes_over_name(given: GivenName, facts: HistoryFacts) -> MySqlVerdict:
    """Follow the replacement of a table by a tool's copy of it."""
    name, before, captured = given.name, given.before, facts.tables[given.name]
    assert before is not None
    shadow = given.names.shadows.get(before)
    if shadow is None or shadow.table is None:
        why = "the statement that made it came before this pipeline" if shadow is None else shadow.doubt
        reason = f"the columns of {before} are not known: {why}"
        successor = facts.server.successor(captured, given.statement.item.position, reason)
        if isinstance(successor, str):
            return Park(given.refusal(successor), (name,))
        shadow = successor
    elif doubted := shadow.doubt_under(before):
        return Resnapshot(given.refusal(doubted), (name,))
    assert shadow.table is not None
    after = with_collations(replace(shadow.table, id=name), captured)
    events, doubt = reshape(captured, after, shadow.lineage)
    if doubt is not None:
        return Resnapshot(given.refusal(doubt), (name,))
    if shadow.comment is not None:
        events = (*events, AlterTableCommentEvent(name, shadow.comment))
    facts.tools.forget(name)
    # The table is a different one even if the columns are equal: chunks being read may see the new one half filled.
    return Follow((TableEffect(name, after, events, replaces=True),))


#: The rules for every name in a statement's renames, asked in this order.
NAME_RULES: tuple[Rule[GivenName, HistoryFacts, MySqlTable], ...] = (
    # Asked before the rules about tables that come or go, because none did.
    keeps_its_name,
    # Asked before the rules about a name's present table, which require that there is one.
    is_another_name,
    # Asked before the rules about the table that has the name now, because there is none.
    leaves_the_name,
    # Asked before `was_not_captured_before`, which treats every table without a tool as not captured.
    was_captured_before,
    # Asked before the rules about tools' tables, because it separates these from all other tables.
    was_not_captured_before,
    # Asked before `takes_over_name`, which treats the rows as those of the captured table.
    may_have_other_rows,
    takes_over_name,
)


@dataclass(frozen=True, slots=True)
class StatementEffect:
    """An effect of a statement, and the table `before` it; None: the table was not followed before."""

    statement: LoggedStatement
    effect: TableEffect[MySqlTable]
    before: MySqlTable | None

    @property
    def made(self) -> MySqlTable | None:
        """Return the new table if it was not followed before."""
        return self.effect.after if self.before is None else None


def has_another_key_or_name(judged: StatementEffect, facts: HistoryFacts) -> MySqlVerdict | None:
    """Refuse a new primary key, or a new name of the table, because sinks cannot apply these."""
    kinds = AlterPrimaryKeyEvent | RenameTableEvent
    event = next((event for event in judged.effect.events if isinstance(event, kinds)), None)
    return None if event is None else judged.statement.refused(facts, f"{event.type} is not followed")


def is_logged_otherwise(judged: StatementEffect, facts: HistoryFacts) -> MySqlVerdict | None:
    """Refuse a table whose values in the log differ from those in the table."""
    after = judged.effect.after
    if after is None or not (why := unlogged_reason(after)):
        return None
    return judged.statement.refused(facts, why.removesuffix("."), again=True)


def shows_what_is_masked(judged: StatementEffect, facts: HistoryFacts) -> MySqlVerdict | None:
    """Park a table whose rows or columns were masked under an earlier name.

    Nothing after the statement is read of the table, so its values do not get into the state either.
    """
    after = judged.effect.after
    if after is None or not (why := facts.masked.shown_by(after)):
        return None
    return judged.statement.refused(facts, why)


def differs_from_the_dropped(judged: StatementEffect, facts: HistoryFacts) -> MySqlVerdict | None:
    """Resnapshot a new table whose columns differ from the dropped one of its name, which targets still have."""
    if judged.made is None or not facts.dropped.differs(judged.made) or not facts.parked.parks:
        return None
    why = f"{judged.made.id} was dropped, and is another table now, which is read from its beginning"
    return judged.statement.refused(facts, why, again=True)


def has_a_reserved_column(judged: StatementEffect, facts: HistoryFacts) -> MySqlVerdict | None:
    """Refuse a table with a column whose name is reserved for metadata columns."""
    after = judged.effect.after
    if after is None or not (why := reserved_column(column.name for column in after.columns)):
        return None
    return judged.statement.refused(facts, why)


def changes_the_chunk_key(judged: StatementEffect, facts: HistoryFacts) -> MySqlVerdict | None:
    """Resnapshot a table whose chunk column changes during its snapshot."""
    before, after = judged.before, judged.effect.after
    if before is None or after is None:
        return None
    column = facts.snapshots.changed(before, after, reassigned_names(judged.effect.events))
    if column is None:
        return None
    why = f"it changes column {column!r}, which the table is cut by, while its snapshot is under way"
    return judged.statement.refused(facts, why, again=True)


def changes_what_is_captured(judged: StatementEffect, facts: HistoryFacts) -> MySqlVerdict | None:
    """Park a table that lacks a column of its filter or its list of columns; resnapshot it if the filter means
    something else.
    """
    before, after = judged.before, judged.effect.after
    table = after or before
    if table is None or after is None or (capture := facts.captured.get(table.id)) is None:
        return None
    if why := uncapturable(after, capture):
        return judged.statement.refused(facts, f"{why} {ANOTHER_CAPTURE.format(table=table.id)}")
    if before is None or any(isinstance(event, DropTableEvent) for event in judged.effect.events):
        return None
    renamed = {
        name for event in judged.effect.events if isinstance(event, RenameColumnEvent)
        for name in (event.name, event.new_name)
    }  # fmt: skip
    if found := sorted(renamed & set(capture.columns or ())):
        why = f"source.columns lists {found[0]!r} of {table.id}, and this is another column from here on."
        return judged.statement.refused(facts, f"{why} {ANOTHER_CAPTURE.format(table=table.id)}")
    if (changed := changed_meaning(before, after, capture, reassigned_names(judged.effect.events))) is None:
        return None
    why = f"source.snapshot.filter of {table.id} compares {changed!r}, and would mean something else from here on"
    return judged.statement.refused(facts, why, again=True)


def is_not_for_targets(judged: StatementEffect, facts: HistoryFacts) -> MySqlVerdict | None:
    """Park a table that targets cannot follow according to the configuration.

    It is resnapshotted instead if only the meaning of its transform changes, or if a column of the target would have
    values of two columns.
    """
    before, after = judged.before, judged.effect.after
    table = before or after
    if table is None:
        return None
    schema = None if before is None else before.schema()
    made = None if after is None else after.schema()
    events = judged.effect.events
    why = facts.parked.objection(table.id, schema, made, events)
    if not why:
        return None
    again = False
    if schema is not None and made is not None:
        rules = facts.parked.rules
        again = why in (
            rules.mixed_values(table.id, schema, made, events),
            rules.new_meaning(table.id, schema, made, events),
        )
    return judged.statement.refused(facts, why, again=again)


def changes_nothing(judged: StatementEffect, _: HistoryFacts) -> MySqlVerdict | None:
    """Ignore indexes, options, partitions that keep their rows, and DROP TABLE of a missing table."""
    effect = judged.effect
    same = effect.after == judged.before
    has_effect = effect.after is not None and (effect.events or effect.replaces)
    return reasons.CHANGES_NOTHING if same and not has_effect else None


def is_followed(judged: StatementEffect, _: HistoryFacts) -> MySqlVerdict:
    """Follow the effect, because no rule objects."""
    return Follow((judged.effect,))


#: The rules for every effect, asked in this order.
EFFECT_RULES: tuple[Rule[StatementEffect, HistoryFacts, MySqlTable], ...] = (
    # Asked before the rules that resnapshot the table: a user must decide if targets get the new key.
    has_another_key_or_name,
    # Asked before the rules about names, which a user may change, because the log never has the rows of such a table.
    is_logged_otherwise,
    # Asked before `differs_from_the_dropped`, whose resnapshot would show masked values.
    shows_what_is_masked,
    # Asked before the rules about the table's columns, because the target has the dropped table's columns in any case.
    differs_from_the_dropped,
    # Asked before `changes_the_chunk_key`, whose resnapshot would have the reserved column, too.
    has_a_reserved_column,
    # Asked before `changes_the_chunk_key`, because nothing of the table can be read until the configuration fits it.
    changes_what_is_captured,
    # Asked before the rule about targets, because the chunks read so far are invalid in any case.
    changes_the_chunk_key,
    # Asked before `changes_nothing`, because targets may not accept the table even if the statement changes nothing.
    is_not_for_targets,
    # Asked before `is_followed`, which ends an epoch.
    changes_nothing,
    is_followed,
)
