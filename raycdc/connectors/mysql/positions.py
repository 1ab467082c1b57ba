"""A position of a binlog as text, as ``raycdc inspect`` and ``raycdc tables`` print it."""

from __future__ import annotations

from raycdc.connectors.mysql.binlog.positions.position import BinlogOffset
from raycdc.state.opaque import Position


def position_text(position: Position) -> str:
    """Return the file and the byte, followed by the GTIDs up to there."""
    offset = BinlogOffset.of(position)
    return f"{offset}   gtid {offset.gtid_set}" if offset.gtid_set else str(offset)
