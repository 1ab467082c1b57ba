"""Pages of the manual generated from the code: column types, message formats, errors, effects of schema changes, and
requirements for targets.

They are in `raycdc/manual`, like the pages written by hand. ``python -m raycdc.cli.pages`` writes them again, and a
test compares the files with the code. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from raycdc.cli.pages.listings import changes_page, errors_page, formats_page, requirements_page
from raycdc.cli.pages.types import types_page

__all__ = ["GENERATED_PAGES"]

#: The function that generates the text of each page, by the page's name.
GENERATED_PAGES: Mapping[str, Callable[[], str]] = {
    "changes": changes_page,
    "errors": errors_page,
    "formats": formats_page,
    "requirements": requirements_page,
    "types": types_page,
}
