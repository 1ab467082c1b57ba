"""What cutting tables costs a MySQL or MariaDB server, as its sessions count it (manual, "Server Status Variables")."""

from __future__ import annotations

import os
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pymysql
from pymysql.connections import Connection

from raycdc.clients.mysql import query
from raycdc.config.tls import is_loopback
from raycdc.connectors.mysql.connections import Connections
from raycdc.connectors.mysql.plugin import MySqlSourceConfig
from raycdc.errors import SourceError
from raycdc.source.split_trial import ServerCosts

#: What a session counts when it reads a row, by an index or by walking the table.
_ROW_READS = (
    "Handler_read_first",
    "Handler_read_key",
    "Handler_read_last",
    "Handler_read_next",
    "Handler_read_prev",
    "Handler_read_rnd",
    "Handler_read_rnd_next",
)
_COUNTERS = "SHOW SESSION STATUS WHERE Variable_name IN ({})".format(
    ", ".join(f"'{name}'" for name in ("Questions", *_ROW_READS))
)


class MeteredConnections(Connections):
    """Connections that are asked, before they close, what their statements cost. For one thread.

    What others do at the server meanwhile does not count, but for its CPU.
    """

    def __init__(self, config: MySqlSourceConfig) -> None:
        super().__init__(config)
        self._queries = 0
        self._rows_read = 0

    def connect(self) -> Connection[Any]:
        connection: Any = super().connect()
        close = connection.close

        def counted() -> None:
            if connection.open:
                self._add(connection)
            close()

        connection.close = counted
        return connection

    def costs(self) -> ServerCosts:
        """Of all connections that were closed. Blocks on one more, which does not count."""
        with closing(super().connect()) as connection:
            pid = _local_pid(connection, self._config.host)
        return ServerCosts(self._queries, self._rows_read, None if pid is None else _cpu_s(pid))

    def _add(self, connection: Connection[Any]) -> None:
        # The costs are not known where the connection is no good any more; what made it so is told by whoever used it.
        with suppress(SourceError, pymysql.Error, OSError, LookupError, ValueError):
            found = {str(name): int(value) for name, value in query(connection, _COUNTERS)}
            # But for this question.
            self._queries += found["Questions"] - 1
            self._rows_read += sum(found[name] for name in _ROW_READS)


def _cpu_s(pid: int) -> float | None:
    """CPU seconds of a process of this machine, all its threads (proc(5)); None when it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _local_pid(connection: Connection[Any], host: str) -> int | None:
    """The server's process where it is one of this machine that can be looked at."""
    if not is_loopback(host):
        return None
    ((name, folder),) = query(connection, "SELECT @@pid_file, @@datadir")
    try:
        pid = int((Path(str(folder)) / str(name)).read_text(encoding="ascii"))
        command = Path(f"/proc/{pid}/comm").read_text(encoding="utf-8").strip()
    except (OSError, ValueError):
        return None
    return pid if command in ("mysqld", "mariadbd") else None
