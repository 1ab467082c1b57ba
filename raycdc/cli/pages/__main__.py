"""``python -m raycdc.cli.pages``: write the generated pages of the manual again."""

from __future__ import annotations

from raycdc.cli.docs import MANUAL
from raycdc.cli.pages import GENERATED_PAGES

for name, page in GENERATED_PAGES.items():
    (MANUAL / f"{name}.md").write_text(page(), encoding="utf-8")
