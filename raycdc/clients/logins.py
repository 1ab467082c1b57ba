"""Accounts as which this process has logged in: one that is refused later may be given another password just now.

Whoever changes a password changes it at two places, one after the other: at the server, and where the configuration
takes it from. In between the server refuses the account. Where the password is read again at each try
(`raycdc.core.secrets.newest`), that is waited for like a server that is away; an account that was never let in is
refused at once. A reader's process and a task's have their secrets from the driver, which was let in before.
"""

from __future__ import annotations

import threading

from raycdc.core.secrets import Renewed

#: Said to whoever waits.
READ_AGAIN = "It was right before: the password is read again at each try"


class Logins:
    """See the module's docstring. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._accepted: set[tuple[str, str]] = set()

    def accepted(self, server: str, user: str) -> None:
        """The `server` took the account."""
        with self._lock:
            self._accepted.add((server, user))

    def may_change(self, server: str, user: str, secret: str) -> bool:
        """Return True if a refusal of the account, which logged in with `secret`, may pass."""
        with self._lock:
            return isinstance(secret, Renewed) and (secret.sent or (server, user) in self._accepted)


#: Of this process.
LOGINS = Logins()
