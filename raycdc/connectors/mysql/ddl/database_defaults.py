"""Character set and collation of each database, which tables created there inherit, as far as the log was decoded."""

from __future__ import annotations

from collections.abc import Mapping

from raycdc.connectors.mysql.ddl.statements import Database

#: Character set and collation; an empty collation is the set's default one.
CharsetDefault = tuple[str, str]


class DatabaseDefaults:
    """`begun` is how the databases were where the log is read from, as a checkpoint says it; where it says nothing,
    they are taken as they are `now`. `server` is for a database that names none.
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

    def set(self, ddl: Database) -> None:
        """CREATE or ALTER DATABASE."""
        if not (ddl.if_not_exists and ddl.db in self._databases):
            self._databases[ddl.db] = (ddl.charset, ddl.collation) if ddl.charset else self.of(ddl.db)
            self.changed = True

    def drop(self, db: str) -> None:
        self._databases.pop(db, None)
        self.changed = True

    def all(self) -> Mapping[str, CharsetDefault]:
        """Each database's, as of now."""
        return dict(self._databases)
