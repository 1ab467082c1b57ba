"""How long a replica set keeps what was not read yet of its oplog."""

from __future__ import annotations

from bson import Timestamp
from pymongo.errors import PyMongoError

from raycdc.connectors.mongodb.client import Client
from raycdc.connectors.mongodb.stream.position import StreamPosition
from raycdc.connectors.mongodb.stream.token import seconds_of
from raycdc.source.connector import LogRoom


def log_room(client: Client, place: StreamPosition) -> LogRoom | None:
    """The room behind `place`; None where the account may not read ``local.oplog.rs``, or where there is none (mongos).

    The oldest entries go when new ones need their room. So at the rate at which the log is written now, it reaches
    `place` in the time that lies between its oldest entry and `place`; ``storage.oplogMinRetentionHours`` only adds to
    that.
    """
    try:
        oldest = client["local"]["oplog.rs"].find_one({}, {"ts": 1}, sort=[("$natural", 1)])
    except PyMongoError:
        return None
    written = None if oldest is None else oldest.get("ts")
    if not isinstance(written, Timestamp):
        return None
    seconds, _ = seconds_of(place.cluster_time)
    return LogRoom(kept_s=float(max(0, seconds - written.time)))
