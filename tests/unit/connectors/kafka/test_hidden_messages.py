"""Messages that cannot be decoded, where masks hide something: they are told of by place and reason alone."""

from __future__ import annotations

import hashlib
import hmac
import json

import pyarrow as pa
import pytest

from raycdc.connectors.kafka.enumeration.schemas import conform, merge
from raycdc.connectors.kafka.reading.statements import DdlMessages
from raycdc.connectors.mysql.ddl.catalogue import events_of_statement
from raycdc.errors import SchemaError
from raycdc.formats.api import BadMessageError, ChangeItem
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution import AddColumnEvent, event_to_json
from raycdc.model.redaction import without_values
from raycdc.model.rules.mask import Mask, Masks
from raycdc.source.protocol.source_event import SourceEventWrapper, encode
from raycdc.transform.masks import masked_changes, masked_schema
from tests.unit.connectors.kafka.test_kafka_reader import Rig, maxwell

TABLE = TableId("shop", "product")
MASKS = Masks(
    [
        Mask("shop.product.note", "mask", 3),
        Mask("shop.product.count", "hash", key=b"key"),
        Mask("shop.product.start", "truncate", 2),
        Mask("shop.product.gone", "drop"),
    ]
)

BAD = {
    "cut": b'{"data": {"name": "planted"',
    "unfit": maxwell({"id": "planted", "name": "a"}),
    "unknown type": maxwell({"id": 1, "name": "a"}).replace(b'"insert"', b'"planted"'),
}


def bring(rig: Rig, *messages: bytes, first: int = 0) -> None:
    rig.bring(*messages, first=first)
    rig.allow()


@pytest.mark.parametrize("message", BAD.values(), ids=BAD.keys())
@pytest.mark.parametrize("on_error", ["fail", "dead-letter"])
def test_of_a_bad_message_nothing_shows(message: bytes, on_error: str) -> None:
    assert b"planted" in message
    rig = Rig(masks=MASKS, on_error=on_error)
    rig.add()
    if on_error == "fail":
        with pytest.raises(BadMessageError, match=r"^m/0@0: ") as told:
            bring(rig, message)
        assert "planted" not in str(told.value)
        return
    bring(rig, message, maxwell({"id": 1, "name": "a"}))
    rig.seal(1)
    [letter] = [row for row in rig.output.sealed[1] if "reason" in row]
    assert (letter["topic"], letter["offset"], letter["key"], letter["value"]) == ("m", 0, None, None)
    assert "planted" not in letter["reason"]


# Statements -----------------------------------------------------------------------------------------------------------

ADDED = (
    "ALTER TABLE product ADD COLUMN note VARCHAR(20) DEFAULT 'planted-note', ADD COLUMN count INT DEFAULT 748596, "
    "ADD COLUMN start VARCHAR(20) DEFAULT 'stplanted', ADD COLUMN gone VARCHAR(20) DEFAULT 'planted-gone', "
    "ADD COLUMN shown VARCHAR(20) DEFAULT 'seen'"
)
SECRETS = ("planted", "748596")
STATEMENTS = DdlMessages(events_of_statement, masks=MASKS)


def ddl(statement: str) -> bytes:
    return maxwell({}, "table-alter").replace(b'"data": {}', b'"sql": ' + json.dumps(statement).encode())


def test_defaults_of_masked_columns_are_masked_wherever_they_go() -> None:
    rig = Rig(columns=None, statements=STATEMENTS, masks=MASKS)
    rig.add()
    bring(rig, maxwell({"id": 1, "name": "a"}, primary_key_columns=["id"]))
    # The second row is of another partition, or was on its way: it does not have the columns.
    bring(rig, ddl(ADDED), first=1)
    bring(rig, maxwell({"id": 2, "name": "a"}, primary_key_columns=["id"]), first=2)
    told = str([encode(message) for message in rig.sent if isinstance(message, SourceEventWrapper)])
    assert "'default': '***', 'hidden': True" in told
    assert "'seen'" in told
    rig.seal(1)
    row = rig.output.sealed[1][-1]
    digest = hmac.new(b"key", b"748596", hashlib.sha256).hexdigest()
    expected = {"id": 2, "name": "a", "note": "***", "count": digest, "start": "st", "shown": "seen"}
    assert {name: value for name, value in row.items() if not name.startswith("_")} == expected
    assert not [secret for secret in SECRETS if secret in told + str(rig.output.sealed)]


def test_the_state_and_the_targets_have_masked_defaults_once() -> None:
    known = TableSchema((Column("id", LogicalType(TypeKind.INT32)),), ("id",))
    [(_, wanted)] = STATEMENTS.followed(ChangeItem(TABLE, (), 0, ADDED), {TABLE: known}.get).schemas.items()
    schema, events = merge(TABLE, known, wanted)
    kept = json.dumps([schema.to_json(), *map(event_to_json, events)])
    assert not [secret for secret in SECRETS if secret in kept]
    assert TableSchema.from_json(schema.to_json()) == schema
    added = {change.column.name: change.column for change in masked_changes(TABLE, events, MASKS)
             if isinstance(change, AddColumnEvent)}  # fmt: skip
    assert {name: column.default for name, column in added.items()} == {
        "note": "***",
        "count": hmac.new(b"key", b"748596", hashlib.sha256).hexdigest(),
        "start": "st",
        "shown": "seen",
    }
    assert all(not column.masked and column.type.kind is TypeKind.STRING for column in added.values())
    assert all(column.default in (None, "seen") for column in masked_schema(TABLE, schema, MASKS).columns)


def test_defaults_of_a_table_that_a_statement_creates_are_masked() -> None:
    created = "CREATE TABLE product (id INT PRIMARY KEY, note VARCHAR(20) NOT NULL DEFAULT 'planted')"
    followed = STATEMENTS.followed(ChangeItem(TABLE, (), 0, created), lambda _: None)
    assert followed.schemas[TABLE].column("note").default in (None, "***")
    assert "planted" not in str(followed)


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE product MODIFY note INT DEFAULT 748596",
        "ALTER TABLE product ADD COLUMN made TIMESTAMP DEFAULT '2024-01-02 03:04:05' COMMENT 'planted'",
        "ALTER TABLE product ADD COLUMN x VARCHAR(90) DEFAULT (CONCAT('planted', 'it''s planted', id))",
        "ALTER TABLE product FROBNICATE 'planted' 748596",
        "ALTER TABLE product RENAME COLUMN note TO " + "n" * 400 + ", COMMENT '" + "x" * 60 + "planted'",
    ],
)
def test_a_statement_that_is_refused_is_told_without_its_values(statement: str) -> None:
    columns = tuple(Column(name, LogicalType(TypeKind.STRING)) for name in ("id", "note"))
    with pytest.raises(SchemaError, match="cannot be followed") as told:
        STATEMENTS.followed(ChangeItem(TABLE, (), 0, statement), {TABLE: TableSchema(columns, ("id",))}.get)
    assert told.value.__cause__ is None
    assert not [secret for secret in (*SECRETS, "03:04", "xxxx", "it's") if secret in str(told.value)]


def test_a_value_that_does_not_fit_is_not_told() -> None:
    batch = pa.record_batch({"id": [1], "note": ["planted"]})
    schema = TableSchema((Column("id", LogicalType(TypeKind.INT64)), Column("note", LogicalType(TypeKind.INT32))))
    with pytest.raises(SchemaError, match="a value of column 'note' does not fit int32") as told:
        conform(TABLE, batch, schema)
    assert "planted" not in f"{told.value}{told.value.__cause__}"


@pytest.mark.parametrize(
    ("statement", "text", "told"),
    [
        ("SET x = 'it''s'", "near it's end", "near … end"),
        (r"SET x = 'it\'s'", "near it's end", "near … end"),
        (r"SET x = 'it\'s'", r"SET x = 'it\'s'", "SET x = …"),
        ("SET x = 'Y'", "SET x = 'Y', Year", "SET x = …, Year"),
        ("SET x = 'two\nlines'", "SET x = 'two lines'", "SET x = …"),
        ("SET x = 748596, y = 1", "748596 is not 1", "… is not 1"),
        ("SET `planted` = 'x'", "`planted`", "`planted`"),
    ],
)
def test_values_are_taken_out_however_they_are_spelled(statement: str, text: str, told: str) -> None:
    assert without_values(text, statement) == told
