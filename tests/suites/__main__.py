"""``python -m tests.suites [--scripts main/savepoint ...] [--suites main ...] [--batch N]``: follow MariaDB's suite."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import pymysql

from raycdc.sandbox.servers import MariaDbServer
from tests.suites.following import Batch, follow
from tests.suites.known import FAULTS, unexpected
from tests.suites.package import suite_package
from tests.suites.playing import Stage
from tests.suites.selection import SUITES, find, loaded


def main(arguments: list[str]) -> int:
    """Play and say what was found; 1 when something was."""
    parser = argparse.ArgumentParser(prog="python -m tests.suites", description=__doc__)
    parser.add_argument("--suites", nargs="+", default=list(SUITES))
    parser.add_argument("--scripts", nargs="+", default=[])
    parser.add_argument("--batch", type=int, default=40, help="scripts that one run follows")
    parser.add_argument("--timeout", type=float, default=60.0, help="seconds of a script")
    parser.add_argument("--keep", type=Path, default=None, help="folder for the files of the run")
    parser.add_argument("--part", default="1/1", help="every N-th script, beginning with the K-th: K/N")
    chosen = parser.parse_args(arguments)
    package = suite_package()
    paths = find(package, chosen.scripts or chosen.suites)
    first, step = map(int, chosen.part.split("/"))
    paths = dict(list(paths.items())[first - 1 :: step])
    total = Batch()
    names = list(paths)
    with tempfile.TemporaryDirectory(prefix="raycdc-suites-") as scratch:
        folder = chosen.keep or Path(scratch)
        for number, begin in enumerate(range(0, len(names), chosen.batch)):
            scripts = loaded(package, {name: paths[name] for name in names[begin : begin + chosen.batch]})
            # A server of its own: what a script did to an earlier one concerns no other.
            with MariaDbServer() as server:
                stage = Stage(server, package, folder / f"var{number}", timeout_s=chosen.timeout)
                try:
                    stage.prepare()
                    batch = follow(stage, scripts, folder / f"batch{number}", told=_say)
                except pymysql.Error as error:
                    _say(f"BATCH LOST: {error}")
                    continue
            for line in unexpected(batch, FAULTS):
                _say(f"FAULT {line[:700]}")
            for name in ("played", "left_out", "verdicts", "ended", "read_otherwise", "read_once"):
                getattr(total, name).extend(getattr(batch, name))
            total.read_twice += batch.read_twice
            _say(total.summary())
    return 1 if unexpected(total, FAULTS) else 0


def _say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
