"""Turns rows into statements, and runs statements in transactions, for the sink's small epochs and for its tasks.

| layout | a row is | ``_id`` |
|---|---|---|
| changelog | a new document | ``{"_seq": …, "split": …, "by": …}``, the same if it is written again |
| insert | a new document (snapshot rows of a target that this pipeline created) | the key |
| merge | the whole document of its key, or its deletion | the key |
| merge, adopted | the fields that the table has, of a document that may have others | the key |

If a document has fields in addition to the columns (`types.spread`), they come after the columns. If the key has one
column, the ``_id`` is the value of that column; otherwise the ``_id`` is a document of the key's columns in their
order. `by` identifies the pipeline and its state, because two pipelines may have the same `_seq`. If the ``_id`` of an
insert exists already, because a part of the epoch was written before, the insert is repeated as an update of the whole
document.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import bson
import pyarrow as pa
import pyarrow.compute as pc
from bson.codec_options import CodecOptions, DatetimeConversion

from raycdc.errors import DataError, ValueRefusedError
from raycdc.model import Column, TableId, TableSchema
from raycdc.model.redaction import row_named
from raycdc.sinks.mongodb.documents import (
    SLICE_ROWS,
    ConstantElement,
    Element,
    EncodedFields,
    Group,
    TooLargeError,
    UnencodableRowError,
    element,
    encode,
    nulls,
)
from raycdc.sinks.mongodb.plugin import ROWS
from raycdc.sinks.mongodb.server import Document, DuplicateError, Server, Session
from raycdc.sinks.mongodb.types import ID, BsonForm, form_of, spread
from raycdc.sinks.rows import DELETED, META_TYPES, target_columns

#: With this option, dates beyond Python's range keep their values.
_CODEC = CodecOptions[Document](datetime_conversion=DatetimeConversion.DATETIME_AUTO)
_UPSERT = ConstantElement(b"\x08upsert\x00\x01")
_ONE = ConstantElement(b"\x10limit\x00\x01\x00\x00\x00")


@dataclass(frozen=True, slots=True)
class Statement:
    """A command and its documents. `again` returns the statements that write the same documents by updates. `listed`
    are the statements for the list of rows, in the same transaction.
    """

    command: str
    documents: bytes
    again: Callable[[], Iterator[Statement]] | None = None
    listed: tuple[Statement, ...] = ()

    def run(self, server: Server, session: Session, target: TableId) -> None:
        """Run the statement and those of the list of rows. Raises the errors of `Server.run`."""
        server.run(session, target, self.command, self.documents)
        for statement in self.listed:
            server.run(session, TableId(server.record, ROWS), statement.command, statement.documents)


@dataclass(frozen=True, slots=True)
class DocumentLayout:
    """The layout of documents; see the module's table.

    `dropped_columns` are fields that the source no longer has; they are written as null. `by` identifies the pipeline
    in ``_id``. `made` are the columns that a transform made (`TableCommit`): if a document has a field of its own with
    such a name, that field is left out. `rows` is the list of rows of an adopted target (`commits`; empty: there is
    none).
    """

    target: TableId
    schema: TableSchema
    by: str
    changelog: bool = False
    adopted: bool = False
    dropped_columns: Sequence[str] = ()
    made: Sequence[str] = ()
    rows: str = ""

    def inserts(self, batches: Iterable[pa.RecordBatch], *, split: str = "") -> Iterator[Statement]:
        """Yield statements that insert every row as a new document."""
        for batch in _sliced(batches):
            fields, ident = self._elements(batch, split)
            document = Group("", [ident, *fields])
            for data, first, end in self._encoded(document, batch):
                rows = batch.slice(first, end - first)
                yield Statement("insert", data, partial(self._updates, rows, split))

    def merges(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Statement]:
        """Yield statements that write the last row of each key. Rows with `DELETED` are left out."""
        for batch in _sliced(batches):
            yield from self._updates(batch.filter(pc.invert(batch.column(DELETED))), "")

    def deletions(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Statement]:
        """Yield statements that delete the documents of rows with `DELETED`.

        The deletions are carried out before `merges`. The server may treat the key of a deleted row and the key of a
        written row, of different types, as equal.
        """
        for batch in _sliced(batches):
            yield from self.removals([batch.filter(batch.column(DELETED))])

    def removals(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Statement]:
        """Yield statements that delete the documents of all rows, even of rows that are written again later."""
        for batch in _sliced(batches):
            ident = self._id(batch, "")
            for data, first, end in self._encoded(Group("", [Group("q", [ident]), _ONE]), batch):
                listed = self._listed(batch.slice(first, end - first), "delete", _ONE)
                yield Statement("delete", data, listed=tuple(listed))

    def refusal(self, batch: pa.RecordBatch) -> str:
        """Return the reason why rows cannot become documents; empty if they can."""
        try:
            for _ in replace(self, changelog=False).inserts([batch]):
                pass
        except ValueRefusedError as refused:
            return str(refused.__cause__).removesuffix(".")
        return ""

    def keys(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Any]]:
        """Yield the ``_id`` of each row, in lists of some thousand. This method makes a Python object per row; all
        others work on columns.
        """
        for batch in _sliced(batches):
            for data, _, _ in self._encoded(Group("", [self._id(batch, "")]), batch):
                yield [one[ID] for one in bson.decode_all(data, _CODEC)]

    def columns(self) -> list[Column]:
        """Return the columns of a document in order."""
        return target_columns(self.schema, changelog=self.changelog)

    def _updates(self, batch: pa.RecordBatch, split: str) -> Iterator[Statement]:
        if not batch.num_rows:
            return
        fields, ident = self._elements(batch, split)
        body = [Group("$set", fields)] if self.adopted else fields
        statement = Group("", [Group("q", [ident]), Group("u", body), _UPSERT])
        for data, first, end in self._encoded(statement, batch):
            listed = self._listed(batch.slice(first, end - first), "update", Group("u", []), _UPSERT)
            yield Statement("update", data, listed=tuple(listed))

    def _listed(self, batch: pa.RecordBatch, command: str, *options: Element) -> Iterator[Statement]:
        """Yield the statements that write the list of rows for the keys of `batch`."""
        if self.adopted and self.rows:
            entry = Group("q", [Group(ID, [_text(b"rows", self.rows), self._id(batch, "", name="key")])])
            for data, _, _ in self._encoded(Group("", [entry, *options]), batch):
                yield Statement(command, data)

    def _elements(self, batch: pa.RecordBatch, split: str) -> tuple[list[Element], Element]:
        columns = [column for column in self.columns() if column.name != ID]
        if self.changelog or not spread(columns):
            fields = [self._field(column, batch) for column in columns]
            return [*fields, *map(nulls, self.dropped_columns)], self._id(batch, split)
        plain = [column for column in columns if form_of(column.type) is not BsonForm.FIELDS]
        there = {column.name: batch.column(column.name) for column in plain}
        fields = [self._field(column, batch, missing=True) for column in plain]
        for column in columns:
            if form_of(column.type) is BsonForm.FIELDS:
                with self._named(batch):
                    fields.append(EncodedFields.of(column.name, batch.column(column.name), there, made=self.made))
        return fields, self._id(batch, split)

    def _id(self, batch: pa.RecordBatch, split: str, *, name: str = ID) -> Element:
        if self.changelog:
            seq = element("_seq", Column("_seq", META_TYPES["_seq"]), batch.column("_seq"))
            return Group(name, [seq, _text(b"split", split), _text(b"by", self.by)])
        key = [self.schema.column(name) for name in self.schema.primary_key]
        if len(key) == 1:
            with self._named(batch):
                return element(name, key[0], batch.column(key[0].name))
        return Group(name, [self._field(column, batch) for column in key])

    def _field(self, column: Column, batch: pa.RecordBatch, *, missing: bool = False) -> Element:
        with self._named(batch):
            return element(column.name, column, batch.column(column.name), missing=missing)

    @contextmanager
    def _named(self, batch: pa.RecordBatch) -> Iterator[None]:
        try:
            yield
        except TooLargeError:
            raise
        except UnencodableRowError as cause:
            raise ValueRefusedError(
                f"{self.target}: {self._shown(batch, cause.index)} cannot be written. {cause} Leave the "
                "column out by a [[transform]], or correct the source and take a new snapshot."
            ) from cause
        except DataError as cause:
            raise ValueRefusedError(f"{self.target}: {cause}") from cause

    def _shown(self, batch: pa.RecordBatch, index: int) -> str:
        """Return a text that identifies a row for people."""
        if self.changelog:
            return f"the row of _seq = {batch.column('_seq')[index].as_py()}"
        return row_named(batch, index, self.schema)

    def _encoded(self, document: Group, batch: pa.RecordBatch) -> Iterator[tuple[bytes, int, int]]:
        try:
            yield from encode(document, batch.num_rows)
        except TooLargeError as cause:
            raise ValueRefusedError(
                f"{self.target}: {self._shown(batch, cause.index)} makes a document of {cause.size} "
                "bytes, and MongoDB takes 16 MB. Leave a column out by a [[transform]], or the table."
            ) from cause


def write(server: Server, target: TableId, statements: Iterable[Statement], guard: Callable[[Session], Any]) -> None:
    """Run each statement in a transaction of its own, after calling `guard` in it."""

    def run(statement: Statement, session: Session) -> None:
        guard(session)
        statement.run(server, session, target)

    for statement in statements:
        try:
            server.transaction(partial(run, statement))
        except DuplicateError:
            assert statement.again is not None
            write(server, target, statement.again(), guard)


def short(app_id: str) -> str:
    """Return the hash that stands for a pipeline and its state in the ``_id`` of a change."""
    return hashlib.sha256(app_id.encode()).hexdigest()[:16]


def _text(name: bytes, value: str) -> ConstantElement:
    text = value.encode() + b"\x00"
    return ConstantElement(b"\x02" + name + b"\x00" + len(text).to_bytes(4, "little") + text)


def updates_of(statements: Sequence[Statement]) -> list[Statement]:
    """Return statements that write the same documents without inserts."""
    return [one for statement in statements for one in (statement.again() if statement.again else [statement])]


def _sliced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for at in range(0, batch.num_rows, SLICE_ROWS):
            yield batch.slice(at, SLICE_ROWS)
