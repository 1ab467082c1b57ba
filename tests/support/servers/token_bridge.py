"""Between clients and a SecantusDB, whose resume tokens are its own: here they are put into MongoDB's form.

raycdc reads the cluster time at the beginning of a token, as MongoDB's own say it. SecantusDB's are the hexadecimal
text of a BSON document with the time in its field ``t``: they get MongoDB's beginning before them, and lose it when
they come back. The address that the server says it has becomes that of the bridge. Nothing else is touched.

The time in a token behind no events should be one up to which all events were sent. SecantusDB's is that of its clock
when it answers, and events of transactions that were ending then have an earlier one. So it becomes that of two answers
before, which is long past for whatever was ending.

``token_bridge.py PORT SERVER_PORT``; it needs pymongo's ``bson`` alone.
"""

from __future__ import annotations

import socket
import struct
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import bson
from bson.codec_options import CodecOptions
from bson.raw_bson import RawBSONDocument
from bson.timestamp import Timestamp

#: Length, request, response to, kind of a message.
_HEADER = struct.Struct("<iiii")
_REPLY, _MESSAGE = 1, 2013
#: The bytes before the only document of a reply: flags, and in one of the older kind cursor and numbers; in a message
#: the kind of its section.
_BEFORE = {_REPLY: 20, _MESSAGE: 5}
#: Version 2, an event, the first of its transaction; behind it whether it is an invalidation.
_VERSION_KIND_PLACE = "2b042c010029"
_YES, _NO = "6f", "6e"
_PREFIX_DIGITS = 2 + 16 + len(_VERSION_KIND_PLACE) + 2
_EARLIEST = Timestamp(1, 1)
_RAW: CodecOptions[RawBSONDocument] = CodecOptions(RawBSONDocument)


class Times:
    """The clock at each stream's last answers. Any thread, of which a stream has one at a time."""

    def __init__(self) -> None:
        self._before: dict[int, tuple[Timestamp, Timestamp]] = {}

    def two_before(self, cursor: int, now: Timestamp) -> Timestamp:
        """The time of the answer before the last one; of the first ones it is the earliest there is."""
        earlier, last = self._before.get(cursor, (_EARLIEST, _EARLIEST))
        if cursor:
            self._before[cursor] = (last, now)
        return earlier


def outward(token: str, latest: Timestamp | None = None) -> str:
    """A token of the server's as MongoDB has them; its time is `latest` at most."""
    said = bson.decode(bytes.fromhex(token))
    moment = said["t"] if latest is None else min(said["t"], latest)
    time = f"82{moment.time:08x}{moment.inc:08x}"
    return f"{time}{_VERSION_KIND_PLACE}{_YES if said.get('i') else _NO}{token}"


def inward(token: str) -> str:
    """Inverse of `outward`; what it did not make stays as it is."""
    made = token.startswith("82") and token[18 : 18 + len(_VERSION_KIND_PLACE)] == _VERSION_KIND_PLACE
    return token[_PREFIX_DIGITS:] if made else token


def translated_reply(document: bytes, times: Times) -> bytes:
    """A reply with the tokens of its events, and the one behind them, in MongoDB's form."""
    if b"postBatchResumeToken\0" not in document:
        return document
    reply = dict(RawBSONDocument(document))
    cursor: dict[str, Any] = dict(reply["cursor"])
    batch = "firstBatch" if "firstBatch" in cursor else "nextBatch"
    passed = times.two_before(cursor["id"], reply["operationTime"])
    behind = outward(cursor["postBatchResumeToken"]["_data"], None if cursor[batch] else passed)
    cursor["postBatchResumeToken"] = {"_data": behind}
    # An event's `_id` is its token; all else in it is passed on as the bytes it is.
    cursor[batch] = [{**event, "_id": {"_data": outward(event["_id"]["_data"])}} for event in cursor[batch]]
    return bson.encode({**reply, "cursor": cursor}, codec_options=_RAW)


def translated_request(document: bytes) -> bytes:
    """A command with the token that a change stream is opened behind as the server made it."""
    if b"startAfter\0" not in document and b"resumeAfter\0" not in document:
        return document
    command: dict[str, Any] = bson.decode(document)
    for stage in command.get("pipeline", []):
        for option in {"startAfter", "resumeAfter"} & stage.get("$changeStream", {}).keys():
            token = stage["$changeStream"][option]
            if isinstance(token.get("_data"), str):
                token["_data"] = inward(token["_data"])
    return bson.encode(command)


def _translated(message: bytes, change: Callable[[bytes], bytes]) -> bytes:
    """A message with its document changed; one that has more than one, or none, as it is."""
    length, number, to, kind = _HEADER.unpack_from(message)
    begin = _HEADER.size + _BEFORE.get(kind, length)
    if begin + 4 > length or begin + int.from_bytes(message[begin : begin + 4], "little") != length:
        return message
    if kind == _MESSAGE and message[begin - 1] != 0:
        return message
    document = change(message[begin:])
    head = message[_HEADER.size : begin]
    return _HEADER.pack(begin + len(document), number, to, kind) + head + document


def _pass(source: socket.socket, sink: socket.socket, change: Callable[[bytes], bytes]) -> None:
    """Messages from one to the other until either ends."""
    with suppress(OSError), source.makefile("rb") as stream:
        while len(head := stream.read(_HEADER.size)) == _HEADER.size:
            rest = stream.read(_HEADER.unpack(head)[0] - _HEADER.size)
            sink.sendall(_translated(head + rest, change))
    for end in (source, sink):
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _serve(client: socket.socket, port: int, server_port: int, times: Times) -> None:
    theirs, ours = f"127.0.0.1:{server_port}\0".encode(), f"127.0.0.1:{port}\0".encode()

    def reply(document: bytes) -> bytes:
        known_as = document.replace(theirs, ours) if b"setName\0" in document else document
        return translated_reply(known_as, times)

    with client, socket.create_connection(("127.0.0.1", server_port)) as server:
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        requests = threading.Thread(target=_pass, args=(client, server, translated_request), daemon=True)
        requests.start()
        _pass(server, client, reply)
        requests.join()


def main(arguments: list[str]) -> None:
    """Serve until the process is ended. Both ports have as many digits, as addresses are replaced in place."""
    port, server_port = map(int, arguments)
    assert len(str(port)) == len(str(server_port)), arguments
    times = Times()
    with socket.create_server(("127.0.0.1", port), backlog=128) as listening:
        while True:
            client, _ = listening.accept()
            threading.Thread(target=_serve, args=(client, port, server_port, times), daemon=True).start()


if __name__ == "__main__":
    main(sys.argv[1:])
