"""Sandbox servers: private servers with a small sample shop, for users without a server, and for ``raycdc demo``.

``trial.py`` has the interface of a sandbox server, ``kinds.py`` lists the kinds, ``goods.py`` has the shop of servers
without SQL, and ``targets.py`` reads the rows that a pipeline wrote. A server is a context manager: it starts at the
begin of a ``with`` block, and is removed with its data at the end.
"""

from raycdc.sandbox.trials.kinds import KINDS, SOURCES, new_trial
from raycdc.sandbox.trials.trial import SandboxAccount, SandboxServer, SandboxSourceServer

__all__ = ["KINDS", "SOURCES", "SandboxAccount", "SandboxServer", "SandboxSourceServer", "new_trial"]
