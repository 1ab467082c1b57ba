"""How often MongoDB's driver tries a server that does not answer: its monitors and pools wait for their time.

Each client has a thread per server that asks it twice a second while somebody waits for it, and pools that connect when
they are asked; a process has several clients. The driver tells of both before it connects, on the thread that does.
(pymongo's manual, "monitoring"; the specification "Connection Monitoring and Pooling".)
"""

from __future__ import annotations

from pymongo import monitoring

from raycdc.waiting.tries import TRIES

#: How long the driver looks for a server before whoever asked hears that there is none: waiting longer is ours, which
#: people are told of (`raycdc.waiting.patience`). A ``serverSelectionTimeoutMS`` in the connection string goes before.
SELECTION_TIMEOUT_MS = 5_000
Address = tuple[str, int | None]


def spaced() -> list[monitoring._EventListener]:
    """For a client's ``event_listeners``."""
    return [_Heartbeats(), _Connections()]


def _named(address: Address) -> str:
    host, port = address
    return f"{host}:{port}"


class _Heartbeats(monitoring.ServerHeartbeatListener):
    """Of the monitors."""

    def started(self, event: monitoring.ServerHeartbeatStartedEvent) -> None:
        if not event.awaited:  # Else the connection is there, and the server answers when it has news.
            TRIES.space(_named(event.connection_id))

    def succeeded(self, event: monitoring.ServerHeartbeatSucceededEvent) -> None:
        TRIES.answered(_named(event.connection_id))

    def failed(self, event: monitoring.ServerHeartbeatFailedEvent) -> None:
        """The next one waits."""


class _Connections(monitoring.ConnectionPoolListener):
    """Of the pools."""

    def connection_created(self, event: monitoring.ConnectionCreatedEvent) -> None:
        TRIES.space(_named(event.address))

    def connection_ready(self, event: monitoring.ConnectionReadyEvent) -> None:
        TRIES.answered(_named(event.address))

    def pool_created(self, event: monitoring.PoolCreatedEvent) -> None: ...

    def pool_ready(self, event: monitoring.PoolReadyEvent) -> None: ...

    def pool_cleared(self, event: monitoring.PoolClearedEvent) -> None: ...

    def pool_closed(self, event: monitoring.PoolClosedEvent) -> None: ...

    def connection_closed(self, event: monitoring.ConnectionClosedEvent) -> None: ...

    def connection_check_out_started(self, event: monitoring.ConnectionCheckOutStartedEvent) -> None: ...

    def connection_check_out_failed(self, event: monitoring.ConnectionCheckOutFailedEvent) -> None: ...

    def connection_checked_out(self, event: monitoring.ConnectionCheckedOutEvent) -> None: ...

    def connection_checked_in(self, event: monitoring.ConnectionCheckedInEvent) -> None: ...
