"""Converts messages to columns: raycdc's formats against ``json.loads`` and Spark's ``from_json``, on the same
messages.

One case per format: a million messages of ten mixed columns (`--rows` for another number), three inserts to an update.
raycdc gives changelog Arrow batches, ``json.loads`` dicts with nothing done to them, Spark a parsed struct written
nowhere (the ``noop`` sink). All read the same messages, and count them per CPU-second.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from bench.measure import Measurement, Options, best_of, measure, measured

CASES = ("maxwell-json", "canal-json", "debezium-json", "ogg-json", "json")
SERVER = "none"

_MESSAGES = 1_000_000
_BATCH = 50_000
_COLUMNS = (
    "id BIGINT, customer_id INT, status STRING, total DECIMAL(12,2), note STRING, created_at DATETIME, qty INT, "
    "price DOUBLE, flag TINYINT, city STRING"
)
_SPARK_COLUMNS = _COLUMNS.replace("DATETIME", "STRING").replace("DECIMAL(12,2)", "STRING")


def run(options: Options) -> Iterator[Measurement]:
    """Measure each system on each case, in separate processes."""
    count = options.rows or _MESSAGES
    for case in options.cases:
        yield best_of(3, lambda c=case: measure(c, "raycdc", "bench.formats:read_raycdc", {"case": c, "count": count}))
        peer = {"case": case, "count": count}
        yield measure(case, "json.loads", "bench.formats:read_json", peer)
        yield measure(case, "spark-from_json", "bench.formats:read_spark", peer)


def _row(number: int) -> dict[str, Any]:
    return {
        "id": number,
        "customer_id": number % 1000,
        "status": "shipped",
        "total": f"{number % 1000}.{number % 100:02d}",
        "note": f"a small note about order {number}",
        "created_at": "2024-05-06 07:08:09",
        "qty": number % 7,
        "price": 1.5 + number,
        "flag": 1,
        "city": "Köln",
    }


def _maxwell(number: int, row: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
    head = {"database": "shop", "table": "orders", "type": "update" if old else "insert", "ts": 1700000000 + number}
    return {**head, "xid": number, "commit": True, "data": row} | ({"old": old} if old else {})


def _canal(number: int, row: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
    types = {part.split()[0]: part.split()[1].lower() for part in _COLUMNS.replace("STRING", "text").split(", ")}
    return {
        "data": [{name: str(value) for name, value in row.items()}],
        "database": "shop",
        "es": 1700000000000 + number,
        "id": number,
        "isDdl": False,
        "mysqlType": types,
        "old": [old] if old else None,
        "pkNames": ["id"],
        "sql": "",
        "sqlType": dict.fromkeys(types, 12),
        "table": "orders",
        "ts": 1700000000000 + number,
        "type": "UPDATE" if old else "INSERT",
    }


def _debezium(number: int, row: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
    source = {"version": "2.7", "connector": "mysql", "name": "s", "ts_ms": 1700000000000, "snapshot": "false"}
    source |= {"db": "shop", "table": "orders", "server_id": 1, "file": "binlog.000001", "pos": number, "row": 0}
    images = {"before": {**row, **old} if old else None, "after": row}
    return {**images, "source": source, "op": "u" if old else "c", "ts_ms": 1700000000000 + number}


def _ogg(number: int, row: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
    head = {"table": "SHOP.ORDERS", "op_type": "U" if old else "I", "op_ts": "2024-05-06 07:08:09.123000"}
    head |= {"current_ts": "2024-05-06 07:08:10.123000", "pos": f"{number:020d}"}
    return {**head, "before": {**row, **old} if old else None, "after": row}


def _plain(number: int, row: dict[str, Any], old: dict[str, Any] | None) -> dict[str, Any]:
    del number, old
    return row


_MAKERS: dict[str, Callable[[int, dict[str, Any], dict[str, Any] | None], dict[str, Any]]] = {
    "maxwell-json": _maxwell,
    "canal-json": _canal,
    "debezium-json": _debezium,
    "ogg-json": _ogg,
    "json": _plain,
}


def messages(case: str, first: int, count: int) -> list[bytes]:
    """Return messages from the number `first` on, as the format's tool writes them."""
    make = _MAKERS[case]
    found = []
    for number in range(first, first + count):
        old = {"status": "new", "qty": 3} if number % 4 == 0 else None
        found.append(json.dumps(make(number, _row(number), old), ensure_ascii=False, separators=(",", ":")).encode())
    return found


def read_raycdc(*, case: str, count: int) -> dict[str, Any]:
    """Decode to changelog batches. A first, untimed batch loads the machine code."""
    from raycdc.formats.api import MessageBatch, Origin
    from raycdc.formats.plugins import load_format

    made = load_format(case, columns=_COLUMNS)
    figures: dict[str, Any] = {"rows": count}
    total = {"wall_s": 0.0, "cpu_s": 0.0}
    changes = size = 0
    decoder = made.decoder()
    for first in range(-_BATCH, count, _BATCH):
        texts = messages(case, max(first, 0), min(_BATCH, count - max(first, 0)))
        batch = MessageBatch(Origin("bench", 0), pa.array(texts, pa.large_binary()), np.arange(len(texts)))
        with measured(figures):
            decoded = decoder.decode(batch)
        assert decoded.failure is None, decoded.failure
        if first >= 0:
            total = {name: total[name] + figures[name] for name in total}
            changes += decoded.rows
            size += batch.values.nbytes
    return figures | {**total, "changelog_rows": changes, "message_bytes": round(size / count)}


def read_json(*, case: str, count: int) -> dict[str, Any]:
    """Call ``json.loads`` for each message, and nothing else."""
    figures: dict[str, Any] = {"rows": count}
    total = {"wall_s": 0.0, "cpu_s": 0.0}
    for first in range(0, count, _BATCH):
        texts = messages(case, first, min(_BATCH, count - first))
        with measured(figures):
            for text in texts:
                json.loads(text)
        total = {name: total[name] + figures[name] for name in total}
    return figures | total


def read_spark(*, case: str, count: int) -> dict[str, Any]:
    """Run ``from_json`` with the message's schema, in a local session; the JVM's CPU time is counted as a child's."""
    import tempfile

    import pyarrow.parquet as pq
    from pyspark.sql import SparkSession

    row = f"STRUCT<{', '.join(part.replace(' ', ': ', 1) for part in _SPARK_COLUMNS.split(', '))}>"
    schema = {
        "maxwell-json": f"database STRING, table STRING, type STRING, ts BIGINT, xid BIGINT, data {row}, old {row}",
        "canal-json": f"database STRING, table STRING, type STRING, es BIGINT, data ARRAY<{row}>, old ARRAY<{row}>",
        "debezium-json": f"before {row}, after {row}, op STRING, ts_ms BIGINT",
        "ogg-json": f"table STRING, op_type STRING, op_ts STRING, before {row}, after {row}",
        "json": _SPARK_COLUMNS,
    }[case]
    figures: dict[str, Any] = {"rows": count}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "messages.parquet"
        with pq.ParquetWriter(path, pa.schema([("value", pa.string())])) as writer:
            for first in range(0, count, _BATCH):
                texts = messages(case, first, min(_BATCH, count - first))
                writer.write_table(pa.table({"value": pa.array(texts, pa.binary()).cast(pa.string())}))
        spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
        frame = spark.read.parquet(str(path)).selectExpr(f"from_json(value, '{schema}') AS m").selectExpr("m.*")
        frame.limit(1000).write.format("noop").mode("overwrite").save()
        with measured(figures):
            before = _process_cpu_s(spark.sparkContext._gateway.proc.pid)
            frame.write.format("noop").mode("overwrite").save()
            spent = _process_cpu_s(spark.sparkContext._gateway.proc.pid) - before
        spark.stop()
    return figures | {"cpu_s": round(figures["cpu_s"] + spent, 4)}


def _process_cpu_s(pid: int) -> float:
    """Return the CPU time of a living process (proc(5), ``/proc/pid/stat``: fields 14 and 15)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
