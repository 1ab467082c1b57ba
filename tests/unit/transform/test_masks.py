"""Masks: values as readers write them, and what targets and later changes have of masked columns."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raycdc.connectors.mysql.ddl.parse.tokens import shown
from raycdc.errors import ConfigError, SchemaError
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind, lost_values, with_lost_values
from raycdc.model.evolution import (
    AddColumnEvent,
    CreateTableEvent,
    DropColumnEvent,
    RenameColumnEvent,
    event_from_json,
    event_to_json,
)
from raycdc.model.evolution.events import AlterColumnTypeEvent, SchemaChangeEvent
from raycdc.model.redaction import without_values
from raycdc.model.rules.mask import Mask, Masks
from raycdc.transform.masks import (
    masked,
    masked_changes,
    masked_schema,
    masked_values,
    redacted_changes,
    redacted_schema,
)

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
        (RenameColumnEvent(PEOPLE, "email", "mail"), "'email' was renamed to 'mail', and mask has different entries"),
        (RenameColumnEvent(PEOPLE, "x", "secret"), "'x' was renamed to 'secret', and mask has different entries"),
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


def test_defaults_of_added_columns_are_masked_once_as_the_rows_that_have_them() -> None:
    text, date, dropped = (LogicalType(kind) for kind in (TypeKind.STRING, TypeKind.DATE, TypeKind.INT32))
    changes: list[SchemaChangeEvent] = [
        AddColumnEvent(PEOPLE, Column("email", text, default="a@b")),
        AddColumnEvent(PEOPLE, Column("born", date, default="2001-02-03")),
        AddColumnEvent(PEOPLE, Column("note", text, default="äöü")),
        AddColumnEvent(PEOPLE, Column("secret", dropped, default="5")),
        AddColumnEvent(PEOPLE, Column("shown", text, default="x")),
    ]
    hidden = redacted_changes(PEOPLE, changes, MASKS)
    defaults = [event.column.default for event in hidden if isinstance(event, AddColumnEvent)]
    assert defaults == [hmac.new(b"k", b"a@b", hashlib.sha256).hexdigest(), "***", "äö", None, "x"]
    there_and_back = [event_from_json(json.loads(json.dumps(event_to_json(event)))) for event in hidden]
    assert redacted_changes(PEOPLE, there_and_back, MASKS) == hidden
    # What a target gets, of events that a state has had and of others.
    assert masked_changes(PEOPLE, there_and_back, MASKS) == masked_changes(PEOPLE, changes, MASKS)
    assert masked_changes(PEOPLE, changes, MASKS) == [
        AddColumnEvent(PEOPLE, Column(name, text, default=default))
        for name, default in zip(("email", "born", "note", "shown"), (*defaults[:3], "x"), strict=True)
    ]
    wrong = AddColumnEvent(PEOPLE, Column("born", date, default="never"))
    # It is refused where targets are, which parks the table, and the state does not have it.
    [refused] = redacted_changes(PEOPLE, [wrong], MASKS)
    assert "never" not in json.dumps(event_to_json(refused))
    for change in (wrong, refused):
        with pytest.raises(SchemaError, match="'born' was added with a default that cannot be masked"):
            masked_changes(PEOPLE, [change], MASKS)


def test_schemas_in_the_state_have_no_default_that_a_mask_hides() -> None:
    columns = tuple(replace(column, default="5") for column in SCHEMA.columns)
    hidden = redacted_schema(PEOPLE, replace(SCHEMA, columns=columns), MASKS)
    assert [column.default for column in hidden.columns] == ["5", None, None, None, None]
    assert masked_schema(PEOPLE, replace(SCHEMA, columns=columns), MASKS).columns[1].default is None


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE t ADD c TEXT DEFAULT 'a planted value'",
        "INSERT INTO t (`5`) VALUES ('it''s a planted value', 12345, \"a planted value\")",
        "UPDATE t SET c = 'a  planted\n value' WHERE d = 12345.5e3",
    ],
)
def test_reasons_quote_statements_without_their_values(statement: str) -> None:
    text = without_values(f"near 'a planted value': cannot be followed.\n  {shown(statement)}", statement)
    assert "planted" not in text
    assert "12345" not in text
    assert text.split("\n  ")[1].startswith(statement[:13])


def test_equal_numbers_hash_equally_whatever_the_columns_width() -> None:
    mask = Mask("t.x", "hash", key=b"k")

    def hashed(values: list[Any], kind: pa.DataType) -> list[str | None]:
        masked: list[str | None] = masked_values(pa.array(values, kind), mask, "t.x").to_pylist()
        return masked

    numbers = [Decimal("0.10"), Decimal("-5.00"), Decimal("100.00"), Decimal("0.00"), None]
    narrow, wide = hashed(numbers, pa.decimal128(6, 2)), hashed(numbers, pa.decimal128(12, 5))
    assert narrow == wide
    assert len(set(narrow)) == len(numbers)
    assert hashed([Decimal("100.00")], pa.decimal128(6, 2)) == hashed([100], pa.int32()) == hashed([100], pa.int64())
    floats = pa.array([0.1, -0.0], pa.float32())
    assert hashed(floats.to_pylist(), pa.float32()) == hashed(floats.cast(pa.float64()).to_pylist(), pa.float64())
    assert hashed([-0.0], pa.float64()) == hashed([0.0], pa.float64())


@pytest.mark.parametrize("name", ["email", "Email", "EMAIL", "e\nmail", "mail", "emails"])
@pytest.mark.parametrize("columns", [r"shop\.people\.e.?mail", "shop.people.email", r"SHOP\..*\.E.?MAIL"])
def test_no_spelling_of_a_hidden_name_is_shown(columns: str, name: str) -> None:
    hidden = Masks([Mask(columns, "drop")]).of(PEOPLE, name) is not None
    plain = columns == "shop.people.email"
    assert hidden is (name.lower() == "email" or (name == "e\nmail" and not plain))
