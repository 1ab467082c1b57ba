"""How much of its binlog a server has that was not read yet, and how long it keeps that."""

from __future__ import annotations

import time
from collections.abc import Sequence

from raycdc.connectors.mysql.binlog.position import BinlogOffset
from raycdc.connectors.mysql.client import ServerInfo
from raycdc.source.connector import LogRoom


def log_room(
    place: BinlogOffset, info: ServerInfo, files: Sequence[tuple[str, int]], event_ms: int | None
) -> LogRoom | None:
    """The room behind `place`, whose last event is of `event_ms`; None where none of the server's `files` has it.

    A server deletes a file so long after something was written to it the last time (``binlog_expire_logs_seconds``,
    ``expire_logs_days``), and never the newest one. The file of `place` was written to at `event_ms`, or later.
    """
    names = [name for name, _ in files]
    if place.file not in names:
        return None
    number = names.index(place.file)
    unread = max(0, files[number][1] - place.pos) + sum(size for _, size in files[number + 1 :])
    if not info.expire_logs_s:
        return LogRoom(unread, forever=True)
    if number == len(files) - 1:
        return LogRoom(unread, info.expire_logs_s)
    if event_ms is None:
        return LogRoom(unread)
    return LogRoom(unread, max(0.0, info.expire_logs_s - (time.time() - event_ms / 1000)))
