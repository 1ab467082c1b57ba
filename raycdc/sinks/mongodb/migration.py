"""Applies schema changes to a collection: its documents are changed in key order, some thousand per transaction.

Only the pipeline's own documents are changed. In a collection that the pipeline created these are all documents. In an
adopted collection they are those in the list of rows (`commits`), and in a changelog those with the pipeline's name in
their ``_id``.

A collection has no schema to alter, so a dropped, renamed or defaulted column is a change of every document. The work
to do is first written to the record: `operations`, and the fields to copy in the record's intent. Each batch of
documents is changed in a transaction that also advances the record's `progress`, the last changed ``_id``. The
transaction of the last batch marks the work as done. Each document is therefore changed exactly once, even after
crashes, and names can be exchanged without marking documents. If a driver takes over, it continues the migration from
the record's progress before it does anything else. A batch of the replaced driver then finds another version of the
record, and changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import bson
import pyarrow as pa
from bson.max_key import MaxKey
from bson.min_key import MinKey
from bson.raw_bson import RawBSONDocument
from pymongo import UpdateOne

from raycdc.core.failpoints import reach
from raycdc.errors import ChangeRefusedError
from raycdc.model import Column, TableId
from raycdc.sinks.changes import check_constant
from raycdc.sinks.database_columns import DatabasePlan
from raycdc.sinks.mongodb.commits import CommitCollection, Kept, MigrationProgress, Operations, RecordChange
from raycdc.sinks.mongodb.documents import Group, element, encode
from raycdc.sinks.mongodb.server import Document, Server, Session
from raycdc.sinks.mongodb.types import ID
from raycdc.state.opaque import Positions

#: The number of documents per transaction, which takes up to a second. Servers allow a minute.
BATCH_DOCUMENTS = 5000
#: The most bytes of keys per transaction: half the limit of a command.
_BATCH_BYTES_MAX = 8 << 20
_RENAMED = "raycdc_renamed_"


def operations_of(target: TableId, present: Sequence[Column], key: Sequence[str], planned: DatabasePlan) -> Operations:
    """Return the operations that turn documents with the columns `present` into those of `planned`; empty if there are
    none.
    """
    names = {p.origin: p.column.name for p in planned.columns if p.origin is not None}
    renamed = {old: new for old, new in names.items() if old != new}
    if ID in renamed or ID in renamed.values() or (len(key) > 1 and not renamed.keys().isdisjoint(key)):
        raise ChangeRefusedError(
            f"{target}: a renamed column is in the documents' {ID}, which cannot change. Take a new snapshot of "
            "the table, which empties the collection."
        )
    unset = tuple(column.name for column in present if column.name not in names)
    return Operations(planned.emptied, unset, tuple(renamed.items()), defaults_of(target, planned.filled))


def defaults_of(target: TableId, columns: Sequence[Column]) -> bytes:
    """Return a BSON document with the constant defaults of added columns; empty if there are none."""
    if not columns:
        return b""
    values = [pa.array([check_constant(target, column).as_py()], column.type.arrow()) for column in columns]
    fields = [element(column.name, column, value) for column, value in zip(columns, values, strict=True)]
    ((data, _, _),) = encode(Group("", fields), 1)
    return data


def migrate(
    server: Server, commits: CommitCollection, target: TableId, record: Kept, positions: Positions, *, by: str = ""
) -> Kept:
    """Carry out the remaining operations of `record`. Return the record that marks the operations as done and has the
    new columns. `by` identifies the pipeline in the ``_id`` of a changelog's documents; empty if the target is none.
    """
    operations = record.operations
    assert operations is not None
    intent = record.held.intent
    assert intent is not None
    if operations.empty:
        record = empty(server, commits, target, record, positions)
    elif operations or intent.copies:
        return _change_all(server, commits, target, record, positions, by)
    return commits.write(None, target, record, RecordChange(record.held.known(intent.marker)), positions)


def empty(server: Server, commits: CommitCollection, target: TableId, record: Kept, positions: Positions) -> Kept:
    """Delete all documents, and return the record with a new version."""
    collection = server.collection(target)

    def delete(session: Session, before: Kept, chosen: Document) -> tuple[Kept, int]:
        change = RecordChange(before.held, before.operations)
        now = commits.write(session, target, before, change, positions)
        return now, collection.delete_many(chosen, session=session).deleted_count

    while True:
        bound = list(server.keys(target).find({}, {ID: 1}).sort(ID, 1).skip(BATCH_DOCUMENTS).limit(1))
        chosen: Document = {ID: {"$lt": bound[0][ID]}} if bound else {}
        record, deleted = server.transaction(lambda session, k=record, c=chosen: delete(session, k, c))  # type: ignore[misc]
        if not bound:
            return record
        if not deleted:
            # The keys have several types, and a comparison only finds keys of one type.
            some = [one[ID] for one in server.keys(target).find({}, {ID: 1}).sort(ID, 1).limit(BATCH_DOCUMENTS)]
            chosen = {ID: {"$in": some}}
            record, _ = server.transaction(lambda session, k=record, c=chosen: delete(session, k, c))  # type: ignore[misc]


def _change_all(
    server: Server,
    commits: CommitCollection,
    target: TableId,
    record: Kept,
    positions: Positions,
    by: str,
) -> Kept:
    collection = server.collection(target)
    listed = "" if record.held.created or by else record.rows
    ours = {f"{ID}.by": by} if by else {}
    operations = record.operations
    assert operations is not None
    assert record.held.intent is not None
    updates, copies = _updates(operations), record.held.intent.copies
    done = record.held.known(record.held.intent.marker)

    def change(session: Session, before: Kept, keys: list[Any], *, last: bool) -> Kept:
        for update in updates if keys else ():
            collection.update_many({ID: {"$in": keys}, **ours}, update, session=session)
        if writes := _copied(server.keys(target), keys, copies, session) if keys and copies else []:
            collection.bulk_write(writes, session=session)
        if last:
            return commits.write(session, target, before, RecordChange(done), positions)
        further = RecordChange(before.held, operations, MigrationProgress(keys[-1]))
        return commits.write(session, target, before, further, positions)

    while record.operations is not None:
        if listed:
            keys, last = _next_keys(commits.rows(), record.progress, listed=listed)
        else:
            keys, last = _next_keys(server.keys(target), record.progress)
        record = server.transaction(partial(change, before=record, keys=keys, last=last))
        reach("after_batch")
    return record


def _next_keys(collection: Any, progress: MigrationProgress | None, *, listed: str = "") -> tuple[list[Any], bool]:
    """Return the next keys after `progress` in the order of the index, and True if they are the last keys. The order of
    the index is used because it includes keys of all types. A comparison in a query would find only keys of one type.
    If `collection` is that of the lists of rows, the keys are those of the list `listed`.
    """
    found = collection.find({}, {ID: 1}).hint([(ID, 1)]).sort(ID, 1)
    if listed:
        first = MinKey() if progress is None else progress.last
        found = found.min([(ID, {"rows": listed, "key": first})]).max([(ID, {"rows": listed, "key": MaxKey()})])
    elif progress is not None:
        found = found.min([(ID, progress.last)])
    keys: list[Any] = []
    size = 0
    with found.limit(BATCH_DOCUMENTS + 2) as cursor:
        for one in cursor:
            key = one[ID]["key"] if listed else one[ID]
            data = bson.encode({ID: key})
            if progress is not None and not keys and data == bson.encode(progress.document()):
                continue
            if len(keys) == BATCH_DOCUMENTS or (keys and size + len(data) > _BATCH_BYTES_MAX):
                return keys, False
            keys.append(key)
            size += len(data)
    return keys, True


def _copied(collection: Any, keys: list[Any], copies: Sequence[tuple[str, str]], session: Session) -> list[UpdateOne]:
    """Return the updates that copy field values in documents with these keys.

    The values are read and written back. An update pipeline is not used, because the server may be too old, or only
    compatible with MongoDB. A missing field stays missing.
    """
    fields = dict.fromkeys((old for _, old in copies), 1)
    # Documents in fields are kept as bytes, because decoding them would lose repeated names.
    raw = collection.with_options(codec_options=collection.codec_options.with_options(document_class=RawBSONDocument))
    return [
        UpdateOne({ID: {"$eq": one[ID]}}, {"$set": values})
        for one in raw.find({ID: {"$in": keys}}, fields, session=session)
        if (values := {new: one[old] for new, old in copies if old in one})
    ]


def _updates(operations: Operations) -> list[Document]:
    """Return the updates for all documents, in order. Exchanged names use temporary names."""
    renamed = operations.renamed
    first: Document = {}
    if operations.unset:
        first["$unset"] = dict.fromkeys(operations.unset, "")
    if renamed:
        first["$rename"] = {old: f"{_RENAMED}{number}" for number, (old, _) in enumerate(renamed)}
    second = {"$rename": {f"{_RENAMED}{number}": new for number, (_, new) in enumerate(renamed)}} if renamed else {}
    third = {"$set": RawBSONDocument(operations.values)} if operations.values else {}
    return [dict(update) for update in (first, second, third) if update]
