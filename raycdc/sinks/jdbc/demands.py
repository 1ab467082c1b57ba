"""The columns of a target that take no NULL, because the source's take none: which these are around a change.

Such a demand of the pipeline's own says what the source's column is, and never keeps a row of the source away: what has
NULL there all the same (a merged table, a zero date, a column that the source dropped) takes the demand back. Tables
of others keep the demands that they have, and get none.
"""

from __future__ import annotations

from raycdc.model import TableId
from raycdc.schema.events import AlterColumnTypeEvent
from raycdc.sinks.api import TableWork
from raycdc.sinks.columns import Plan
from raycdc.sinks.jdbc.database import Session
from raycdc.sinks.jdbc.types import demanded
from raycdc.sinks.record import Held


def wished(work: TableWork, *, upsert: bool) -> tuple[str, ...]:
    """The columns that take no NULL, as the source's take none; in a changelog there are rows of all its shapes."""
    return demanded(work.schema.columns, work.schema.primary_key) if upsert else ()


def demands_after(held: Held, planned: Plan, work: TableWork, session: Session, *, upsert: bool) -> tuple[str, ...]:
    """The columns that take no NULL once `planned` was done: those that took none before, and still do at the source,
    and those of which a change says so, if no row has NULL there. May scan a column of the target.
    """
    wishes = set(wished(work, upsert=upsert))
    altered = {change.name for change in work.changes if isinstance(change, AlterColumnTypeEvent)}
    filled = {column.name for column in planned.filled}
    names = []
    for p in planned.columns:
        name, old = p.column.name, p.origin
        if name not in wishes:
            continue
        if planned.emptied or old in held.demands:
            may = True
        elif old is None:
            # Rows that exist get their default behind MySQL's statement, which is the only one.
            may = name in filled and session.transactional_ddl
        else:
            may = name in altered and not session.tables.has_null(work.target, old)
        if may and (held.created or old in held.demands):
            names.append(name)
    return tuple(names)


def loosen(session: Session, target: TableId, held: Held, after: Held) -> None:
    """Take back the demands of `held` that `after` has no more, in this transaction; MySQL's statement ends it."""
    columns = [c for c in held.columns if c.name in held.demands and c.name not in after.demands]
    session.tables.loosen(target, columns)
