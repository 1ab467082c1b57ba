"""The commit record of a target, and the fences of the tasks that write to it.

``raycdc_commit`` has a document per pipeline and target: epoch, step, generation, the target's columns and key, and an
unfinished migration. Every write of the document is a compare-and-set of its field `version`, so if two drivers read
the same record, the later write fails. While several tasks write an epoch, ``raycdc_fence`` has a document for each
task, its *fence*, with a token of this round of tasks. Each transaction of a task changes the task's fence. Writing the
record removes the fences. If a task outlives its driver, or was repeated, it can therefore change nothing any more: its
next transaction finds no fence, and a transaction that is running conflicts with the removal.

Documents of others look like rows in a collection that was adopted. Therefore ``raycdc_row`` has the ``_id`` of each
document that is a row of the pipeline's (`DocumentLayout.rows`). It is written in the same transactions as the
documents. The record has the *list*, a token that begins the ``_id`` of all entries of one adoption. A schema change
changes the documents of the list alone (`migration`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, Self, TypedDict

import bson
from bson.raw_bson import RawBSONDocument
from pymongo.errors import DuplicateKeyError

from raycdc.errors import FencedError, RaycdcError, SinkUnavailableError
from raycdc.model import TableId
from raycdc.sinks.mongodb.plugin import COMMITS, FENCES, ROWS
from raycdc.sinks.mongodb.server import Document, Server, Session
from raycdc.sinks.mongodb.types import ID
from raycdc.sinks.record import TargetRecord
from raycdc.sinks.targets import is_of_pipeline
from raycdc.state.opaque import Positions


class OperationsDocument(TypedDict):
    """The form of `Operations` in the record."""

    empty: NotRequired[bool]
    unset: NotRequired[list[str]]
    rename: NotRequired[list[list[str]]]
    set: NotRequired[Any]


@dataclass(frozen=True, slots=True)
class Operations:
    """The operations of a migration on each document. If `empty` is True, all documents are deleted. Otherwise fields
    are `unset`, fields are `renamed` (pairs of old and new name), and the fields of `values` are set (a BSON document;
    empty: none).
    """

    empty: bool = False
    unset: tuple[str, ...] = ()
    renamed: tuple[tuple[str, str], ...] = ()
    values: bytes = b""

    def __bool__(self) -> bool:
        return self.empty or bool(self.unset or self.renamed or self.values)

    def document(self) -> OperationsDocument:
        """Return the operations for the record."""
        parts: OperationsDocument = {}
        if self.empty:
            parts["empty"] = True
        if self.unset:
            parts["unset"] = list(self.unset)
        if self.renamed:
            parts["rename"] = list(map(list, self.renamed))
        if self.values:
            parts["set"] = RawBSONDocument(self.values)
        return parts

    @classmethod
    def of(cls, document: OperationsDocument | None) -> Operations | None:
        """Return the inverse of `document`."""
        if document is None:
            return None
        renamed = tuple((old, new) for old, new in document.get("rename", ()))
        values = bson.encode(document["set"]) if document.get("set") else b""
        return cls(document.get("empty", False), tuple(document.get("unset", ())), renamed, values)


@dataclass(frozen=True, slots=True)
class MigrationProgress:
    """The progress of a migration: the key of the last changed document. The key may have any BSON type."""

    last: Any

    def document(self) -> Document:
        """Return the document for the record."""
        return {ID: self.last}

    @classmethod
    def of(cls, document: Document | None) -> Self | None:
        """Return the inverse of `document`."""
        return None if document is None else cls(document[ID])


@dataclass(frozen=True, slots=True)
class Kept:
    """The commit record as it was read. `operations` and `progress` belong to an unfinished migration (`migration`).
    `fenced` is True if there are fences. `uuid` is the id of the target's collection (empty: unknown). `rows` is the
    list of rows of an adopted target (empty: there is none).
    """

    held: TargetRecord
    version: int
    operations: Operations | None = None
    progress: MigrationProgress | None = None
    fenced: bool = False
    uuid: str = ""
    rows: str = ""


@dataclass(frozen=True, slots=True)
class RecordChange:
    """The new record, with a migration's `operations` and `progress`.

    `fences` replace all existing fences. `uuid` is the new id of the target's collection, and `rows` its new list of
    rows, if they have changed. If `alone` is True, the records and fences of other pipelines are removed, because their
    rows in the target were removed.
    """

    held: TargetRecord
    operations: Operations | None = None
    progress: MigrationProgress | None = None
    fences: Sequence[str] = ()
    uuid: str = ""
    rows: str = ""
    alone: bool = False


class CommitCollection:
    """The records of one pipeline (`app_id`) on one server."""

    def __init__(self, server: Server, app_id: str) -> None:
        self._server = server
        self._app = app_id

    def prepare(self) -> None:
        """Create the collections, which a transaction of older servers cannot do."""
        for name in (COMMITS, FENCES, ROWS):
            self._server.create(TableId(self._server.record, name))

    def read(self, target: TableId) -> Kept | None:
        """Return the present record; None if there is none."""
        document = self._server.own(COMMITS).find_one({"_id": self._id(target)})
        if document is None:
            return None
        held = TargetRecord.from_row([document[name] for name in TargetRecord.NAMES])
        # MongoDB has no records that only serve as locks (`NO_COMMITS`).
        assert held is not None
        return Kept(
            held,
            document["version"],
            Operations.of(document["operations"]),
            MigrationProgress.of(document["progress"]),
            document["fenced"],
            document.get("uuid", ""),
            document.get("rows", ""),
        )

    def write(
        self,
        session: Session | None,
        target: TableId,
        before: Kept | None,
        change: RecordChange,
        positions: Positions,
    ) -> Kept:
        """Replace the record `before` by `change`, and return the new one. Without a session, this is a separate
        transaction.

        Raises `FencedError` if the record is no longer `before`. If an older driver changed it by a last commit, raises
        `SinkUnavailableError` instead, so that the call is retried.
        """
        if session is None:
            return self._server.transaction(lambda own: self.write(own, target, before, change, positions))
        held, fences = change.held, change.fences
        uuid = change.uuid or (before.uuid if before else "")
        rows = change.rows or (before.rows if before else "")
        version = before.version + 1 if before else 1
        now = Kept(held, version, change.operations, change.progress, bool(fences), uuid, rows)
        document = dict(zip(TargetRecord.NAMES, held.row(), strict=True)) | {
            "version": now.version,
            "operations": None if now.operations is None else now.operations.document(),
            "progress": None if now.progress is None else now.progress.document(),
            "fenced": now.fenced,
            "uuid": now.uuid,
            "rows": now.rows,
            "positions": json.dumps(dict(positions)),
        }
        commits, fenced = self._server.own(COMMITS), self._server.own(FENCES)
        if before is None:
            try:
                commits.insert_one({"_id": self._id(target), **document}, session=session)
            except DuplicateKeyError:
                raise self._late(target, held) from None
        else:
            same = {"_id": self._id(target), "version": before.version}
            if commits.replace_one(same, document, session=session).matched_count == 0:
                raise self._late(target, held)
        if change.alone:
            commits.delete_many({"_id.target": str(target), "_id.app": {"$ne": self._app}}, session=session)
            fenced.delete_many({"target": str(target)}, session=session)
        if before is None or before.fenced:
            fenced.delete_many({"app": self._app, "target": str(target)}, session=session)
        if fences:
            named = [{"_id": self._fence(target, token), "app": self._app, "target": str(target)} for token in fences]
            fenced.insert_many([{**one, "writes": 0} for one in named], session=session)
        return now

    def pass_fence(self, session: Session, target: TableId, token: str) -> None:
        """Change a task's fence. Raises `FencedError` if the fence does not exist any more, because the record has been
        written.
        """
        result = self._server.own(FENCES).update_one(
            {"_id": self._fence(target, token)}, {"$inc": {"writes": 1}}, session=session
        )
        if result.matched_count == 0:
            raise FencedError(f"{target}: a task wrote for an epoch that is over, or for a driver that was replaced.")

    def rows(self) -> Any:
        """Return the collection with the lists of rows."""
        return self._server.own(ROWS)

    def has_other_writers(self, target: TableId) -> bool:
        """Return True if another pipeline writes to `target`."""
        mine = self._id(target)
        records = self._server.own(COMMITS).find({"_id.target": str(target)}, {"_id": 1, "columns": 1})
        others = (one for one in records if one["_id"] != mine and one["columns"] != "[]")
        return any(not is_of_pipeline(one["_id"]["app"], self._app) for one in others)

    def _late(self, target: TableId, held: TargetRecord) -> RaycdcError:
        """Return the error for a record that has changed."""
        now = self.read(target)
        if now is not None and now.held.vector.generation < held.vector.generation:
            return SinkUnavailableError(f"{target}: a driver that was replaced committed meanwhile")
        return FencedError(f"{target}: another driver wrote the record since this one read it.")

    def _id(self, target: TableId) -> dict[str, str]:
        return {"app": self._app, "target": str(target)}

    def _fence(self, target: TableId, token: str) -> dict[str, str]:
        return {**self._id(target), "token": token}
