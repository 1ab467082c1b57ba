"""Options that are the same for several lakes.

Imported by ``raycdc check``, so it only imports modules of the configuration.
"""

from __future__ import annotations

from datetime import timedelta

from raycdc.config import Duration, Options, Size, option


class OptimizeOptions(Options):
    """``optimize = { … }``: maintenance of the tables by the pipeline itself, after commits."""

    every: Duration = option(timedelta(hours=1), help="How often upkeep is done, at most.")
    target_file: Size = option(128 << 20, help="Small files are rewritten as larger ones, up to this size.", ge=1 << 20)
