"""Schema changes, and the texts that say why a table is not followed, as the state may have them.

Everything that the log's reader is told of a table passes here (`MySqlLogReader`), and so do the schemas that the
enumerator begins with: no schema has a default of a column that a mask hides, and no text has a statement's values.
Such defaults in the tables of schema change tools are not kept either: a table that needs one after a restart begins
again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import assert_never

from raycdc.connectors.mysql.binlog.events import DdlItem
from raycdc.connectors.mysql.ddl.history_state import HistoryState
from raycdc.connectors.mysql.ddl.shadows import Shadow
from raycdc.connectors.mysql.values.documents import capture_of, document_of, table_of
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.errors import DataError, SchemaError
from raycdc.model import TableId
from raycdc.model.mask import Masks
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.log_unit import SchemaUpdate, TableAltered, TableBegun, TableDropped, TableParked
from raycdc.transform.hidden_texts import without_values
from raycdc.transform.hiding import Hiding
from raycdc.transform.masked import hidden_changes

_NOT_KEPT = "a default that a mask hides, and that the state does not keep"


def hidden_table(table: MySqlTable, masks: Masks, owner: TableId | None = None) -> MySqlTable:
    """The table without the defaults that masks hide; those of `owner` where it is to take that table's place."""
    if not masks:
        return table
    return replace(
        table,
        columns=tuple(
            column if column.default is None or masks.of(owner or table.id, column.name) is None
            else replace(column, default=None)
            for column in table.columns
        ),
    )  # fmt: skip


def hidden_document(document: SchemaDocument, masks: Masks) -> SchemaDocument:
    """A schema document without them."""
    table = table_of(document)
    hidden = hidden_table(table, masks)
    return document if hidden == table else document_of(hidden, capture_of(document))


def hidden_update(update: SchemaUpdate, hiding: Hiding, statement: str) -> SchemaUpdate:
    """The parts that the state may have of a change that `statement` made."""
    masks = hiding.masks
    if not masks:
        return update
    match update:
        case TableParked(table, parking):
            if not hiding.concerns(table):
                return update
            return TableParked(table, replace(parking, reason=without_values(parking.reason, statement)))
        case TableDropped(table, changes):
            return TableDropped(table, hidden_changes(table, changes, masks))
        case TableAltered(table, changes, document):
            return TableAltered(table, hidden_changes(table, changes, masks), hidden_document(document, masks))
        case TableBegun(table, changes, document, snapshot):
            return TableBegun(table, hidden_changes(table, changes, masks), hidden_document(document, masks), snapshot)
        case _:
            assert_never(update)


def hidden_state(state: HistoryState, masks: Masks) -> HistoryState:
    """`DdlHistory`'s state, of which schema change tools' tables have columns and defaults."""
    if not masks or not state.shadows:
        return state
    return replace(state, shadows={name: hidden_shadow(shadow, masks) for name, shadow in state.shadows.items()})


def hidden_shadow(shadow: Shadow, masks: Masks) -> Shadow:
    """A tool's table without the defaults that masks hide in the table whose place it takes."""
    owner = shadow.owner
    lost = [n for n, value in shadow.filled.items() if value is not None and masks.of(owner, n) is not None]
    return replace(
        shadow,
        table=None if shadow.table is None else hidden_table(shadow.table, masks, owner),
        filled={**shadow.filled, **dict.fromkeys(lost)},
        computed={**shadow.computed, **dict.fromkeys(lost, _NOT_KEPT)},
    )


def without_values_in_errors(on_ddl: Callable[[DdlItem], None], hiding: Hiding) -> Callable[[DdlItem], None]:
    """`on_ddl`, whose errors quote the statement."""

    def apply(item: DdlItem) -> None:
        try:
            on_ddl(item)
        except (SchemaError, DataError) as cause:
            kind = SchemaError if isinstance(cause, SchemaError) else DataError
            raise kind(without_values(str(cause), item.statement)) from None

    return apply if hiding.masks else on_ddl
