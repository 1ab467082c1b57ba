"""What ``raycdc init`` asks of MongoDB, and writes about it: its collections, and the columns that they show."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from raycdc.config import Secret
from raycdc.errors import ConfigError, SourceError
from raycdc.model import LogicalType, TypeKind
from raycdc.model.selector import TableSelector

#: Collections of which columns are shown, and columns of each.
_COLLECTIONS_SHOWN, _COLUMNS_SHOWN = 20, 60


def find_collections(uri: Secret, wanted: Sequence[str]) -> list[str]:
    """Names of the collections the account sees, or of those that are `wanted`: names or patterns.

    Raises `SourceError` where the server cannot be asked, or has not what is wanted.
    """
    try:
        from raycdc.connectors.mongodb.catalog import discover
        from raycdc.connectors.mongodb.client import address_of, connect, probe
    except ImportError as cause:
        raise ConfigError(f"MongoDB needs more packages ({cause}): pip install raycdc[mongodb]") from cause

    selected = TableSelector(tuple(wanted) or (r".*\..*",))
    with connect(uri) as client:
        probe(client)
        found = [str(table) for table in discover(client, selected, complete=False)]
        where = address_of(client)
    missing = sorted({str(table) for table in selected.plain_names} - set(found))
    if missing or not found:
        what = ", ".join(missing or wanted) or "any collection"
        raise SourceError(
            f"The account of the connection string does not see {what} at {where}. Check the names, or grant it the "
            'role "read" on the database.'
        )
    return found


def shown_columns(uri: Secret, collections: Sequence[str]) -> dict[str, dict[str, str]]:
    """The types, as the configuration names them, of the fields that a sample of each collection shows."""
    from raycdc.connectors.mongodb.catalog import discover, layout_of
    from raycdc.connectors.mongodb.client import connect
    from raycdc.connectors.mongodb.plugin import MongoDbSourceConfig

    config = MongoDbSourceConfig.model_validate({"type": "mongodb", "uri": uri, "collections": list(collections)})
    columns = {}
    with connect(uri) as client:
        tables = discover(client, config.selector(), complete=False)
        for table, identity in list(tables.items())[:_COLLECTIONS_SHOWN]:
            layout = layout_of(client, config, table, identity)
            columns[str(table)] = {column.name: _name_of(column.type) for column in layout.fields[:_COLUMNS_SHOWN]}
    return columns


def column_lines(columns: Mapping[str, Mapping[str, str]]) -> list[str]:
    """The tables of columns, as comments."""
    lines = [
        "# Columns are inferred, as a sample shows them, and come as documents show more. Settle them here instead;"
    ]
    lines.append("# fields that are not listed are left out then, or kept in _rest with on_misfit above.")
    for collection, types in columns.items():
        lines += ["#", f"# [source.columns.{_quoted(collection)}]"]
        lines += [f"# {_quoted(name)} = {_quoted(text)}" for name, text in types.items()]
    return lines


def _name_of(logical: LogicalType) -> str:
    return "uuid" if logical.kind is TypeKind.STRING and logical.native == "binData(4)" else logical.native


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)
