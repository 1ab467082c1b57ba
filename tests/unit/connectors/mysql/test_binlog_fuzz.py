"""A share of the suite ``fuzz``: damaged binlogs give the rows before the damage, then a named error, at once."""

from __future__ import annotations

import os

from tests.fuzz import binlog


def test_damaged_binlogs_are_named_errors_and_never_wrong_rows() -> None:
    # In CI the same mutations every time; here others each day would be noise in somebody's change.
    count = int(os.environ.get("RAYCDC_FUZZ_MUTATIONS", "1500"))

    done, findings = binlog.run(0, count, workers=2)

    assert findings == []
    assert done >= count


def test_what_was_found_once_is_not_found_again() -> None:
    """Events gone from between partial updates, table maps without collation or columns, nothing left to damage."""
    for mutation in (6214, 52246, 53497, 16122, 24423):
        binlog.check_one(mutation)
