"""A pipeline whose parked tables, and what a reader of its targets has, can be asked for."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

from raycdc.cli.tables import change_table
from raycdc.config import config_from_dict
from raycdc.errors import SchemaError
from raycdc.observe.events import RunEvent, event_to_json
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import DatabaseServer
from tests.run_lines import known_tables


class Job:
    """A pipeline over `tables` of the database (all, where none are named) into JSON Lines."""

    def __init__(
        self, server: DatabaseServer, database: str, folder: Path, *tables: str, write: str = "changelog", **more: Any
    ) -> None:
        self.server, self.database, self.folder = server, database, folder
        self._tables = [rf"{database}\.{table}" for table in tables or (".*",)]
        self._write, self._more = write, more
        self.events: list[dict[str, Any]] = []

    def execute(self, *statements: str) -> None:
        self.server.execute(*statements, database=self.database)

    def pipeline(self, **more: Any) -> Pipeline:
        sections = {name: {**self._more.get(name, {}), **more.get(name, {})} for name in ("pipeline", "source", "sink")}
        source = {"type": "mysql", "port": self.server.port, "user": "cdc", "password": "${env:RAYCDC_TEST_PASSWORD}"}
        state = str(self.folder / "state")
        config = {
            "pipeline": {"name": "one", "state": state, "epoch_interval": "200ms", **sections["pipeline"]},
            "source": {**source, "tables": self._tables, **sections["source"]},
            "readers": {"max": 1},
            "sink": {
                "type": "jsonl",
                "path": str(self.folder / "lake"),
                "write": self._write,
                **sections["sink"],
            },
        }
        if "mask" in self._more:
            config["mask"] = self._more["mask"]
        return Pipeline.from_config(config_from_dict(config))

    def catch_up(self, **more: Any) -> dict[str, dict[str, Any]]:
        """Run to the log's end; what is parked then, with its reason."""
        self.events = []
        # Once all others have caught up, the parked ones are told by the exit code.
        with suppress(SchemaError):
            self.pipeline(**more).run(until="caught-up", local=True, listener=self._listen)
        known = {name.partition(".")[2]: table for name, table in known_tables(self.events).items()}
        return {name: table["parked"] for name, table in known.items() if table["phase"] == "parked"}

    def _listen(self, event: RunEvent) -> None:
        self.events.append(event_to_json(event))

    def ask(self, action: str, table: str) -> None:
        change_table(self.folder / "state", f"{self.database}.{table}", action)

    def rows(self, table: str) -> list[dict[str, Any]]:
        """What a reader of the table's changelog has at its end, by `id`."""
        there: dict[Any, dict[str, Any]] = {}
        files = [file for file in (self.folder / "lake").rglob("*.jsonl") if file.parent.name == table]
        lines = [json.loads(line) for file in files for line in file.read_text(encoding="utf-8").splitlines()]
        for row in sorted(lines, key=lambda line: int(line["_seq"])):
            match row["_op"]:
                case "T":
                    there.clear()
                case "-D" | "-U":
                    there.pop(row["id"], None)
                case _:
                    there[row["id"]] = {name: value for name, value in row.items() if not name.startswith("_")}
        return [there[key] for key in sorted(there)]

    def text(self) -> str:
        """All that was ever written to the target."""
        return "".join(file.read_text(encoding="utf-8") for file in (self.folder / "lake").rglob("*.jsonl"))
