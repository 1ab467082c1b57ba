"""Private servers with a small sample shop, for ``raycdc demo``, ``raycdc sandbox`` and ``raycdc bench splits``."""
