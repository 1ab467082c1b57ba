"""Values as JSON text: every digit of any moment, and what lines cannot tell apart."""

from __future__ import annotations

import pyarrow as pa
import pytest

from raycdc.model import Column, LogicalType, TableSchema, TypeKind
from raycdc.model.json_text import timestamp_text
from raycdc.sinks.tasks import json_lines

#: Microseconds from 1970-01-01 to 10000-01-01, and to 1 January of the year −44.
LATE, EARLY = 253_402_300_800_000_000, -63_555_667_200_000_000


@pytest.mark.parametrize(
    ("fsp", "ends"), [(0, ":00"), (1, ":00.1"), (3, ":00.123"), (4, ":00.1234"), (6, ":00.123456")]
)
def test_years_of_five_digits_and_before_the_first_keep_their_fraction(fsp: int, ends: str) -> None:
    texts = timestamp_text(pa.array([123456, LATE + 123456, EARLY + 123456, None], pa.timestamp("us")), fsp).to_pylist()
    assert texts[3] is None
    assert texts[0] == f"1970-01-01 00:00{ends}"
    assert all(text.endswith(ends) for text in texts[:3]), texts
    assert "10000-01-01 00:00" in texts[1]


def test_json_null_and_null_are_told_apart_by_arrow_and_not_by_lines() -> None:
    """As the manual's page about targets says."""
    schema = TableSchema((Column("j", LogicalType(TypeKind.JSON)),))
    batch = pa.record_batch({"j": pa.array(["null", None, '{"a": null}'])})
    assert batch["j"].is_null().to_pylist() == [False, True, False]
    assert json_lines(batch, schema).to_pybytes().splitlines() == [b'{"j":null}', b'{"j":null}', b'{"j":{"a": null}}']
