"""Pages of the manual that are made of the code: the types of columns, the formats of messages, the named errors, the
effects of schema changes.

They lie in `raycdc/manual` beside the written ones, so that they are read in the same ways. ``python -m
raycdc.cli.pages`` writes them anew, and a test compares what lies there with what the code says. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raycdc.cli.pages.changes import changes_page
from raycdc.cli.pages.errors import errors_page
from raycdc.cli.pages.formats import formats_page
from raycdc.cli.pages.types import types_page

__all__ = ["GENERATED_PAGES"]

#: By the page's name, what makes its text.
GENERATED_PAGES: Mapping[str, Callable[[], str]] = {
    "changes": changes_page,
    "errors": errors_page,
    "formats": formats_page,
    "types": types_page,
}
