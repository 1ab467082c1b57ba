"""``raycdc explain TOPIC``: pages of the manual, which lie in `raycdc/manual` as Markdown; options; lines of a run."""

from __future__ import annotations

import json
from pathlib import Path

from raycdc.errors import ConfigError, ExitCode

MANUAL = Path(__file__).parent.parent / "manual"

#: The page that is made of the options' own descriptions instead of written.
OPTIONS = "options"
#: The JSON Schema of a run's lines.
LINES = "lines"


def topics() -> dict[str, str]:
    """Each page's name and title, in the order of the names."""
    pages = {path.stem: path.read_text(encoding="utf-8").partition("\n")[0] for path in sorted(MANUAL.glob("*.md"))}
    return {name: title.removeprefix("# ") for name, title in pages.items()} | {
        OPTIONS: "Every option of a pipeline",
        LINES: "The lines of raycdc run --json, as a JSON Schema",
    }


def print_page(topic: str) -> int:
    """Print one page, or the list of them for an empty `topic`. `ConfigError` for one that does not exist."""
    known = topics()
    if not topic:
        print("\n".join(f"{name:12} {title}" for name, title in known.items()))
        return int(ExitCode.DONE)
    if topic not in known:
        raise ConfigError(f"There is no page {topic!r}; the pages are {', '.join(known)}.")
    if topic == OPTIONS:
        from raycdc.config.reference import reference_page

        print(reference_page())
    elif topic == LINES:
        from raycdc.control.lines import lines_schema

        print(json.dumps(lines_schema(), indent=2))
    else:
        print((MANUAL / f"{topic}.md").read_text(encoding="utf-8"), end="")
    return int(ExitCode.DONE)
