"""Turns rows into statements, and statements into transactions; for the sink's small epochs, and for its tasks.

| layout | a row is | ``_id`` |
|---|---|---|
| changelog | a document of its own | ``{"_seq": …, "split": …, "by": …}``: the same if written again |
| insert | a document of its own (snapshot rows of a target that this pipeline created) | the key |
| merge | the whole document of its key, or its deletion | the key |
| merge, adopted | the fields that the table has, of a document that may have others | the key |

If a document has fields of its own (`types.spread`), they follow the columns. The key is the value of a single column,
or a document of several in their order. `by` is the pipeline and its state, because `_seq` of two of them may be equal.
An insert that meets its own ``_id`` (the epoch was written in part before) is repeated as an update of the whole
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
from raycdc.sinks.mongodb.bson_types import EncodedFields, UnencodableRowError
from raycdc.sinks.mongodb.documents import (
    SLICE_ROWS,
    ConstantElement,
    Element,
    Group,
    TooLargeError,
    element,
    encode,
    nulls,
)
from raycdc.sinks.mongodb.server import Document, DuplicateError, Server, Session
from raycdc.sinks.mongodb.types import ID, BsonForm, form_of, spread
from raycdc.sinks.rows import DELETED, META_TYPES, target_columns

#: Dates beyond Python's range keep their values.
_CODEC = CodecOptions[Document](datetime_conversion=DatetimeConversion.DATETIME_AUTO)
_UPSERT = ConstantElement(b"\x08upsert\x00\x01")
_ONE = ConstantElement(b"\x10limit\x00\x01\x00\x00\x00")


@dataclass(frozen=True, slots=True)
class Statement:
    """A command and its documents; `again` makes the same of them by updates."""

    command: str
    documents: bytes
    again: Callable[[], Iterator[Statement]] | None = None


@dataclass(frozen=True, slots=True)
class DocumentLayout:
    """The layout of documents; see the module's table.

    `dropped_columns` are fields that the table has no more, written as null; `by` is the pipeline's `short`. A
    document's own field with the name of a column that was `made` (`TableCommit`) is left out.
    """

    target: TableId
    schema: TableSchema
    by: str
    changelog: bool = False
    adopted: bool = False
    dropped_columns: Sequence[str] = ()
    made: Sequence[str] = ()

    def inserts(self, batches: Iterable[pa.RecordBatch], *, split: str = "") -> Iterator[Statement]:
        """Every row as a new document."""
        for batch in _sliced(batches):
            fields, ident = self._elements(batch, split)
            document = Group("", [ident, *fields])
            for data, first, end in self._encoded(document, batch):
                rows = batch.slice(first, end - first)
                yield Statement("insert", data, partial(self._updates, rows, split))

    def merges(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Statement]:
        """The last row of each key, with `DELETED`; not the deletions."""
        for batch in _sliced(batches):
            yield from self._updates(batch.filter(pc.invert(batch.column(DELETED))), "")

    def deletions(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Statement]:
        """Yield the deletions among the last rows of each key.

        They come first: the server may treat keys of different rows and types as equal, of which at most one exists.
        """
        for batch in _sliced(batches):
            yield from self.removals([batch.filter(batch.column(DELETED))])

    def removals(self, batches: Iterable[pa.RecordBatch]) -> Iterator[Statement]:
        """The deletions of the documents of all rows, whatever becomes of them."""
        for batch in _sliced(batches):
            ident = self._id(batch, "")
            for data, _, _ in self._encoded(Group("", [Group("q", [ident]), _ONE]), batch):
                yield Statement("delete", data)

    def refusal(self, batch: pa.RecordBatch) -> str:
        """Return why rows cannot become documents; empty if they can."""
        try:
            for _ in replace(self, changelog=False).inserts([batch]):
                pass
        except ValueRefusedError as refused:
            return str(refused.__cause__).removesuffix(".")
        return ""

    def keys(self, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Any]]:
        """The ``_id`` of each row, some thousand at a time. The one place where rows' keys become objects."""
        for batch in _sliced(batches):
            for data, _, _ in self._encoded(Group("", [self._id(batch, "")]), batch):
                yield [one[ID] for one in bson.decode_all(data, _CODEC)]

    def columns(self) -> list[Column]:
        """The columns of a document in order."""
        return target_columns(self.schema, changelog=self.changelog)

    def _updates(self, batch: pa.RecordBatch, split: str) -> Iterator[Statement]:
        if not batch.num_rows:
            return
        fields, ident = self._elements(batch, split)
        body = [Group("$set", fields)] if self.adopted else fields
        statement = Group("", [Group("q", [ident]), Group("u", body), _UPSERT])
        for data, _, _ in self._encoded(statement, batch):
            yield Statement("update", data)

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

    def _id(self, batch: pa.RecordBatch, split: str) -> Element:
        if self.changelog:
            seq = element("_seq", Column("_seq", META_TYPES["_seq"]), batch.column("_seq"))
            return Group(ID, [seq, _text(b"split", split), _text(b"by", self.by)])
        key = [self.schema.column(name) for name in self.schema.primary_key]
        if len(key) == 1:
            with self._named(batch):
                return element(ID, key[0], batch.column(key[0].name))
        return Group(ID, [self._field(column, batch) for column in key])

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
        """A row, for people."""
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
    """Each statement in a transaction that `guard` is called in first."""

    def run(statement: Statement, session: Session) -> None:
        guard(session)
        server.run(session, target, statement.command, statement.documents)

    for statement in statements:
        try:
            server.transaction(partial(run, statement))
        except DuplicateError:
            assert statement.again is not None
            write(server, target, statement.again(), guard)


def short(app_id: str) -> str:
    """A pipeline and its state in the ``_id`` of a change."""
    return hashlib.sha256(app_id.encode()).hexdigest()[:16]


def _text(name: bytes, value: str) -> ConstantElement:
    text = value.encode() + b"\x00"
    return ConstantElement(b"\x02" + name + b"\x00" + len(text).to_bytes(4, "little") + text)


def updates_of(statements: Sequence[Statement]) -> list[Statement]:
    """The same without inserts."""
    return [one for statement in statements for one in (statement.again() if statement.again else [statement])]


def _sliced(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for at in range(0, batch.num_rows, SLICE_ROWS):
            yield batch.slice(at, SLICE_ROWS)
