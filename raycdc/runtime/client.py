"""How a reader reaches the coordinator: one call that carries packets both ways."""

from __future__ import annotations

from typing import Protocol


class CoordinatorClient(Protocol):
    """Blocking calls from any thread. `FencedError`: this incarnation is over. Other errors: try again or give up."""

    def exchange(self, subtask_id: int, incarnation: int, packet: bytes, *, wait_s: float) -> bytes:
        """Deliver `packet` and return the coordinator's, after at most `wait_s` when it has nothing to say now."""
