"""Character set and collation of each database, which tables created there inherit, as far as the log was decoded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from raycdc.connectors.mysql.ddl.statements import Database

#: Character set and collation; an empty collation is the set's default one.
CharsetDefault = tuple[str, str]


def begin_state(databases: Mapping[str, CharsetDefault]) -> dict[str, Any] | None:
    """The state where the log begins: what the log does not say of it, and the server only as of now."""
    return {"databases": {db: list(default) for db, default in sorted(databases.items())}} if databases else None


class DatabaseDefaults:
    """`state` is `begin_state`, or what this gave last; `now` is used where it says nothing; `server` is what a
    database gets that names none.
    """

    def __init__(
        self, state: Mapping[str, Any] | None, now: Mapping[str, CharsetDefault] | None, *, server: CharsetDefault
    ) -> None:
        begun = (state or {}).get("databases")
        self._databases = dict(now or {}) if begun is None else {db: (s, c) for db, (s, c) in begun.items()}
        self._server = server
        self.changed = False

    def of(self, db: str) -> CharsetDefault:
        return self._databases.get(db, self._server)

    def set(self, ddl: Database) -> None:
        """CREATE or ALTER DATABASE."""
        if not (ddl.if_not_exists and ddl.db in self._databases):
            self._databases[ddl.db] = (ddl.charset, ddl.collation) if ddl.charset else self.of(ddl.db)
            self.changed = True

    def drop(self, db: str) -> None:
        self._databases.pop(db, None)
        self.changed = True

    def state(self) -> dict[str, Any]:
        return begin_state(self._databases) or {}
