"""Trial servers: private ones with a small shop in them, for people who have none and for ``raycdc demo``.

``trial.py`` is what a trial server says of itself, ``kinds.py`` lists them, ``goods.py`` is the shop of servers without
SQL, and ``targets.py`` reads what a pipeline wrote. A trial lives as long as its block: server and data go with it.
"""

from raycdc.sandbox.trials.kinds import KINDS, SOURCES, new_trial
from raycdc.sandbox.trials.trial import SandboxAccount, SandboxServer, SandboxSourceServer

__all__ = ["KINDS", "SOURCES", "SandboxAccount", "SandboxServer", "SandboxSourceServer", "new_trial"]
