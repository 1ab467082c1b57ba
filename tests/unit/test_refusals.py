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
FOLDERS = ("sinks", "epochs", "spark", "bridge", "schema", "transform", "lookup")


class Whose(Enum):
    """Whom a plain named error concerns."""

    START = "raised before anything is read: by opening a sink, or what the configuration asks of it"
    SINK = "the whole sink: it does not answer, or another driver is at it"
    STATE = "the state, the spool or another node"
    RULES = "one table's transform, lookup or mask: `epochs.works` makes a `TableRefusedError` of it"
    CHANGE = "one table's schema change: `sinks.changes` makes a `TableRefusedError` of it, a source parks the table"
    READER = "a reader's: rows are masked there"


#: How many there are in each module, and whose.
CLASSES: dict[str, tuple[int, Whose]] = {
    "sinks/delta/upkeep.py": (1, Whose.START),
    "sinks/files/store_notes.py": (1, Whose.SINK),
    "sinks/iceberg/catalog.py": (2, Whose.START),
    "sinks/iceberg/places.py": (3, Whose.START),
    "sinks/jdbc/database.py": (1, Whose.START),
    "sinks/jdbc/mysql.py": (1, Whose.SINK),
    "sinks/jdbc/postgres.py": (1, Whose.SINK),
    "sinks/jdbc/plugin.py": (1, Whose.START),
    "sinks/jdbc/sink.py": (1, Whose.START),
    "sinks/jdbc/target.py": (1, Whose.SINK),
    "sinks/kafka/plugin.py": (1, Whose.START),
    "sinks/kafka/tasks.py": (1, Whose.SINK),
    "sinks/kafka/topics.py": (2, Whose.SINK),
    "sinks/kafka/transactions.py": (3, Whose.SINK),
    "sinks/mongodb/server.py": (4, Whose.SINK),
    "sinks/mongodb/sink.py": (1, Whose.START),
    "sinks/mongodb/tasks.py": (1, Whose.SINK),
    "sinks/record.py": (1, Whose.SINK),
    "sinks/steps.py": (2, Whose.SINK),
    "sinks/targets.py": (1, Whose.START),
    "sinks/tasks.py": (1, Whose.STATE),
    "spark/derive.py": (1, Whose.SINK),
    "spark/executor_files.py": (1, Whose.START),
    "spark/executors.py": (2, Whose.START),
    "epochs/epoch_recovery.py": (4, Whose.STATE),
    "epochs/lost_rows.py": (1, Whose.STATE),
    "epochs/ports.py": (1, Whose.STATE),
    "epochs/holdings.py": (3, Whose.STATE),
    "epochs/known_rows.py": (1, Whose.STATE),
    "spark/lifecycle.py": (1, Whose.SINK),
    "spark/session.py": (8, Whose.START),
    "spark/stage.py": (1, Whose.SINK),
    "spark/transforms.py": (14, Whose.RULES),
    "epochs/works.py": (2, Whose.STATE),
    "bridge/flight.py": (2, Whose.STATE),
    "bridge/mapped.py": (3, Whose.STATE),
    "schema/apply.py": (5, Whose.CHANGE),
    "schema/events.py": (2, Whose.CHANGE),
    "transform/changes.py": (1, Whose.RULES),
    "transform/hiding.py": (1, Whose.START),
    "transform/lookups.py": (3, Whose.RULES),
    "transform/masked.py": (4, Whose.RULES),
    "transform/masking.py": (1, Whose.READER),
    "transform/naming.py": (2, Whose.RULES),
    "transform/plain.py": (1, Whose.RULES),
    "transform/resolved.py": (10, Whose.RULES),
    "transform/tables.py": (9, Whose.RULES),
    "epochs/dead_letters.py": (1, Whose.STATE),
    "lookup/answers.py": (1, Whose.STATE),
    "lookup/joiner.py": (2, Whose.STATE),
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
    assert found == {name: count for name, (count, _) in CLASSES.items()}, (
        "an error was added: raise a TableRefusedError if one table is concerned, else say here whose it is"
    )


def test_a_new_error_without_a_class_is_noticed(tmp_path: Path) -> None:
    planted = tmp_path / "planted.py"
    planted.write_text("def commit(work):\n    raise SinkError(f'{work.target} has a column too many')\n")
    assert plain_errors(planted) == 1
