"""A chunk reader's pace, with a clock that stands still between batches."""

from __future__ import annotations

from raycdc.connectors.mysql.snapshot.chunk_reader import ConnectionRateLimiter


def test_rows_take_their_time_and_pauses_are_not_saved_up() -> None:
    now = [100.0]
    pace = ConnectionRateLimiter(1000, now_s=lambda: now[0])
    pace.end()  # Nothing really waits in this test.
    assert pace.passed(500) == 0.5
    assert pace.passed(500) == 1.0
    now[0] = 200.0
    assert pace.passed(250) == 0.25
