"""A private MySQL 9: Debian's unstable packages, unpacked into one folder and run with their own C library.

Unstable changes continually, and a machine may be unable to reach it. Then `ServerError` is raised, and tests are
skipped. No file outside the folder is touched: apt works on a private state with an empty list of installed packages,
so that it resolves everything down to the C library, and ``dpkg -x`` only unpacks.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from raycdc.sandbox.cache import build_once, cache_dir
from raycdc.sandbox.servers.mysql import AnyMySql
from raycdc.sandbox.servers.private import ServerError

_PACKAGE = "mysql-server-core"
_KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
#: Dependencies that only maintainer scripts need. They are left out, because these scripts are not run.
_UNUSED = re.compile(r"^(perl|perl-base|perl-modules.*|libperl.*|libgdbm.*|libdb5\.3.*)$")
#: Seconds for each step of the installation; a slower mirror counts as unreachable.
_STEP_S = 60
_LIBRARIES = "usr/lib/x86_64-linux-gnu"
#: Runs the server through the unpacked dynamic linker; `exec` keeps the process id.
_WRAPPER = f"""#!/bin/sh
home=$(cd "$(dirname "$0")/.." && pwd)
lib="$home/{_LIBRARIES}"
unset LD_PRELOAD LD_LIBRARY_PATH
export OPENSSL_CONF=/dev/null OPENSSL_MODULES="$lib/ossl-modules"
exec "$lib/ld-linux-x86-64.so.2" --library-path "$lib:$home/usr/lib/mysql/private" "$home/usr/sbin/mysqld" "$@"
"""
_APT = """Dir::Etc "{root}/etc";
Dir::Etc::sourcelist "{root}/etc/sources.list";
Dir::Etc::sourceparts "{root}/etc/sources.list.d";
Dir::State "{root}";
Dir::State::lists "{root}/lists";
Dir::State::status "{root}/status";
Dir::Cache "{root}/cache";
Dir::Cache::archives "{root}/cache/archives";
Acquire::Languages "none";
Acquire::Check-Valid-Until "false";
Acquire::Retries "0";
Acquire::http::Timeout "15";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
Acquire::IndexTargets::deb::Contents-deb::DefaultEnabled "false";
APT::Sandbox::User "root";
APT::Install-Recommends "false";
"""


class MySqlNewestServer(AnyMySql):
    """MySQL 9 with GTIDs, row metadata FULL, TLS and caching_sha2_password; see `DatabaseServer`."""

    version = "9"
    gtid = True

    @classmethod
    def installed(cls) -> bool:
        """Return True if the server's files are on this machine already."""
        return (cache_dir() / "mysql-newest").is_dir()

    def _home(self) -> Path:
        return build_once("mysql-newest", _install)

    def _program(self) -> Path:
        return self._home() / "bin" / "mysqld"

    def _settings(self) -> dict[str, str]:
        home = self._home() / "usr"
        return {
            "basedir": str(home),
            "plugin-dir": str(home / "lib/mysql/plugin"),
            "lc-messages-dir": str(home / "share/mysql"),
            "character-sets-dir": str(home / "share/mysql/charsets"),
            "mysqlx": "OFF",
            "secure-file-priv": "",
            "gtid_mode": "ON",
            "enforce_gtid_consistency": "ON",
            "binlog_row_metadata": "FULL",
            "innodb_redo_log_capacity": "64M",
        }

    def _write_configuration(self, *, networking: bool = True) -> list[str]:
        arguments = super()._write_configuration(networking=networking)
        configuration = self.folder / "my.cnf"
        gone = ("innodb_log_file_size", "binlog_format")
        lines = [line for line in configuration.read_text().splitlines() if not line.startswith(gone)]
        configuration.write_text("\n".join(lines).replace("\nsecure-file-priv\n", "\nsecure-file-priv=\n") + "\n")
        return arguments

    def _template_name(self) -> str:
        banner = subprocess.run([self._program(), "--version"], capture_output=True, text=True, check=True).stdout
        return "mysql-" + banner.split("Ver ")[1].split()[0]

    def _initialise(self, data: Path, scratch: Path) -> None:
        script = scratch / "init.sql"
        script.write_text(
            "ALTER USER root@localhost IDENTIFIED BY 'root';\n"
            "CREATE USER root@'%' IDENTIFIED BY 'root';\n"
            "GRANT ALL ON *.* TO root@'%' WITH GRANT OPTION;\n"
            "CREATE USER cdc@'%' IDENTIFIED BY 'cdc';\n"
            "GRANT REPLICATION SLAVE, REPLICATION CLIENT, SELECT ON *.* TO cdc@'%';\n"
        )
        self._initialise_by(script, data)


def _install(folder: Path) -> None:
    """Download the packages and unpack them into `folder`.

    Raises `ServerError` if apt, its keys or the mirror are missing.
    """
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None or not _KEYRING.exists():
        raise ServerError("MySQL 9 comes from Debian packages, and this is not Debian.")
    site = _mirror()
    with tempfile.TemporaryDirectory(prefix="raycdc-apt-") as scratch:
        root = Path(scratch)
        for name in ("lists/partial", "cache/archives/partial", "etc/preferences.d", "etc/sources.list.d"):
            (root / name).mkdir(parents=True)
        (root / "status").touch()
        (root / "etc/sources.list").write_text(f"deb [arch=amd64 signed-by={_KEYRING}] {site} sid main\n")
        (root / "apt.conf").write_text(_APT.format(root=root))
        _apt(root, "-qq", "update")
        listed = _apt(root, "install", "-y", "--print-uris", "--no-install-recommends", _PACKAGE)
        found = re.findall(r"^'[^']*' ([^_]*)_", listed, re.MULTILINE)
        packages = [name for name in found if not _UNUSED.match(name)]
        _apt(root, "-qq", "download", *packages, folder=root / "cache/archives")
        for package in sorted((root / "cache/archives").glob("*.deb")):
            subprocess.run(["dpkg", "-x", package, folder], check=True, capture_output=True)
    for name in ("doc", "man", "locale", "bug", "lintian"):
        shutil.rmtree(folder / "usr/share" / name, ignore_errors=True)
    wrapper = folder / "bin" / "mysqld"
    if not (folder / "usr/sbin/mysqld").exists():
        raise ServerError(f"The package {_PACKAGE} of Debian unstable holds no mysqld.")
    # Newer Debian has /bin as a link into /usr.
    wrapper.parent.mkdir(exist_ok=True)
    wrapper.write_text(_WRAPPER)
    wrapper.chmod(0o755)


def _mirror() -> str:
    """Return the Debian mirror that this machine uses."""
    targets = subprocess.run(
        ["apt-get", "indextargets", "--format", "$(SITE)"], capture_output=True, text=True, check=False
    )
    for line in targets.stdout.splitlines():
        if re.search(r"/debian/?$", line):
            return line
    raise ServerError("MySQL 9 comes from Debian packages, and apt knows no Debian mirror here.")


def _apt(root: Path, *arguments: str, folder: Path | None = None) -> str:
    command = ["apt-get", "-c", str(root / "apt.conf"), *arguments]
    environment: Mapping[str, str] = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=_STEP_S, env=environment
        )
    except subprocess.TimeoutExpired as cause:
        raise ServerError(f"MySQL 9 could not be installed: apt-get {arguments[0]} took over {_STEP_S} s") from cause
    if done.returncode != 0:
        raise ServerError(f"MySQL 9 could not be installed: {done.stderr.strip()[-500:]}")
    return done.stdout
