"""``raycdc demo``: a private MariaDB with a small shop, followed into a Delta lake while customers go on buying.

It shows the product as a user has it: the pipeline is ``raycdc run examples/quickstart.toml`` in a process of its own.
Afterwards source and lake are read independently and compared; a difference is the exit code of a data error.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raycdc.checkpoint.opaque import positions_in
from raycdc.checkpoint.store import CheckpointStore
from raycdc.connectors.mysql.binlog.position import BinlogOffset
from raycdc.errors import ConfigError, ExitCode, SourceError, StateError

if TYPE_CHECKING:
    from raycdc.testing.compare import TableComparison
    from raycdc.testing.servers import MariaDbServer
    from raycdc.testing.workload import ShopWorkload

LAKE = Path("demo-lake")
#: Left in a demo's folder, so that a later demo knows it may be removed.
_MARKER = ".raycdc-demo"
_CONFIG = Path("examples/quickstart.toml")
_SEED = 2026
_SNAPSHOT_TIMEOUT_S = 150.0
_CATCH_UP_TIMEOUT_S = 90.0
_STOP_TIMEOUT_S = 60.0
_WORKLOAD_PAUSE_S = 0.005
_POLL_S = 0.25


@dataclass(frozen=True, slots=True)
class _Options:
    config: Path
    orders: int
    seconds: float
    local: bool


def main(arguments: Sequence[str]) -> int:
    """The command. Prints only before and after the pipeline runs, because that has the screen meanwhile."""
    options = _parse(arguments)
    from raycdc.testing.servers import MariaDbServer
    from raycdc.testing.shop import ShopSize, create_shop
    from raycdc.testing.workload import ShopWorkload

    began = time.monotonic()
    _empty_lake()
    size = ShopSize(orders=options.orders)
    with MariaDbServer() as server:
        version = server.scalar("SELECT VERSION()")
        print(f"MariaDB {version} on {server.host}:{server.port}; filling a shop with {size.rows:,} rows …", flush=True)
        with server.connect() as connection:
            create_shop(connection, "shop", size)
        print(f"raycdc run {options.config}   (while a workload inserts, updates, deletes and alters)\n", flush=True)
        workload = ShopWorkload(server.connect, seed=_SEED, size=size)
        status = _follow(server, workload, options)
        if status is not ExitCode.DONE:
            return int(status)
        comparisons = _compare(server)
    _print_workload(workload)
    return _print_comparison(comparisons, seconds=time.monotonic() - began)


def _parse(arguments: Sequence[str]) -> _Options:
    parser = argparse.ArgumentParser(prog="raycdc demo", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--config", type=Path, default=_CONFIG, help="the pipeline to run")
    parser.add_argument("--orders", type=int, default=200_000, help="rows of the largest table")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long the workload goes on after the snapshot")
    parser.add_argument("--local", action="store_true", help="run the pipeline without Ray and Spark")
    chosen = parser.parse_args(list(arguments))
    config: Path = chosen.config
    if not config.exists() and config == _CONFIG:
        config = Path(__file__).resolve().parents[2] / _CONFIG
    if not config.exists():
        raise ConfigError(f"{chosen.config} does not exist. Run the demo in a checkout of raycdc, or name a --config.")
    return _Options(config=config, orders=chosen.orders, seconds=chosen.seconds, local=chosen.local)


def _empty_lake() -> None:
    if LAKE.exists() and any(LAKE.iterdir()) and not (LAKE / _MARKER).exists():
        raise ConfigError(f"./{LAKE} holds something that is not from a demo. Move it away, or run in another folder.")
    if LAKE.exists():
        shutil.rmtree(LAKE)
    LAKE.mkdir()
    (LAKE / _MARKER).write_text("Made by `raycdc demo`, which removes this folder when it runs again.\n")


# -- the pipeline and the workload side by side


def _follow(server: MariaDbServer, workload: ShopWorkload, options: _Options) -> ExitCode:
    """Run the pipeline until it has committed all that the workload did; DONE, or what to exit with."""
    with _pipeline(server, options) as pipeline:
        progress = _Progress(pipeline, options.config, server)
        with _running(workload) as failure:
            if not progress.wait_for_snapshot():
                return progress.give_up("the snapshot was not finished")
        _raise_first(failure)
        workload.add_points_column()  # here, because the workload's connection serves one thread at a time
        with _running(workload) as failure:
            ended = time.monotonic() + options.seconds
            while time.monotonic() < ended and pipeline.poll() is None:
                time.sleep(_POLL_S)
        _raise_first(failure)
        if not progress.wait_for_position(*_log_position(server)):
            return progress.give_up("the pipeline did not catch up with the end of the workload")
    return ExitCode.DONE


@contextlib.contextmanager
def _pipeline(server: MariaDbServer, options: _Options) -> Iterator[subprocess.Popen[bytes]]:
    """``raycdc run`` in a process of its own, ended with the signal that Ctrl-C sends."""
    environment = {
        **os.environ,
        "MYSQL_HOST": server.host,
        "MYSQL_PORT": str(server.port),
        "MYSQL_PASSWORD": server.cdc_password,
    }
    command = [sys.executable, "-m", "raycdc.cli", "run", str(options.config), *(["--local"] if options.local else [])]
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                print("The pipeline did not stop when asked and was killed.", file=sys.stderr)


@contextlib.contextmanager
def _running(workload: ShopWorkload) -> Iterator[list[Exception]]:
    """The workload in a thread as long as the block lasts; yields a list that then holds what went wrong in it."""
    stop = threading.Event()
    failures: list[Exception] = []

    def work() -> None:
        try:
            workload.run(stop, pause_s=_WORKLOAD_PAUSE_S)
        except Exception as error:  # noqa: BLE001  raised again by _raise_first in the main thread
            failures.append(error)

    thread = threading.Thread(target=work, name="workload")
    thread.start()
    try:
        yield failures
    finally:
        stop.set()
        thread.join()


def _raise_first(failures: list[Exception]) -> None:
    if failures:
        raise SourceError(f"The demo's workload failed: {failures[0]}") from failures[0]


def _log_position(server: MariaDbServer) -> tuple[str, int]:
    file, position, *_ = server.execute("SHOW MASTER STATUS")[0]
    return str(file), int(position)


class _Progress:
    """How far the pipeline got, read from its checkpoints as ``raycdc inspect checkpoint`` does."""

    def __init__(self, pipeline: subprocess.Popen[bytes], config: Path, server: MariaDbServer) -> None:
        from raycdc.config import load_config

        settings = load_config(config, environment={**os.environ, "MYSQL_PASSWORD": server.cdc_password})
        self._state = Path(settings.pipeline.state)
        self._tables = {"shop.customers", "shop.products", "shop.orders"}
        self._pipeline = pipeline

    def wait_for_snapshot(self) -> bool:
        """Until every table has left its snapshot, by what is committed; False when the pipeline ended before."""
        waiting = set(self._tables)

        def finished() -> bool:
            manifest = self._committed()
            for table, part in manifest.tables.items() if manifest else ():
                if not part.snapshot:
                    waiting.discard(str(table))
            return not waiting

        return self._wait(finished, _SNAPSHOT_TIMEOUT_S)

    def wait_for_position(self, file: str, position: int) -> bool:
        """Until what is committed reaches this position of the log; False when the pipeline ended before."""

        def reached() -> bool:
            manifest = self._committed()
            positions = positions_in(manifest.to_splits) if manifest else {}
            return any(BinlogOffset.of(at) >= BinlogOffset(file, position) for at in positions.values())

        return self._wait(reached, _CATCH_UP_TIMEOUT_S)

    def give_up(self, what: str) -> ExitCode:
        """The exit code of a demo that did not get there, after one line that says so."""
        code = self._pipeline.poll()
        if code is None:
            print(f"\nThe demo gave up: {what} in time.", file=sys.stderr)
            return ExitCode.BUG
        print(f"\nThe pipeline ended by itself with exit code {code}: {what}.", file=sys.stderr)
        return ExitCode(code) if code in set(ExitCode) and code else ExitCode.BUG

    def _wait(self, condition: Any, timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self._pipeline.poll() is None and time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(_POLL_S)
        return False

    def _committed(self) -> Any:
        """Manifest of the last committed epoch, or None while there is none."""
        try:
            store = CheckpointStore(self._state, create=False)
            record = store.last_commit()
            return None if record is None else store.manifest(record.epoch)
        except StateError:
            return None  # not begun yet, or written this moment: asked again soon


# -- the result


def _compare(server: MariaDbServer) -> list[TableComparison]:
    from raycdc.testing.compare import compare_lake
    from raycdc.testing.shop import TABLES

    with server.connect() as connection:
        return compare_lake(connection, LAKE, [("shop", table) for table in TABLES])


def _print_workload(workload: ShopWorkload) -> None:
    done = workload.counts
    print(
        f"\nMeanwhile {done['transactions']:,} transactions changed the shop: {done['insert']:,} rows inserted, "
        f"{done['update']:,} updated, {done['delete']:,} deleted, one column added.\n"
    )


def _print_comparison(comparisons: Sequence[TableComparison], *, seconds: float) -> int:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    table = Table("table", "", "rows", "checksum over all columns", "")
    for comparison in comparisons:
        verdict = "[green]equal[/green]" if comparison.equal else "[red]DIFFERENT[/red]"
        table.add_row(comparison.table, "source", f"{comparison.source.rows:,}", str(comparison.source), "")
        table.add_row("", "lake", f"{comparison.sink.rows:,}", str(comparison.sink), verdict, end_section=True)
    console.print(table)
    for comparison in comparisons:
        for problem in comparison.problems:
            console.print(f"{comparison.table}: {problem}", markup=False)
    equal = all(comparison.equal for comparison in comparisons)
    console.print(f"The lake is in ./{LAKE}; {seconds:.0f} s in all.")
    if equal:
        _print_next_steps()
    return int(ExitCode.DONE if equal else ExitCode.DATA)


def _print_next_steps() -> None:
    """Print the commands to try next, as they can be typed here."""
    folder = Path(sys.executable).parent
    if folder.is_relative_to(Path.cwd()):
        folder = folder.relative_to(Path.cwd())
    reading = f'from deltalake import DeltaTable; print(DeltaTable("{LAKE}/shop/orders").to_pyarrow_table())'
    print(f"\nLook at it:       {folder}/python -c '{reading}'")
    print(f"Your own tables:  {folder}/raycdc init pipeline.toml, which asks; then {folder}/raycdc run pipeline.toml")
