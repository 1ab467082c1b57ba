"""A position of a change stream as text, as ``raycdc inspect`` and ``raycdc tables`` print it."""

from __future__ import annotations

import json
from base64 import b64decode
from datetime import UTC, datetime

from raycdc.connectors.mongodb.stream.token import decode_token, seconds_of
from raycdc.state.opaque import Position


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
