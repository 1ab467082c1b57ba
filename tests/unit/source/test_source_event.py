"""Messages survive the wire unchanged; what is not a message is named."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from raycdc.connectors.kafka.events import EnumeratorEvent, ReaderEvent
from raycdc.errors import ProtocolError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.view import RowView
from raycdc.source.protocol import source_event
from raycdc.source.protocol.source_event import (
    Message,
    SealEpoch,
    SourceEvent,
    SourceEventWrapper,
    decode,
    encode,
    pack,
    unpack,
)
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.chunk_events import ChunkLocked, ChunkReaderEvent, LogEvent, ResnapshotBegan
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.tables.table_life import SnapshotState
from raycdc.state.manifests.manifest import UnknownChange
from raycdc.state.manifests.sealed_state import Patch
from raycdc.state.missing import MissingRow, MissingState
from raycdc.state.opaque import LogNotes, Opaque, Position, SealedSplit

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


names = st.text(st.sampled_from("abc_"), min_size=1, max_size=8)
column_types = st.sampled_from([LogicalType(TypeKind.INT64), LogicalType(TypeKind.STRING)])
schemas = st.lists(st.builds(Column, names, column_types), max_size=3).map(lambda cs: TableSchema(tuple(cs), ()))


bounds = st.lists(st.tuples(st.none() | values, values), max_size=2).map(tuple)
times = st.integers(0, 2**63 - 1)
missing = st.lists(st.builds(MissingRow, st.builds(TableId, names, names), key=names, ts_ms=times), max_size=2).map(
    tuple
)

#: Changes of a later version, before all that are known.
unknown_changes = st.lists(st.dictionaries(st.text(max_size=5), values, max_size=3), max_size=2).map(
    lambda changes: tuple(
        UnknownChange(index, Opaque.from_json({**change, "type": "fold_table"})) for index, change in enumerate(changes)
    )
)


objects = st.dictionaries(st.text(max_size=5), values, max_size=3)
gone = st.lists(st.text(max_size=5), max_size=2).map(tuple)
patches = st.builds(Patch, objects, gone, st.dictionaries(names, st.builds(Patch, objects, gone), max_size=2))


def in_one_state(state: StreamState) -> StreamState:
    """A table that catches up stands among the parked ones in a document, and is none of them."""
    there = {table: entry for table, entry in state.catching_up.items() if table not in state.parked}
    return dataclasses.replace(state, catching_up=there)


def field_values(hint: Any) -> st.SearchStrategy[Any]:
    """Values of a field's type, as deep as it goes."""
    origin, arguments = get_origin(hint), get_args(hint)
    simple: dict[Any, st.SearchStrategy[Any]] = {
        Any: values,
        int: st.integers(-(2**63), 2**63 - 1),
        bool: st.booleans(),
        float: st.floats(allow_nan=False),
        str: st.text(max_size=8),
        bytes: st.binary(max_size=8),
        type(None): st.none(),
        TableId: st.builds(TableId, names, names),
        TableSchema: schemas,
        RowView: st.nothing(),
        SchemaDocument: st.dictionaries(st.text(max_size=5), values, max_size=3).map(
            lambda own: SchemaDocument.from_json({**own, "fingerprint": "f"})
        ),
        # Beside None, which is their absence on the wire: codecs write a position as anything else, a state as a map.
        Position: st.builds(Position, values.filter(lambda value: value is not None)),
        SealedSplit: st.builds(SealedSplit, st.dictionaries(st.text(max_size=5), values, max_size=3)),
        tuple[UnknownChange, ...]: unknown_changes,
        Patch: patches.filter(lambda patch: all(patch.inside.values())),
        LogNotes: st.builds(LogNotes, st.dictionaries(st.text(max_size=5), values, max_size=3)),
        SnapshotState: st.builds(SnapshotState, st.none() | names, st.booleans(), st.booleans(), st.booleans(), bounds),
        StreamState: st.deferred(lambda: dataclass_values(StreamState).map(in_one_state)),
        MissingState: st.just(MissingState()) | st.builds(MissingState, st.integers(1, 99), missing),
        SourceEvent: st.deferred(lambda: st.one_of(*(dataclass_values(kind) for kind in EVENTS))),
    }
    if hint in simple:
        return simple[hint]
    if origin is tuple:
        return st.lists(field_values(arguments[0]), max_size=3).map(tuple)
    if origin in (dict, Mapping):
        return st.dictionaries(field_values(arguments[0]), field_values(arguments[1]), max_size=3)
    if origin is types.UnionType:
        return st.one_of(*(field_values(argument) for argument in arguments))
    if issubclass(hint, Enum):
        return st.sampled_from(hint)
    return dataclass_values(hint)


def dataclass_values(kind: Any) -> st.SearchStrategy[Any]:
    hints = get_type_hints(kind)
    return st.builds(kind, **{field.name: field_values(hints[field.name]) for field in dataclasses.fields(kind)})


EVENTS = [
    ResnapshotBegan,
    ChunkLocked,
    *get_args(LogEvent),
    *get_args(ChunkReaderEvent),
    *get_args(EnumeratorEvent),
    *get_args(ReaderEvent),
]
messages = st.one_of(*(dataclass_values(kind) for kind in get_args(Message)))


@given(messages)
def test_every_message_survives_the_wire(message: Message) -> None:
    assert decode(unpack(pack(encode(message)))) == message


def test_every_message_of_the_page_is_in_its_table() -> None:
    table = source_event.__doc__ or ""
    assert [kind.__name__ for kind in get_args(Message) if f"| `{kind.__name__}` |" not in table] == []


@pytest.mark.parametrize("kind", EVENTS)
def test_every_source_event_survives_the_wire(kind: type[SourceEvent]) -> None:
    @given(dataclass_values(kind))
    @settings(max_examples=20)
    def survives(event: SourceEvent) -> None:
        message = SourceEventWrapper(event)
        assert decode(unpack(pack(encode(message)))) == message

    survives()


def test_every_source_event_of_the_built_in_connectors_is_tried() -> None:
    ours = {kind for kind in SourceEvent.members().values() if kind.__module__.startswith("raycdc.")}
    assert ours == set(EVENTS)


def test_two_source_events_of_one_name_are_refused_where_the_second_is_defined() -> None:
    def define() -> None:
        @dataclasses.dataclass(frozen=True)
        class StopAt(SourceEvent):
            ordinal: int

    with pytest.raises(TypeError, match="both define the source event StopAt"):
        define()


def test_an_unknown_source_event_is_named() -> None:
    with pytest.raises(ProtocolError, match=r"SourceEventWrapper\.event: Unknown SourceEvent 'Dance'"):
        decode(["SourceEventWrapper", ["Dance", 1]])


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (["SealEpoch", "7"], "SealEpoch.epoch: expected an integer, found a string"),
        (["SealEpoch", True], "SealEpoch.epoch: expected an integer, found a boolean"),
        (["SplitsAdded", "ab"], "SplitsAdded.split_ids: expected an array, found a string"),
        (["SplitsRemoved", []], "SplitsRemoved.states: expected an object, found an array"),
        (["SourceEventWrapper", ["ChunkVoided", ["d.t", "s", 0], "why", "burnt"]], "ChunkVoided.fate: 'burnt'"),
    ],
)
def test_a_field_of_another_type_is_named(data: list[Any], complaint: str) -> None:
    with pytest.raises(ProtocolError, match=complaint):
        decode(data)


def test_an_unknown_message_is_named() -> None:
    with pytest.raises(ProtocolError, match="Unknown message 'Surprise'"):
        decode(["Surprise", 1])


def test_a_message_with_fields_too_many_is_named() -> None:
    with pytest.raises(ProtocolError, match="SealEpoch has 2 fields instead of 1"):
        decode([*encode(SealEpoch(1)), 2])


@pytest.mark.parametrize("data", [None, [], "SealEpoch", [1, 2], {"type": "SealEpoch"}])
def test_what_is_no_message_at_all_is_a_protocol_error(data: Any) -> None:
    with pytest.raises(ProtocolError, match="must be"):
        decode(data)
