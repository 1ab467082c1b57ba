"""A reader lets go of a partition at its next cut, and answers for what it does not have at once."""

from __future__ import annotations

import pytest

from raycdc.errors import ProtocolError
from raycdc.source.partitions.partition_source_reader import PartitionSet
from raycdc.source.protocol.source_event import Message, SplitsAdded, SplitsRemoved
from raycdc.source.split import PartitionSplit
from raycdc.state.opaque import SealedSplit


def at(position: int) -> SealedSplit:
    return SealedSplit.from_json({"position": position})


class Reader:
    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.closed: list[list[int]] = []
        self.partitions: PartitionSet[list[int]] = PartitionSet(
            self.sent.append,
            open_split=lambda split, _: [split.state.to_json()["position"]],
            state_of=lambda cursor: at(cursor[0]),
            close_split=self.closed.append,
        )
        self.partitions.add([PartitionSplit(name, at(5)) for name in ("a", "b")])


def test_what_somebody_wants_back_is_read_no_more_but_reported_once_more() -> None:
    reader = Reader()
    cursors = dict(reader.partitions.active())
    cursors["a"][0] = 8
    reader.partitions.remove(["a"])
    assert [name for name, _ in reader.partitions.active()] == ["b"]
    assert reader.partitions.wants_seal
    assert reader.partitions.states() == {"a": at(8), "b": at(5)}
    reader.partitions.after_cut()
    assert reader.sent == [SplitsAdded(("a", "b")), SplitsRemoved({"a": at(8)})]
    assert reader.partitions.states() == {"b": at(5)}
    assert reader.closed == [[8]]
    assert not reader.partitions.wants_seal


def test_what_the_reader_does_not_have_is_answered_at_once_and_a_cut_says_nothing_more() -> None:
    reader = Reader()
    reader.partitions.remove(["gone"])
    reader.partitions.after_cut()
    assert reader.sent[1:] == [SplitsRemoved({"gone": None})]


def test_a_partition_given_twice_is_a_bug_and_named() -> None:
    with pytest.raises(ProtocolError, match="a was given to its own reader"):
        Reader().partitions.add([PartitionSplit("a", at(0))])


def test_what_was_fetched_for_an_earlier_addition_is_of_no_split() -> None:
    reader = Reader()
    assert reader.partitions.read("a", 1) == [5]
    reader.partitions.remove(["a"])
    assert reader.partitions.read("a", 1) is None
    reader.partitions.after_cut()
    reader.partitions.add([PartitionSplit("a", at(5))])
    assert (reader.partitions.read("a", 1), reader.partitions.read("a", 3)) == (None, [5])
