"""The questions of ``raycdc check`` and ``raycdc plan`` to a MySQL or MariaDB about its captured tables. Changes
nothing.
"""

from __future__ import annotations

from collections.abc import Collection
from contextlib import closing

from raycdc.clients.mysql import connect
from raycdc.connectors.mysql.catalog import discover_tables, load_tables, table_sizes
from raycdc.connectors.mysql.checks import check_source, rows_in_the_open
from raycdc.connectors.mysql.client import probe
from raycdc.connectors.mysql.plugin import MySqlSourceConfig
from raycdc.connectors.mysql.snapshot.chunk_keys import prefix_note
from raycdc.connectors.mysql.table_options import TableOptions
from raycdc.model import TableId
from raycdc.source.checks import CheckResult
from raycdc.source.connector import SourceFindings, SourceTable
from raycdc.source.selection import pattern_results

_LATER = "Tables that match it and are created while the pipeline runs are followed."


def findings(config: MySqlSourceConfig, known: Collection[str]) -> SourceFindings:
    """All findings, and the tables that are captured; `known` are those that the state has had.

    Raises `SourceError` when the server cannot be asked at all.
    """
    selector = config.selector()
    with closing(connect(config.settings())) as connection:
        info = probe(connection)
        tables = discover_tables(connection, selector, named=selector.plain_names)
        server_ids = range(config.server_id.first, config.server_id.last + 1)
        results = [
            CheckResult(
                "connection", f"Connected to {info.flavor_name} {info.version_text} at {info.address}.", ok=True
            ),
            *rows_in_the_open(config.settings()),
            *pattern_results("source.tables", selector.patterns, tables, noun="table", fix=_LATER),
            # Plain names are checked whether they were found or not: a missing one is an error, not a surprise later.
            # One that was followed and is gone was dropped, which the log says.
            *check_source(
                connection,
                info,
                {*tables, *(name for name in selector.plain_names if str(name) not in known)},
                server_ids=server_ids,
                accept_cascades=TableOptions(config).accept_cascades,
            ),
        ]
    return SourceFindings(results, sorted(tables))


def captured_tables(config: MySqlSourceConfig) -> dict[TableId, SourceTable]:
    """The tables that are captured, as they are now. Raises `SourceError`."""
    selector, options = config.selector(), TableOptions(config)
    with closing(connect(config.settings())) as connection:
        names = discover_tables(connection, selector, named=selector.plain_names)
        described, sizes = load_tables(connection, names), table_sizes(connection, names)
        notes = {
            table: prefix_note(connection, columns, options.named_key(table)) for table, columns in described.items()
        }
    tables = {}
    for table, columns in sorted(described.items()):
        rows, size = (sizes[table].rows, sizes[table].bytes) if table in sizes else (0, 0)
        schema = options.capture(table).narrowed(options.types.treat_table(columns)).schema()
        chunks = 1 if "one piece" in notes[table] else max(1, -(-rows // config.snapshot.chunk_rows))
        tables[table] = SourceTable(schema, rows, chunks, notes[table], size)
    return tables
