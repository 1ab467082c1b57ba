"""MariaDB's own regression suite as Debian packs it, unpacked into the cache: its scripts, what plays them, and
MariaDB's own reader of binary logs.

``python -m tests.suites.package`` fetches it (``.ci/setup test`` does). The scripts are under the GPL and no part of
this repository; nothing is installed, and none of the packages' own scripts run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from raycdc.sandbox.cache import build_once
from raycdc.sandbox.servers import ServerError

#: The data, the player, the one library of the player that a server does not need, and the reader of logs.
_PACKAGES = ("mariadb-test-data", "mariadb-test", "libpcre2-posix3", "mariadb-client")
_STEP_S = 120
_PLAYERS = ("mariadb-test", "mysqltest")


@dataclass(frozen=True, slots=True)
class SuitePackage:
    """The unpacked packages below `folder`."""

    folder: Path

    @property
    def scripts(self) -> Path:
        """The folder in which the player runs: ``main``, ``suite``, ``include`` and ``std_data`` lie there."""
        for name in ("mysql", "mariadb"):
            found = self.folder / "usr/share" / name / f"{name}-test"
            if found.is_dir():
                return found
        raise ServerError(f"{self.folder} has no scripts: remove the folder, then `make setup-test`.")

    @property
    def player(self) -> Path:
        """The program that plays a script."""
        for name in _PLAYERS:
            found = self.folder / "usr/bin" / name
            if found.exists():
                return found
        raise ServerError(f"{self.folder} has no player of scripts: remove the folder, then `make setup-test`.")

    @property
    def log_reader(self) -> Path:
        """``mariadb-binlog``."""
        found = self.folder / "usr/bin/mariadb-binlog"
        if not found.exists():
            raise ServerError(f"{self.folder} has no mariadb-binlog: remove the folder, then `make setup-test`.")
        return found

    @property
    def environment(self) -> Mapping[str, str]:
        """What the player's own libraries need."""
        libraries = sorted({str(path.parent) for path in (self.folder / "usr/lib").glob("*/*.so.*")})
        return {"LD_LIBRARY_PATH": os.pathsep.join(libraries)} if libraries else {}


def suite_package() -> SuitePackage:
    """The suite, fetched if it is not in the cache. Raises `ServerError` where it cannot be had."""
    return SuitePackage(build_once("mariadb-test", _fetch))


def _fetch(folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ServerError(
            "MariaDB's regression suite comes from Debian packages, and this is neither Debian nor Ubuntu."
        )
    with tempfile.TemporaryDirectory(prefix="raycdc-apt-") as scratch:
        if os.getuid() == 0:
            _run(["apt-get", "-qq", "update"], scratch)
        _run(["apt-get", "-qq", "-o", "APT::Sandbox::User=root", "download", *_PACKAGES], scratch)
        for package in sorted(Path(scratch).glob("*.deb")):
            _run(["dpkg-deb", "-x", str(package), str(folder)], scratch)
    SuitePackage(folder).scripts  # noqa: B018  it says what is missing


def _run(command: list[str], folder: str) -> None:
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=_STEP_S, env=environment
        )
    except subprocess.TimeoutExpired as cause:
        raise ServerError(f"MariaDB's regression suite: {command[0]} took over {_STEP_S} s") from cause
    if done.returncode != 0:
        raise ServerError(f"MariaDB's regression suite cannot be fetched: {done.stderr.strip()[-500:]}")


if __name__ == "__main__":
    try:
        suite_package()
    except ServerError as error:
        sys.exit(str(error))
