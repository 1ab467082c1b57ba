"""Plays scripts of the suite on a private MariaDB, one after the other, each in a database of its own.

The server has the settings of every test server (whole rows in the log); accounts as the scripts expect them, and after
each script the global settings that it left changed are as before.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pymysql

from raycdc.sandbox.servers import DatabaseServer
from tests.suites.package import SuitePackage
from tests.suites.script import Script

#: What mariadb-test ends with when the script itself says that this server is not for it.
_SKIPPED = 62
_KEEPER = "keeper"
_SYSTEM = frozenset({"mysql", "information_schema", "performance_schema", "sys"})


@dataclass(frozen=True, slots=True)
class Played:
    """A script that was played. `ended`: to its end, or why not (its tables are compared all the same)."""

    script: Script
    ended: str
    seconds: float = 0.0


@dataclass(slots=True)
class Stage:
    """A server on which scripts are played. `folder` is for files that scripts write."""

    server: DatabaseServer
    package: SuitePackage
    folder: Path
    timeout_s: float = 60.0
    _globals: dict[str, str] = field(default_factory=dict)

    def prepare(self) -> None:
        """Give the server what the scripts expect; once, before the first one."""
        # Scripts give and take rights; nothing that they do concerns this account.
        self.server.execute(
            "SET SESSION sql_log_bin = 0",
            f"CREATE USER {_KEEPER}@'%' IDENTIFIED BY '{_KEEPER}'",
            f"GRANT ALL ON *.* TO {_KEEPER}@'%' WITH GRANT OPTION",
        )
        self._accounts()
        self.execute(
            "SET SESSION sql_log_bin = 0",
            "CREATE DATABASE IF NOT EXISTS mtr",
            "CREATE OR REPLACE PROCEDURE mtr.add_suppression(pattern VARCHAR(255)) BEGIN END",
            "CREATE OR REPLACE PROCEDURE mtr.check_testcase() BEGIN END",
            # A run begins with a table.
            "CREATE TABLE mtr.healthy (id INT PRIMARY KEY)",
        )
        for name in ("tmp", "log", "run"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self._globals = self._settings()

    def connect(self) -> Any:
        """A connection with all rights, whatever the scripts did to root."""
        return self.server.connect(_KEEPER)

    def execute(self, *statements: str) -> list[tuple[Any, ...]]:
        """Run statements; the rows of the last one."""
        with self.connect() as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
            return list(cursor.fetchall())

    def _accounts(self) -> None:
        """Root as the scripts expect it."""
        self.execute(
            "SET SESSION sql_log_bin = 0",
            "FLUSH PRIVILEGES",
            "CREATE OR REPLACE USER root@localhost",
            "GRANT ALL ON *.* TO root@localhost WITH GRANT OPTION",
            "CREATE OR REPLACE USER root@'%' IDENTIFIED BY 'root'",
            "GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION",
        )

    def play(self, script: Script) -> Played:
        """Play one script to its end, or until its time is over; the server is then as it was, but for the tables."""
        path = self.folder / f"{script.database}.test"
        path.write_bytes(script.text.encode("latin-1"))
        self.execute(f"CREATE DATABASE `{script.database}` DEFAULT CHARACTER SET latin1")
        command = [str(self.package.player), "--no-defaults", "--silent", "--skip-ssl", "--continue-on-error"]
        command += ["--user=root", "--host=localhost", f"--socket={self.server.socket_path}"]
        command += [f"--port={self.server.port}"]
        command += [f"--database={script.database}", f"--basedir={self.package.scripts}", f"--test-file={path}"]
        command += [f"--tmpdir={self.folder / 'tmp'}", f"--logdir={self.folder / 'log'}", "--max-connect-retries=5"]
        command += ["--connect-timeout=10", f"--plugin-dir={self.package.folder}/usr/lib/mysql/plugin"]
        with (self.folder / f"{script.database}.err").open("wb") as errors:
            process = subprocess.Popen(
                command,
                cwd=self.package.scripts,
                env=self._environment(script),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                start_new_session=True,
            )
        try:
            code = process.wait(self.timeout_s)
            ended = {0: "", _SKIPPED: "it is not for this server"}.get(code, "it broke off")
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            ended = f"it took over {self.timeout_s:.0f} s"
        self._restore()
        return Played(script, ended)

    def databases(self) -> list[str]:
        """All databases that are not the server's own."""
        return [str(name) for (name,) in self.execute("SHOW DATABASES") if str(name) not in _SYSTEM | {"mtr"}]

    def tables(self) -> list[tuple[str, str, str]]:
        """(database, table, engine) of whatever a script left, in order."""
        return [
            (str(database), str(table), str(engine))
            for database, table, engine in self.execute(
                "SELECT TABLE_SCHEMA, TABLE_NAME, ENGINE FROM information_schema.TABLES WHERE TABLE_TYPE IN "
                "('BASE TABLE', 'SYSTEM VERSIONED') AND TABLE_SCHEMA NOT IN "
                "('mysql', 'information_schema', 'performance_schema', 'sys', 'mtr') ORDER BY 1, 2"
            )
        ]

    def clear(self) -> None:
        """Drop all that the scripts left."""
        for database in self.databases():
            with self.connect() as connection, connection.cursor() as cursor:
                cursor.execute("SET SESSION foreign_key_checks = 0")
                try:
                    cursor.execute(f"DROP DATABASE `{database}`")
                except pymysql.err.OperationalError:
                    # Files of the script's are in the folder, where it has taken the database away already.
                    shutil.rmtree(self.server.data_dir / database, ignore_errors=True)

    def _restore(self) -> None:
        """End what is left of a script's sessions and prepared transactions, and set back global settings."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT ID FROM information_schema.PROCESSLIST "
                "WHERE USER NOT IN ('cdc', 'system user', 'event_scheduler') AND ID <> CONNECTION_ID()"
            )
            for (identity,) in cursor.fetchall():
                with suppress(pymysql.Error):
                    cursor.execute(f"KILL {identity}")
            cursor.execute("XA RECOVER FORMAT='SQL'")
            for row in cursor.fetchall():
                with suppress(pymysql.Error):
                    cursor.execute(f"XA ROLLBACK {row[3]}")
            now = self._settings()
            for name, value in self._globals.items():
                if now.get(name) != value:
                    with suppress(pymysql.Error):
                        cursor.execute(f"SET GLOBAL {name} = {_literal(value)}")
        # What an earlier script took root's right for, this one may need.
        self._accounts()
        # A log of its own for each script.
        self.execute("FLUSH BINARY LOGS")

    def _settings(self) -> dict[str, str]:
        rows = self.execute(
            "SELECT VARIABLE_NAME, GLOBAL_VALUE FROM information_schema.SYSTEM_VARIABLES WHERE READ_ONLY = 'NO' "
            "AND GLOBAL_VALUE IS NOT NULL AND VARIABLE_NAME NOT LIKE 'GTID%'"
        )
        return {str(name): str(value) for name, value in rows}

    def _environment(self, script: Script) -> dict[str, str]:
        socket, port = str(self.server.socket_path), str(self.server.port)
        numbers: dict[str, Any] = {}
        for name in ("MASTER", "SLAVE"):
            numbers |= {f"{name}_MYPORT": port, f"{name}_MYSOCK": socket}
        return {
            **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
            **self.package.environment,
            **numbers,
            "MASTER_MYSOCK": socket,
            "DEFAULT_MASTER_PORT": port,
            "MYSQL_TEST_DIR": str(self.package.scripts),
            "MYSQLTEST_VARDIR": str(self.folder),
            "MYSQL_TMP_DIR": str(self.folder / "tmp"),
            "MYSQL_TEST_LOGIN_NAME": "root",
            "MARIADB_DATADIR": f"{self.server.data_dir}/",
            "MTR_SUITE_DIR": str(self.package.scripts / "suite" / script.name.split("/")[0]),
            "SECURE_LOAD_PATH": f"{self.package.scripts}/std_data",
            "TZ": "GMT-3",
            "LC_ALL": "C",
        }


def _literal(value: str) -> str:
    try:
        float(value)
    except ValueError:
        return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    return value
