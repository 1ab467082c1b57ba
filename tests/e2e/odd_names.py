"""Tables with odd names: the configuration and the statements that stories about them have in common."""

from __future__ import annotations

from pathlib import Path

from raycdc.sandbox.servers import MariaDbServer

CONFIG = """
[pipeline]
name = "odd"
state = "state"
epoch_interval = "100ms"
[source]
type = "mysql"
port = {port}
user = "cdc"
password = "${{env:RAYCDC_TEST_PASSWORD}}"
tables = ['{database}\\.(?s:.*)']
[sink]
"""
#: What a command needs beside the configuration.
ENVIRONMENT = {"RAYCDC_TEST_PASSWORD": "cdc"}


def quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def write_config(path: Path, server: MariaDbServer, database: str, *, sink: str) -> None:
    """A pipeline of all tables of the database, whatever their names; `sink` are the keys of its section."""
    path.write_text(CONFIG.format(port=server.port, database=database) + sink)
