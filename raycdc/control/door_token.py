"""The token of a door, as it is now: one that stands by `file`, `command` or `plugin` is changed without a restart."""

from __future__ import annotations

from contextlib import suppress

from raycdc.config import Secret
from raycdc.config.control import check_token
from raycdc.references import Renewed, newest


class DoorToken:
    """See the module's docstring. Thread-safe: all that `now` changes is one name."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._known = str(text)

    def __repr__(self) -> str:
        return "DoorToken(***)"

    @property
    def changes(self) -> bool:
        """Whether `now` reads something."""
        return isinstance(self._text, Renewed)

    @property
    def last(self) -> str:
        """The token as `now` gave it last. Does not block."""
        return self._known

    def now(self) -> str:
        """The token that counts; empty for none. May block (`raycdc.references.ANSWER_TIMEOUT_S`). What can be
        no token, such as a file that is just being written, leaves the one before in force.
        """
        if not self.changes:
            return self._text
        text = newest(self._text)
        with suppress(ValueError):
            self._known = check_token(Secret(text)).reveal() or self._known
        return self._known
