"""Whose log a place belongs to: places of two owners are never compared.

A state names the owner of its log, which is whatever gives places their meaning: a server, or a replica set. Another
owner may answer at the same address, after a fail-over or a mistake. The connector then acts by itself: it looks for
the same transactions there, or refuses.
"""

from __future__ import annotations

from dataclasses import dataclass

from raycdc.errors import LogLostError


@dataclass(frozen=True, slots=True)
class LogOwner:
    """Who answers now: its `identity`, as states have it (empty: none), and its `address`.

    `noun` is what people call it, `option` the key that leads to it.
    """

    identity: str
    address: str
    noun: str
    option: str

    def is_another(self, begun: str) -> bool:
        """Whether places of the owner `begun` mean nothing here; a state that names none may be anybody's."""
        return bool(begun) and begun != self.identity

    def require_again(self, begun: str) -> None:
        """Raises `LogLostError` where tables would be read again from another owner than `begun`."""
        if self.is_another(begun):
            raise LogLostError(
                f"{self.address} is not the {self.noun} that the state belongs to, so no table is read again from it "
                f"(pipeline.on_log_lost). Point {self.option} at the old one, or begin with another pipeline.state."
            )
