"""The lookups of a pipeline, and their checks for ``raycdc check``.

The queries of a lookup are created when they are first needed, and closed at the end of the run.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager

from raycdc.config import LookupOptions
from raycdc.config.checks import CheckResult, readable_on_the_way
from raycdc.config.mongodb import open_hosts
from raycdc.config.sections.table_rules import ID
from raycdc.core.stopping import StopRequest
from raycdc.delivery.lookup.joiner import Joiner, LookupSegments
from raycdc.delivery.lookup.queries import Cache, Dimension, LookupQuery
from raycdc.errors import ConfigError, SourceError
from raycdc.model import TableId
from raycdc.model.rules.transform import Lookup
from raycdc.segments.access import SegmentAccess
from raycdc.segments.bad_rows import BadRecords
from raycdc.transform.resolved import ResolvedLookup


@contextmanager
def open_joiner(
    options: Sequence[LookupOptions],
    answers: LookupSegments,
    records: BadRecords,
    access: SegmentAccess,
    warn: Callable[[str], None],
    stopping: StopRequest,
) -> Iterator[Joiner | None]:
    """Create the joiner of a run's segments for the duration of the block; None if there are no lookups.

    Raises `SourceError` if a dimension cannot be queried. `stopping` ends waits for retries. The other arguments are
    those of `Joiner`.
    """
    if not options:
        yield None
        return
    lookups = Lookups(options, stopping)
    with closing(lookups):
        for text in lookups.require():
            warn(text)
        yield Joiner(answers, lookups.asking, records=records, access=access, warn=warn)


class Lookups:
    """All lookups of a run. Thread-safe. Addresses and passwords stay in this process.

    If a lookup is used by tables whose keys have different types, it is queried separately for each type, each with its
    own cache. All of them share the lookup's limit of concurrent requests.
    """

    def __init__(self, options: Sequence[LookupOptions], stopping: StopRequest | None = None) -> None:
        self._options = tuple(options)
        self._stopping = stopping or StopRequest()
        self._pools = [ThreadPoolExecutor(one.requests, thread_name_prefix="raycdc-lookup") for one in self._options]
        self._lock = threading.Lock()
        self._asking: dict[tuple[int, str], LookupQuery] = {}

    def require(self) -> list[str]:
        """Check that all dimensions can be queried, and return warnings. Blocks; raises `SourceError`."""
        found = []
        for number, options in enumerate(self._options):
            dimension = _dimension(options, options.lookup(number), "string")
            try:
                found.append(dimension.require())
            finally:
                dimension.close()
        return [text for text in found if text]

    def asking(self, lookup: ResolvedLookup) -> LookupQuery:
        """Return the `LookupQuery` for a resolved lookup."""
        with self._lock:
            which = lookup.lookup.number, lookup.key_type
            if which not in self._asking:
                self._asking[which] = self._made(lookup)
            return self._asking[which]

    def close(self) -> None:
        """Cancel waiting requests and close connections."""
        with self._lock:
            for asking in self._asking.values():
                asking.close()
        for pool in self._pools:
            pool.shutdown(cancel_futures=True)

    def _made(self, lookup: ResolvedLookup) -> LookupQuery:
        options = self._options[lookup.lookup.number]
        ttl = options.cache_ttl
        return LookupQuery(
            _dimension(options, lookup.lookup, lookup.key_type),
            batch=options.batch,
            requests=self._pools[lookup.lookup.number],
            retries=options.retries,
            retry_wait_s=options.retry_wait.total_seconds(),
            stopping=self._stopping.part(),
            cache=None if ttl is None else Cache(rows_max=options.cache_rows, ttl_s=ttl.total_seconds()),
        )


def _dimension(options: LookupOptions, lookup: Lookup, key_type: str) -> Dimension:
    """Return the dimension of a lookup. Its client library is an optional extra, so it is only imported here."""
    from raycdc.delivery.lookup.mongodb import MongoDbDimension

    return MongoDbDimension(options, lookup, key_type)


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
