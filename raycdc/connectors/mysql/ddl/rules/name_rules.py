"""The rules that judge the names in renames: RENAME TABLE, and RENAME inside ALTER TABLE.

All renames of a statement count together: only the names before the statement matter, not the names in between. Renames
of temporary tables, which MariaDB logs like others, are noted and left out before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from raycdc.connectors.mysql.ddl.follow.tool_tables import NewNames
from raycdc.connectors.mysql.ddl.parse.statements import RenameTable, with_collations
from raycdc.connectors.mysql.ddl.rules import proofs
from raycdc.connectors.mysql.ddl.rules.facts import HistoryFacts, LoggedStatement, MySqlVerdict
from raycdc.connectors.mysql.ddl.shape import reshape
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model import TableId
from raycdc.model.evolution import AlterTableCommentEvent
from raycdc.source.tables.table_life import ParkedPhase
from raycdc.source.tables.verdicts import Follow, Ignore, Park, Resnapshot, Rule, TableEffect, judge


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
    return proofs.KEEPS_ITS_NAME if given.before == given.name else None


def is_another_name(given: GivenName, facts: HistoryFacts) -> MySqlVerdict | None:
    """Ignore a name that is not captured."""
    return None if facts.captures(given.name) else proofs.OF_ANOTHER_NAME


def leaves_the_name(given: GivenName, facts: HistoryFacts) -> MySqlVerdict | None:
    """End a table whose name is unused now, unless a tool exchanges its tables one by one."""
    if given.before is not None:
        return None
    if given.name not in facts.tables:
        return proofs.NOT_FOLLOWED
    to = given.names.new_name_of(given.name)
    if facts.tools.leaves(given.name, to):
        return proofs.BETWEEN_RENAMES
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
    """Resnapshot a table replaced by a tool's table of another one, or by the old table that was put back by hand."""
    assert given.before is not None
    shadow, role = given.names.shadows.get(given.before), facts.tools.role(given.before)
    old = role is not None and role[1] == "old" and "/* gh-ost */" not in given.statement.text
    if not old and (shadow is None or shadow.owner == given.name):
        return None
    why = f"nothing says that the rows of {given.before} are those of {given.name}"
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
