"""Private servers with a small shop in them, for ``raycdc demo``, ``raycdc sandbox`` and ``raycdc bench splits``."""
