"""May this account do what the database sink needs? Looks, and creates nothing. Used by ``raycdc check``."""

from __future__ import annotations

from collections.abc import Sequence

from raycdc.config.tls import TlsMode
from raycdc.errors import SinkError
from raycdc.model import TableId
from raycdc.sinks.jdbc.database import open_database
from raycdc.sinks.jdbc.plugin import Address, JdbcSinkConfig
from raycdc.source.checks import CheckResult, readable_on_the_way


def check_sink(config: JdbcSinkConfig, targets: Sequence[TableId] = ()) -> list[CheckResult]:
    """All findings, of which the tables in `targets` are to be written. MySQL's privileges on single tables are not
    judged: they may be enough.
    """
    address = config.address()
    way = readable_on_the_way(
        str(address),
        [address.host],
        encrypted=address.tls_mode.resolved(address.host) is not TlsMode.DISABLED,
        fix='Set sink.tls.mode, to "verify-identity" where you can, and sink.tls.ca.',
    )
    return [*_account(address, targets), *way]


def _account(address: Address, targets: Sequence[TableId]) -> list[CheckResult]:
    """May the account connect, and create what is needed?"""
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
