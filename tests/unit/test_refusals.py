"""Every named error between a manifest and a record is classified: whose it is, and so whether it ends the run.

A refusal of one table is a `TableRefusedError`. Who raises a plain error in the driver's half says here that not one
table is meant, or where the error becomes such a refusal.
"""

from __future__ import annotations

import ast
from enum import Enum
from pathlib import Path

import raycdc

ROOT = Path(raycdc.__file__).parent
PLAIN = {"SinkError", "StateError", "ConfigError", "DataError", "SchemaError"}
FOLDERS = ("sinks", "delivery", "spark", "segments", "model/evolution", "transform")


class Whose(Enum):
    """Whom a plain named error concerns."""

    START = "raised before anything is read: by opening a sink, or what the configuration asks of it"
    SINK = "the whole sink: it does not answer, or another driver is at it"
    STATE = "the state, the spool or another node"
    RULES = "one table's transform, lookup or mask: `delivery.targets.commit_planner` makes a `TableRefusedError` of it"
    CHANGE = "one table's schema change: the sink makes a `TableRefusedError` of it, a source parks the table"
    READER = "a reader's: rows are masked there"


#: How many there are in each module, and whose.
CLASSES: dict[str, dict[Whose, int]] = {
    "delivery/dead_letters.py": {Whose.STATE: 1},
    "delivery/epoch_loop.py": {Whose.STATE: 1},
    "delivery/epoch_recovery.py": {Whose.STATE: 4},
    "delivery/lookup/joiner.py": {Whose.STATE: 3},
    "delivery/ports.py": {Whose.STATE: 1},
    "delivery/rows/row_store.py": {Whose.STATE: 1},
    "delivery/targets/commit_planner.py": {Whose.STATE: 2},
    "delivery/targets/target_records.py": {Whose.STATE: 3},
    "model/evolution/apply.py": {Whose.CHANGE: 5},
    "model/evolution/events.py": {Whose.CHANGE: 2},
    "segments/access.py": {Whose.STATE: 3},
    "segments/flight.py": {Whose.STATE: 2},
    "sinks/delta/maintenance.py": {Whose.START: 1},
    "sinks/files/folder_target.py": {Whose.SINK: 1},
    "sinks/files/store_target.py": {Whose.SINK: 1},
    "sinks/iceberg/catalog.py": {Whose.START: 2},
    "sinks/iceberg/location.py": {Whose.START: 3},
    "sinks/jdbc/database.py": {Whose.START: 1},
    "sinks/jdbc/mysql.py": {Whose.SINK: 1},
    "sinks/jdbc/plugin.py": {Whose.START: 1},
    "sinks/jdbc/postgres.py": {Whose.SINK: 1},
    "sinks/jdbc/sink.py": {Whose.START: 1},
    "sinks/jdbc/target.py": {Whose.SINK: 1},
    "sinks/kafka/plugin.py": {Whose.START: 1},
    "sinks/kafka/sink.py": {Whose.SINK: 2},
    "sinks/kafka/tasks.py": {Whose.SINK: 1},
    "sinks/kafka/transactions.py": {Whose.SINK: 3},
    "sinks/mongodb/server.py": {Whose.SINK: 4},
    "sinks/mongodb/sink.py": {Whose.START: 1},
    "sinks/mongodb/tasks.py": {Whose.SINK: 1},
    "sinks/record.py": {Whose.SINK: 1},
    "sinks/steps.py": {Whose.SINK: 2},
    "sinks/targets.py": {Whose.START: 1},
    "sinks/tasks.py": {Whose.STATE: 1},
    "spark/derive.py": {Whose.SINK: 1},
    "spark/executors.py": {Whose.START: 3},
    "spark/lifecycle.py": {Whose.SINK: 1},
    "spark/session.py": {Whose.START: 8},
    "spark/stage.py": {Whose.SINK: 1},
    "spark/transforms.py": {Whose.RULES: 14},
    "transform/masks.py": {Whose.START: 1, Whose.RULES: 4, Whose.READER: 1},
    "transform/naming.py": {Whose.RULES: 2},
    "transform/resolved.py": {Whose.RULES: 14},
    "transform/tables.py": {Whose.RULES: 13},
}


def plain_errors(path: Path) -> int:
    """How often a module makes an error that says nothing of one table."""
    calls = (node.func for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))
    return sum(isinstance(call, ast.Name) and call.id in PLAIN for call in calls)


def test_every_error_that_is_no_refusal_of_one_table_says_whose_it_is() -> None:
    found = {
        str(path.relative_to(ROOT)): count
        for folder in FOLDERS
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (count := plain_errors(path))
    }
    assert found == {name: sum(counts.values()) for name, counts in CLASSES.items()}, (
        "an error was added: raise a TableRefusedError if one table is concerned, else say here whose it is"
    )


def test_a_new_error_without_a_class_is_noticed(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("def commit(work):\n    raise SinkError(f'{work.target} has a column too many')\n")
    assert plain_errors(planted) == 1
