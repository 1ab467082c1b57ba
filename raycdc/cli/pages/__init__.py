"""Pages of the manual generated from the code: column types, message formats, errors, effects of schema changes.

They are in `raycdc/manual` with the written ones, and are read in the same ways. ``python -m raycdc.cli.pages`` writes
them again, and a test compares the files with the code. Pure.
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
