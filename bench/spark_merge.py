"""The peer of upsert epochs in `bench.sinks`: MERGE INTO as Delta's guide shows it, a table after the other.

Run as a process: ``python -m bench.spark_merge ARGUMENTS_AS_JSON``. It prints one JSON line per phase.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from bench.spark_jdbc import session_of


def main(arguments: str) -> None:
    """Start Spark on `jars`, warm up, merge each file `changes` (rows by `id`, with `_deleted`) into its `target`."""
    given = json.loads(arguments)
    session = session_of(given)
    warm = str(Path(given["scratch"]) / "warm")
    session.range(10).selectExpr("id", "false AS _deleted").write.parquet(f"{warm}-changes")
    session.range(5).write.format("delta").save(warm)
    merge(session, warm, f"{warm}-changes")
    print(json.dumps({"event": "started"}), flush=True)
    for one in given["merges"]:
        merge(session, one["target"], one["changes"])
    print(json.dumps({"event": "done"}), flush=True)
    session.stop()


def merge(session: object, target: str, changes: str) -> None:
    """Run one MERGE and wait for it."""
    session.read.parquet(changes).createOrReplaceTempView("changes")  # type: ignore[attr-defined]
    columns = [name for name in session.table("changes").columns if name != "_deleted"]  # type: ignore[attr-defined]
    session.sql(  # type: ignore[attr-defined]
        f"MERGE INTO delta.`{target}` t USING changes s ON t.id = s.id WHEN MATCHED AND s._deleted THEN DELETE "
        f"WHEN MATCHED THEN UPDATE SET {', '.join(f't.{name} = s.{name}' for name in columns)} "
        f"WHEN NOT MATCHED THEN INSERT ({', '.join(columns)}) VALUES ({', '.join(f's.{name}' for name in columns)})"
    ).collect()


if __name__ == "__main__":
    main(sys.argv[1])
