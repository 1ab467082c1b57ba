"""What cutting collections costs a MongoDB server, as it counts for itself (manual, ``serverStatus``)."""

from __future__ import annotations

from collections.abc import Iterable

from pymongo.errors import PyMongoError

from raycdc.config import Secret
from raycdc.connectors.mongodb.client import connect
from raycdc.source.split_trial import ServerCosts

_US_PER_S = 1_000_000


def server_costs(uri: Secret) -> ServerCosts:
    """Of the whole server since it began, whoever asked; of a cluster, of its router alone. Blocks.

    Nothing is known where the account may not ask it (``clusterMonitor``).
    """
    with connect(uri) as client:
        try:
            status = client.admin.command("serverStatus")
        except PyMongoError:
            return ServerCosts()
    operations = [_number(status, "opcounters", name) for name in ("query", "getmore", "command")]
    reads = [_number(status, "metrics", "queryExecutor", name) for name in ("scanned", "scannedObjects")]
    times = [_number(status, "extra_info", name) for name in ("user_time_us", "system_time_us")]
    cpu_us = _sum(times)
    return ServerCosts(_sum(operations), _sum(reads), None if cpu_us is None else cpu_us / _US_PER_S)


def _number(document: object, *path: str) -> int | None:
    for name in path:
        document = document.get(name) if isinstance(document, dict) else None
    return document if isinstance(document, int) else None


def _sum(numbers: Iterable[int | None]) -> int | None:
    """None where one of them is not told."""
    known = list(numbers)
    told = [number for number in known if number is not None]
    return sum(told) if len(told) == len(known) else None
