"""``python -m raycdc.cli.pages``: generates the pages of the manual that come from the code."""

from __future__ import annotations

from raycdc.cli.docs import MANUAL
from raycdc.cli.pages import GENERATED_PAGES

for name, page in GENERATED_PAGES.items():
    (MANUAL / f"{name}.md").write_text(page(), encoding="utf-8")
