"""Statistics of Delta's files by their Parquet footers."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raycdc.model.arrays import beyond_calendar, python_rows, python_value
from raycdc.sinks.lakes.statistics import delta_statistics, for_table, properties

#: Days since 1970 of the ends of Python's calendar, of the year 0 and of the year 10000.
FIRST, LAST, YEAR_0, YEAR_10000 = -719162, 2932896, -719528, 2932897


def bounds(folder: Path, days: list[int | None]) -> tuple[object, object]:
    rows = pa.table({"d": pa.array(days, pa.int32()).cast(pa.date32()), "n": list(range(len(days)))})
    pq.write_table(rows, folder / "rows.parquet")
    told = delta_statistics(pq.read_metadata(folder / "rows.parquet"), rows.schema)
    found = json.loads(told)
    if "d" not in found["minValues"]:
        assert json.loads(for_table(told, properties(rows.schema))) == {"numRecords": len(days)}
    return found["minValues"].get("d"), found["maxValues"].get("d")


def test_days_have_bounds_as_dates(tmp_path: Path) -> None:
    assert bounds(tmp_path, [FIRST, None, LAST]) == ("0001-01-01", "9999-12-31")


@pytest.mark.parametrize("day", [YEAR_0, FIRST - 1, YEAR_10000])
def test_a_file_with_a_day_of_no_year_of_pythons_has_no_bounds(tmp_path: Path, day: int) -> None:
    assert bounds(tmp_path, [0, day]) == (None, None)


def test_values_that_python_lacks_are_their_text() -> None:
    days = pa.array([YEAR_0, FIRST, None], pa.int32()).cast(pa.date32())
    assert [python_value(day) for day in days][0::2] == ["0000-01-01", None]
    assert [row["d"] for row in python_rows(pa.table({"d": days}))] == ["0000-01-01", "0001-01-01", None]
    assert beyond_calendar(days)
    assert not beyond_calendar(days.slice(1))
    moments = pa.array([FIRST * 86_400_000_000 - 1], pa.int64()).cast(pa.timestamp("us"))
    assert beyond_calendar(moments)
