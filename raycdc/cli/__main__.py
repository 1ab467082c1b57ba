"""``python -m raycdc.cli``: the same as ``raycdc``."""

from __future__ import annotations

import sys

from raycdc.cli.entry import main

sys.exit(main())
