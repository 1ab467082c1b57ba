"""Every change as a row of a table ``db.table`` in an SQLite database, exactly once.

What makes it exactly once: rows and the commit record are written in one transaction, which first looks at the record.
Here rows go through Python one by one; a sink for more of them would load the files of its tasks in bulk.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, ClassVar

from raycdc.bridge.tasks import StageTask
from raycdc.errors import FencedError, SinkError
from raycdc.failpoints import reach
from raycdc.model import TableId
from raycdc.sinks.api import CHANGELOG, STEP_LAST, STEP_SCHEMA, STEP_TOMBSTONE, CommitVector, SinkContext, TableWork
from raycdc.sinks.changes import check_changes
from raycdc.sinks.plan import Input
from raycdc.sinks.rows import changelog_names
from sqlite_changes.plugin import SqliteChangesConfig

_RECORD = "CREATE TABLE IF NOT EXISTS raycdc_commit (app, target, epoch, step, generation, PRIMARY KEY (app, target))"


class SqliteChangesSink:
    """See the module's docstring."""

    writes: ClassVar[tuple[str, ...]] = (CHANGELOG,)
    durable: ClassVar[bool] = True

    def __init__(self, config: SqliteChangesConfig) -> None:
        self._path = Path(config.path)

    def open(self, context: SinkContext) -> None:
        self._context = context
        with self._transaction() as db:
            db.execute(_RECORD)

    def committed(self, target: TableId) -> CommitVector | None:
        with self._transaction() as db:
            return self._held(db, target) if _columns(db, target) else None

    def apply_schema(self, work: TableWork) -> None:
        check_changes(work, self._context.schema_change, self._context.left_out)
        with self._transaction() as db:
            held = self._held(db, work.target)
            if held is None and _columns(db, work.target) and self._context.on_existing != "merge":
                raise SinkError(
                    f"{self._path} has a table {work.target} that is not of this pipeline. Set pipeline.on_existing to "
                    '"merge" to write into it, or choose another sink.path.'
                )
            self._make(db, work)
            self._hold(db, work, STEP_SCHEMA, held)

    def stage(self, works: Sequence[TableWork]) -> Mapping[TableId, Any]:
        written = self._context.run_tasks([self._task(work) for work in works])
        return {work.target: result["path"] for work, result in zip(works, written, strict=True)}

    def commit(self, work: TableWork, staged: Any) -> None:
        names = changelog_names(work.schema)
        with self._transaction() as db, Path(staged).open() as lines:
            if self._hold(db, work, STEP_LAST, self._held(db, work.target)):
                into = f"{_quoted(work.target)} ({', '.join(map(_quoted, names))})"
                rows = ([_value(row[name]) for name in names] for row in map(json.loads, lines))
                db.executemany(f"INSERT INTO {into} VALUES ({', '.join('?' * len(names))})", rows)
            reach("in_commit")  # Where tests of exactly-once stop us.
        Path(staged).unlink()

    def tombstone(self, work: TableWork) -> None:
        with self._transaction() as db:
            held = self._held(db, work.target)
            if held is not None and held.epoch == work.epoch and held.step == STEP_LAST:
                raise SinkError(f"Epoch {work.epoch} reached {work.target} while it was being dropped. Start again.")
            self._make(db, work)
            self._hold(db, work, STEP_TOMBSTONE, held)

    def close(self) -> None:
        """Every transaction has a connection of its own."""

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        """All or nothing, one at a time; others wait."""
        with closing(sqlite3.connect(self._path, timeout=60, isolation_level=None)) as db:
            db.execute("BEGIN IMMEDIATE")
            yield db  # An error in the block closes the connection, which takes everything back.
            db.execute("COMMIT")

    def _make(self, db: sqlite3.Connection, work: TableWork) -> None:
        """The table with all columns of the rows to come; those that went stay, null from here on."""
        there = _columns(db, work.target)
        for name in (name for name in changelog_names(work.schema) if name not in there):
            made = f"ALTER TABLE {_quoted(work.target)} ADD COLUMN" if there else f"CREATE TABLE {_quoted(work.target)}"
            db.execute(f"{made} {_quoted(name)}" if there else f"{made} ({_quoted(name)})")
            there = [*there, name]

    def _held(self, db: sqlite3.Connection, target: TableId) -> CommitVector | None:
        asked = "SELECT epoch, step, generation FROM raycdc_commit WHERE app = ? AND target = ?"
        found = db.execute(asked, (self._context.app_id, str(target))).fetchone()
        return CommitVector(*found) if found else None

    def _hold(self, db: sqlite3.Connection, work: TableWork, step: int, held: CommitVector | None) -> bool:
        """Write the record; False where it says so already."""
        if held is not None and held.generation > work.generation:
            raise FencedError(f"{work.target} was written by a newer driver (generation {held.generation}).")
        if held is not None and (held.epoch, held.step) >= (work.epoch, step):
            return False
        record = (self._context.app_id, str(work.target), work.epoch, step, work.generation)
        db.execute("INSERT OR REPLACE INTO raycdc_commit VALUES (?, ?, ?, ?, ?)", record)
        return True

    def _task(self, work: TableWork) -> StageTask:
        path = Path(f"{self._path}.staged") / f"{work.target}-{work.epoch}-{work.generation}.jsonl"
        arguments = {
            "inputs": [Input(segment).to_json() for segment in work.segments],
            "schema": work.schema.to_json(),
            "path": str(path),
            "node": self._context.node,
            "token": self._context.flight_token,
        }
        return StageTask("raycdc.sinks.tasks:write_json_lines", arguments, work.input_bytes)


def _columns(db: sqlite3.Connection, target: TableId) -> list[str]:
    return [row[1] for row in db.execute(f"PRAGMA table_info({_quoted(target)})")]


def _quoted(name: object) -> str:
    return '"' + str(name).replace('"', '""') + '"'


def _value(value: Any) -> Any:
    """JSON documents and bytes as JSON text, and integers of more than 64 bits as text, so that nothing is rounded."""
    if isinstance(value, dict | list):
        return json.dumps(value)
    return str(value) if isinstance(value, int) and value.bit_length() > 63 else value
