"""Arrow Flight for segments on other nodes.

Each node has one server, in a reader process or on its own, which serves the files of its spool. On the driver's node
it also serves the folders of derived and filtered segments. The server maps a file and streams its batches. Every call
carries a bearer token, which is compared in constant time. By default the server listens on loopback. To listen on
another address, it needs an identity (`raycdc.segments.certificates`), which clients verify.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import flight

from raycdc.errors import SegmentUnavailableError, StateError
from raycdc.segments.access import SegmentAccess, batch_range, checksum_of, mapped_reader
from raycdc.segments.certificates import ServerIdentity
from raycdc.state.manifests.manifest import Segment

#: The timeout of a call in seconds. Segments stream at disk speed, so a slower answer means a dead connection.
CALL_TIMEOUT_S = 120.0

_HEADER = "authorization"


@dataclass(frozen=True, slots=True)
class Request:
    """A request for stored columns (None: all) of some batches of a segment. Its batches are divided into n runs, and
    `part` is (i, n) for the i-th run.
    """

    path: str
    bytes: int
    columns: list[str] | None
    part: tuple[int, int]

    def to_ticket(self) -> flight.Ticket:
        return flight.Ticket(json.dumps(asdict(self)).encode())

    @classmethod
    def of(cls, ticket: flight.Ticket) -> Request:
        data = json.loads(ticket.ticket)
        return cls(data["path"], data["bytes"], data["columns"], tuple(data["part"]))


class FlightServer(flight.FlightServerBase):  # type: ignore[misc]  # pyarrow has no types
    """A server for the segments below `spool` and `more_folders`. Readers put its `endpoint` into the descriptors of
    their segments.

    Connections are encrypted if it has an `identity`; without one, it must listen on loopback.
    """

    def __init__(
        self,
        spool: Path | str,
        *,
        token: str,
        host: str = "127.0.0.1",
        port: int = 0,
        more_folders: Sequence[Path] = (),
        identity: ServerIdentity | None = None,
    ) -> None:
        if not token:
            raise ValueError("a Flight server needs a token")
        self._spool = Path(spool).resolve()
        self._folders = (self._spool, *(folder.resolve() for folder in more_folders))
        scheme = "grpc+tls" if identity else "grpc"
        super().__init__(
            f"{scheme}://{host}:{port}",
            middleware={"token": _RequireToken(token)},
            tls_certificates=[(identity.certificate, identity.key)] if identity else None,
        )
        self.endpoint = f"{scheme}://{host}:{self.port}"

    def __repr__(self) -> str:
        return f"FlightServer({self.endpoint}, spool={str(self._spool)!r})"

    def do_get(self, _context: Any, ticket: Any) -> Any:
        """Stream the batches that a `Request` asks for."""
        request = Request.of(ticket)
        reader = self._reader(request)
        names = request.columns
        schema = reader.schema if names is None else pa.schema([reader.schema.field(name) for name in names])
        indexes = batch_range(reader.num_record_batches, request.part)
        batches = (reader.get_batch(i) for i in indexes)
        return flight.GeneratorStream(schema, (b if names is None else b.select(names) for b in batches))

    def do_action(self, _context: Any, action: Any) -> Iterator[Any]:
        """Carry out ``stat`` or ``delete`` for one segment.

        ``stat`` returns the size (null if the file is missing), and on request the checksum.
        """
        if action.type not in ("stat", "delete"):
            raise flight.FlightServerError(f"unknown action {action.type!r}; this server knows 'stat' and 'delete'")
        request = json.loads(action.body.to_pybytes())
        path = self._inside(request["path"])
        if action.type == "delete":
            path.unlink(missing_ok=True)
            return
        there = path.is_file()
        answer = {
            "bytes": path.stat().st_size if there else None,
            "crc32": checksum_of(path) if there and request["checksum"] else None,
        }
        yield flight.Result(json.dumps(answer).encode())

    def _reader(self, request: Request) -> Any:
        try:
            return mapped_reader(self._inside(request.path), request.bytes)
        except StateError as cause:
            raise flight.FlightServerError(str(cause)) from cause

    def _inside(self, text: str) -> Path:
        """Return the path that `text` names: a name in the spool, or an absolute path in one of the folders.

        Raises an error for any other path.
        """
        path = Path(self._spool, text).resolve()
        if not any(path.is_relative_to(folder) for folder in self._folders):
            raise flight.FlightUnauthorizedError(f"{text} is not in the spool of this server")
        return path


def fetch(
    segment: Segment, columns: list[str] | None, part: tuple[int, int], access: SegmentAccess
) -> Iterator[pa.RecordBatch]:
    """Yield the stored batches of `segment`, requested from its node.

    Raises `StateError` if the file is missing or damaged, and `SegmentUnavailableError` if the node does not answer.
    """
    request = Request(segment.path, segment.bytes, columns, part)
    try:
        with _connected(segment, access) as client:
            stream = client.do_get(request.to_ticket(), _options(access.token))
            for chunk in stream:
                yield chunk.data
    except (flight.FlightError, pa.ArrowException, OSError) as cause:
        raise _unreadable(segment, cause) from cause


def fetch_schema(segment: Segment, access: SegmentAccess) -> pa.Schema:
    """Return the schema of the stored columns of `segment` from its node."""
    request = Request(segment.path, segment.bytes, None, (0, 1 << 30))
    try:
        with _connected(segment, access) as client:
            stream = client.do_get(request.to_ticket(), _options(access.token))
            schema: pa.Schema = stream.schema
            return schema
    except (flight.FlightError, pa.ArrowException, OSError) as cause:
        raise _unreadable(segment, cause) from cause


def intact_there(segment: Segment, access: SegmentAccess, *, checksum: bool) -> bool:
    """Return True if the segment's node has it with its exact size and, if requested, its exact content."""
    body = json.dumps({"path": segment.path, "checksum": checksum}).encode()
    try:
        with _connected(segment, access) as client:
            results = list(client.do_action(flight.Action("stat", body), _options(access.token)))
    except flight.FlightUnavailableError:
        return False
    except (flight.FlightError, pa.ArrowException, OSError) as cause:
        raise StateError(f"Segment {segment.path} cannot be checked at {segment.flight}: {cause}") from cause
    answer = json.loads(results[0].body.to_pybytes())
    return answer["bytes"] == segment.bytes and (not checksum or answer["crc32"] == segment.crc32)


def delete_there(segment: Segment, access: SegmentAccess) -> None:
    """Delete a segment's file on its node, if the node answers. Otherwise the file remains until the node starts again,
    because a node deletes unused files when it starts.
    """
    body = json.dumps({"path": segment.path}).encode()
    try:
        with _connected(segment, access) as client:
            list(client.do_action(flight.Action("delete", body), _options(access.token)))
    except flight.FlightUnavailableError:
        return
    except (flight.FlightError, pa.ArrowException, OSError) as cause:
        raise StateError(f"Segment {segment.path} cannot be deleted at {segment.flight}: {cause}") from cause


def _connected(segment: Segment, access: SegmentAccess) -> Any:
    """Return a client of the segment's node. A TLS connection fails unless the job's authority signed a certificate for
    the node's address.
    """
    secure = segment.flight.startswith("grpc+tls:")
    return flight.connect(segment.flight, tls_root_certs=access.authority) if secure else flight.connect(segment.flight)


def _unreadable(segment: Segment, cause: Exception) -> StateError:
    unreachable = isinstance(cause, flight.FlightUnavailableError | flight.FlightTimedOutError)
    kind = SegmentUnavailableError if unreachable else StateError
    return kind(f"Segment {segment.path} cannot be read from {segment.flight}: {cause}")


def _options(token: str) -> Any:
    headers = [(_HEADER.encode(), f"Bearer {token}".encode())]
    return flight.FlightCallOptions(headers=headers, timeout=CALL_TIMEOUT_S)


class _RequireToken(flight.ServerMiddlewareFactory):  # type: ignore[misc]  # pyarrow has no types
    """Refuses each call with a wrong token."""

    def __init__(self, token: str) -> None:
        super().__init__()
        self._expected = f"Bearer {token}".encode()

    def start_call(self, _info: Any, headers: dict[str, list[str]]) -> None:
        given = next((v[0] for k, v in headers.items() if k.lower() == _HEADER and v), "")
        if not hmac.compare_digest(given.encode(), self._expected):
            raise flight.FlightUnauthenticatedError("wrong or missing token")
