"""Messages survive the wire unchanged; what is not a message is named."""

from __future__ import annotations

import dataclasses
import types
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycdc.errors import ProtocolError
from raycdc.source import source_event
from raycdc.source.source_event import Message, SealEpoch, decode, encode, pack, unpack

values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.text(max_size=8) | st.binary(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


def field_values(hint: Any) -> st.SearchStrategy[Any]:
    origin = get_origin(hint)
    if hint is Any:
        return values
    if origin is tuple:
        return st.lists(field_values(get_args(hint)[0]), max_size=3).map(tuple)
    if origin is dict:
        return st.dictionaries(st.text(max_size=5), field_values(get_args(hint)[1]), max_size=3)
    if origin is types.UnionType:
        return st.one_of(*(field_values(arg) for arg in get_args(hint)))
    simple: dict[Any, st.SearchStrategy[Any]] = {
        int: st.integers(-(2**63), 2**63 - 1),
        bool: st.booleans(),
        str: st.text(max_size=8),
        type(None): st.none(),
    }
    return simple[hint]


@st.composite
def messages(draw: st.DrawFn) -> Message:
    kind = draw(st.sampled_from(get_args(Message)))
    hints = get_type_hints(kind)
    message: Message = kind(*(draw(field_values(hints[f.name])) for f in dataclasses.fields(kind)))
    return message


@given(messages())
def test_every_message_survives_the_wire(message: Message) -> None:
    assert decode(unpack(pack(encode(message)))) == message


def test_every_message_of_the_page_is_in_its_table() -> None:
    table = source_event.__doc__ or ""
    assert [kind.__name__ for kind in get_args(Message) if f"| `{kind.__name__}` |" not in table] == []


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
