"""``raycdc inspect ddl``: the DDL parser's events for a file of statements, for people and for tests from outside."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path

from raycdc.connectors.mysql.ddl.apply import DdlDialect, RefusedStatement
from raycdc.connectors.mysql.ddl.catalogue import DdlCatalogue
from raycdc.connectors.mysql.ddl.parse.tokens import split_statements
from raycdc.connectors.mysql.values.types import MySqlTable
from raycdc.core.terminal_text import printable_json
from raycdc.core.typed_codec import Json
from raycdc.errors import ConfigError, DataError, ExitCode
from raycdc.model.evolution import event_to_json

#: ``USE name``, which a dump has between its statements. In later statements, names without a database belong to this
#: database.
_USE = re.compile(r"\s*USE\s+(?:`((?:[^`]|``)+)`|([^\s;`]+))\s*\Z", re.IGNORECASE)

#: The dialect and version of each kind of server; the default is MySQL 8.0.19 and later. Version comments are parsed as
#: part of their statement up to the newest existing version.
_DIALECTS = {
    "mysql": DdlDialect(version=99_999),
    "mysql-5.7": DdlDialect(
        version=50_799, display_width=True, geomcollection=False, explicit_timestamps=False, mariadb_comments=False
    ),
    "mariadb": DdlDialect(mariadb=True, version=129_999, display_width=True, geomcollection=False),
}
SERVERS = tuple(_DIALECTS)


def print_ddl(path: Path, *, tables: bool, server: str = "mysql") -> int:
    """Print the events of every statement, or with `tables` the resulting tables, as JSON lines.

    A refused statement becomes a line of its own, and the next statements are still processed. With `tables`, these
    lines come before the tables.
    """
    if server not in _DIALECTS:
        raise ConfigError(f'--server: "{server}" is none of {", ".join(SERVERS)}.')
    try:
        script = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as cause:
        raise DataError(f"{path}: not UTF-8 text at byte {cause.start}: {cause.reason}") from cause
    except OSError as cause:
        raise ConfigError(f"{path} cannot be read: {cause.strerror}") from cause
    catalogue = DdlCatalogue(_DIALECTS[server])
    db = ""
    for statement, _ in split_statements(script):
        used = _USE.match(statement)
        if used is not None:
            db = used[1].replace("``", "`") if used[1] else used[2]
            continue
        answer = catalogue.run(statement, db)
        if isinstance(answer, RefusedStatement):
            _print({"type": "refused", "statement": statement, "reason": answer.reason})
        elif not tables:
            for event in answer:
                _print(event_to_json(event))
    if tables:
        for table in catalogue.tables.values():
            _print(_described(table))
    return int(ExitCode.DONE)


def _described(table: MySqlTable) -> Mapping[str, Json]:
    return {
        "db": table.id.db,
        "table": table.id.table,
        "columns": [{"name": c.name, "type": c.column_type, "nullable": c.nullable} for c in table.columns],
        "primary_key": list(table.primary_key),
    }


def _print(line: Mapping[str, Json]) -> None:
    print(printable_json(json.dumps(line, ensure_ascii=False)))
