"""What README, manual and examples show is true: configurations load, commands exist, links lead somewhere."""

from __future__ import annotations

import ast
import importlib
import json
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from raycdc.cli.app import app
from raycdc.cli.docs import LINES, LISTED, MANUAL, WEBHOOK, print_page, topics
from raycdc.cli.pages import GENERATED_PAGES
from raycdc.cli.planning.plan_file import VERSION as PLAN_VERSION
from raycdc.config import config_from_dict, load_config
from raycdc.errors import ExitCode
from raycdc.state.commits.record_bases import COMMIT_VERSION
from raycdc.state.manifests.sealed_state import CHANGE_VERSION
from tests.long import SUITES
from tests.manual_commands import ELSEWHERE, ENDLESS, PAGES_ELSEWHERE, PLAYED, shown_commands

COMMANDS = typer.main.get_command(app)
ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = {ROOT / "README.md": README} | {path: path.read_text() for path in sorted(MANUAL.glob("*.md"))}
#: The pages of the site that are none of the manual.
DEVELOPERS = ("README.md", "ARCHITECTURE.md", "raycdc/DECISIONS.md", "CHANGELOG.md", "CONTRIBUTING.md")
ENVIRONMENT = {
    "MONGODB_URI": "mongodb://db",
    "MYSQL_PASSWORD": "secret",
    "MASK_KEY": "secret",
    "LAKE_KEY_ID": "id",
    "LAKE_KEY": "secret",
    "OTLP_TOKEN": "secret",
    "WEBHOOK_URL": "https://hooks",
    "WEBHOOK_SECRET": f"whsec_{'0' * 32}",
}
#: Pages that are JSON Schemas, and how their titles begin.
SCHEMAS = {LINES: "A line of raycdc run --json", WEBHOOK: "The body of a notification"}


def blocks(language: str) -> list[str]:
    found = [
        block
        for text in PAGES.values()
        for block in re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    ]
    assert found, f"the README shows no {language}"
    return [str(block) for block in found]


def whole(piece: dict[str, Any]) -> dict[str, Any]:
    """`piece` itself if it is a whole configuration, else what it makes of the first one of the README: a section with
    a `type` takes the place of that one's, the keys of another are added to it.
    """
    if "name" in piece.get("pipeline", {}):
        return piece
    first: dict[str, Any] = tomllib.loads(blocks("toml")[0])
    return first | {
        name: section if isinstance(section, list) or "type" in section else first.get(name, {}) | section
        for name, section in piece.items()
    }


def commands() -> list[str]:
    lines = [line.split("#")[0].strip() for block in blocks("bash") for line in block.splitlines()]
    return [line for line in lines if line]


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.toml")), ids=lambda path: path.name)
def test_an_example_loads_without_a_warning(path: Path) -> None:
    assert load_config(path, environment=ENVIRONMENT).warnings == ()


@pytest.mark.parametrize("block", blocks("toml"))
def test_a_configuration_in_the_readme_loads(block: str) -> None:
    config_from_dict(whole(tomllib.loads(block)), environment=ENVIRONMENT)


@pytest.mark.parametrize("block", blocks("python"))
def test_python_in_the_readme_parses_and_imports_what_exists(block: str) -> None:
    tree = ast.parse(block)
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert imports
    for node in imports:
        module = __import__(str(node.module), fromlist=["*"])
        assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def inline_commands() -> list[str]:
    """Commands in the running text, and in the cures of errors."""
    text = "\n".join(re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL) for page in PAGES.values())
    return sorted({" ".join(found.split()) for found in re.findall(r"`(raycdc [a-z][^`]*)`", text)})


@pytest.mark.parametrize("command", [each for each in commands() if each.startswith("raycdc ")] + inline_commands())
def test_a_command_that_is_shown_exists_with_its_options(command: str) -> None:
    current: object = COMMANDS
    words = command.split()[1:]
    while words and hasattr(current, "commands") and not words[0].startswith("-"):
        known: dict[str, object] = current.commands
        assert words[0] in known, f"raycdc has no command {words[0]!r}"
        current = known[words.pop(0)]
    if getattr(current, "context_settings", {}).get("ignore_unknown_options"):
        return  # Its options are read by a parser of its own, which `make test-long SUITE=demos` meets.
    options = {"--help"} | {name for parameter in getattr(current, "params", []) for name in parameter.opts}
    assert [word for word in words if word.startswith("-") and word not in options] == []


def test_make_targets_that_pages_name_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)[^`]*`", " ".join(PAGES.values())))
    assert {"demo", "test"} <= named <= targets


def test_links_lead_to_files_and_sections() -> None:
    for page, text in PAGES.items():
        targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
        assert [target for target in targets if not (page.parent / target).exists()] == [], page.name
        sections = {
            re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
            for title in re.findall(r"^#+ (.*)$", text, re.MULTILINE)
        }
        assert set(re.findall(r"\]\(#([^)]+)\)", text)) - sections == set(), page.name


def test_each_page_of_the_manual_is_named_in_the_readme_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    named = set(re.findall(r"`raycdc docs ([\w-]+)`", " ".join(PAGES.values())))
    assert named == {*topics(), LISTED}
    for name in named:
        assert print_page(name) == 0
        printed = capsys.readouterr().out
        if name in SCHEMAS:
            assert json.loads(printed)["title"].startswith(SCHEMAS[name])
        else:
            assert printed.startswith("# ")


def test_every_command_that_is_shown_is_played_or_has_a_reason_why_not() -> None:
    shown = {each.command for each in shown_commands()}
    assert shown == {*PLAYED, *ENDLESS, *ELSEWHERE}
    assert not (set(PLAYED) & set(ELSEWHERE))
    named = {
        file
        for why in (*ELSEWHERE.values(), *PAGES_ELSEWHERE.values())
        for file in re.findall(r"tests/[\w/]+\.py", why)
    }
    assert [file for file in named if not (ROOT / file).exists()] == []


@pytest.mark.parametrize("page", GENERATED_PAGES)
def test_a_generated_page_is_as_the_code_says(page: str) -> None:
    assert (MANUAL / f"{page}.md").read_text() == GENERATED_PAGES[page](), "run python -m raycdc.cli.pages"


def test_each_page_is_in_the_contents_of_the_site() -> None:
    contents = (ROOT / "docs" / "mkdocs.yml").read_text().partition("nav:")[2]
    pages = {f"raycdc/manual/{name}.md" for name in topics()} | set(DEVELOPERS)
    assert set(re.findall(r"\S+\.md", contents)) == pages | {"examples/index.md"}


def test_the_exit_codes_are_those_of_the_code() -> None:
    listed = [int(code) for code in re.findall(r"^\| (\d+) \|", (MANUAL / "errors.md").read_text(), re.MULTILINE)]
    assert listed == sorted(code.value for code in ExitCode)


def test_continuous_integration_runs_exactly_make_test() -> None:
    lines = [line for line in (ROOT / ".ci" / "run").read_text().splitlines() if line and not line.startswith("#")]
    assert lines == ["set -euo pipefail", 'cd "$(dirname "$0")/.."', "exec make test"]


def test_suites_that_pages_and_the_workflow_name_exist() -> None:
    named = set(re.findall(r"SUITE=([a-z-]+)", " ".join(PAGES.values()))) - {"help"}
    assert {"certificates", "leaks"} <= named <= SUITES.keys()
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    assert workflow["jobs"]["long"]["strategy"]["matrix"]["suite"] == list(SUITES)


def test_readme_and_architecture_are_read_at_one_sitting() -> None:
    assert len(README.splitlines()) <= 130
    assert len((ROOT / "ARCHITECTURE.md").read_text().splitlines()) <= 300


def test_the_glossary_has_each_noun_once() -> None:
    rows = re.findall(r"^\| \*\*(.+?)\*\* \|", (MANUAL / "glossary.md").read_text(), re.MULTILINE)
    nouns = [noun for row in rows for noun in row.split(", ")]
    assert len(nouns) > 50
    assert sorted(noun for noun in set(nouns) if nouns.count(noun) > 1) == []


@pytest.mark.parametrize("package", ["raycdc/connectors/mongodb", "raycdc/connectors/mysql/binlog"])
def test_modules_that_the_theory_of_a_package_names_exist(package: str) -> None:
    named = set(re.findall(r"`([\w/]+\.py)`", (ROOT / package / "__init__.py").read_text()))
    files = [f"/{path.relative_to(ROOT)}" for path in _python("raycdc")]
    assert named
    assert sorted(name for name in named if not any(file.endswith(f"/{name}") for file in files)) == []


@pytest.mark.parametrize("page", ["CHANGELOG.md", "CONTRIBUTING.md"])
def test_links_of_pages_beside_the_readme_lead_somewhere(page: str) -> None:
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", (ROOT / page).read_text()) if "://" not in target]
    assert [target for target in targets if not (ROOT / target).exists()] == []
    made = re.findall(r"^make ([a-z-]+)", (ROOT / page).read_text(), re.MULTILINE)
    assert set(made) <= set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def test_the_changelog_names_the_formats_that_are_written() -> None:
    rows = re.findall(
        r"^\| (manifest|commit record|sealed plan)[^|]*\| ([^|]+) \|", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE
    )
    newest = {name: max(int(number) for number in re.findall(r"\d+", formats)) for name, formats in rows}
    assert newest == {"manifest": CHANGE_VERSION, "commit record": COMMIT_VERSION, "sealed plan": PLAN_VERSION}


MEMBERS_OF_LIBRARIES = {"RawBSONDocument.raw", "RDD.mapPartitions"}
#: Folders of a state, which documents name as they name folders of the code.
STATE_FOLDERS = {"spool", "known", "looked_up", "run_events", "dead_letters", "generations"}


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "raycdc/DECISIONS.md"])
def test_modules_that_developers_are_pointed_to_exist(page: str) -> None:
    text = (ROOT / page).read_text()
    named = set(re.findall(r"`([\w/]+\.py)`", text))
    files = [f"/{path.relative_to(ROOT)}" for folder in ("raycdc", "tests", "examples") for path in _python(folder)]
    assert len(named) > 20
    assert sorted(name for name in named if not any(file.endswith(f"/{name}") for file in files)) == []
    folders = {match for match in re.findall(r"`((?:\w+/)+)`", text) if match.split("/")[0] not in STATE_FOLDERS}
    parents = {f"/{path.relative_to(ROOT)}/" for path in ROOT.glob("*/**/") if ".venv" not in path.parts}
    assert sorted(name for name in folders if not any(parent.endswith(f"/{name}") for parent in parents)) == []
    sources = [path.read_text(encoding="utf-8") for path in _python("raycdc")]
    members = [(cls, name) for cls, name in re.findall(r"`([A-Z]\w+)\.(\w+)`", text) if not cls.isupper()]
    missing = {f"{cls}.{name}" for cls, name in members if not _has_member(cls, name, sources)}
    assert sorted(missing - MEMBERS_OF_LIBRARIES) == []
    targets = [target for target in re.findall(r"\]\(([^)#]+)\)", text) if "://" not in target]
    assert [target for target in targets if not ((ROOT / page).parent / target).exists()] == []


def test_the_nouns_of_flink_lead_to_what_is_there() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    nouns = text[text.index("## Flink's nouns") : text.index("## The hand-off")]
    names = re.findall(r"`((?:[a-z_]+\.)+[a-z_]+)(?:\.([A-Z]\w+))?`", nouns)
    assert len(names) > 15
    for module, name in names:
        found = importlib.import_module(f"raycdc.{module}")
        assert not name or hasattr(found, name), f"{module}.{name}"


def _has_member(cls: str, name: str, sources: Sequence[str]) -> bool:
    """Return True if a module has the class `cls` and names its member `name`."""
    its = (text for text in sources if re.search(rf"^class {cls}\b", text, re.MULTILINE))
    return any(re.search(rf"\b{name}\b", text) for text in its)


def _python(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))
