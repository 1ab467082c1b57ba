"""A database of three small tables and `raycdc run --local` of some of them into Delta, run after run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from deltalake import DeltaTable

from raycdc.cli.tables import table_list
from raycdc.config import config_from_dict
from raycdc.observe.events import RunEvent, Warned
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import DatabaseServer
from raycdc.state.store import CheckpointStore


class Shop:
    """A database with tables `a`, `b` and `orders`, and a pipeline of some of them."""

    def __init__(self, server: DatabaseServer, database: str, root: Path) -> None:
        self.server, self.database, self.root = server, database, root
        self.execute(*(f"CREATE TABLE {name} (id INT PRIMARY KEY, v INT)" for name in ("a", "b", "orders")))
        self.execute(*(f"INSERT INTO {name} VALUES (1, 1), (2, 2)" for name in ("a", "b", "orders")))

    def execute(self, *statements: str) -> None:
        self.server.execute(*statements, database=self.database)

    def config(self, *tables: str, **sections: Any) -> dict[str, Any]:
        source = {
            "type": "mysql",
            "host": self.server.host,
            "port": self.server.port,
            "user": "cdc",
            "password": "cdc",
            "tables": [f"{self.database}.{table}" for table in tables],
        }
        sink = {"type": "delta", "path": str(self.root / "lake")}
        data: dict[str, Any] = {
            "pipeline": {"name": "shop", "state": str(self.root / "state")},
            "source": source,
            "sink": sink,
        }
        for name, keys in sections.items():
            data[name] = {**data.get(name, {}), **keys} if isinstance(keys, dict) else keys
        return data

    def run(self, *tables: str, **sections: Any) -> list[str]:
        """What was warned of until everything was read."""
        events: list[RunEvent] = []
        pipeline = Pipeline.from_config(config_from_dict(self.config(*tables, **sections)))
        pipeline.run(until="caught-up", local=True, listener=events.append)
        return [event.text.replace(f"{self.database}.", "") for event in events if isinstance(event, Warned)]

    def exists(self, table: str) -> bool:
        return DeltaTable.is_deltatable(self._target(table))

    def rows(self, table: str) -> list[tuple[int, int]]:
        found = DeltaTable(self._target(table)).to_pyarrow_table().to_pylist()
        return sorted((row["id"], row["v"]) for row in found)

    def _target(self, table: str) -> str:
        return str(self.root / "lake" / self.database / table)

    def phases(self) -> dict[str, str]:
        listed = table_list(CheckpointStore(self.root / "state"))
        return {entry["table"].partition(".")[2]: entry["phase"] for entry in listed}
