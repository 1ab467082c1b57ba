"""SQL sessions of the connector on test servers, as the capturing user or as root."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from raycdc.clients.mysql import MySqlSettings, close_quietly, connect
from raycdc.sandbox.servers import DatabaseServer


def settings_of(server: DatabaseServer, user: str = "cdc", **changes: Any) -> MySqlSettings:
    """Return the settings of a connection to `server` as `user`, whose password on test servers is its name."""
    return MySqlSettings(**{"host": server.host, "port": server.port, "user": user, "password": user, **changes})


@contextmanager
def session(server: DatabaseServer, user: str = "cdc", **changes: Any) -> Iterator[Any]:
    """Provide a connection like the connector's, closed at the end."""
    connection = connect(settings_of(server, user, **changes))
    try:
        yield connection
    finally:
        close_quietly(connection)
