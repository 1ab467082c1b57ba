"""Connects the sink and its tasks to a replica set or sharded cluster: runs transactions and raw statements, and
translates errors.

Called on the driver and in tasks; thread-safe. Every write is acknowledged by a majority, and every read returns data
of a majority, so acknowledged data survives the loss of a primary.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Self, TypedDict, TypeVar

import pymongo
from bson.codec_options import CodecOptions, DatetimeConversion
from bson.raw_bson import RawBSONDocument
from pymongo.client_session import ClientSession
from pymongo.errors import (
    CollectionInvalid,
    ConnectionFailure,
    ExecutionTimeout,
    OperationFailure,
    PyMongoError,
    ServerSelectionTimeoutError,
    WaitQueueTimeoutError,
)
from pymongo.read_concern import ReadConcern
from pymongo.read_preferences import ReadPreference
from pymongo.write_concern import WriteConcern

from raycdc.clients.logins import LOGINS, READ_AGAIN
from raycdc.clients.mongodb import (
    SELECTION_TIMEOUT_MS,
    denied_database,
    redacted,
    refused_certificates,
    renew_account,
    spaced,
)
from raycdc.config.mongodb import parse_mongodb_uri
from raycdc.core.secrets import newest
from raycdc.errors import (
    KeyRefusedError,
    NameRefusedError,
    SinkError,
    SinkUnavailableError,
    TargetModifiedError,
    ValueRefusedError,
)
from raycdc.model import TableId

DUPLICATE_KEY = 11000
#: A document as the driver accepts or returns it: fields with values of any BSON type.
Document = dict[str, Any]
#: The options for decoding keys so that they can be written back unchanged.
KEYS: CodecOptions[Document] = CodecOptions(datetime_conversion=DatetimeConversion.DATETIME_MS)
_GRANT = (
    'Grant it, as with db.getSiblingDB("admin").grantRolesToUser("USER", [{{role: "readWrite", db: "{}"}}]); '
    "raycdc check says what is missing"
)
_SELECTION = "serverselectiontimeoutms="
_MAJORITY = WriteConcern("majority")
#: The labels of errors after which a retry may succeed.
_LATER = ("RetryableWriteError", "TransientTransactionError", "UnknownTransactionCommitResult")
#: The field with the documents, for each command.
_FIELDS = {"insert": "documents", "update": "updates", "delete": "deletes"}

Result = TypeVar("Result")
Session = ClientSession
_lock = threading.Lock()
_clients: dict[tuple[int, str], pymongo.MongoClient[Document]] = {}


class _Info(TypedDict, total=False):
    uuid: Any


class _Answer(TypedDict, total=False):
    """An answer of ``listCollections``; a missing option counts as false."""

    type: str
    options: Mapping[str, object]
    info: _Info


@dataclass(frozen=True, slots=True)
class Described:
    """The server's description of a collection: its `kind` ("collection", "view", "timeseries") and `options`.

    `uuid` is the id of the collection, which a later collection with the same name does not have (empty: unknown).
    """

    kind: str
    options: frozenset[str]
    uuid: str

    @classmethod
    def of(cls, answer: _Answer) -> Self:
        options = answer.get("options") or {}
        uuid = answer.get("info", {}).get("uuid")
        return cls(
            answer.get("type", "collection"),
            frozenset(name for name, value in options.items() if value),
            "" if uuid is None else bytes(getattr(uuid, "bytes", uuid)).hex(),
        )


class DuplicateError(Exception):
    """A document with the ``_id`` of an insert already exists, so the transaction was undone."""


class _Documents(RawBSONDocument):
    """Concatenated BSON documents in the form of a single document, so that pymongo copies them into a command's
    document sequence unchanged.
    """

    __slots__ = ("_bytes",)

    def __init__(self, data: bytes) -> None:  # The base class would check for a single document.
        self._bytes = data

    @property
    def raw(self) -> bytes:
        return self._bytes


class Server:
    """A connection to the servers; see the module's docstring. `record` is the database of the sink's own collections.

    Raises `SinkError` for a `uri` that the driver does not accept.
    """

    def __init__(self, uri: str, record: str) -> None:
        #: The address with unresolved references; each client resolves them when it is created (`raycdc.core.secrets`).
        self.uri = uri
        self.record = record
        try:
            parsed = parse_mongodb_uri(uri)
        except ValueError as cause:
            raise SinkError(f"sink.uri {cause}") from None
        #: The address for people, without user, password and options.
        self.where = parsed.where

    def __repr__(self) -> str:
        return f"Server({self.where})"

    @property
    def secret(self) -> bool:
        """Return True if the address has secrets."""
        lowered = self.uri.lower()
        return "@" in lowered or "password" in lowered or "authmechanismproperties" in lowered

    @property
    def client(self) -> pymongo.MongoClient[Document]:
        """Return the client of this process. A forked child process creates a client of its own."""
        with _lock:
            key = (os.getpid(), self.uri)
            if key not in _clients:
                _clients[key] = self._connected()
            return _clients[key]

    def _connected(self) -> pymongo.MongoClient[Document]:
        theirs: Any = {} if _SELECTION in self.uri.lower() else {"serverSelectionTimeoutMS": SELECTION_TIMEOUT_MS}
        try:
            return pymongo.MongoClient(
                newest(self.uri),
                appname="raycdc",
                tz_aware=True,
                w="majority",
                readConcernLevel="majority",
                readPreference="primary",
                retryWrites=True,
                **theirs,
                event_listeners=spaced(),
            )
        except (PyMongoError, ValueError, TypeError) as cause:
            # The error's text is left out, because it may quote the connection string.
            raise SinkError(f"sink.uri is none that the driver takes ({type(cause).__name__}).") from None

    def collection(self, target: TableId) -> Any:
        return self.client[target.db][target.table]

    def own(self, name: str) -> Any:
        """Return one of the sink's own collections."""
        return self.client[self.record].get_collection(name, codec_options=KEYS)

    def keys(self, target: TableId) -> Any:
        """Return a collection for reading keys, with dates beyond Python's range unchanged."""
        return self.client[target.db].get_collection(target.table, codec_options=KEYS)

    @contextmanager
    def named(self, what: object) -> Iterator[None]:
        """Turn the driver's errors within the block into `SinkError` about `what`, without secrets."""
        try:
            yield
            LOGINS.accepted(self.where, "sink.uri")
        except PyMongoError as cause:
            if isinstance(cause, ConnectionFailure) and (refused := self.refused(cause)):
                raise SinkError(f"{what}: {refused}") from None
            if self._was_authorized(cause):
                text = f"{what}: MongoDB at {self.where}: {self.text_of(cause)}. {READ_AGAIN}."
                # The client is kept, because other threads are using it.
                renew_account(self.client, newest(self.uri))
                raise SinkUnavailableError(text) from None
            raise _refusal(cause)(f"{what}: MongoDB at {self.where}: {self.text_of(cause)}") from None

    def _was_authorized(self, cause: PyMongoError) -> bool:
        """Return True if an account that is refused was accepted before, and the address may have a new password."""
        if getattr(cause, "code", None) != _AUTHENTICATION_FAILED:
            return False
        return LOGINS.may_change(self.where, "sink.uri", self.uri)

    def refused(self, cause: PyMongoError) -> str:
        """Return a text about a certificate that the driver refuses, with the solution; empty for any other error."""
        words = refused_certificates(self.client, newest(self.uri), cause, key_path="sink.uri")
        return words and f"No TLS connection to {words}"

    def text_of(self, cause: BaseException) -> str:
        """Return the text of an error, without secrets and values of rows."""
        text = redacted(str(cause))
        if denied := denied_database(str(cause)):
            text = f"{text}. {_GRANT.format(denied)}"
        for secret in self._secrets():
            text = text.replace(secret, "***")
        return text[:1000]

    def _secrets(self) -> list[str]:
        """Return the secrets of the original and the present address, the longest first."""
        found = {*parse_mongodb_uri(self.uri).secrets}
        with suppress(ValueError):  # The address may be invalid while it is being replaced.
            found.update(parse_mongodb_uri(newest(self.uri)).secrets)
        return sorted(found, key=len, reverse=True)

    def transaction(self, do: Callable[[Session], Result]) -> Result:
        """Call `do` in a transaction, commit the transaction, and return the result of `do`. If the server requests a
        retry, `do` is called again, for up to two minutes. Any other error undoes the writes of `do`.
        """

        def asked(session: Session) -> Result:
            try:
                return do(session)
            except ServerSelectionTimeoutError as cause:
                if refused := self.refused(cause):
                    raise SinkError(refused) from None
                # The error is raised now, because the driver would retry for two minutes without a report.
                raise SinkUnavailableError(f"MongoDB at {self.where}: {self.text_of(cause)}") from None

        with self.client.start_session() as session:
            return session.with_transaction(
                asked,
                read_concern=ReadConcern("snapshot"),
                write_concern=_MAJORITY,
                read_preference=ReadPreference.PRIMARY,
            )

    def run(self, session: Session, target: TableId, command: str, documents: bytes) -> None:
        """Run ``insert``, ``update`` or ``delete`` with concatenated BSON `documents`.

        Raises `DuplicateError` if the ``_id`` of an insert exists, and `OperationFailure` for any other refused
        document.
        """
        reply: Any = self.client[target.db].command(
            {command: target.table, _FIELDS[command]: [_Documents(documents)], "ordered": False},
            session=session,
            codec_options=CodecOptions(document_class=RawBSONDocument),
        )
        if not (errors := reply.get("writeErrors")):
            return
        first = errors[0]
        if first["code"] == DUPLICATE_KEY and command == "insert" and "_id" in first["errmsg"]:
            raise DuplicateError
        raise OperationFailure(f"{len(errors)} documents were refused, the first one: {first['errmsg']}", first["code"])

    def described(self, target: TableId) -> Described | None:
        """Return the server's description of a collection; None if there is none."""
        answers: Iterator[Any] = self.client[target.db].list_collections(filter={"name": target.table})
        return next(map(Described.of, answers), None)

    def create(self, target: TableId) -> None:
        """Create the collection, unless it exists."""
        try:
            self.client[target.db].create_collection(target.table)
        except CollectionInvalid:
            return
        except OperationFailure as cause:
            if cause.code != _EXISTS:
                raise

    def close(self) -> None:
        with _lock:
            client = _clients.pop((os.getpid(), self.uri), None)
        if client is not None:
            client.close()


def _refusal(cause: PyMongoError) -> type[SinkError]:
    """Return the error class for a driver's error: about one collection, about unreachable servers, or about the
    sink.
    """
    if isinstance(cause, OperationFailure) and cause.code in _OF_A_COLLECTION:
        return _OF_A_COLLECTION[cause.code]
    unreachable = isinstance(cause, ConnectionFailure | ExecutionTimeout | WaitQueueTimeoutError)
    return SinkUnavailableError if unreachable or any(map(cause.has_error_label, _LATER)) else SinkError


_EXISTS = 48
_AUTHENTICATION_FAILED = 18
#: The server's error codes that concern one collection: a unique index, a validator, a key or document that is too
#: large.
_OF_A_COLLECTION: dict[int, type[SinkError]] = {
    DUPLICATE_KEY: KeyRefusedError,
    121: ValueRefusedError,
    10334: ValueRefusedError,
    17280: ValueRefusedError,
    # Missing permissions in this database, an invalid name, and a name that differs from another only in case.
    13: TargetModifiedError,
    73: NameRefusedError,
    13297: NameRefusedError,
}
