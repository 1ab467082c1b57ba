"""Writes every change as a row of a table ``db.table`` in an SQLite database, exactly once.

Each verb runs in the transaction that `opened` began, and writes the record there.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from raycdc.core.failpoints import reach
from raycdc.errors import SinkError, SinkUnavailableError, TargetModifiedError, ValueRefusedError
from raycdc.model import TableId
from raycdc.sinks.api import CHANGELOG, CommitVector, TableCommit
from raycdc.sinks.lines_sink import LinesSink, StagedLines, staged_rows
from raycdc.sinks.rows import changelog_names
from raycdc.sinks.steps import CommitMetadata, ForeignTarget, MissingTarget, OwnTarget, Target, TargetState
from sqlite_changes.plugin import SqliteChangesConfig

#: Seconds that a transaction waits for others before raycdc reports the wait, and retries.
BUSY_S = 2.0
_RECORD = "raycdc_commit (app, target, epoch, step, generation, digest, touched, PRIMARY KEY (app, target))"


class SqliteTable(Target):
    """A table within a transaction of `db`; `touched` is True if this pipeline created or adopted it.

    A trigger that never fires marks the table. It is dropped with the table, so a table that another user created again
    has no mark.
    """

    def __init__(self, name: TableId, location: str, db: sqlite3.Connection, app_id: str) -> None:
        super().__init__(name, location)
        self._db, self._key, self._quoted = db, (app_id, str(name)), _quoted(name)
        self._mark = f"raycdc {app_id} {name}"

    def read_state(self, epoch: int | None = None) -> TargetState:
        asked = "SELECT epoch, step, generation, digest, touched FROM raycdc_commit WHERE (app, target) = (?, ?)"
        *numbers, self._touched = self._db.execute(asked, self._key).fetchone() or (False,)
        vector = CommitVector(*numbers) if numbers else None
        if not self._columns():
            return MissingTarget(lost=vector) if self._touched else MissingTarget(vector=vector)
        marked = "SELECT 1 FROM sqlite_master WHERE type = 'trigger' AND name = ?"
        if self._touched:
            return OwnTarget(vector) if self._db.execute(marked, (self._mark,)).fetchone() else ForeignTarget()
        return ForeignTarget(vector)

    def evolve(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        """Give the table all columns of the rows to come. Dropped columns stay, and are null in new rows."""
        for name in map(_quoted, (name for name in changelog_names(work.schema) if name not in self._columns())):
            made = f"ALTER TABLE {self._quoted} ADD COLUMN {name}"
            self._db.execute(made if self._columns() else f"CREATE TABLE {self._quoted} ({name})")
        mark = f"CREATE TRIGGER IF NOT EXISTS {_quoted(self._mark)} AFTER DELETE ON {self._quoted}"
        self._db.execute(f"{mark} WHEN 0 BEGIN SELECT 1; END")
        self._hold(commit_metadata, touched=True)

    create = adopt = evolve

    def replace(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        self._db.execute(f"DROP TABLE {self._quoted}")
        self._db.execute(
            "DELETE FROM raycdc_commit WHERE target = ?", self._key[1:]
        )  # No other pipeline continues this target.
        self.evolve(work, commit_metadata)

    def steps(self, work: TableCommit, staged: StagedLines) -> Sequence[int]:
        """Return a single step, if the table still has all columns."""
        if gone := sorted(set(changelog_names(work.schema)).difference(self._columns())):
            raise TargetModifiedError(
                f"{self.location} lost its column {gone[0]}: somebody dropped or renamed it. Nothing more was written. "
                "Drop the table, and read its source table anew."
            )
        return ()

    def write(self, work: TableCommit, staged: StagedLines, step: int, commit_metadata: CommitMetadata) -> None:
        names = changelog_names(work.schema)
        into = f"INSERT INTO {self._quoted} ({', '.join(map(_quoted, names))}) VALUES ({', '.join('?' * len(names))})"
        self._db.executemany(into, staged_rows(staged, names))
        self._hold(commit_metadata, touched=True)
        reach("in_commit")  # A failpoint at which tests of exactly-once stop the process.

    def bar(self, work: TableCommit, commit_metadata: CommitMetadata) -> None:
        self._hold(commit_metadata, touched=self._touched)

    def _hold(self, commit_metadata: CommitMetadata, *, touched: bool) -> None:
        vector = commit_metadata.vector
        record = (*self._key, vector.epoch, vector.step, vector.generation, vector.digest, touched)
        self._db.execute("INSERT OR REPLACE INTO raycdc_commit VALUES (?, ?, ?, ?, ?, ?, ?)", record)

    def _columns(self) -> list[str]:
        return [row[1] for row in self._db.execute(f"PRAGMA table_info({self._quoted})")]


class SqliteChangesSink(LinesSink[SqliteTable]):
    """The sink; see the module's docstring."""

    kind = "sqlite-changes"
    writes = (CHANGELOG,)

    def __init__(self, config: SqliteChangesConfig) -> None:
        super().__init__()
        self._path, self.staging = Path(config.path), Path(f"{config.path}.staged")

    @contextmanager
    def opened(self, target: TableId, *, writes: bool) -> Iterator[SqliteTable]:
        location = f"The table {target} in {self._path}"
        try:
            if writes:
                self._path.parent.mkdir(parents=True, exist_ok=True)
            # An inspection creates nothing: an empty database in memory replaces one that does not exist.
            database = self._path if writes or self._path.exists() else ":memory:"
            with closing(sqlite3.connect(database, timeout=BUSY_S, isolation_level=None)) as db:
                db.execute("BEGIN IMMEDIATE")
                db.execute(f"CREATE TABLE IF NOT EXISTS {_RECORD}")
                yield SqliteTable(target, location, db, self._context.app_id)
                if writes:  # An error in the block closes the connection, which rolls the transaction back.
                    db.execute("COMMIT")
        except (sqlite3.Error, OSError) as cause:
            raise _error_of(cause)(f"{location}: {cause}") from cause


def _error_of(cause: Exception) -> type[SinkError]:
    """Return the kind of error by which raycdc decides its reaction: retry, park only this table, or end the run."""
    if getattr(cause, "sqlite_errorcode", None) in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return SinkUnavailableError
    return ValueRefusedError if isinstance(cause, sqlite3.IntegrityError) else SinkError


def _quoted(name: object) -> str:
    return '"' + str(name).replace('"', '""') + '"'
