"""The command line: thin commands over the packages below, one screen per error, one exit code per class of error."""

from __future__ import annotations

from raycdc.cli.entry import main

__all__ = ["main"]
