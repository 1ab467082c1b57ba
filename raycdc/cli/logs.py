"""The log of a command on standard error: lines of libraries, and of raycdc itself."""

from __future__ import annotations

import logging

from raycdc.printable import printable_text

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _PrintableFormatter(logging.Formatter):
    """Log lines hold names and servers' words."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_text(super().format(record))


def configure_logging(verbose: bool) -> None:
    """Show warnings, and with ``--verbose`` what is logged below them."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format=_FORMAT,
        force=True,
    )
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_PrintableFormatter(_FORMAT))
