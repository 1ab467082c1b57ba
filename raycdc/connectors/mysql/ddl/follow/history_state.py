"""The facts other than tables that a restart of the log needs, and their form in checkpoints.

`TemporaryTables` are the names that temporary tables hide in the sessions that created them. A statement of such a
session affects its temporary table, and no captured table. Servers log CREATE and DROP TEMPORARY TABLE of sessions that
log statements. When such a session ends, they log a DROP of its remaining temporary tables. When the server starts,
which ends all sessions, nothing is logged. Each statement's event has a flag if a temporary table was used by the
statement, or before it in the same procedure.

| statement about a name | flag set, and the name is hidden | flag only | hidden only | neither |
|---|---|---|---|---|
| ALTER, TRUNCATE, CREATE INDEX, DROP INDEX | of the temporary table | see below | doubtful | of the table |
| RENAME TABLE of MariaDB, which never has the flag | – | – | of the temporary table | of the table |
| CREATE TABLE, DROP TABLE, RENAME TABLE of MySQL | the table's: otherwise the statement has the word TEMPORARY | | | |
| a change of rows | of the temporary table | of the table | of the table | of the table |

*Flag only*: the statement concerns the table if this log has the session from its beginning, because every temporary
table with logged statements is then known. Otherwise it is doubtful which table the statement concerns. *Hidden only*:
the session dropped its temporary table without logging the drop. If a statement is doubtful, the captured table is
resnapshotted, which is right in both cases.

`DatabaseDefaults` are the default character set and collation of each database at the log's position, which new tables
inherit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from raycdc.connectors.mysql.binlog.events import DdlItem, LoggedThread
from raycdc.connectors.mysql.ddl.apply import AffectedTables
from raycdc.connectors.mysql.ddl.follow.masked_names import FormerNames
from raycdc.connectors.mysql.ddl.parse.statements import CreateOrAlterDatabase, RenameTable
from raycdc.connectors.mysql.ddl.shadows import Shadow
from raycdc.core.typed_codec import LEFT_OUT, Json, JsonObject
from raycdc.model import TableId

#: A character set and a collation. An empty collation is the set's default collation.
CharsetDefault = tuple[str, str]


class DatabaseDefaults:
    """The defaults of all databases.

    `begun` are the defaults at the log's start, from a checkpoint. Without a checkpoint, the present defaults (`now`)
    are used. `server` is the default of a database without one.
    """

    def __init__(
        self,
        begun: Mapping[str, CharsetDefault] | None,
        now: Mapping[str, CharsetDefault] | None,
        *,
        server: CharsetDefault,
    ) -> None:
        self._databases = dict((now or {}) if begun is None else begun)
        self._server = server
        self.changed = False

    def of(self, db: str) -> CharsetDefault:
        return self._databases.get(db, self._server)

    def set(self, ddl: CreateOrAlterDatabase, of_session: CharsetDefault | None) -> None:
        """Apply CREATE or ALTER DATABASE. `of_session` is the session's default, None if unknown."""
        if ddl.if_not_exists and ddl.db in self._databases:
            return
        inherited = (of_session or self._server) if ddl.created or ddl.of_session else self.of(ddl.db)
        if ddl.charset:
            inherited = ddl.charset, ddl.collation
        elif ddl.collation:
            # This collation of MariaDB applies to several character sets.
            inherited = inherited[0], f"{inherited[0]}_{ddl.collation}"
        self._databases[ddl.db] = inherited
        self.changed = True

    def drop(self, db: str) -> None:
        self._databases.pop(db, None)
        self.changed = True

    def all(self) -> Mapping[str, CharsetDefault]:
        """Return the present defaults of each database."""
        return dict(self._databases)


#: The number of sessions whose hidden names are kept. There are few, because a session that logs rows logs no temporary
#: tables. If the oldest is forgotten, no session counts as known from its beginning any more.
SESSIONS_MAX = 1000
#: The value of `since` if all sessions are known from their beginning, because the server started in this log.
ALL_KNOWN = LoggedThread(0, 0)

#: The first words of statements whose event has a flag if the table that they name is a temporary one.
_SAYS_SO = frozenset({"ALTER", "TRUNCATE"})

Names = Mapping[LoggedThread, frozenset[TableId]]


@dataclass(frozen=True, slots=True)
class TemporaryNames(JsonObject):
    """The names of temporary tables by session.

    Every start of the server is known up to `file` of the log. Sessions that began after the session `since` are known
    from their beginning; None: no session is.
    """

    file: str = field(default="", metadata=LEFT_OUT)
    sessions: Names = field(default_factory=dict, metadata=LEFT_OUT)
    since: LoggedThread | None = field(default=None, metadata=LEFT_OUT)


class TemporaryTables:
    """The temporary tables of all sessions; see the module's docstring."""

    def __init__(self, temporary: TemporaryNames) -> None:
        self._file = temporary.file
        self._sessions = dict(temporary.sessions)
        self._since = temporary.since
        self.changed = False

    def shadows(self, thread: LoggedThread, table: TableId) -> bool:
        """Return True if the session has a temporary table of that name."""
        return table in self._sessions.get(thread, ())

    def follow(self, item: DdlItem, affected: AffectedTables) -> bool:
        """Note the effect of a statement on temporary tables. Returns True if it concerns nothing else."""
        thread, file = item.thread, item.position.file
        if affected.made_temporary or affected.dropped_temporary:
            self.create(thread, affected.made_temporary, file=file)
            self.drop(thread, affected.dropped_temporary, file=file)
            return True
        if affected.verb not in _SAYS_SO or not affected.tables or not item.thread_specific:
            return False
        table, *others = affected.tables
        if not self.shadows(thread, table):
            return False
        for to in others:  # ALTER TABLE … RENAME TO; partitions are not exchanged with temporary tables.
            self.rename(thread, table, to, file=file)
        return True

    def renames(self, item: DdlItem, ddl: RenameTable) -> bool:
        """Note a RENAME TABLE of MariaDB if it renames a temporary table, and return True then."""
        if not self.shadows(item.thread, ddl.table):
            return False
        self.rename(item.thread, ddl.table, ddl.new_table, file=item.position.file)
        return True

    def doubt(self, item: DdlItem, affected: AffectedTables) -> str | None:
        """Return why it is unknown whether a statement concerns a table or a temporary one of its session.

        None if known.
        """
        if affected.verb not in _SAYS_SO or not affected.tables:
            return None
        temporary = self.shadows(item.thread, affected.tables[0])
        if temporary == item.thread_specific or (not temporary and self._knows(item.thread)):
            return None
        if temporary:
            return f"its session created a temporary table {affected.tables[0]}, which the statement does not use"
        return "its session may have created a temporary table of that name before this log was read"

    def may_mean(self, item: DdlItem, table: TableId) -> bool:
        """Return True if a table that a statement takes columns from is, or may be, a temporary one."""
        return self.shadows(item.thread, table) or (item.thread_specific and not self._knows(item.thread))

    def create(self, thread: LoggedThread, tables: Iterable[TableId], *, file: str) -> None:
        """Record temporary tables that the session created, in `file` of the log."""
        self._set(thread, self._of(thread) | frozenset(tables), file)

    def drop(self, thread: LoggedThread, tables: Iterable[TableId], *, file: str) -> None:
        """Record temporary tables that the session dropped; all of them if it ended."""
        self._set(thread, self._of(thread) - frozenset(tables), file)

    def rename(self, thread: LoggedThread, table: TableId, to: TableId, *, file: str) -> None:
        """Record that the session renamed its temporary table."""
        self.drop(thread, [table], file=file)
        self.create(thread, [to], file=file)

    def begin_file(self, file: str, started: bool, followed: bool) -> bool:
        """Note that a file of the log begins, or is continued. Return True if the state for a restart has changed.

        `started` is True if the server started then. If the log was not `followed` from the previous file, a start may
        have been missed, so the names are forgotten.
        """
        before = self.all()
        if started:
            self._sessions.clear()
            self._since = ALL_KNOWN
        elif self._sessions and not followed and file != self._file:
            self._sessions.clear()
            self._since = None
        self._file = file if self._sessions else ""
        has_changed = self.all() != before
        self.changed = self.changed or has_changed
        return has_changed

    def all(self) -> TemporaryNames:
        """Return the present names."""
        return TemporaryNames(self._file if self._sessions else "", dict(self._sessions), self._since)

    def _knows(self, thread: LoggedThread) -> bool:
        """Return True if the log has the session from its beginning."""
        since = self._since
        if since is None or since == ALL_KNOWN:
            return since is not None
        return thread.server_id == since.server_id and thread.thread_id > since.thread_id

    def _of(self, thread: LoggedThread) -> frozenset[TableId]:
        return self._sessions.get(thread, frozenset())

    def _set(self, thread: LoggedThread, names: frozenset[TableId], file: str) -> None:
        if names == self._of(thread):
            return
        if not self._sessions:
            self._file = file
        self._sessions.pop(thread, None)
        if names:
            self._sessions[thread] = names
        while len(self._sessions) > SESSIONS_MAX:
            del self._sessions[next(iter(self._sessions))]
            self._since = None
        self.changed = True


@dataclass(frozen=True, slots=True)
class HistoryState:
    """The facts as of the last statement.

    They are the tables of schema change tools, captured tables whose name is unused, character sets of databases,
    earlier names of masked columns, fingerprints of dropped tables, and names hidden by temporary tables. `databases`
    is None if no server could be queried when the log began.
    """

    shadows: Mapping[TableId, Shadow] = field(default_factory=dict)
    absent: frozenset[TableId] = frozenset()
    databases: Mapping[str, CharsetDefault] | None = None
    former: FormerNames = field(default_factory=FormerNames)
    dropped: Mapping[TableId, str] = field(default_factory=dict)
    temporary: TemporaryNames = field(default_factory=TemporaryNames)

    def to_json(self) -> Mapping[str, Json]:
        """Return the state as JSON. Empty facts are left out, except for those about tools."""
        stored: dict[str, Json] = {
            "shadows": {str(name): shadow.to_json() for name, shadow in self.shadows.items()},
            "away": sorted(map(str, self.absent)),
        }
        if self.databases:
            stored["databases"] = _stored_databases(self.databases)
        if self.former.tables:
            stored["masked"] = {str(t): sorted(map(str, names)) for t, names in sorted(self.former.tables.items())}
        if self.former.columns:
            stored["masked_columns"] = {
                str(table): {column: sorted(names) for column, names in sorted(columns.items())}
                for table, columns in sorted(self.former.columns.items())
            }
        if self.dropped:
            stored["dropped"] = {str(name): fingerprint for name, fingerprint in self.dropped.items()}
        if temporary := self.temporary.to_json():
            stored["temporary"] = temporary
        return stored

    @classmethod
    def from_json(cls, data: Any) -> HistoryState:
        databases = data.get("databases")
        former = FormerNames(
            {TableId.parse(t): frozenset(map(TableId.parse, names)) for t, names in data.get("masked", {}).items()},
            {
                TableId.parse(table): {column: frozenset(names) for column, names in columns.items()}
                for table, columns in data.get("masked_columns", {}).items()
            },
        )
        return cls(
            {TableId.parse(name): Shadow.from_json(shadow) for name, shadow in data.get("shadows", {}).items()},
            frozenset(map(TableId.parse, data.get("away", ()))),
            None if databases is None else {db: (charset, collation) for db, (charset, collation) in databases.items()},
            former,
            {TableId.parse(name): fingerprint for name, fingerprint in data.get("dropped", {}).items()},
            TemporaryNames.from_json(data["temporary"]) if "temporary" in data else TemporaryNames(),
        )


def begin_state(databases: Mapping[str, CharsetDefault], since: LoggedThread) -> Mapping[str, Json]:
    """Return the state where the log begins: the facts that only the server has, and only as of now.

    `since` is a session of the server that is not older than the beginning of the log.
    """
    stored: dict[str, Json] = {"temporary": TemporaryNames(since=since).to_json()}
    if databases:
        stored["databases"] = _stored_databases(databases)
    return stored


def _stored_databases(databases: Mapping[str, CharsetDefault]) -> dict[str, list[str]]:
    return {db: list(default) for db, default in sorted(databases.items())}
