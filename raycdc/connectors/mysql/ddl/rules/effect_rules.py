"""The rules that judge each effect of a statement on a captured table before it is applied.

A statement may be understood, but have an effect that targets cannot follow, or must not show.
"""

from __future__ import annotations

from dataclasses import dataclass

from raycdc.connectors.mysql.ddl.logged_otherwise import unlogged_reason
from raycdc.connectors.mysql.ddl.rules import proofs
from raycdc.connectors.mysql.ddl.rules.facts import HistoryFacts, LoggedStatement, MySqlVerdict
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.model.batch import reserved_column
from raycdc.model.evolution import AlterPrimaryKeyEvent, RenameTableEvent
from raycdc.source.tables.verdicts import Follow, Rule, TableEffect


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
    """Park a new table whose rows or columns were masked under an earlier name."""
    if judged.made is None or not (why := facts.masked.shown_by(judged.made)):
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
    if before is None or after is None or (column := facts.snapshots.changed(before, after)) is None:
        return None
    why = f"it changes column {column!r}, which the table is cut by, while its snapshot is under way"
    return judged.statement.refused(facts, why, again=True)


def is_not_for_targets(judged: StatementEffect, facts: HistoryFacts) -> MySqlVerdict | None:
    """Park a table that targets cannot follow according to the configuration."""
    before, after = judged.before, judged.effect.after
    table = before or after
    if table is None:
        return None
    schema = None if before is None else before.schema()
    made = None if after is None else after.schema()
    why = facts.parked.objection(table.id, schema, made, judged.effect.events)
    return judged.statement.refused(facts, why) if why else None


def changes_nothing(judged: StatementEffect, _: HistoryFacts) -> MySqlVerdict | None:
    """Ignore indexes, options, partitions that keep their rows, and DROP TABLE of a missing table."""
    effect = judged.effect
    same = effect.after == judged.before
    has_effect = effect.after is not None and (effect.events or effect.replaces)
    return proofs.CHANGES_NOTHING if same and not has_effect else None


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
    # Asked before the rule about targets, because the chunks read so far are invalid in any case.
    changes_the_chunk_key,
    # Asked before `changes_nothing`, because targets may not accept the table even if the statement changes nothing.
    is_not_for_targets,
    # Asked before `is_followed`, which ends an epoch.
    changes_nothing,
    is_followed,
)
