"""The default character set and collation of each database at the log's position, which new tables inherit."""

from __future__ import annotations

from collections.abc import Mapping

from raycdc.connectors.mysql.ddl.parse.statements import CreateOrAlterDatabase

#: A character set and a collation. An empty collation is the set's default collation.
CharsetDefault = tuple[str, str]


class DatabaseDefaults:
    """The defaults of all databases.

    `begun` are the defaults at the log's start, from a checkpoint. Without it, the present ones (`now`) are used.
    `server` is the default of a database without one.
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
