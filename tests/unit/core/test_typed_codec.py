"""Dataclasses are written and read by their type hints, and what cannot be read is named with the path to it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, NamedTuple

import pytest

from raycdc.core.typed_codec import (
    LEFT_OUT,
    NOWHERE,
    PACKED,
    SPREAD,
    CodecError,
    JsonObject,
    JsonText,
    NamedUnion,
    read,
    stored,
)


class Color(StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, order=True)
class Name(JsonText):
    text: str

    def __str__(self) -> str:
        return self.text

    @classmethod
    def parse(cls, text: str) -> Name:
        return cls(text)


class Pair(NamedTuple):
    low: int = 0
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Tree(JsonObject):
    leaves: Mapping[str, Any] = field(default_factory=dict, metadata=LEFT_OUT)
    inside: Mapping[str, Tree] = field(default_factory=dict, metadata=LEFT_OUT)


@dataclass(frozen=True, slots=True)
class Place(JsonObject):
    db: str
    table: str


@dataclass(frozen=True, slots=True)
class Everything(JsonObject):
    """One field of every kind."""

    number: int
    text: str | None
    color: Color
    vectors: Mapping[Name, tuple[int, int]]
    key: str | tuple[str, ...] | None
    place: Place = field(metadata=SPREAD)
    listed: Sequence[str] = ()
    pair: Pair = field(default=Pair(), metadata=LEFT_OUT)
    tree: Tree = field(default_factory=Tree, metadata=stored("forest"))
    unsaved: int = field(default=3, metadata=NOWHERE)
    ratio: float = field(default=1.5, metadata=LEFT_OUT)
    since: int = field(default=9, metadata=stored(older=0))
    names: frozenset[Name] = field(default=frozenset(), metadata=stored(left_out=True, before="ratio"))

    written_first = ("version",)

    @property
    def version(self) -> int:
        return 2 if self.names else 1


FULL = Everything(
    1,
    None,
    Color.RED,
    {Name("q"): (1, 2)},
    ("a", "b"),
    Place("d", "t"),
    ["x"],
    Pair(3),
    Tree({"u": 1}, {"v": Tree({"z": 2})}),
    ratio=2.0,
    names=frozenset([Name("n"), Name("m")]),
)
WRITTEN = {
    "version": 2,
    "number": 1,
    "text": None,
    "color": "red",
    "vectors": {"q": [1, 2]},
    "key": ["a", "b"],
    "db": "d",
    "table": "t",
    "listed": ["x"],
    "pair": [3, None],
    "forest": {"leaves": {"u": 1}, "inside": {"v": {"leaves": {"z": 2}}}},
    "names": ["m", "n"],
    "ratio": 2.0,
    "since": 9,
}


def test_an_object_has_its_fields_in_their_order_under_their_names() -> None:
    assert json.dumps(FULL.to_json()) == json.dumps(WRITTEN)
    assert Everything.from_json(json.loads(json.dumps(WRITTEN))) == FULL


def test_a_default_is_left_out_and_a_missing_key_of_an_older_document_has_its_value() -> None:
    small = Everything(1, "x", Color.BLUE, {}, "k", Place("d", "t"))
    document = small.to_json()
    assert not {"pair", "ratio", "names", "unsaved"} & document.keys()
    del document["since"]
    read_again = Everything.from_json(document)
    assert (read_again.since, read_again.unsaved, read_again.pair) == (0, 3, Pair())


@pytest.mark.parametrize(
    ("path", "value", "complaint"),
    [
        (["number"], "s", "number: expected an integer, found a string"),
        (["number"], True, "number: expected an integer, found a boolean"),
        (["vectors", "q"], [1], r"vectors\['q'\]: expected 2 values, found 1"),
        (["vectors", "q"], [1, "2"], r"vectors\['q'\]\[1\]: expected an integer, found a string"),
        (["vectors"], [], "vectors: expected an object, found an array"),
        (["forest", "inside", "v"], 3, r"forest.inside\['v'\]: expected an object, found an integer"),
        (["color"], "green", "color: 'green' is not a valid Color"),
        (["key"], {}, "key: expected a string or an array, found an object"),
        (["key"], [1], r"key\[0\]: expected a string, found an integer"),
        (["listed"], ["a", 2], r"listed\[1\]: expected a string, found an integer"),
        (["db"], None, "db: expected a string, found null"),
        (["pair"], [1, 2, 3], "pair: Pair has 3 fields instead of 2"),
    ],
)
def test_a_value_of_another_type_is_named_with_its_path(path: list[str], value: Any, complaint: str) -> None:
    document = json.loads(json.dumps(WRITTEN))
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    inner[path[-1]] = value
    with pytest.raises(CodecError, match=f"^{complaint}$"):
        Everything.from_json(document)


@pytest.mark.parametrize("key", ["number", "forest", "table"])
def test_a_key_that_is_missing_is_named(key: str) -> None:
    with pytest.raises(CodecError, match=f"^{key}: it is missing$"):
        Everything.from_json({name: value for name, value in WRITTEN.items() if name != key})


@dataclass(frozen=True, slots=True)
class Closed(JsonObject):
    a: int = field(default=0, metadata=LEFT_OUT)

    refuses_unknown_keys = True
    interned_max = 8


def test_an_unknown_key_is_refused_where_a_class_is_closed() -> None:
    with pytest.raises(CodecError, match="Closed has no such keys: b"):
        Closed.from_json({"a": 1, "b": 2})
    assert Everything.from_json({**WRITTEN, "b": 2}) == FULL


def test_equal_values_of_an_interned_class_are_one_object() -> None:
    assert Closed.from_json({"a": 5}) is Closed.from_json({"a": 5})


@dataclass(frozen=True, slots=True)
class Versioned(JsonObject):
    a: int

    @classmethod
    def from_json(cls, data: Any) -> Versioned:
        if data["version"] != 1:
            raise ValueError("it is of a newer version")
        return read(cls, data)  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Holder(JsonObject):
    of: Versioned


def test_a_class_may_check_a_document_before_it_is_read() -> None:
    assert Holder.from_json({"of": {"version": 1, "a": 2}}) == Holder(Versioned(2))
    with pytest.raises(CodecError, match="of: it is of a newer version"):
        Holder.from_json({"of": {"version": 2, "a": 2}})


@dataclass(frozen=True, slots=True)
class Row:
    table: Name
    counts: Mapping[str, Pair] = field(metadata=PACKED)


def test_another_dataclass_is_a_list_and_a_union_has_the_name_first() -> None:
    union = NamedUnion(lambda: {"Row": Row, "Closed": Closed}, "thing")
    row = Row(Name("t"), {"a": Pair(1, 2)})
    assert union.write(row) == ["Row", "t", {"a": bytes([0x92, 1, 2])}]
    assert union.read(union.write(row)) == row
    assert union.write(Closed(3)) == ["Closed", {"a": 3}]
    assert union.read(["Closed", {"a": 3}]) == Closed(3)
    with pytest.raises(CodecError, match="Unknown thing 'Dance'"):
        union.read(["Dance"])
    with pytest.raises(CodecError, match=r"Row\.counts: expected an object, found null"):
        union.read(["Row", "t", None])
