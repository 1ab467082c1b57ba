"""Remembers accounts with which this process has logged in, because their later refusal may be temporary.

A password is changed in two places, one after the other: at the server, and in the place from which the configuration
reads it. Between the two changes the server refuses the account. Therefore, if the password is read again at each
attempt (`raycdc.core.secrets.newest`), a refusal is retried like an unreachable server. An account that was never
accepted is refused immediately. In processes of readers and tasks, an account counts as accepted, because the driver,
which sent it, has logged in before.
"""

from __future__ import annotations

import threading

from raycdc.core.secrets import Renewed

#: The text for people during the wait.
READ_AGAIN = "It was right before: the password is read again at each try"


class Logins:
    """The accounts that were accepted; see the module's docstring. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accepted: set[tuple[str, str]] = set()

    def accepted(self, server: str, user: str) -> None:
        """Note that the `server` accepted the account."""
        with self._lock:
            self._accepted.add((server, user))

    def may_change(self, server: str, user: str, secret: str) -> bool:
        """Return True if a refusal of the account, which logged in with `secret`, may be temporary."""
        with self._lock:
            return isinstance(secret, Renewed) and (secret.sent or (server, user) in self._accepted)


#: The accepted accounts of this process.
LOGINS = Logins()
