"""What a statement inside a message (Canal's ``sql``, Maxwell's, Debezium's ``ddl``) says by itself.

There is no table of ours beside it, as there is in a log: types and names are the statement's. Handed to sources that
read such messages by the composition root (`raycdc.source.api.ReadsStatements`).
"""

from __future__ import annotations

from raycdc.connectors.mysql.ddl.apply import Refused, parse_ddl
from raycdc.connectors.mysql.ddl.catalogue import DdlCatalogue
from raycdc.connectors.mysql.ddl.statements import AddColumn, AlterTable, DdlDialect, DropDatabase, RowsUnlogged
from raycdc.errors import SchemaError
from raycdc.schema import SchemaChangeEvent

_DIALECT = DdlDialect(version=99_999)


def events_of_statement(statement: str, default_db: str) -> tuple[SchemaChangeEvent, ...]:
    """The elementary changes of `statement`, run with `default_db` as the session's database; empty for one that
    changes no table. Raises `SchemaError` with the reason where it is not understood or does more than it says.
    """
    parsed = parse_ddl(statement, default_db, dialect=_DIALECT)
    if isinstance(parsed, Refused):
        raise SchemaError(parsed.reason)
    for ddl in parsed:
        if isinstance(ddl, DropDatabase):
            raise SchemaError(f"all tables of {ddl.db} are dropped at once")
        for action in ddl.actions if isinstance(ddl, AlterTable) else ():
            if isinstance(action, RowsUnlogged):
                raise SchemaError(action.why)
            if isinstance(action, AddColumn) and action.definition.computed:
                raise SchemaError(
                    f"the rows that exist get {action.definition.computed} in the new column {action.definition.name!r}"
                )
    answer = DdlCatalogue(_DIALECT).run(statement, default_db)
    if isinstance(answer, Refused):
        raise SchemaError(answer.reason)
    return answer
