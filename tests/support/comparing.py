"""Compares a job's lake with its source, for tests of whole runs into Delta.

`raycdc.sandbox.compare` reads both sides without raycdc's own connector.
"""

from __future__ import annotations

from raycdc.sandbox.compare import compare_lake, read_delta, read_source
from tests.support.jobs import Job


def differences(job: Job, *tables: str) -> list[str]:
    """Return the differences of `tables` (default: all of the job) by columns and rows; empty if they are equal."""
    names = [(job.database, table) for table in tables or job.tables]
    with job.server.connect() as connection:
        results = compare_lake(connection, job.lake, names)
    return [problem for result in results for problem in result.problems]


def lake_is_equal(job: Job, *tables: str) -> bool:
    return not differences(job, *tables)


def require_lake_equal(job: Job, *tables: str) -> None:
    """Raise `AssertionError` with the differences, if there are any."""
    assert differences(job, *tables) == []


def require_rows_equal(job: Job, *tables: str) -> None:
    """Raise `AssertionError` if the rows differ in the columns that source and lake both have.

    Columns that the source dropped, or that another user added to the lake, are ignored.
    """
    for table in tables:
        with job.server.connect() as connection:
            lake = read_delta(job.lake / job.database / table)
            source = read_source(connection, job.database, table, like=lake.schema)
        held = lake.select(source.column_names).sort_by("id").to_pylist()
        assert held == source.sort_by("id").to_pylist(), table
