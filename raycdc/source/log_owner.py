"""The owner of a log, because positions of two owners cannot be compared.

A state records the owner of its log, which gives positions their meaning: a server, or a replica set. After a fail-over
or a mistake, another owner may answer at the same address. The connector then checks if the new owner has the same
transactions, and refuses it if not.
"""

from __future__ import annotations

from dataclasses import dataclass

from raycdc.errors import LogLostError


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
