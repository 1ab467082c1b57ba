"""Copy what the site of the manual is made of to ``build/docs-source``, laid out as in the repository.

Called by ``make docs``. The files stay as they are, so that they read well on their own; here the generated pages and
those of examples come to them, ``raycdc docs PAGE`` becomes a link to the page, and a link to a folder one to the
page that shows its files.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from raycdc.cli.docs import LINES, LISTED, OPTIONS, WEBHOOK, topics
from raycdc.config.reference import reference_page
from raycdc.observe.events.lines import lines_schema
from raycdc.observe.notify.messages import body_schema

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "build" / "docs-source"
MANUAL = Path("raycdc", "manual")
EXAMPLES = Path("examples")
#: Pages that lie where GitHub's readers look for them.
ROOT_PAGES = ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md")

_DOCS_COMMAND = re.compile(r"(?<!\[)`raycdc docs ([a-z-]+)`")
_FENCE = re.compile(r"(^```.*?^```$)", re.MULTILINE | re.DOTALL)
_LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml", ".json": "json"}


def schema_page(title: str, schema: object) -> str:
    """A page with a JSON Schema."""
    return f"# {title}\n\nThe JSON Schema:\n\n```json\n{json.dumps(schema, indent=2)}\n```\n"


def main() -> None:
    """Make the folder anew."""
    shutil.rmtree(TARGET, ignore_errors=True)
    manual = sorted(path.relative_to(ROOT) for path in (ROOT / MANUAL).glob("*.md"))
    for path in [*map(Path, ROOT_PAGES), Path("raycdc", "DECISIONS.md"), *manual]:
        if (ROOT / path).exists():
            write(path, (ROOT / path).read_text(encoding="utf-8"))
    options = reference_page().replace("# Configuration", "# Every option of a pipeline", 1)
    write(MANUAL / f"{OPTIONS}.md", re.sub(r"^(## )(.*)$", r"\1`\2`", options, flags=re.MULTILINE))
    write(MANUAL / f"{LINES}.md", schema_page("The lines of `raycdc run --json`", lines_schema()))
    write(MANUAL / f"{WEBHOOK}.md", schema_page("The body of a notification", body_schema()))
    for name, text in examples():
        write(name, text)
    copy_assets()


def write(path: Path, text: str) -> None:
    """Write the page `path`, with links where its text names other pages."""
    depth = "../" * (len(path.parts) - 1)
    pieces = _FENCE.split(text)
    pieces[::2] = [linked(piece, depth, own=path.stem) for piece in pieces[::2]]
    (TARGET / path).parent.mkdir(parents=True, exist_ok=True)
    (TARGET / path).write_text("".join(pieces), encoding="utf-8")


def linked(text: str, depth: str, *, own: str) -> str:
    """`text`, which has no code blocks, of the page `own` that lies `depth` below the top."""

    def page(match: re.Match[str]) -> str:
        name = match[1]
        if name == LISTED:
            return f"[{match[0]}]({depth}{EXAMPLES}/index.md)"
        return match[0] if name == own or name not in topics() else f"[{match[0]}]({depth}{MANUAL}/{name}.md)"

    text = _DOCS_COMMAND.sub(page, text)
    text = text.replace("](raycdc/manual)", f"]({MANUAL}/start.md)").replace("](examples)", "](examples/index.md)")
    text = re.sub(r"\]\((examples/\w+)\)", r"](\1.md)", text)
    return re.sub(r"\]\(((?:\.\./)*examples/(?:\w+/)?)(\w+)\.(toml|yml|json)\)", r"](\1index.md#\2\3)", text).replace(
        "examples/monitoring/index.md", "examples/monitoring.md"
    )


def examples() -> Iterator[tuple[Path, str]]:
    """A page with the single files, and one for each folder of them."""
    folders = sorted(path for path in (ROOT / EXAMPLES).iterdir() if path.is_dir() and path.name != "__pycache__")
    lines = [f"- [{folder.name}]({folder.name}.md)" for folder in folders]
    singles = [path for path in sorted((ROOT / EXAMPLES).iterdir()) if path.is_file()]
    begin = "# Examples\n\nEach file is in the folder `examples`. The folders in it:\n\n" + "\n".join(lines) + "\n\n"
    yield EXAMPLES / "index.md", begin + "\n".join(map(shown, singles))
    for folder in folders:
        files = [path for path in sorted(folder.rglob("*")) if path.is_file() and "__pycache__" not in path.parts]
        parts = [f"# The example {folder.name}\n", *(shown(path, folder) for path in files if _is_text(path))]
        yield EXAMPLES / f"{folder.name}.md", "\n".join(parts)


def shown(path: Path, folder: Path = ROOT / EXAMPLES) -> str:
    """A file as a section; Markdown is read as such."""
    text = path.read_text(encoding="utf-8")
    name = path.relative_to(folder)
    if path.suffix == ".md":
        return f"## {name}\n\n" + re.sub(r"^#", "##", text, flags=re.MULTILINE)
    return f"## {name}\n\n~~~~{_LANGUAGES.get(path.suffix, 'text')}\n{text.rstrip()}\n~~~~\n"


def _is_text(path: Path) -> bool:
    return path.suffix in (*_LANGUAGES, ".md", ".service", ".sh", ".txt", "") and path.stat().st_size < 100_000


def copy_assets() -> None:
    """Pictures, style and script."""
    for name in ("wide.css", "iframe-worker.js"):
        shutil.copy(ROOT / "docs" / name, TARGET / name)
    if (images := ROOT / "docs" / "images").exists():
        shutil.copytree(images, TARGET / "docs" / "images")


if __name__ == "__main__":
    main()
