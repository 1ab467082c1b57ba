"""Opens SQL connections to a MySQL or MariaDB server, and turns their errors into errors with a remedy.

All code that sends SQL to such a server gets its connection from this module. So every session has the same time zone
(UTC), character set and SQL mode, and values and comparisons have the same meaning in planning, snapshot and checks. A
connection belongs to one thread.
"""

from __future__ import annotations

import re
import ssl
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Literal

import pymysql
from pymysql.connections import Connection
from pymysql.constants import CR, ER

from raycdc.clients.logins import LOGINS, READ_AGAIN
from raycdc.clients.mysql_passwords import plugins
from raycdc.config.tls import TlsMode, is_loopback
from raycdc.core.activity import note_statement
from raycdc.core.certificate_faults import Opening, TlsServer, certificate_fault
from raycdc.core.connection_attempts import TRIES
from raycdc.core.secrets import newest
from raycdc.errors import ConfigError, SourceError, SourceUnavailableError
from raycdc.model.redaction import without_literals

#: The seconds for which the server waits for this client to read or write before it ends the session. They are many,
#: because a reader that waits for the sink must not lose its result set.
NET_TIMEOUT_S = 6 * 3600
#: The maximum size of an answer to one statement, over all its packets. Catalogs of the largest servers have a third of
#: this size. (Rows of tables, and the log, are received by different code.)
ANSWER_BYTES_MAX = 1 << 30
#: The maximum length of a server's error text that is shown.
_TEXT_MAX = 2000
#: The maximum length of the table names of a query that are shown.
_NAMES_MAX = 200
#: The session variable that is 1 if the session chose to wait for locks only briefly.
WAITS_BRIEFLY = "@raycdc_waits_briefly"
#: Errors that pymysql, and code of this module, raise for a packet that violates the protocol.
_NONSENSE = (AssertionError, LookupError, OverflowError, TypeError, ValueError, struct.error)

#: A row that a server returns about itself, by the names of its columns.
ServerRow = dict[str, str | int | None]


@dataclass(frozen=True, slots=True)
class MySqlSettings:
    """The address, account and limits of a connection. ``repr`` never shows the password."""

    host: str = "127.0.0.1"
    port: int = 3306
    user: str = ""
    password: str = field(default="", repr=False)
    tls_mode: TlsMode = TlsMode.AUTO
    tls_ca: str | None = None
    allow_public_key_retrieval: bool = False
    unix_socket: str | None = None
    connect_timeout_s: float = 10.0
    #: A server that sends nothing for this long counts as lost. Planning queries on large tables may take long.
    read_timeout_s: float = 3600.0

    def __repr__(self) -> str:
        return f"MySqlSettings({self.user}:***@{self.address}, tls={self.effective_tls_mode})"

    @property
    def address(self) -> str:
        """``host:port`` (or the socket's path), for messages."""
        return self.unix_socket or f"{self.host}:{self.port}"

    @property
    def effective_tls_mode(self) -> TlsMode:
        """Return `tls_mode` with ``AUTO`` resolved."""
        return self.tls_mode.resolved("localhost" if self.unix_socket else self.host)


def connect(settings: MySqlSettings) -> Connection[Any]:
    """Open a connection: autocommit, UTC, utf8mb4, neutral ``sql_mode``, repeatable read, long network timeouts.

    Blocks up to ``connect_timeout_s``. Raises `SourceUnavailableError` if the server cannot be reached now;
    `SourceError` if it refuses the login, does not offer the required TLS or requests the password in plain text; and
    `ConfigError` if the CA file cannot be used. Attempts to reach a server that does not answer are spaced by
    `raycdc.core.connection_attempts`.
    """
    with TRIES.at(settings.address):
        return _connected(settings)


def _connected(settings: MySqlSettings) -> Connection[Any]:
    try:
        connection = _opened(settings)
    except ssl.SSLError as cause:
        raise SourceError(_tls_message(settings, cause)) from cause
    except (pymysql.Error, OSError, RuntimeError) as cause:
        raise translate(settings, cause) from cause
    try:
        with sane_answers(settings.address):
            _ensure_encrypted(connection, settings)
            _prepare_session(connection)
    except pymysql.Error as cause:
        close_quietly(connection)
        raise query_error(connection, "SET SESSION …", cause) from cause
    except SourceError:
        close_quietly(connection)
        raise
    LOGINS.accepted(settings.address, settings.user)
    return connection


def _opened(settings: MySqlSettings) -> Connection[Any]:
    """Return the connection after login. The size of every answer from the greeting on is limited."""
    try:
        connection: Connection[Any] = pymysql.connect(
            defer_connect=True,
            host=settings.host,
            port=settings.port,
            unix_socket=settings.unix_socket,
            user=settings.user,
            # pymysql would encode text as latin-1; servers store the hash of the UTF-8 bytes.
            password=newest(settings.password).encode("utf-8"),
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=settings.connect_timeout_s,
            read_timeout=settings.read_timeout_s,
            write_timeout=settings.read_timeout_s,
            program_name="raycdc",
            **_protection(settings),
        )
        _bound_answers(connection, settings.address)
        with sane_answers(settings.address):
            connection.connect()
    except UnicodeError as cause:  # The cause is a label of the host name that is empty or longer than 63 characters.
        raise ConfigError(f"{settings.host!r} is no host name: {cause}. Correct the host.") from cause
    return connection


def _bound_answers(connection: Any, address: str) -> None:
    """Let `connection` read at most `ANSWER_BYTES_MAX` between two of its commands; then it is closed."""
    read, write, count = connection._read_bytes, connection._write_bytes, 0

    def read_bytes(size: int) -> bytes:
        nonlocal count
        count += size
        if count > ANSWER_BYTES_MAX:
            connection._force_close()
            raise SourceError(
                f"{address} answered a statement with more than {ANSWER_BYTES_MAX >> 20} MiB, which no catalog has. "
                "See which server answers at that address."
            )
        data: bytes = read(size)
        return data

    def write_bytes(data: bytes) -> None:
        nonlocal count
        count = 0
        write(data)

    connection._read_bytes, connection._write_bytes = read_bytes, write_bytes


@contextmanager
def sane_answers(address: str) -> Iterator[None]:
    """Raise `SourceError` if a packet within the block violates the protocol, or requests a file of this machine.

    The block must only send commands and read answers, because errors of other code would be reported as the server's.
    """
    try:
        yield
    except UnicodeError as cause:
        if not isinstance(cause, UnicodeDecodeError):  # The error is about the host's name, or about a text to be sent.
            raise
        raise _nonsense(address, cause) from cause
    except _NONSENSE as cause:
        raise _nonsense(address, cause) from cause
    except RuntimeError as cause:
        if "LOAD_LOCAL" not in str(cause):
            raise
        raise asks_for_file(address) from cause


def asks_for_file(address: str) -> SourceError:
    """Return the error for a server that answers a statement with a request for a file (LOAD DATA LOCAL INFILE)."""
    return SourceError(
        f"{address} answered a statement with a request for a file of this machine, which no server sends unless "
        "it was asked to load one. Nothing was sent. Check which server answers at that address."
    )


def _nonsense(address: str, cause: Exception) -> SourceError:
    return SourceError(
        f"{address} answered with a packet that is not of MySQL's protocol ({type(cause).__name__}). Check which "
        "server, or proxy, answers at that address."
    )


def query(
    connection: Connection[Any], sql: str, arguments: Iterable[Any] | Mapping[str, str] | None = None
) -> list[tuple[Any, ...]]:
    """Return all rows of a small administrative query. Raises `SourceError` with the statement."""
    note_statement(sql)
    try:
        with sane_answers(address_of(connection)), connection.cursor() as cursor:
            named = arguments is None or isinstance(arguments, Mapping)
            cursor.execute(sql, arguments if named else tuple(arguments or ()))
            rows = list(cursor.fetchall())
            if cursor.warning_count and "information_schema" in sql:
                _require_complete(cursor, arguments)
            return rows
    except pymysql.Error as cause:
        raise query_error(connection, sql, cause) from cause


def _require_complete(cursor: Any, arguments: Iterable[Any] | Mapping[str, str] | None) -> None:
    """Raise an error if MariaDB left a locked table out of its catalog's answer, which it reports only by a warning.

    The error is raised only in a session that chose to wait for locks briefly: it queries a few tables, and would
    consider a missing one as dropped. If the server itself has a short lock wait, the warning may concern any table,
    and is ignored.
    """
    cursor.execute("SHOW WARNINGS")
    if all(code != ER.LOCK_WAIT_TIMEOUT for _, code, _ in cursor.fetchall()):
        return
    cursor.execute(f"SELECT {WAITS_BRIEFLY}")
    if cursor.fetchone()[0]:
        asked = arguments.values() if isinstance(arguments, Mapping) else arguments or ()
        names = ", ".join(name if isinstance(name, str) else ", ".join(map(str, name)) for name in asked)
        text = f"another session has a table locked; asked was about {names[:_NAMES_MAX]}"
        raise pymysql.err.OperationalError(ER.LOCK_WAIT_TIMEOUT, text)


def query_one(connection: Connection[Any], sql: str, arguments: Iterable[Any] | None = None) -> tuple[Any, ...] | None:
    """Return the first row of `query`, or None."""
    rows = query(connection, sql, arguments)
    return rows[0] if rows else None


def query_raw(connection: Connection[Any], sql: str) -> list[tuple[Any, ...]]:
    """Return the rows of `query` with texts as bytes, because a default of a BINARY column is not text."""
    unicode, connection.use_unicode = connection.use_unicode, False
    try:
        return query(connection, sql)
    finally:
        connection.use_unicode = unicode


def query_dict(connection: Connection[Any], sql: str) -> dict[str, Any] | None:
    """Return the first row by column name, or None. (``SHOW`` statements differ in column order between servers.)"""
    rows = query_dicts(connection, sql)
    return rows[0] if rows else None


def query_dicts(connection: Connection[Any], sql: str) -> list[ServerRow]:
    """Return all rows, each by column name."""
    try:
        with sane_answers(address_of(connection)), connection.cursor() as cursor:
            cursor.execute(sql)
            rows = cursor.fetchall()
            names = [d[0] for d in cursor.description or ()]
    except pymysql.Error as cause:
        raise query_error(connection, sql, cause) from cause
    return [dict(zip(names, row, strict=True)) for row in rows]


def quote_name(*parts: str) -> str:
    """Return an SQL identifier, each part in backticks, joined by dots."""
    return ".".join("`" + part.replace("`", "``") + "`" for part in parts)


def close_quietly(connection: Connection[Any]) -> None:
    """Close the connection; errors of a broken or closed one are ignored."""
    with suppress(pymysql.Error, OSError):
        connection.close()


def address_of(connection: Connection[Any]) -> str:
    """Return ``host:port`` of an open connection, for messages."""
    return connection.unix_socket or f"{connection.host}:{connection.port}"


def query_error(connection: Connection[Any], sql: str, cause: pymysql.Error) -> SourceError:
    """Return a named error for a failed statement. Lost connections can be retried, other errors cannot."""
    code, text = _code_and_text(cause)
    where = address_of(connection)
    if code in _LOST or isinstance(cause, pymysql.err.InterfaceError):
        return SourceUnavailableError(f"The connection to {where} was lost ({text}). Trying again may help.")
    if code in _TRY_AGAIN:
        return SourceUnavailableError(f"{where} asks to try again (error {code}: {text}).")
    # The bounds of a chunk are left out, because they are values of rows.
    short = re.sub(r"\s+", " ", without_literals(sql))[:200]
    if code in _DENIED:
        return SourceError(f"{where} refused a statement: {text}. Grant what `raycdc check` prints. Statement: {short}")
    return SourceError(f"{where} answered error {code} ({text}) to: {short}")


def is_of_changed_table(cause: BaseException | None) -> bool:
    """Return True if the server reports that a column or table is missing, or changed since the snapshot began."""
    return isinstance(cause, pymysql.Error) and _code_and_text(cause)[0] in _CHANGED


def is_of_locked_table(cause: BaseException | None) -> bool:
    """Return True if the server gave up waiting for a lock that another session holds."""
    return isinstance(cause, pymysql.Error) and _code_and_text(cause)[0] == ER.LOCK_WAIT_TIMEOUT


def is_denied(cause: BaseException | None) -> bool:
    """Return True if the server says that the account may not do this."""
    return isinstance(cause, pymysql.Error) and _code_and_text(cause)[0] in _DENIED


def translate(settings: MySqlSettings, cause: BaseException) -> SourceError:
    """Return the named error for a failed connection attempt."""
    code, text = _code_and_text(cause)
    who = f"{settings.user!r}@{settings.address}"
    match code:
        case ER.ACCESS_DENIED_ERROR | 1698 if LOGINS.may_change(settings.address, settings.user, settings.password):
            return SourceUnavailableError(f"{settings.address} refused user {settings.user!r}: {text}. {READ_AGAIN}.")
        case ER.ACCESS_DENIED_ERROR | 1698:  # ER_ACCESS_DENIED_NO_PASSWORD_ERROR
            return SourceError(
                f"{settings.address} refused user {settings.user!r}: {text}. "
                f"Check source.user and source.password, or set the password on the server: "
                f"ALTER USER '{settings.user}'@'%' IDENTIFIED BY '...';"
            )
        case ER.HOST_NOT_PRIVILEGED | ER.HOST_IS_BLOCKED:
            return SourceError(
                f"{settings.address} does not accept connections from this machine for {who} ({text}). "
                f"Create the user for this host, or run FLUSH HOSTS when it was blocked."
            )
        case ER.CON_COUNT_ERROR | ER.TOO_MANY_USER_CONNECTIONS:
            return SourceUnavailableError(
                f"{settings.address} has no free connection ({text}). Raise max_connections or lower readers.max."
            )
        case CR.CR_SSL_CONNECTION_ERROR:
            return SourceError(_tls_message(settings, cause))
    original = getattr(cause, "original_exception", cause)
    if isinstance(original, ssl.SSLError):
        return SourceError(_tls_message(settings, original))
    if isinstance(cause, RuntimeError):
        return SourceError(f"Cannot log in as {who}: {cause}")
    if isinstance(cause, pymysql.Error) and code and not CR.CR_ERROR_FIRST <= code <= CR.CR_ERROR_LAST:
        # The server is starting, stopping or offline, or a proxy has no server to connect to.
        return SourceUnavailableError(
            f"{settings.address} was reached, and answered the login as {who} with error {code}: {text}."
        )
    return SourceUnavailableError(
        f"Cannot reach {settings.address}: {text}. Check source.host and source.port and that the server is running."
    )


#: Errors that both servers send to sessions when they shut down (pymysql has no names for them).
_KILLED = frozenset({1927, 3169})  # MariaDB: ER_CONNECTION_KILLED; MySQL: ER_SESSION_WAS_KILLED
_LOST = _KILLED | {CR.CR_SERVER_LOST, CR.CR_SERVER_GONE_ERROR, CR.CR_CONN_HOST_ERROR, ER.SERVER_SHUTDOWN, 0}
_TRY_AGAIN = frozenset({ER.TABLE_DEF_CHANGED, ER.LOCK_WAIT_TIMEOUT, ER.LOCK_DEADLOCK})
#: Errors about a missing table, database or index, or about a column with a different character set.
_CHANGED = frozenset(
    {ER.BAD_FIELD_ERROR, ER.NO_SUCH_TABLE, ER.BAD_DB_ERROR, ER.KEY_DOES_NOT_EXITS, ER.TABLE_DEF_CHANGED}
    | {ER.CANT_AGGREGATE_2COLLATIONS, ER.CANT_AGGREGATE_3COLLATIONS, ER.CANT_AGGREGATE_NCOLLATIONS}
)
_DENIED = frozenset(
    {
        ER.ACCESS_DENIED_ERROR,
        ER.DBACCESS_DENIED_ERROR,
        ER.TABLEACCESS_DENIED_ERROR,
        ER.COLUMNACCESS_DENIED_ERROR,
        ER.SPECIFIC_ACCESS_DENIED_ERROR,
    }
)


@dataclass(frozen=True, slots=True)
class SessionSetting:
    """A variable that each session sets, because servers may begin sessions with different values (SET GLOBAL)."""

    name: str
    value: str
    why: str
    #: The servers that have the variable. "some" means the servers that list it when they are queried.
    of: Literal["both", "MariaDB", "MySQL", "some"] = "both"


#: All settings. Variables that can end, cut off or refuse statements are listed for "both", "MariaDB" or "MySQL", so
#: that they are set before the first query. A test compares the names with those of servers.
SESSION_SETTINGS = (
    SessionSetting("sql_big_selects", "1", "max_join_size would refuse statements that read many rows"),
    SessionSetting("max_statement_time", "0", "it would end statements", of="MariaDB"),
    SessionSetting("max_execution_time", "0", "it would end SELECTs", of="MySQL"),
    SessionSetting("sql_select_limit", "18446744073709551615", "it would cut off the answer of a SELECT"),
    SessionSetting("sql_safe_updates", "0", "it would refuse changes that name no key"),
    SessionSetting("time_zone", "'+00:00'", "a TIMESTAMP is shown in it"),
    SessionSetting("sql_mode", "''", "ANSI_QUOTES changes what a statement means, PAD_CHAR_TO_FULL_LENGTH a value"),
    SessionSetting("sql_auto_is_null", "0", "a row would be found by IS NULL that has none"),
    SessionSetting("completion_type", "0", "a transaction would be open behind the end of one, with its old rows"),
    SessionSetting("sql_quote_show_create", "1", "names in a table's statement would be read as keywords"),
    SessionSetting("max_error_count", "64", "with 0 no warning says that a table was left out", of="MariaDB"),
    SessionSetting("net_write_timeout", str(NET_TIMEOUT_S), "a reader that the sink holds back would be dropped"),
    SessionSetting("net_read_timeout", str(NET_TIMEOUT_S), "as above"),
    SessionSetting("wait_timeout", str(NET_TIMEOUT_S), "as above"),
    SessionSetting("idle_transaction_timeout", "0", "a snapshot that is held open would be ended", of="some"),
    SessionSetting("idle_readonly_transaction_timeout", "0", "as above", of="some"),
    SessionSetting("max_session_mem_used", "9223372036854775807", "it would end statements", of="some"),
    SessionSetting("show_old_temporals", "OFF", "a table's statement would have comments in its types", of="some"),
    SessionSetting("information_schema_stats_expiry", "0", "table statistics would be up to a day old", of="some"),
    SessionSetting(
        "show_gipk_in_create_table_and_information_schema",
        "ON",
        "a column would be hidden that the log has (a generated primary key)",
        of="some",
    ),
    SessionSetting("use_secondary_engine", "OFF", "another engine would answer", of="some"),
    SessionSetting("system_versioning_asof", "DEFAULT", "the answer would be rows of the past", of="some"),
)
#: The variable has different names on the two servers.
_ISOLATION = "SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"


def _prepare_session(connection: Connection[Any]) -> None:
    """Send the settings of the session before any query."""
    mine = "MariaDB" if "mariadb" in str(connection.get_server_info()).lower() else "MySQL"
    first = [setting for setting in SESSION_SETTINGS if setting.of in ("both", mine)]
    later = [setting for setting in SESSION_SETTINGS if setting.of == "some"]
    with connection.cursor() as cursor:
        try:
            cursor.execute(_set(first))
        except pymysql.Error as cause:
            # A proxy greets with the version of another server.
            if _code_and_text(cause)[0] != ER.UNKNOWN_SYSTEM_VARIABLE:
                raise
            cursor.execute(_set([setting for setting in SESSION_SETTINGS if setting.of == "both"]))
            later = [setting for setting in SESSION_SETTINGS if setting.of != "both"]
        cursor.execute(_ISOLATION)
        cursor.execute("SHOW SESSION VARIABLES WHERE Variable_name IN %s", (tuple(setting.name for setting in later),))
        present = {str(row[0]).lower() for row in cursor.fetchall()}
        if known := [setting for setting in later if setting.name in present]:
            cursor.execute(_set(known))


def _set(settings: Iterable[SessionSetting]) -> str:
    """Return one statement, because connecting waits for the answer to each."""
    return "SET " + ", ".join(f"SESSION {setting.name} = {setting.value}" for setting in settings)


def _protection(settings: MySqlSettings) -> dict[str, Any]:
    """Return the arguments of pymysql that encrypt the connection, or that protect the password without encryption."""
    if settings.effective_tls_mode is not TlsMode.DISABLED:
        return {"ssl": _tls_context(settings)}
    if settings.unix_socket:
        return {"ssl_disabled": True}  # Only the account that created the socket's folder can listen there.
    ways = plugins(is_loopback=is_loopback(settings.host), takes_server_key=settings.allow_public_key_retrieval)
    return {"ssl_disabled": True, "auth_plugin_map": ways}


def _ensure_encrypted(connection: Connection[Any], settings: MySqlSettings) -> None:
    """Raise `SourceError` if the connection is not encrypted although the mode requires TLS.

    From version 1.2 on, pymysql refuses such a server before it sends anything; older versions went on without
    encryption.
    """
    if settings.effective_tls_mode is not TlsMode.DISABLED and not isinstance(connection._sock, ssl.SSLSocket):
        raise SourceError(_tls_message(settings, ssl.SSLError("the server offers no TLS")))


def _tls_context(settings: MySqlSettings) -> ssl.SSLContext:
    mode = settings.effective_tls_mode
    try:
        context = ssl.create_default_context(cafile=settings.tls_ca)
    except (OSError, ssl.SSLError) as cause:
        raise ConfigError(f"source.tls.ca: cannot use {settings.tls_ca!r}: {cause}") from cause
    # Certificates that MySQL generates for itself lack extensions that strict checking asks for.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = mode is TlsMode.VERIFY_IDENTITY
    if mode is TlsMode.REQUIRED:
        context.verify_mode = ssl.CERT_NONE
    return context


def _tls_message(settings: MySqlSettings, cause: BaseException) -> str:
    mode = settings.effective_tls_mode
    begins = f"No TLS connection to {settings.address} with source.tls.mode = {str(mode)!r}: "
    if mode is not TlsMode.REQUIRED and not settings.unix_socket:
        shown = TlsServer(
            settings.host,
            settings.port,
            ca_key="source.tls.ca",
            host_key="source.host",
            ca=settings.tls_ca,
            checks_name=mode is TlsMode.VERIFY_IDENTITY,
            opening=Opening.MYSQL,
        )
        if fault := certificate_fault(shown):
            return begins + fault
    return (
        f"{begins}"
        f"{_code_and_text(cause)[1]}. Name the server's CA in source.tls.ca, or choose another source.tls.mode "
        f"(disabled, required, verify-ca, verify-identity)."
    )


def _code_and_text(cause: BaseException) -> tuple[int, str]:
    arguments = cause.args
    if len(arguments) >= 2 and isinstance(arguments[0], int):
        return arguments[0], str(arguments[1])[:_TEXT_MAX]
    return 0, str(cause)[:_TEXT_MAX] or type(cause).__name__
