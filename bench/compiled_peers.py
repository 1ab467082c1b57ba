"""Compiled binlog decoders to compare with: the Rust crate ``mysql`` (`rust_decoder/`) and ``mysqlbinlog -v``.

Both run as child processes of the measuring one and read from the server as replicas, as raycdc does. Peers that are
not on the machine are left out with a note.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
from pathlib import Path
from typing import Any

from bench.measure import measured, progress
from raycdc.sandbox.cache import cache_dir

_CRATE = Path(__file__).parent / "rust_decoder"
_NEWEST = "mysql-newest/usr"
_LIBRARIES = "lib/x86_64-linux-gnu"


def rust_program() -> Path | None:
    """Return the built peer; None, with a note, if cargo is missing or cannot build it (it downloads crates)."""
    target = cache_dir() / "rust_decoder"
    program = target / "release" / "binlog-peer"
    if shutil.which("cargo") is None:
        progress("rust-mysql is left out: cargo is not installed")
        return None
    environment = os.environ | {"CARGO_TARGET_DIR": str(target)}
    # The build uses a copy of the sources, because cargo writes its lock file, with the origin of crates, into them.
    copy = target / "crate"
    shutil.copytree(_CRATE, copy, dirs_exist_ok=True)
    done = subprocess.run(
        ["cargo", "build", "--release", "--quiet", "--manifest-path", str(copy / "Cargo.toml")],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    if done.returncode != 0:
        progress(f"rust-mysql is left out: cargo could not build it ({done.stderr.strip()[-200:]})")
        return None
    return program


def mysqlbinlog_command(flavor: str) -> list[str] | None:
    """Return the command of ``mysqlbinlog`` for this kind of server; None, with a note, if there is none."""
    if flavor == "mariadb":
        found = shutil.which("mariadb-binlog")
        if found is not None:
            return [found]
    else:
        home = cache_dir() / _NEWEST
        program, libraries = home / "bin" / "mysqlbinlog", home / _LIBRARIES
        if program.exists():
            path = f"{libraries}:{home}/lib/mysql/private"
            return [str(libraries / "ld-linux-x86-64.so.2"), "--library-path", path, str(program)]
    progress(f"mysqlbinlog is left out: no program for {flavor} is installed")
    return None


def _children_rss_mb() -> float:
    return round(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024, 1)


def read_rust(*, program: str, port: int, file: str, pos: int, rows: int) -> dict[str, Any]:
    """Run the Rust peer until it has decoded `rows`."""
    figures: dict[str, Any] = {}
    with measured(figures):
        done = subprocess.run(
            [program, str(port), file, str(pos), str(rows)], capture_output=True, text=True, check=True
        )
    seen, _, wall_s, cpu_s = done.stdout.split()
    # The peer's own figures leave out the start of its process.
    figures |= {"wall_s": round(float(wall_s), 4), "cpu_s": round(float(cpu_s), 4), "peak_rss_mb": _children_rss_mb()}
    return figures | {"rows": int(seen)}


def read_mysqlbinlog(*, command: list[str], port: int, file: str, pos: int, end_pos: int, rows: int) -> dict[str, Any]:
    """Run ``mysqlbinlog -v`` over the whole case, and drop its text."""
    figures: dict[str, Any] = {"rows": rows}
    with measured(figures):
        subprocess.run(
            [
                *command, "--no-defaults", "--read-from-remote-server", "--host=127.0.0.1", f"--port={port}",
                "--user=root", "--password=root", "--base64-output=DECODE-ROWS", "-v", f"--start-position={pos}",
                f"--stop-position={end_pos}", file,
            ],
            stdout=subprocess.DEVNULL,
            check=True,
        )  # fmt: skip
    return figures | {"peak_rss_mb": _children_rss_mb()}
