"""What an inferred collection's columns become when its documents show more, and how the decoder tells that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import bson
import numpy as np
import pytest

from raycdc.connectors.mongodb.bson.decoder import DocumentDecoder
from raycdc.connectors.mongodb.layout import (
    CollectionLayout,
    OnConflict,
    OnTypeMismatch,
    Spelling,
    declared,
    parse_type,
)
from raycdc.connectors.mongodb.stream.drift import Widening, Widenings, added, kinds_of, widened
from raycdc.connectors.mongodb.stream.events import Scanner
from raycdc.connectors.mongodb.stream.followed import FollowedCollections
from raycdc.model import TableId
from raycdc.model.evolution.events import AddColumnEvent
from raycdc.model.rules.mask import Mask, Masks
from raycdc.source.snapshot.log.log_unit import AlterTableUpdate
from raycdc.source.tables.parked_tables import ParkingSetup
from raycdc.source.tables.resnapshots import StatementPosition
from raycdc.state.opaque import Position
from raycdc.transform.target_rules import TargetRules

ORDERS = TableId("shop", "orders")


def layout(**types: str) -> CollectionLayout:
    listed = {name: parse_type(text) for name, text in {"_id": "long", **types}.items()}
    return declared(listed, json=Spelling.RELAXED, on_type_mismatch=OnTypeMismatch.REST)


def how(on_conflict: OnConflict = OnConflict.UNION, most: int = 10, **rules: Any) -> Widening:
    return Widening(most, on_conflict, TargetRules(**rules))


def met(decoder: DocumentDecoder, *documents: dict[str, Any]) -> tuple[list[dict[str, Any]], dict[str, set[str]]]:
    """Rows of documents, and what was met for the first time in them."""
    raw = [bson.encode(document) for document in documents]
    places = np.cumsum([0, *map(len, raw)])[:-1]
    data = b"".join(raw)
    rows = [row for batch in decoder.decode_at(data, places) for row in batch.to_pylist()]
    return rows, kinds_of(decoder.met(data))


def names(found: CollectionLayout) -> dict[str, str]:
    return {column.name: column.type.native for column in found.columns}


def test_each_name_and_type_without_a_column_is_told_once() -> None:
    decoder = DocumentDecoder(layout(n="long"), collection="shop.orders", watched=True)
    one = {"_id": 1, "n": 1, "city": "Rome", "void": None}
    assert met(decoder, one, one, {"_id": 2, "n": 2.0, "city": bson.Int64(3)})[1] == {"city": {"string", "long"}}
    assert met(decoder, one, {"_id": 3, "n": 3.5})[1] == {"n": {"double"}}
    rows, more = met(decoder, one, {"_id": 3, "n": 4.5})
    assert (rows[1]["_rest"], more) == ('{"n":4.5}', {})
    unwatched = DocumentDecoder(layout(), collection="shop.orders")
    assert met(unwatched, one)[1] == {}


def test_names_without_end_are_not_told_without_end() -> None:
    decoder = DocumentDecoder(layout(), collection="shop.orders", watched=True)
    found: set[str] = set()
    for first in range(0, 3000, 10):
        rows, more = met(decoder, {"_id": first, **{f"key{first + n}": n for n in range(10)}})
        assert rows[0]["_rest"].count("key") == 10
        found |= more.keys()
    assert decoder.met_all
    assert len(found) == 1024


def test_what_a_column_cannot_hold_is_in_the_one_beside_it() -> None:
    wide = widened(ORDERS, layout(n="long", at="date"), {"n": {"string"}}, how()).layout
    assert names(wide) == {"_id": "long", "n": "long", "at": "date", "_rest": "json", "n__other": "json"}
    assert CollectionLayout.from_document(wide.document()) == wide
    decoder = DocumentDecoder(wide, collection="shop.orders", watched=True)
    rows, more = met(
        decoder,
        {"_id": 1, "n": "one"},
        {"_id": 2, "n": {"a": [1.5]}, "at": 7},
        {"_id": 3, "n": 3, "n__other": 4},
        {"_id": 4, "n": None},
    )
    assert [(row["n"], row["n__other"], row["_rest"]) for row in rows] == [
        (None, '"one"', None),
        (None, '{"a":[1.5]}', '{"at":7}'),
        (3, None, '{"n__other":4}'),
        (None, None, None),
    ]
    assert more == {"at": {"long"}, "n__other": {"long"}}


def test_much_text_beside_a_column_is_whole() -> None:
    wide = widened(ORDERS, layout(n="long"), {"n": {"string"}}, how()).layout
    decoder = DocumentDecoder(wide, collection="shop.orders", watched=True)
    text = "ä" * 300_000
    rows, _ = met(decoder, *({"_id": n, "n": text} for n in range(5)))
    assert [row["n__other"] for row in rows] == [f'"{text}"'] * 5


def test_new_fields_come_last_with_the_type_of_their_values() -> None:
    before = layout(n="long")
    found = widened(ORDERS, before, {"a": {"long"}, "b": {"long", "double"}, "c": {"string", "bool"}}, how())
    assert names(found.layout) == {
        "_id": "long",
        "n": "long",
        "_rest": "json",
        "a": "long",
        "b": "double",
        "c": "json",
    }
    assert [event.column.name for event in added(ORDERS, before, found.layout) or ()] == ["a", "b", "c"]
    assert found.left == ()


@pytest.mark.parametrize("name", ["N", "_ID", "_op", "_rest", "a b", "", "x" * 64, "a.b"])
def test_names_that_targets_cannot_have_stay_in_the_rest(name: str) -> None:
    before = layout(n="long")
    found = widened(ORDERS, before, {name: {"long"}}, how())
    assert (found.layout, found.left) == (before, (name,))


def test_a_field_stays_in_the_rest_where_a_column_too_many_would_come() -> None:
    before = layout(n="long")
    found = widened(ORDERS, before, {"a": {"long"}, "b": {"long"}, "n": {"string"}}, how(most=3))
    assert (list(names(found.layout)), found.left) == (["_id", "n", "_rest", "a"], ("b", "n"))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (OnConflict.REST, {"n": "long", "x": "string"}),
        (OnConflict.TEXT, {"n": "json", "x": "string"}),
        (OnConflict.UNION, {"n": "long", "x": "string", "n__other": "json"}),
    ],
)
def test_a_conflict_is_the_policys(policy: OnConflict, expected: dict[str, str]) -> None:
    before = layout(n="long", x="string")
    found = widened(ORDERS, before, {"n": {"string"}}, how(policy))
    assert {name: text for name, text in names(found.layout).items() if not name.startswith("_")} == expected
    again = widened(ORDERS, found.layout, {"n": {"bool"}}, how(policy))
    assert again.layout == found.layout
    assert (added(ORDERS, before, found.layout) is None) is (policy is OnConflict.TEXT)


def test_no_column_beside_a_masked_one_shows_what_is_hidden() -> None:
    masks = Masks([Mask("shop.orders.phone", "drop")])
    before = layout(phone="string")
    assert widened(ORDERS, before, {"phone": {"long"}}, how(masks=masks)).left == ("phone",)
    both = Masks([Mask(r"shop\.orders\.phone.*", "drop")])
    assert widened(ORDERS, before, {"phone": {"long"}}, how(masks=both)).left == ()


def test_layouts_of_states_before_there_were_columns_beside_others_are_read() -> None:
    document = layout(n="long").document()
    assert "others" not in document.own("mongodb")
    assert CollectionLayout.from_document(document) == layout(n="long")
    assert replace(layout(n="long"), others=(("n", "x"),)).document().fingerprint != document.fingerprint


def test_a_collection_that_widens_all_the_time_does_so_less_often() -> None:
    now_s = 0.0
    followed = FollowedCollections(
        {ORDERS: layout()},
        captures=lambda _: True,
        terms=ParkingSetup({}),
        widenings=Widenings(lambda _: how(most=100), clock=lambda: now_s),
    )

    def changed(number: int) -> tuple[int, list[str]]:
        """A document with a field of its own: columns its row has at once, and those that are told behind it."""
        document = {"_id": number, f"field{number}": 1}
        event = {"operationType": "insert", "ns": {"db": "shop", "coll": "orders"}, "fullDocument": document}
        batch = Scanner(lambda _: True).scan(bson.encode({**event, "documentKey": {"_id": number}}))
        numbers = np.zeros(1, np.int64)
        again = True
        while again:
            writer = followed.writer(ORDERS)
            assert writer is not None
            (rows,) = writer.rows(batch.data, batch.events, numbers=numbers, ranks=numbers)
            again = followed.widen(ORDERS, batch.data, at_once=True)
        told = followed.widenings(StatementPosition(Position.unknown(), 1, 0))
        altered = [one.update for one in told if isinstance(one.update, AlterTableUpdate)]
        assert len(altered) == len(told)
        return rows.batch.num_columns, [
            e.column.name for update in altered for e in update.changes if isinstance(e, AddColumnEvent)
        ]

    begun, _ = changed(0)
    for number in range(1, 10):
        assert changed(number) == (begun + number, [f"field{number}"])
    for number in range(10, 13):
        now_s += 5
        assert changed(number) == (begun + 9, [])
    now_s += 60
    assert changed(13) == (begun + 13, ["field10", "field11", "field12", "field13"])
    assert changed(14) == (begun + 14, ["field14"])
