"""Parses resume tokens (`raycdc.connectors.mongodb.stream.resume_token`). Pure, and without a driver.

A token's field ``_data`` is the hexadecimal text of a KeyString (servers before 4.0.7: the same bytes as binary data),
so tokens are in the order of their bytes. It begins with the cluster time, and the version of the token decides which
parts follow:

| version | servers | parts after the time |
|---|---|---|
| 0 | until 4.0.6 | the key of the document, the collection's UUID |
| 1 | 4.0.7 | version, kind, index in the transaction, flag of an invalidation, UUID, key |
| 2 | 6.0 | the same, and the type of the operation before the key |

A token of the kind *high watermark* belongs to no event: it comes before all events of its time.

`position_text` is the form of a position that ``raycdc inspect`` and ``raycdc tables`` print.
"""

from __future__ import annotations

import json
from base64 import b64decode
from dataclasses import dataclass
from datetime import UTC, datetime

from raycdc.errors import DataError
from raycdc.state.opaque import Position

# The types in a KeyString. Their order is that of BSON's values (MongoDB's `key_string.cpp`).
_ZERO, _POSITIVE_1, _POSITIVE_8 = 0x29, 0x2B, 0x32
_UUID, _FALSE, _TRUE, _TIMESTAMP = 0x5A, 0x6E, 0x6F, 0x82
_TIME_BYTES = 9
#: The kinds of tokens in versions 1 and 2.
_HIGH_WATERMARK, _EVENT = 0, 128


@dataclass(frozen=True, slots=True)
class TokenParts:
    """A decoded token. `cluster_time` is a number as `ordinal_of` returns it.

    `version`, `txn_op_index` and `uuid` (hexadecimal) are None if the token does not have them in a known place.
    """

    cluster_time: int
    version: int | None = None
    high_watermark: bool = False
    txn_op_index: int | None = None
    from_invalidate: bool = False
    uuid: str | None = None


def ordinal_of(seconds: int, increment: int) -> int:
    """Return a cluster time as one number that keeps the order: seconds above, the increment in the lower 32 bits."""
    return seconds << 32 | increment


def seconds_of(cluster_time: int) -> tuple[int, int]:
    """Return the inverse of `ordinal_of`."""
    return cluster_time >> 32, cluster_time & 0xFFFF_FFFF


def token_bytes(data: str | bytes | None) -> bytes:
    """Return the bytes of a token's ``_data``, which determine its order. Raises `DataError` if there are none."""
    try:
        raw = bytes.fromhex(data) if isinstance(data, str) else bytes(data or b"")
    except ValueError:
        raw = b""
    if len(raw) < _TIME_BYTES or raw[0] != _TIMESTAMP:
        raise DataError(f"The server sent {repr(data)[:200]} as resume token, which begins with no cluster time.")
    return raw


def cluster_time_of(data: str | bytes | None) -> int:
    """Return the cluster time of a token."""
    return int.from_bytes(token_bytes(data)[1:_TIME_BYTES], "big")


def decode_token(data: str | bytes | None) -> TokenParts:
    """Return the known parts of a token. A part at an unknown position is left out, because only the order matters."""
    raw = token_bytes(data)
    time = int.from_bytes(raw[1:_TIME_BYTES], "big")
    at = _TIME_BYTES
    version, at = _number(raw, at)
    if version is None:
        return TokenParts(time, 0)
    kind: int | None = _EVENT
    if version >= 1:
        kind, at = _number(raw, at)
    index, at = _number(raw, at)
    if kind is None or index is None:
        return TokenParts(time, version)
    invalidate = raw[at : at + 1] == bytes([_TRUE])
    if invalidate or raw[at : at + 1] == bytes([_FALSE]):
        at += 1
    has_uuid = raw[at : at + 3] == bytes([_UUID, 16, 4]) and len(raw) >= at + 19
    uuid = raw[at + 3 : at + 19].hex() if has_uuid else None
    return TokenParts(time, version, kind == _HIGH_WATERMARK, index, invalidate, uuid)


def _number(raw: bytes, at: int) -> tuple[int | None, int]:
    """Return a whole number that is not negative, and the offset after it; None if there is none.

    The type determines the number of bytes; their last bit is set if a fraction follows.
    """
    if at >= len(raw):
        return None, at
    kind = raw[at]
    if kind == _ZERO:
        return 0, at + 1
    if not _POSITIVE_1 <= kind <= _POSITIVE_8:
        return None, at
    size = kind - _POSITIVE_1 + 1
    digits = int.from_bytes(raw[at + 1 : at + 1 + size], "big")
    if len(raw) < at + 1 + size or digits & 1:
        return None, at
    return digits >> 1, at + 1 + size


def position_text(position: Position) -> str:
    """Return the cluster time and the meaning of the token; the JSON if the position is that of no log."""
    stored = position.to_json()
    if "cluster_time" not in stored:
        return json.dumps(stored, ensure_ascii=False)
    seconds, increment = seconds_of(stored["cluster_time"])
    moment = datetime.fromtimestamp(seconds, UTC).isoformat(sep=" ", timespec="seconds")
    text = f"cluster time {moment} ({seconds}, {increment})"
    if stored["token"] is None:
        return f"{text}, no token yet"
    data = json.loads(stored["token"])["_data"]
    if isinstance(data, dict):  # The token is binary, as it may be from servers before 4.0.7.
        data = b64decode(data["$binary"]["base64"]).hex()
    token = decode_token(data)
    kind = "a high watermark" if token.high_watermark else "an event"
    version = "" if token.version is None else f" of version {token.version}"
    return f"{text}   token{version}: {kind}{'' if token.uuid is None else f' of the collection {token.uuid}'}"
