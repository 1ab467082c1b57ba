"""The base of private MySQL and MariaDB servers: the data folder from a template, the configuration, and SQL."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, ClassVar, Self

import pymysql
from pymysql.constants import CLIENT

from raycdc.sandbox.cache import build_once
from raycdc.sandbox.servers.certificates import write_certificates
from raycdc.sandbox.servers.private import PrivateServer, fresh_name, wait_until

#: A part of every template's name. Increase it when the users, certificates or settings in templates change.
TEMPLATE_VERSION = 2
_START_TIMEOUT_S = 300.0
_PURGE_TIMEOUT_S = 300.0

#: The options of every server: a log that raycdc can follow, and no waits for the disk.
_SETTINGS: Mapping[str, str] = {
    "bind-address": "127.0.0.1",
    "skip-name-resolve": "",
    "character-set-server": "utf8mb4",
    "server-id": "1061",
    "log-bin": "binlog",
    "binlog_format": "ROW",
    "binlog_row_image": "FULL",
    "innodb_buffer_pool_size": "256M",
    "innodb_log_file_size": "64M",
    # A commit is written to the operating system without waiting for the disk. So kill -9 of the server loses no
    # commit.
    "innodb_flush_log_at_trx_commit": "2",
    "sync_binlog": "0",
    "performance_schema": "OFF",
    "max_connections": "200",
    "local_infile": "ON",
    "lower_case_table_names": "0",
}


class DatabaseServer(PrivateServer):
    """A private MySQL or MariaDB.

    `options` are further server settings, by their names in a configuration file; None removes a setting of this class.
    The users are ``root`` (all privileges) and ``cdc`` (REPLICATION SLAVE, REPLICATION CLIENT, SELECT), each with its
    name as the password.
    """

    taken: ClassVar[str] = "already in use"
    root_password = "root"  # The password of a temporary server on the loopback interface.
    cdc_user = "cdc"
    cdc_password = "cdc"

    def __init__(self, options: Mapping[str, str | None] | None = None, *, port: int | None = None) -> None:
        super().__init__(port=port)
        self._options = dict(options or {})

    @abstractmethod
    def _program(self) -> Path:
        """Return the path of the server's binary, which is installed first if necessary.

        Raises `ServerError` with the missing part.
        """

    @abstractmethod
    def _template_name(self) -> str:
        """Return the name of the initialised data folder in the cache. Different contents have different names."""

    @abstractmethod
    def _initialise(self, data: Path, scratch: Path) -> None:
        """Create an empty data folder with both users."""

    def _settings(self) -> dict[str, str]:
        """Return the settings of this kind of server, in addition to the common ones."""
        return {}

    def _environment(self) -> dict[str, str]:
        """Return environment variables that the binary needs."""
        return {}

    def set_option(self, name: str, value: str) -> None:
        """Change a server setting; it takes effect at the next start."""
        self._options[name] = value

    @property
    def data_dir(self) -> Path:
        """Return the server's data folder, which contains its binary logs."""
        return self.folder / "data"

    @property
    def ca_path(self) -> Path:
        """Return the path of the certificate of the authority that signed this server's certificate."""
        return self.folder / "tls" / "ca.pem"

    @property
    def socket_path(self) -> Path:
        """Return the path of the server's Unix socket."""
        return self.folder / "s.sock"

    @property
    def error_log(self) -> Path:
        """Return the path of the server's log."""
        return self.folder / "error.log"

    def prepare(self) -> None:
        """Download and initialise whatever a start needs, once per machine. May take a minute; later calls are free."""
        self._program()
        self._template()

    def start(self) -> Self:
        """See `PrivateServer.start`. The first start creates the data."""
        if not self.data_dir.exists():
            shutil.copytree(self._template(), self.folder, dirs_exist_ok=True, symlinks=True)
        return super().start()

    def connect(self, user: str = "root", *, password: str | None = None, **arguments: Any) -> Any:
        """Return a new pymysql connection (autocommit unless specified otherwise). The caller closes it."""
        secret = user if password is None else password
        settings = {"host": self.host, "port": self.port, "autocommit": True, "charset": "utf8mb4", **arguments}
        if not any(name.startswith("ssl") for name in arguments):
            # pymysql would read the system's certificates for each connection, which takes longer than most statements.
            settings["ssl_disabled"] = True
        return pymysql.connect(user=user, password=secret, **settings)

    def execute(self, *statements: str, database: str | None = None) -> list[tuple[Any, ...]]:
        """Run statements as root on a connection of their own; returns the rows of the last one."""
        with self.connect(database=database, client_flag=CLIENT.MULTI_STATEMENTS) as connection:
            rows: list[tuple[Any, ...]] = []
            for statement in statements:
                with connection.cursor() as cursor:
                    cursor.execute(statement)
                    rows = list(cursor.fetchall())
                    while cursor.nextset():
                        rows = list(cursor.fetchall())
            session = connection.thread_id()
        if any(statement.startswith("XA PREPARE") for statement in statements):
            # As long as the server has not ended the session, no other session can end a transaction that the session
            # prepared (XAER_NOTA).
            known = "SELECT 1 FROM information_schema.PROCESSLIST WHERE ID = %d"
            wait_until(lambda: not self.execute(known % session), timeout_s=60, what=f"the end of session {session}")
        return rows

    def scalar(self, statement: str, *, database: str | None = None) -> Any:
        """Return the first value of the first row."""
        return self.execute(statement, database=database)[0][0]

    @contextmanager
    def fresh_database(self, prefix: str = "t") -> Iterator[str]:
        """Yield the name of a new database, which is dropped afterwards."""
        name = fresh_name(prefix)
        self.execute(f"CREATE DATABASE `{name}` DEFAULT CHARACTER SET utf8mb4")
        try:
            yield name
        finally:
            if self.running:
                self._drop(name)

    def _drop(self, database: str) -> None:
        """Drop a database, even if a forgotten connection of a failed test has an open or prepared transaction in it.

        Such a transaction locks its tables forever. Since the server does not report the database of a prepared
        transaction, all of them are rolled back.
        """
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute("SELECT ID FROM information_schema.PROCESSLIST WHERE DB = %s", (database,))
            for (identity,) in cursor.fetchall():
                # The session may have ended by itself (ER_NO_SUCH_THREAD).
                with suppress(pymysql.err.OperationalError):
                    cursor.execute(f"KILL {identity}")
            cursor.execute("SET SESSION lock_wait_timeout = 1, innodb_lock_wait_timeout = 1")
            try:
                cursor.execute(f"DROP DATABASE IF EXISTS `{database}`")
            except pymysql.err.OperationalError:
                cursor.execute("SET SESSION lock_wait_timeout = DEFAULT, innodb_lock_wait_timeout = DEFAULT")
                cursor.execute("XA RECOVER")
                for format_, length, _, name in cursor.fetchall():
                    data = name if isinstance(name, bytes) else str(name).encode()
                    with suppress(pymysql.err.OperationalError):
                        cursor.execute(f"XA ROLLBACK X'{data[:length].hex()}', X'{data[length:].hex()}', {format_}")
                cursor.execute(f"DROP DATABASE IF EXISTS `{database}`")

    def binlog_paths(self) -> list[Path]:
        """Return the paths of the binary log files, oldest first; the last one is being written."""
        return [self.data_dir / str(row[0]) for row in self.execute("SHOW BINARY LOGS")]

    def purge_logs(self, *, flushed: bool = False) -> str:
        """Begin a new binary log, and remove all earlier ones; return its name.

        If `flushed` is True, a new log was just begun. The server keeps files that a log connection has open, even if
        the connection has ended, so the purge is repeated until all are removed.
        """
        if not flushed:
            self.execute("FLUSH BINARY LOGS")
        newest = self.binlog_paths()[-1].name

        def purged() -> bool:
            self.execute(f"PURGE BINARY LOGS TO '{newest}'")
            return self.binlog_paths()[0].name == newest

        wait_until(purged, timeout_s=_PURGE_TIMEOUT_S, what=f"removal of the logs before {newest}")
        return newest

    def _template(self) -> Path:
        return build_once(f"templates/{self._template_name()}-v{TEMPLATE_VERSION}", self._build_template)

    def _write_configuration(self, *, networking: bool = True) -> list[str]:
        """Write ``my.cnf``; return the arguments that make the server read it."""
        settings: dict[str, str | None] = {
            **_SETTINGS,
            "user": pwd.getpwuid(os.getuid()).pw_name,
            "datadir": str(self.data_dir),
            "tmpdir": str(self.folder / "tmp"),
            "socket": str(self.socket_path),
            "pid-file": str(self.folder / "pid"),
            "port": str(self.port),
            "log-error": str(self.error_log),
            "ssl-ca": str(self.ca_path),
            "ssl-cert": str(self.folder / "tls" / "server.pem"),
            "ssl-key": str(self.folder / "tls" / "server.key"),
            **self._settings(),
            **self._options,
        }
        (self.folder / "tmp").mkdir(exist_ok=True)
        if not networking:
            settings |= {"skip-networking": "", "log-bin": None, "skip-log-bin": ""}
        lines = [f"{key}={value}" if value else key for key, value in settings.items() if value is not None]
        (self.folder / "my.cnf").write_text("[mysqld]\n" + "\n".join(lines) + "\n")
        return [f"--defaults-file={self.folder / 'my.cnf'}"]

    def _launch(self) -> None:
        self._run_program([str(self._program()), *self._write_configuration()])

    def _run_program(self, command: Sequence[str]) -> None:
        self.socket_path.unlink(missing_ok=True)
        self._run(
            command,
            self._is_ready,
            name=command[0],
            logs=[self.error_log, self.folder / "out.log"],
            timeout_s=_START_TIMEOUT_S,
            environment=self._environment(),
        )

    def _is_ready(self) -> bool:
        if not self.socket_path.exists() or not self.error_log.exists():
            return False
        return b"ready for connections" in self.error_log.read_bytes()

    def _build_template(self, folder: Path) -> None:
        """Initialise a data folder under ``folder/data``, by a server object whose home is `folder`."""
        builder = type(self).__new__(type(self))
        builder.__dict__.update(self.__dict__)
        builder.folder = folder
        builder._options = {}
        write_certificates(folder / "tls")
        with tempfile.TemporaryDirectory(prefix="raycdc-init-") as scratch:
            builder._initialise(folder / "data", Path(scratch))
        for leftover in ("my.cnf", "error.log", "out.log", "pid", "s.sock"):
            (folder / leftover).unlink(missing_ok=True)
