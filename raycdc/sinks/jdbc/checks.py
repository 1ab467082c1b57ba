"""May this account do what the database sink needs? Looks, and creates nothing. Used by ``raycdc check``."""

from __future__ import annotations

from collections.abc import Sequence

from raycdc.errors import SinkError
from raycdc.model import TableId
from raycdc.sinks.jdbc.database import open_database
from raycdc.sinks.jdbc.plugin import JdbcSinkConfig
from raycdc.source.checks import CheckResult


def check_sink(config: JdbcSinkConfig, targets: Sequence[TableId] = ()) -> list[CheckResult]:
    """All findings, of which the tables in `targets` are to be written. MySQL's privileges on single tables are not
    judged: they may be enough.
    """
    address = config.address()
    try:
        database = open_database(address)
        with database.session() as session:
            lacking = session.lacking(sorted({target.db for target in targets}))
        database.close()
    except SinkError as cause:
        return [CheckResult("sink", str(cause), "Correct sink.url, sink.user, sink.password and sink.tls.")]
    connected = CheckResult("sink", f"Connected to {address}.", ok=True)
    if lacking:
        text = f"{address.user} may not create what the sink needs in {address}."
        return [connected, CheckResult("sink privileges", text, " ".join(lacking))]
    if lacking is None:
        return [connected]
    return [connected, CheckResult("sink privileges", f"{address.user} may create what the sink needs.", ok=True)]
