"""Spark's Python daemon without a slow call. Spark starts it because of the setting ``spark.python.daemon.module``.

Each task of pyspark 4.1 calls `importlib.invalidate_caches`, which reads the directories of all zip files on `sys.path`
again: about 100 ms per task. The call is not needed, because `sys.path` does not change while a pipeline runs.
"""

from __future__ import annotations

import zipimport


def _keep(_importer: zipimport.zipimporter) -> None:
    """Do nothing; replaces `zipimporter.invalidate_caches`."""


def main() -> None:
    """Serve forked workers until Spark closes the pipe."""
    setattr(zipimport.zipimporter, "invalidate_caches", _keep)  # noqa: B010 - the stub forbids a plain assignment
    # Modules that stage tasks need, imported once here and inherited by every forked worker.
    import pyarrow
    import pyspark.daemon

    import raycdc.sinks.tasks
    import raycdc.spark.stage  # noqa: F401

    # Converting the first list makes pyarrow import pandas, which users' functions may need.
    pyarrow.array([0])
    pyspark.daemon.manager()  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
