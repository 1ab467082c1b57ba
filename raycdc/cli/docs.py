"""``raycdc docs TOPIC``: pages of the manual, which lie in `raycdc/manual` as Markdown; options; lines of a run;
examples.
"""

from __future__ import annotations

import json
from pathlib import Path

from raycdc.errors import ConfigError, ExitCode

MANUAL = Path(__file__).parent.parent / "manual"

_PACKAGE = Path(__file__).parent.parent
#: The folder of the examples: inside the package if installed, next to it in a checkout.
EXAMPLES = next((folder for folder in (_PACKAGE / "examples", _PACKAGE.parent / "examples") if folder.is_dir()), None)

#: The page that is generated from the descriptions of the configuration keys.
OPTIONS = "options"
#: The page with the JSON Schema of the lines that a run prints with ``--json``.
LINES = "lines"
#: The page that describes the body of a notification.
WEBHOOK = "webhook"
#: The list of the examples, each of which is a separate page: ``examples/quickstart.toml``.
LISTED = "examples"


def topics() -> dict[str, str]:
    """Return the name and title of each page, sorted by name."""
    pages = {path.stem: path.read_text(encoding="utf-8").partition("\n")[0] for path in sorted(MANUAL.glob("*.md"))}
    return {name: title.removeprefix("# ") for name, title in pages.items()} | {
        OPTIONS: "Every option of a pipeline",
        LINES: "The lines of raycdc run --json, as a JSON Schema",
        WEBHOOK: "The body of a notification, as a JSON Schema",
    }


def print_page(topic: str) -> int:
    """Print one page, or the list of pages for an empty `topic`. Raises `ConfigError` for an unknown one."""
    known = topics()
    if topic.startswith(f"{LISTED}/"):
        print(_example(topic.removeprefix(f"{LISTED}/")), end="")
        return int(ExitCode.DONE)
    if not topic:
        listed = {**known, LISTED: "Files to copy: configurations, plug-ins, monitoring, deployment"}
        print("\n".join(f"{name:12} {title}" for name, title in listed.items()))
        return int(ExitCode.DONE)
    if topic not in known and topic != LISTED:
        raise ConfigError(f"There is no page {topic!r}; the pages are {', '.join(known)}.")
    if topic == OPTIONS:
        from raycdc.config.reference import reference_page

        print(reference_page())
    elif topic == LINES:
        from raycdc.observe.events.lines import lines_schema

        print(json.dumps(lines_schema(), indent=2))
    elif topic == LISTED:
        print(_examples())
    elif topic == WEBHOOK:
        from raycdc.observe.notify.messages import body_schema

        print(json.dumps(body_schema(), indent=2))
    else:
        print((MANUAL / f"{topic}.md").read_text(encoding="utf-8"), end="")
    return int(ExitCode.DONE)


def _files() -> dict[str, Path]:
    """Return the path of each example's file, by its path relative to the folder of the examples."""
    if EXAMPLES is None:
        return {}
    found = (path for path in sorted(EXAMPLES.rglob("*")) if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(EXAMPLES).as_posix(): path for path in found}


def _examples() -> str:
    lines = [f"{LISTED}/{name}" for name in _files()]
    return "\n".join(
        ["# Files to copy", "", f"They lie in {EXAMPLES}; `raycdc docs examples/NAME` prints one.", "", *lines]
    )


def _example(name: str) -> str:
    found = _files().get(name)
    if found is None:
        raise ConfigError(f"There is no example {name!r}; raycdc docs examples lists them.")
    return found.read_text(encoding="utf-8")
