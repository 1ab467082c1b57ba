"""Determines how a server, and a session of it, reads DDL: the `DdlDialect` of each."""

from __future__ import annotations

from dataclasses import replace

from raycdc.connectors.mysql.binlog.session import SessionState
from raycdc.connectors.mysql.ddl.parse.statements import DdlDialect
from raycdc.connectors.mysql.server.client import MySqlServerInfo
from raycdc.connectors.mysql.values.types import TypeOptions

#: MySQL does not print widths of integers since 8.0.19 (release notes); MariaDB does.
_WITHOUT_WIDTHS = (8, 0, 19)


def dialect_of(info: MySqlServerInfo, types: TypeOptions | None = None) -> DdlDialect:
    """Return the dialect of a server's statements if the log has no session settings; `types` are the user's."""
    mariadb = info.is_mariadb
    implicit = info.variables.get("explicit_defaults_for_timestamp", "ON").upper() in ("OFF", "0")
    return DdlDialect(
        mariadb=mariadb,
        display_width=mariadb or info.version < _WITHOUT_WIDTHS,
        lower_case_names=info.variables.get("lower_case_table_names", "0") != "0",
        explicit_timestamps=not implicit,
        geomcollection=not mariadb and info.version >= (8, 0, 11),
        mariadb_comments=mariadb,
        types=types or TypeOptions(),
    )


def dialect_of_session(server: DdlDialect, session: SessionState) -> DdlDialect:
    """Return the dialect of a logged statement: that of `server` with the settings of the session."""
    explicit = session.explicit_timestamps
    return replace(
        server,
        ansi_quotes=session.ansi_quotes,
        backslash_escapes=session.backslash_escapes,
        real_as_float=session.real_as_float,
        oracle=server.mariadb and session.oracle,
        maxdb=session.maxdb,
        client=session.charset,
        connection="" if session.connection == session.charset else session.connection,
        explicit_timestamps=server.explicit_timestamps if explicit is None else explicit,
        strict=session.strict,
        zero_is_value=session.zero_is_value,
        pads_char=session.pads_char,
        time_zone=session.time_zone,
        empty_is_null=server.mariadb and session.empty_is_null,
    )
