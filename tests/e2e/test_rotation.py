"""A password is changed at the server, connections are ended, and a run of the command goes on with the new one.

The server is told first: until the file says the same, it refuses the account. None of this waits for a time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import adbc_driver_manager
import pymysql
import pytest

from raycdc.sandbox.servers import MariaDbServer, PostgresServer
from tests.support.jobs import Job

pytestmark = pytest.mark.server
OLD, NEW = "S3cret-of-yesterday", "S3cret-of-today"


@dataclass(slots=True)
class Rotating(Job):
    """Logs in to its source as `account`, whose password is in the file `secret`."""

    account: str = ""
    secret: str = ""

    def source_section(self) -> str:
        section = Job.source_section(self).replace("${env:RAYCDC_TEST_PASSWORD}", f"${{file:{self.secret}}}")
        return section.replace(f'user = "{self.server.cdc_user}"', f'user = "{self.account}"')


def at_mariadb(server: MariaDbServer, user: str, password: str) -> None:
    """The password from now on; whoever is logged in has to log in again."""
    server.execute(f"ALTER USER {user}@'%' IDENTIFIED BY '{password}'")
    for (session,) in server.execute(f"SELECT ID FROM information_schema.PROCESSLIST WHERE USER = '{user}'"):
        with contextlib.suppress(pymysql.Error):  # gone by itself
            server.execute(f"KILL {session}")


def at_postgres(server: PostgresServer, user: str, password: str) -> None:
    server.execute(
        f"ALTER ROLE {user} PASSWORD '{password}'",
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{user}'",
    )


@pytest.mark.parametrize(
    ("sink", "local"),
    [
        ("mysql", True),
        pytest.param("postgresql", True, marks=pytest.mark.long(suite="certificates")),
        pytest.param("postgresql", False, marks=[pytest.mark.long(suite="certificates"), pytest.mark.spark]),
        pytest.param("mysql", False, marks=[pytest.mark.long(suite="certificates"), pytest.mark.spark]),
    ],
)
def test_passwords_of_source_and_target_change_while_a_run_goes_on(
    sink: str, *, local: bool, mariadb: MariaDbServer, postgres: PostgresServer, tmp_path: Path
) -> None:
    files = {name: tmp_path / f"{name}.secret" for name in ("source", "target")}
    for file in files.values():
        file.write_text(OLD + "\n")
    with mariadb.fresh_database() as database, postgres.fresh_database() as home, mariadb.fresh_database() as copy:
        reader, writer = f"r_{database}", f"w_{database}"
        mariadb.execute("CREATE TABLE t (id INT PRIMARY KEY)", "INSERT INTO t VALUES (1)", database=database)
        mariadb.execute(
            f"CREATE USER {reader}@'%' IDENTIFIED BY '{OLD}'",
            f"GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO {reader}@'%'",
        )
        rotate: Callable[[str], None]
        if sink == "postgresql":
            postgres.execute(
                f"CREATE ROLE {writer} LOGIN PASSWORD '{OLD}'", f'GRANT ALL ON DATABASE "{home}" TO {writer}'
            )
            postgres.execute(f"GRANT ALL ON SCHEMA public TO {writer}", database=home)
            url, route = postgres.url(home), ""

            def rotate(password: str) -> None:
                at_postgres(postgres, writer, password)

            def there() -> int:
                return len(postgres.execute(f'SELECT id FROM "{database}".t', database=home))
        else:
            mariadb.execute(f"CREATE USER {writer}@'%' IDENTIFIED BY '{OLD}'", f"GRANT ALL ON {copy}.* TO {writer}@'%'")
            url = f"mysql://{mariadb.host}:{mariadb.port}/{copy}"
            route = f'[[route]]\ntable = "{database}.t"\nto = "{copy}.t"\n'

            def rotate(password: str) -> None:
                at_mariadb(mariadb, writer, password)

            def there() -> int:
                return len(mariadb.execute("SELECT id FROM t", database=copy))

        def has(count: int) -> bool:
            with contextlib.suppress(pymysql.Error, adbc_driver_manager.Error):  # the table is not there yet
                return there() == count
            return False

        keys = f'url = "{url}"\nuser = "{writer}"\npassword = "${{file:{files["target"]}}}"\n'
        job = Rotating(tmp_path, mariadb, database, ("t",), sink="jdbc", sink_keys=keys, local=local)
        job.account, job.secret, job.sections = reader, str(files["source"]), route
        try:
            live = job.start()
            live.wait_for_rows(lambda: has(1))
            for number, password in enumerate((NEW, OLD), 2):
                at_mariadb(mariadb, reader, password)
                rotate(password)
                mariadb.execute(f"INSERT INTO t VALUES ({number})", database=database)
                for file in files.values():
                    file.write_text(password + "\n")
                live.wait_for_rows(lambda expected=number: has(expected))  # type: ignore[misc]
            live.interrupt()
            assert NEW not in live.story()
            assert OLD not in live.story()
        finally:
            mariadb.execute(f"DROP USER IF EXISTS {reader}@'%'", f"DROP USER IF EXISTS {writer}@'%'")
