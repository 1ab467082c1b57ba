"""What a lookup remembers, and what it lets go of."""

from __future__ import annotations

import pyarrow as pa

from raycdc.delivery.lookup.queries import KEY, Cache


def test_the_newest_that_there_is_room_for_are_remembered() -> None:
    def add(number: int, size: int) -> None:
        asked = pa.array([number])
        cache.add(asked, pa.table({KEY: asked, "text": ["x" * size]}), since=0.0)

    def known() -> list[int]:
        documents, _ = cache.known(pa.array(range(10)))
        return [] if documents is None else documents.column(KEY).to_pylist()

    cache = Cache(rows_max=3, ttl_s=60.0, bytes_max=10_000, clock=lambda: 1.0)
    for number in range(4):
        add(number, 10)
    assert known() == [1, 2, 3]
    add(4, 9_950)
    assert known() == [4]
    add(5, 20_000)
    assert known() == []
    add(6, 10)
    assert known() == [6]
