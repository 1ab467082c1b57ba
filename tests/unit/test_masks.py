"""Masks: values as readers write them, and what targets and later changes have of masked columns."""

from __future__ import annotations

import hashlib
import hmac

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycdc.bridge.masking import masked, masked_values
from raycdc.errors import ConfigError, SchemaError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind, lost_values, with_lost_values
from raycdc.model.mask import Mask, Masks
from raycdc.schema import AddColumnEvent, CreateTableEvent, DropColumnEvent, RenameColumnEvent
from raycdc.schema.events import AlterColumnTypeEvent, SchemaChangeEvent
from raycdc.transform.masked import masked_changes, masked_schema

PEOPLE = TableId("shop", "people")


@given(st.lists(st.none() | st.binary(max_size=300)), st.binary(max_size=100), st.integers(0, 3))
def test_hashes_are_those_of_the_standard_library(values: list[bytes | None], key: bytes, begin: int) -> None:
    array = pa.array(values, pa.binary())[begin:]
    expected = [None if v is None else hmac.new(key, v, hashlib.sha256).hexdigest() for v in values[begin:]]
    assert masked_values(array, Mask("a.b.c", "hash", key=key), "").to_pylist() == expected


SCHEMA = TableSchema(
    (
        Column("id", LogicalType(TypeKind.INT64), nullable=False),
        Column("email", LogicalType(TypeKind.STRING)),
        Column("born", LogicalType(TypeKind.DATE)),
        Column("note", LogicalType(TypeKind.JSON)),
        Column("seen", LogicalType(TypeKind.BINARY)),
    ),
    ("id",),
)
MASKS = Masks(
    [
        Mask("shop.people.EMAIL", "hash", key=b"k"),
        Mask(r"shop\..*\.born", "mask", 3),
        Mask(r"shop\.people\.(note|seen)", "truncate", 2),
        Mask(r".*\.secret", "drop"),
        Mask("shop.people.note", "drop"),
    ]
)


def test_a_batch_and_its_schema_are_masked_alike() -> None:
    schema = TableSchema((*SCHEMA.columns, Column("secret", LogicalType(TypeKind.STRING))), ("id",))
    batch = pa.RecordBatch.from_pydict(
        {
            "id": [1, 2],
            "email": ["a@b", None],
            "born": pa.array([0, None], pa.int32()).cast(pa.date32()),
            "note": ["äöü", "x"],
            "seen": [b"123", None],
            "secret": ["s", "s"],
            "_op": pa.array([0, 3], pa.int8()),
        }
    )
    got = masked(with_lost_values(batch, 3), PEOPLE, MASKS)
    digest = hmac.new(b"k", b"a@b", hashlib.sha256).hexdigest()
    assert got.to_pylist() == [
        {"id": 1, "email": digest, "born": "***", "note": "äö", "seen": b"12", "_op": 0},
        {"id": 2, "email": None, "born": None, "note": "x", "seen": None, "_op": 3},
    ]
    assert lost_values(got) == 3
    assert masked_schema(PEOPLE, schema, MASKS).arrow().equals(pa.schema(list(got.schema)[:-1]))
    assert masked(batch, TableId("other", "people"), Masks([MASKS.all[0]])) is batch


@pytest.mark.parametrize(("column", "text"), [("id", "belongs to the key"), ("born", 'method = "truncate" is for')])
def test_columns_that_cannot_be_masked_are_refused(column: str, text: str) -> None:
    with pytest.raises(ConfigError, match=rf"^mask: shop\.people\.{column}.* {text}"):
        masked_schema(PEOPLE, SCHEMA, Masks([Mask(f"shop.people.{column}", "truncate", 2)]))


def test_changes_of_masked_columns_show_what_the_masks_leave() -> None:
    secret, text = Column("secret", LogicalType(TypeKind.INT32)), LogicalType(TypeKind.STRING)
    number = LogicalType(TypeKind.INT64)
    changes: list[SchemaChangeEvent] = [
        CreateTableEvent(PEOPLE, SCHEMA),
        AddColumnEvent(PEOPLE, secret),
        AddColumnEvent(PEOPLE, Column("born", number)),
        AlterColumnTypeEvent(PEOPLE, "born", number),
        AlterColumnTypeEvent(PEOPLE, "secret", number),
        RenameColumnEvent(PEOPLE, "a", "b"),
        DropColumnEvent(PEOPLE, "secret"),
        DropColumnEvent(PEOPLE, "born"),
    ]
    assert masked_changes(PEOPLE, changes, MASKS) == [
        CreateTableEvent(PEOPLE, masked_schema(PEOPLE, SCHEMA, MASKS)),
        AddColumnEvent(PEOPLE, Column("born", text)),
        RenameColumnEvent(PEOPLE, "a", "b"),
        DropColumnEvent(PEOPLE, "born"),
    ]


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (RenameColumnEvent(PEOPLE, "email", "mail"), "'email' was renamed to 'mail', and mask has another"),
        (RenameColumnEvent(PEOPLE, "x", "secret"), "'x' was renamed to 'secret', and mask has another"),
        (AddColumnEvent(PEOPLE, Column("email", LogicalType(TypeKind.STRING), default="d")), "added with a default"),
    ],
)
def test_changes_that_would_show_what_was_hidden_are_refused(change: RenameColumnEvent, text: str) -> None:
    with pytest.raises(SchemaError, match=text):
        masked_changes(PEOPLE, [change], MASKS)


def test_keys_are_in_no_text_and_identities_tell_masks_apart() -> None:
    one, other = (Mask("shop.people.email", "hash", key=key) for key in (b"hidden key", b"other"))
    assert "hidden" not in repr(Masks([one]))
    assert Masks([one]).identity(PEOPLE) != Masks([other]).identity(PEOPLE)
    assert Masks([one]).identity(TableId("shop", "items")) == ""
