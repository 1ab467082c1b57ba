"""``python -m raycdc.spark.make_class_archive``: make the archive of classes for
`raycdc.spark.session`, once per machine.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from raycdc.core.trusted_files import is_own, make_own_folder
from raycdc.spark.session import archive_path, check_java, delta_jars, spark_session
from raycdc.spark.stage import SparkTaskRunner

#: The JVM writes the archive when it ends, which takes some seconds, or longer on a busy machine.
_DUMP_TIMEOUT_S = 300.0


def build() -> Path:
    """Make the archive unless it exists: run a typical pipeline's work in a session whose JVM writes the archive at its
    end.
    """
    java = check_java()
    path = archive_path(java, delta_jars())
    if is_own(path):
        return path
    make_own_folder(path.parent)
    with tempfile.TemporaryDirectory(prefix="raycdc-classes-", dir=path.parent) as scratch:
        written = Path(scratch, "classes.jsa")
        options = f"-XX:ArchiveClassesAtExit={written} -Djava.io.tmpdir={scratch}"
        session = spark_session("local[2]", Path(scratch), {"spark.driver.extraJavaOptions": options})
        _exercise(session, Path(scratch, "lake"))
        jvm: Any = session.sparkContext._gateway
        session.stop()
        jvm.shutdown()
        jvm.proc.stdin.close()
        jvm.proc.wait(_DUMP_TIMEOUT_S)
        written.chmod(0o600)
        written.rename(path)
    return path


def _exercise(session: Any, lake: Path) -> None:
    """Make Spark load the classes that pipelines use, by tasks in Python workers and a merge into a Delta table."""
    SparkTaskRunner(session).warm_up()
    rows = session.range(10)
    rows.write.format("delta").save(str(lake))
    rows.createOrReplaceTempView("changes")
    session.sql(
        f"MERGE INTO delta.`{lake}` t USING changes s ON t.id = s.id "
        "WHEN MATCHED THEN UPDATE SET t.id = s.id WHEN NOT MATCHED THEN INSERT (id) VALUES (s.id)"
    ).collect()


if __name__ == "__main__":
    build()
