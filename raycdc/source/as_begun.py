"""Checks at a start that a source still matches its state: the owner of its log, and the way of capturing tables.

A state records the owner of its log, which gives positions their meaning: a server, or a replica set. After a fail-over
or a mistake, another owner may answer at the same address. The connector then checks if the new owner has the same
transactions, and refuses it if not. Tables must be captured in the same way as at their snapshot, because a target must
not mix two ways.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from raycdc.errors import ConfigError, LogLostError
from raycdc.model import TableId
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.split import StreamSplit


def require_as_begun(
    split: StreamSplit,
    *,
    begun: Callable[[SchemaDocument], object],
    now: Callable[[TableId], object],
    options: str,
) -> None:
    """Raise `ConfigError` if a followed table is now captured in another way than when it was first read.

    `begun` returns how a table was captured, according to its schema document; `now` returns how the configuration
    captures it. `options` are the keys that decide it.
    """
    for table, state in split.state.followed.items():
        before, after = begun(split.schemas[state.schema]), now(table)
        if before != after:
            raise ConfigError(
                f"{options}: {table} was begun with {before} and now has {after}, so its target would mix both. Put "
                "the old value back, or begin with a new pipeline.state and an empty target, or pipeline.on_existing."
            )


@dataclass(frozen=True, slots=True)
class LogOwner:
    """The present owner of a log: its `identity`, as states record it (empty: none), and its `address`.

    In messages, `noun` is the word for the owner, and `option` is the key with the address.
    """

    identity: str
    address: str
    noun: str
    option: str

    def is_another(self, begun: str) -> bool:
        """Return True if positions of the owner `begun` are invalid here.

        A state without an owner is valid everywhere.
        """
        return bool(begun) and begun != self.identity

    def require_again(self, begun: str) -> None:
        """Raise `LogLostError` if the present owner is another one than `begun`, because tables must not be read again
        from it.
        """
        if self.is_another(begun):
            raise LogLostError(
                f"{self.address} is not the {self.noun} that the state belongs to, so no table is read again from it "
                f"(pipeline.on_log_lost). Point {self.option} at the old one, or begin with another pipeline.state."
            )
