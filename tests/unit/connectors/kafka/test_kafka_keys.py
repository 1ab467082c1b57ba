"""A key that comes from two partitions is found, across readers and epochs."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycdc.connectors.kafka.enumeration.keys import KeyOwners, NewKeys
from raycdc.errors import DataError
from raycdc.model import TableId, key_hashes

TABLE = TableId("shop", "product")


def batch(ids: list[int], names: list[str | None]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array(ids, pa.int64()), pa.array(names)], ["id", "name"])


def tell(owners: KeyOwners, reader: NewKeys) -> int:
    """Hand over what a reader has to say; how many keys that was."""
    events = reader.take()
    for event in events:
        owners.add(event.table, event.split_id, event.hashes, all_reported=event.all_reported)
    return sum(len(event.hashes) // 8 for event in events)


def test_hashes_tell_keys_apart_column_by_column() -> None:
    found = key_hashes(batch([1, 1, 2, 1], ["a", "b", "a", None]), ["id", "name"])
    assert len(set(found.tolist())) == 4
    assert found.tolist() == key_hashes(batch([1, 1, 2, 1], ["a", "b", "a", None]), ["id", "name"]).tolist()


def test_a_key_in_two_partitions_is_refused_whoever_reads_them() -> None:
    owners, one, other = KeyOwners(), NewKeys(), NewKeys()
    one.read(TABLE, "m:0", key_hashes(batch([1, 2, 2], ["", "", ""]), ["id"]))
    other.read(TABLE, "m:1", key_hashes(batch([3], [""]), ["id"]))
    assert (tell(owners, one), tell(owners, other)) == (2, 1)
    one.read(TABLE, "m:0", key_hashes(batch([2], [""]), ["id"]))
    assert tell(owners, one) == 0
    other.read(TABLE, "m:1", key_hashes(batch([2], [""]), ["id"]))
    with pytest.raises(DataError, match=r"shop.product lie in two partitions, m:0 and m:1.*same_key"):
        tell(owners, other)


def test_the_partition_may_change_its_reader() -> None:
    owners = KeyOwners()
    for _ in range(2):
        reader = NewKeys()
        reader.read(TABLE, "m:0", key_hashes(batch([1], [""]), ["id"]))
        tell(owners, reader)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40)), max_size=60))
def test_exactly_the_keys_of_two_partitions_are_found(reads: list[tuple[int, int]]) -> None:
    owners, reader, homes = KeyOwners(), NewKeys(), dict[int, int]()
    for partition, key in reads:
        reader.read(TABLE, f"m:{partition}", np.array([key * 7919], np.uint64))
        if homes.setdefault(key, partition) != partition:
            with pytest.raises(DataError):
                tell(owners, reader)
            return
        tell(owners, reader)


def test_there_is_a_limit_to_what_is_remembered() -> None:
    owners, reader = KeyOwners(keys_max=3), NewKeys()
    reader.read(TABLE, "m:0", np.arange(4, dtype=np.uint64))
    tell(owners, reader)
    assert owners.full == {"shop.product"}


def test_a_reader_remembers_no_more_than_its_limit_and_says_that_it_stopped() -> None:
    owners, reader = KeyOwners(), NewKeys(keys_max=4, all_keys_max=6)
    other = TableId("shop", "orders")
    reader.read(TABLE, "m:0", np.arange(3, dtype=np.uint64))
    reader.read(other, "m:0", np.arange(3, dtype=np.uint64))
    assert (tell(owners, reader), owners.full) == (6, set())
    reader.read(other, "m:0", np.arange(5, dtype=np.uint64))
    assert (tell(owners, reader), owners.full) == (2, {"shop.orders"})
    reader.read(other, "m:0", np.arange(9, dtype=np.uint64))
    reader.read(TABLE, "m:0", np.arange(4, dtype=np.uint64))
    assert (tell(owners, reader), owners.full) == (1, {"shop.orders"})
