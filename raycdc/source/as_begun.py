"""Checks at a start that a source still matches its state: that its log has the same owner, and that tables are
captured in the same way.

The owner of a log is a server or a replica set. Positions have a meaning only in the log of their owner, so a state
records it. After a fail-over or a mistake, another owner may answer at the same address. The connector then checks if
the new owner has the same transactions, and otherwise refuses to run. Tables must be captured in the same way as at
their snapshot, because a target must not mix rows of two ways.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raycdc.errors import ConfigError, LogLostError
from raycdc.model import TableId
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.split import StreamSplit
from raycdc.state.codec import NEW_STATE


def require_as_begun(
    split: StreamSplit,
    *,
    begun: Callable[[SchemaDocument], object],
    now: Callable[[TableId], object],
    options: str,
) -> None:
    """Raise `ConfigError` if a followed table is now captured in another way than when it was first read.

    `begun` returns the way in which a table was captured, according to its schema document. `now` returns the way in
    which the configuration captures it. `options` are the configuration keys that decide about the way.
    """
    for table, state in split.state.followed.items():
        before, after = begun(split.schemas[state.schema]), now(table)
        if before != after:
            raise ConfigError(
                f"{options}: {table} was begun with {before} and now has {after}, so its target would mix both. Put "
                f"the old value back, or {NEW_STATE}."
            )


@dataclass(frozen=True, slots=True)
class LogOwner:
    """The present owner of a log: its `identity`, as states record it (empty: none), and its `address`. In messages,
    `noun` is the word for the owner, and `option` is the configuration key with the address.
    """

    identity: str
    address: str
    noun: str
    option: str

    def is_another(self, begun: str) -> bool:
        """Return True if positions of the owner with the identity `begun` are invalid here. Positions of a state
        without an owner are valid everywhere.
        """
        return bool(begun) and begun != self.identity

    def require_again(self, begun: str) -> None:
        """Raise `LogLostError` if the present owner is not the one with the identity `begun`. Its tables must not be
        read instead.
        """
        if self.is_another(begun):
            raise LogLostError(
                f"{self.address} is not the {self.noun} that the state belongs to, so no table is read again from it "
                f"(pipeline.on_log_lost). Point {self.option} at the old one, or {NEW_STATE}."
            )
