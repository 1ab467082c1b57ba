"""Checks a lookup's dimension for ``raycdc check``: it exists, may be read, and has an index for the lookup."""

from __future__ import annotations

from raycdc.config import LookupOptions
from raycdc.config.checks import CheckResult, readable_on_the_way
from raycdc.config.mongodb import open_hosts
from raycdc.config.sections.table_rules import ID
from raycdc.errors import ConfigError, SourceError
from raycdc.model import TableId


def check_lookup(options: LookupOptions, number: int) -> list[CheckResult]:
    """Return all findings for the lookup with index `number`. Changes nothing; errors of the server become findings."""
    from raycdc.connectors.mongodb.server.client import connect, errors, probe
    from raycdc.delivery.lookup.mongodb import check_index, is_there

    key_path = f"lookup[{number}]"
    table, field = TableId(*options.collection.split(".", 1)), next(iter(options.on.values()))
    try:
        with connect(options.uri, key_path=f"{key_path}.uri") as client:
            info = probe(client, key_path=f"{key_path}.uri")
            with errors(client, f"reading {table}", key_path=f"{key_path}.uri"):
                client[table.db][table.table].find_one({}, {ID: 1})
            results = [CheckResult("lookups", f"{key_path}: {table} at {info.address} can be read.", ok=True)]
            hosts = open_hosts(options.uri.reveal())
            fix = f"Add tls=true to {key_path}.uri, and tlsCAFile where the authority is your own."
            results += readable_on_the_way(info.address, hosts, encrypted=not hosts, fix=fix)
            if not is_there(client, table):
                text = f"{key_path}: there is no collection {table} yet, so nothing is found."
                results.append(CheckResult("lookups", text, "Check its name.", required=False))
                return results
            return [*results, *_index(table, field, key_path, *check_index(client, table, field))]
    except (SourceError, ConfigError) as refused:
        return [CheckResult("lookups", f"{key_path}: {refused}")]


def _index(table: TableId, field: str, key_path: str, indexed: bool, unique: bool) -> list[CheckResult]:
    if not indexed:
        text = f"{key_path}: no index of {table} begins with {field}, so each request reads the whole collection."
        return [CheckResult("lookups", text, f"Create one on {field}, a unique one if you can.", required=False)]
    if not unique:
        text = f"{key_path}: several documents of {table} may have one {field}, and a row gets one document."
        fix = 'Make the index unique, or say many = "first"; else the run ends where it meets two.'
        return [CheckResult("lookups", text, fix, required=False)]
    return [CheckResult("lookups", f"{key_path}: an index finds documents of {table} by {field}.", ok=True)]
