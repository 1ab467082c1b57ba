"""Cutting tables into chunks: what planning costs the server, how even the chunks are, and how readers share them.

Cases are tables that differ in their keys: ``uniform``, ``sparse`` (clusters with huge gaps), ``skewed`` (denser and
denser), ``string``, ``composite`` (few tenants first), ``tenant`` (one tenant has most rows, no other index), and
``collection``, of MongoDB (`bench.collection_splits`). Systems are the strategies. ``rows_per_s`` and the like are
those of the whole: planning and reading with four readers.

``planning_rows_read`` is what the server itself counts while it answers the planner: a full scan would show there.
MongoDB's emulation does not count: null.
"""

from __future__ import annotations

import html
import os
import queue
import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from bench import collection_splits, tables
from bench.measure import Measurement, Options, measured, progress

#: Key columns and the expressions of the row number `n` that fill them, in table order.
_KEYS: dict[str, tuple[str, str]] = {
    "uniform": ("id BIGINT NOT NULL PRIMARY KEY", "n"),
    "sparse": ("id BIGINT UNSIGNED NOT NULL PRIMARY KEY", "(n DIV 50000) * 400000000000000000 + n % 50000"),
    "skewed": ("id BIGINT NOT NULL PRIMARY KEY", "CAST(POW(n / 10, 2.5) AS SIGNED) * 10 + n % 10"),
    "string": ("id VARCHAR(36) CHARACTER SET ascii COLLATE ascii_general_ci NOT NULL PRIMARY KEY", "MD5(n)"),
    "composite": (
        "tenant INT NOT NULL, id BIGINT NOT NULL, PRIMARY KEY (tenant, id), UNIQUE KEY by_id (id)",
        "n % 7, n",
    ),
    "tenant": (
        "tenant INT NOT NULL, id BIGINT NOT NULL, PRIMARY KEY (tenant, id)",
        "IF(n % 10 < 6, 1, n % 1000), n",
    ),
}
_COLLECTION = "collection"
CASES = (*_KEYS, _COLLECTION)

_ROWS = 1_000_000
_CHUNKS = 100
_READERS = (1, 2, 4)
_STRATEGIES = ("even", "uneven", "sampled", "auto")
_PLANNED_AT_ONCE = 32
#: Times what was asked for.
_TOO_LARGE = 3
#: What a server counts when it reads a row by an index, forwards or backwards.
_ROW_READS = ("Handler_read_first", "Handler_read_key", "Handler_read_last", "Handler_read_next", "Handler_read_prev")
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def run(options: Options) -> Iterator[Measurement]:
    """Start a server, fill the tables, plan and read each with every strategy."""
    from raycdc.testing.servers import MariaDbServer, MySqlServer

    rows = options.rows or _ROWS
    if _COLLECTION in options.cases:
        yield from collection_splits.run(_COLLECTION, rows, _cpu_s)
    names = [case for case in options.cases if case != _COLLECTION]
    if not names:
        return
    settings: dict[str, str | None] = {"innodb_buffer_pool_size": "1G"}
    progress(f"starting {options.server} ...")
    with (
        MySqlServer(version="8.0", options=settings) if options.server == "mysql" else MariaDbServer(settings) as server
    ):
        connection = tables.connect(server.port)
        tables.prepare(connection)
        for case in names:
            key, values = _KEYS[case]
            progress(f"{case}: writing {rows:,d} rows ...")
            with connection.cursor() as cursor:
                cursor.execute("SET sql_log_bin = 0")
                cursor.execute(f"CREATE TABLE bench.{case} ({key}, v INT, t VARCHAR(60)) CHARACTER SET utf8mb4")
            tables.fill(connection, f"bench.{case}", f"{values}, n, REPEAT('x', 20 + n % 40)", rows)
            with connection.cursor() as cursor:
                cursor.execute(f"ANALYZE TABLE bench.{case}")
            for strategy in _STRATEGIES:
                measurement = _measure(server, connection, case, strategy, rows)
                if measurement is not None:
                    yield measurement


def _measure(server: Any, connection: Any, case: str, strategy: str, rows: int) -> Measurement | None:
    """One strategy on one table, or None when it refuses the key."""
    from raycdc.errors import ConfigError

    figures: dict[str, Any] = {}
    server_cpu = _cpu_s(server.pid)
    try:
        with measured(figures):
            planned = _plan(server, connection, case, strategy, max(1, rows // _CHUNKS))
            read = {str(readers): _read(server.port, planned, readers) for readers in _READERS}
    except ConfigError as refusal:
        progress(f"{case}: {strategy} refuses: {refusal}")
        return None
    sizes = sorted(planned.pop("sizes"))
    key = planned.pop("key")
    planned.pop("chunks")
    table = planned.pop("table")
    best = read[str(_READERS[-1])]
    return Measurement(
        case=case,
        system=strategy,
        rows=sum(sizes),
        wall_s=round(planned["planning_s"] + best["wall_s"], 3),
        cpu_s=figures["cpu_s"],
        peak_rss_mb=figures["peak_rss_mb"],
        more={
            **planned,
            "table": str(table.id),
            "key": key,
            "chunks": len(sizes),
            "chunk_rows": {
                "wanted": max(1, rows // _CHUNKS),
                "p50": round(statistics.median(sizes)),
                "p99": sizes[min(len(sizes) - 1, len(sizes) * 99 // 100)],
                "max": sizes[-1],
            },
            "readers": read,
            "server_cpu_s": round(_cpu_s(server.pid) - server_cpu, 2),
        },
    )


def _plan(server: Any, connection: Any, case: str, strategy: str, chunk_rows: int) -> dict[str, Any]:
    """All chunks as the enumerator plans them, what that cost, and how many rows each has."""
    from raycdc.clients.mysql import MySqlSettings, connect
    from raycdc.connectors.mysql.catalog import load_table
    from raycdc.connectors.mysql.snapshot.chunk_keys import best_key
    from raycdc.connectors.mysql.snapshot.chunk_plan import ChunkPlan
    from raycdc.connectors.mysql.snapshot.chunks import ChunkPlanner, ChunkSettings, Strategy
    from raycdc.model import TableId

    table = load_table(connection, TableId("bench", case))
    before, cpu, started = _counters(connection), _cpu_s(server.pid), time.perf_counter()
    key = best_key(connection, table, None, chunk_rows=chunk_rows, several=strategy != "even")
    planner = ChunkPlanner(
        lambda: connect(MySqlSettings(port=server.port, user="root", password="root")),
        table,
        ChunkSettings(Strategy(strategy), chunk_rows),
        ChunkPlan.from_json({"key": key}, table, rows=chunk_rows),
    )
    chunks = []
    first_s = None
    while not planner.plan.done:
        chunks += planner.next_chunks(_PLANNED_AT_ONCE)
        first_s = first_s or time.perf_counter() - started
    elapsed, after = time.perf_counter() - started, _counters(connection)
    figures = {
        "planning_s": round(elapsed, 3),
        "first_chunks_s": round(first_s or 0.0, 3),
        "planning_queries": after["Questions"] - before["Questions"] - 1,
        "planning_rows_read": sum(after[name] - before[name] for name in _ROW_READS),
        "planning_server_cpu_s": round(_cpu_s(server.pid) - cpu, 2),
    }
    sizes = []
    with connection.cursor() as cursor:
        for chunk in chunks:
            cursor.execute(f"SELECT COUNT(*) FROM bench.{case} WHERE {chunk.condition(table)}")
            sizes.append(int(cursor.fetchone()[0]))
    return {**figures, "sizes": sizes, "chunks": chunks, "table": table, "key": key}


def _read(port: int, planned: dict[str, Any], readers: int) -> dict[str, Any]:
    """Read every chunk, each reader taking the next one when it is free, as the enumerator gives them out."""
    from raycdc.clients.mysql import MySqlSettings, connect
    from raycdc.connectors.mysql.snapshot.resultset import arena_for, stream_query
    from raycdc.connectors.mysql.snapshot.visibility import ChunkSelect

    table = planned["table"]
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    for chunk in planned["chunks"]:
        waiting.put(chunk)
    rows = [0] * readers
    ended = [0.0] * readers
    started = time.perf_counter()

    def work(number: int) -> None:
        connection = connect(MySqlSettings(port=port, user="root", password="root"))
        arena = arena_for(table)
        try:
            while True:
                chunk = waiting.get_nowait()
                sql = ChunkSelect(table, chunk).sql()
                rows[number] += sum(batch.num_rows for batch in stream_query(connection, sql, table, arena=arena))
        except queue.Empty:
            ended[number] = time.perf_counter() - started
        finally:
            connection.close()

    threads = [threading.Thread(target=work, args=(number,)) for number in range(readers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = max(ended)
    return {
        "wall_s": round(wall, 3),
        "rows_per_s": round(sum(rows) / max(wall, 1e-6)),
        # How long the last reader works alone, as a share of the whole: 0 is perfect.
        "idle_at_the_end": round(1 - sum(ended) / (readers * wall), 3),
        "rows_most_over_least": round(max(rows) / max(1, min(rows)), 2),
    }


def conclusions(measurements: Sequence[Measurement]) -> dict[str, Any]:
    """For each table the strategy that costs least: time to all rows, weighed with what planning costs the server."""
    found: dict[str, Any] = {}
    for case in dict.fromkeys(m.case for m in measurements):
        known = [m for m in measurements if m.case == case and m.system != "auto"]
        automatic = next((m for m in measurements if m.case == case and m.system == "auto"), None)
        # A chunk much larger than asked for costs memory and balance; it is taken only where every strategy has one.
        even = [m for m in known if m.more["chunk_rows"]["max"] <= _TOO_LARGE * m.more["chunk_rows"]["wanted"]]
        best = min(even or known, key=_cost)
        wanted, most = best.more["chunk_rows"]["wanted"], best.more["chunk_rows"]["max"]
        advice = f'snapshot.strategy = "{best.system}"'
        if most > 10 * wanted:
            advice += f"; a chunk has {most:,d} rows: name a key with more values in snapshot.key"
        found[case] = {
            "strategy": best.system,
            "key": best.more["key"],
            "advice": advice,
            "auto_costs": None if automatic is None else round(_cost(automatic) / _cost(best), 2),
        }
    return {"recommendations": found}


def _cost(measurement: Measurement) -> float:
    """Seconds until all is read by four readers, the server's CPU for planning, and memory for the largest chunk."""
    largest = measurement.more["chunk_rows"]["max"] / measurement.more["chunk_rows"]["wanted"]
    return float(measurement.wall_s + measurement.more["planning_server_cpu_s"] + 0.01 * largest)


_HEAD = (
    "table",
    "strategy",
    "key",
    "planning s",
    "first s",
    "queries",
    "rows read",
    "chunks",
    "p50",
    "p99",
    "max",
    "1 reader rows/s",
    "2 readers",
    "4 readers",
    "idle at end",
    "server CPU s",
)


def report(measurements: Sequence[Measurement]) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """A table for people: its head and its lines."""
    lines = []
    for m in measurements:
        rows, readers = m.more["chunk_rows"], m.more["readers"]
        lines.append(
            (
                m.case,
                m.system,
                str(m.more["key"]),
                f"{m.more['planning_s']:.2f}",
                f"{m.more['first_chunks_s']:.2f}",
                f"{m.more['planning_queries']:,d}",
                "-" if m.more["planning_rows_read"] is None else f"{m.more['planning_rows_read']:,d}",
                str(m.more["chunks"]),
                *(f"{rows[name]:,d}" for name in ("p50", "p99", "max")),
                *(f"{readers[str(n)]['rows_per_s']:,d}" for n in _READERS),
                f"{readers[str(_READERS[-1])]['idle_at_the_end']:.0%}",
                f"{m.more['server_cpu_s']:.1f}",
            )
        )
    return _HEAD, lines


def page(measurements: Sequence[Measurement]) -> str:
    """The same as an HTML page without any other file."""
    head, lines = report(measurements)
    advice = conclusions(measurements)["recommendations"]
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "\n".join("<tr>" + "".join(f"<td>{html.escape(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    items = "".join(f"<li><b>{html.escape(t)}</b>: {html.escape(a['advice'])}</li>" for t, a in advice.items())
    style = (
        "body{font:14px sans-serif;margin:2em}td,th{padding:.2em .6em;text-align:right;border-bottom:1px solid #ddd}"
    )
    return (
        f"<!doctype html><meta charset=utf-8><title>raycdc: chunks</title><style>{style}</style>"
        f"<h1>Chunks by strategy</h1><table><tr>{cells}</tr>\n{body}</table><h2>Recommended</h2><ul>{items}</ul>"
    )


def _counters(connection: Any) -> dict[str, int]:
    with connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL STATUS WHERE Variable_name IN %s", (("Questions", *_ROW_READS),))
        return {str(name): int(value) for name, value in cursor.fetchall()}


def _cpu_s(pid: int) -> float:
    """CPU time of a process, all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S
