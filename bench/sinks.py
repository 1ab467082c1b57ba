"""Writes into each sink, and compares with programs written by hand for Spark: snapshots, upsert epochs, hundreds of
tables.

| case | what runs | beside it |
|---|---|---|
| ``500_tables`` | epochs that touch 500 tables: a trickle on each, then bursts on ten | ``plain-merge``: a MERGE each |
| ``upsert_to_delta`` | 1 % of the keys of a table change, all over it, in one epoch | ``plain-merge``: one MERGE |
| ``snapshot_to_SINK`` | the snapshot of a table into an empty sink | ``spark-jdbc``: partitioned read, plain write |
| ``transform_to_delta`` | the same into Delta through expressions and a filter | ``spark-jdbc``: the same expressions |

Times are those of `bench.pipeline`: from the first reader (of the peer: from the warm session) to the last commit.
Those of ``500_tables`` begin when the transaction that touches all tables was committed at the source, in a job that
is up.
``--rows`` is the rows of the table; of ``500_tables`` the rows of its bursts.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from bench import many_tables, sink_homes, tables
from bench.measure import Measurement, Options, progress
from bench.pipeline import Bench, figures_of, raycdc_measurement, readers_max

CASES = ("500_tables", "upsert_to_delta", *(f"snapshot_to_{home}" for home in sink_homes.HOMES), "transform_to_delta")

_UPSERT_ROWS = 10_000_000
_SNAPSHOT_ROWS = 2_000_000
#: The number of keys per changed key.
_ROWS_PER_UPDATE = 100
#: The number of tables that the peer of ``500_tables`` merges into, one after the other; each takes seconds.
_PEER_TABLES = 50

#: The columns and the filter are the same for both systems; the filter keeps 99 rows of 100.
_EXPRESSIONS = ("price * quantity AS amount", "upper(name) AS shouted", "year(ordered) AS year")
_FILTER = "status <> 7"


def run(options: Options) -> Iterator[Measurement]:
    """Start a server per kind of case, fill its tables, and run each system as a user would."""
    settings: dict[str, str | None] = {"innodb_buffer_pool_size": "1G", "binlog_row_metadata": "FULL"}
    wanted = [case for case in CASES if case in options.cases]
    groups: list[tuple[list[str], Callable[[SinkBench, list[str], int | None], Iterator[Measurement]]]] = [
        ([case for case in wanted if case == "500_tables"], _many_tables),
        ([case for case in wanted if case == "upsert_to_delta"], _upsert),
        ([case for case in wanted if case.startswith(("snapshot_to_", "transform_to_"))], _snapshots),
    ]
    for cases, play in groups:
        if cases:
            with (
                tempfile.TemporaryDirectory(prefix="raycdc-bench-") as folder,
                tables.server_of(options.server, settings) as server,
            ):
                bench = SinkBench(Path(folder), server)
                tables.prepare(bench.connection)
                yield from play(bench, cases, options.rows)


class SinkBench(Bench):
    """The parts of `Bench`, with a choice of sink."""

    def __init__(self, folder: Path, server: Any) -> None:
        super().__init__(folder, server)
        self.connection = tables.connect(server.port)

    def config(self, name: str, sink: str, *, source_tables: str = '["bench.standard"]', more: str = "") -> Path:
        path = self.folder / f"{name}.toml"
        path.write_text(
            f"""
[pipeline]
name = "{name}"
state = "{self.folder / name}"
engines = "always"

[source]
type = "mysql"
port = {self.server.port}
user = "{self.server.cdc_user}"
password = "{self.server.cdc_password}"
tables = {source_tables}

[spark]
from_bytes = "4MiB"

[readers]
max = {readers_max()}

{more}
[sink]
{sink}
"""
        )
        return path

    def peer(self, module: str, case: str, system: str, rows: int, given: dict[str, Any]) -> Measurement:
        """Run a Spark job in a separate process; its time is that between the events that it prints."""
        progress(f"{case}: measuring {system} ...")
        found = self.watched([sys.executable, "-m", module, json.dumps(given)])
        (started, _), (done, _) = found.of("started")[0], found.of("done")[0]
        return Measurement(case=case, system=system, rows=rows, **figures_of(found, started, done))

    def jars(self) -> list[str]:
        """Return Delta's jars, and the driver of the source."""
        from raycdc.spark.session import delta_jars

        return [*map(str, delta_jars()), *sink_homes.jars("com.mysql:mysql-connector-j:9.7.0")]


def _many_tables(bench: SinkBench, _cases: list[str], rows: int | None) -> Iterator[Measurement]:
    count = many_tables.TABLES
    progress(f"making {count} tables ...")
    many_tables.make_tables(bench.connection, count, many_tables.ROWS_PER_TABLE)
    lake = bench.folder / "lake"
    config = bench.config("many", f'type = "delta"\npath = "{lake}"', source_tables=r"['bench\.t\d+']")
    burst_rows = many_tables.BURST_ROWS if rows is None else rows
    yield many_tables.measure(config, bench.connection, bench.folder / "stderr.log", count=count, rows=burst_rows)
    merges = []
    for number in range(many_tables.BURSTS, many_tables.BURSTS + _PEER_TABLES):
        target = lake / many_tables.name_of(number).replace(".", "/")
        changes = bench.folder / "changes" / f"{number}.parquet"
        few = pc.field("id") < many_tables.TRICKLE_ROWS
        _write_changes(target, changes, few, deleted=1)
        merges.append({"target": str(target), "changes": str(changes)})
    given = {"merges": merges, "jars": bench.jars(), "scratch": str(bench.folder / "spark")}
    yield bench.peer("bench.spark_merge", "500_tables", "plain-merge", len(merges) * many_tables.TRICKLE_ROWS, given)


def _upsert(bench: SinkBench, _cases: list[str], rows: int | None) -> Iterator[Measurement]:
    count = rows or _UPSERT_ROWS
    _fill(bench, count)
    lake, copy = bench.folder / "lake", bench.folder / "copy"
    config = bench.config("upsert", f'type = "delta"\npath = "{lake}"')
    progress("upsert_to_delta: first run, the snapshot ...")
    bench.raycdc(config)
    # Files are never changed, only added, so links serve as copies.
    subprocess.run(["cp", "-al", str(lake), str(copy)], check=True)
    progress("upsert_to_delta: changing rows ...")
    changed = f"id % {_ROWS_PER_UPDATE} = 7"
    with bench.connection.cursor() as cursor:
        cursor.execute("SET sql_log_bin = 1")
        keys = cursor.execute(f"UPDATE bench.standard SET quantity = quantity + 1, score = score + 1 WHERE {changed}")
    progress("upsert_to_delta: measuring raycdc ...")
    yield raycdc_measurement("upsert_to_delta", keys, bench.raycdc(config))
    table, changes = copy / "bench" / "standard", bench.folder / "changes.parquet"
    rest = pc.subtract(pc.field("id"), pc.multiply(pc.divide(pc.field("id"), _ROWS_PER_UPDATE), _ROWS_PER_UPDATE))
    _write_changes(table, changes, rest == 7)
    merges = [{"target": str(table), "changes": str(changes)}]
    given = {"merges": merges, "jars": bench.jars(), "scratch": str(bench.folder / "spark")}
    yield bench.peer("bench.spark_merge", "upsert_to_delta", "plain-merge", keys, given)


def _snapshots(bench: SinkBench, cases: list[str], rows: int | None) -> Iterator[Measurement]:
    count = rows or _SNAPSHOT_ROWS
    _fill(bench, count)
    for case in cases:
        what, _, kind = case.partition("_to_")
        transformed = what == "transform"
        more = ""
        if transformed:
            projection = json.dumps(", ".join(("*", *_EXPRESSIONS)))
            more = f'[[transform]]\ntable = "bench.standard"\nprojection = {projection}\nfilter = "{_FILTER}"\n'
        with sink_homes.home(kind, bench.folder / case) as home:
            progress(f"{case}: measuring raycdc ...")
            yield raycdc_measurement(case, count, bench.raycdc(bench.config(case, home.section, more=more)))
            if not home.format:
                continue
            given = {
                "port": bench.server.port,
                "table": "standard",
                "rows": count,
                "jars": [*bench.jars(), *home.jars],
                "lake": str(bench.folder / case / "peer"),
                "scratch": str(bench.folder / "spark"),
                "format": home.format,
                "options": home.options,
                "conf": home.conf,
                "select": ["*", *_EXPRESSIONS] if transformed else [],
                "where": _FILTER if transformed else "",
            }
            yield bench.peer("bench.spark_jdbc", case, "spark-jdbc", count, given)
        shutil.rmtree(bench.folder / case)


def _fill(bench: SinkBench, rows: int) -> None:
    with bench.connection.cursor() as cursor:
        cursor.execute(tables.STANDARD)
        cursor.execute("SET sql_log_bin = 0")
    bench.fill(bench.connection, rows)


def _write_changes(table: Path, changes: Path, chosen: Any, *, deleted: int = 0) -> None:
    """Write the chosen rows of a Delta table with a greater quantity as a file to merge; the first `deleted` ones are
    to be deleted.
    """
    from deltalake import DeltaTable

    rows = DeltaTable(str(table)).to_pyarrow_dataset().to_table(filter=chosen)
    place = rows.column_names.index("quantity")
    more = pc.add(rows.column("quantity"), pa.scalar(1, pa.int32()))
    rows = rows.set_column(place, "quantity", more)
    gone = pa.array([number < deleted for number in range(rows.num_rows)])
    changes.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(rows.append_column("_deleted", gone), changes)
