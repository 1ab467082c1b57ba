"""Pages of the manual that are made of the code leave nothing out; that they are newest says `test_documentation`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import raycdc
from raycdc.cli.docs import MANUAL
from raycdc.cli.pages.listings import cause, named_errors
from raycdc.cli.pages.uses import FOLLOWED, PARKED, STATEMENTS, USES, reaction
from raycdc.config.mongodb import type_names
from raycdc.connectors.mysql.values.types import column_types
from raycdc.errors import REPORT, ExitCode, RaycdcError
from raycdc.formats.json.debezium_json import DebeziumOptions
from raycdc.plugins import PluginGroup, list_plugins

PACKAGE = Path(raycdc.__file__).parent


def text_of(page: str) -> str:
    return (MANUAL / f"{page}.md").read_text(encoding="utf-8")


def test_every_type_of_a_source_has_its_row() -> None:
    page = text_of("types")
    assert [base for base in column_types() if f"`{base}" not in page] == []
    assert [name for name in type_names() if page.count(f"`{name}`") < 2] == []


def test_every_format_and_every_option_of_one_has_its_row() -> None:
    page = text_of("formats")
    formats = [listing.type for listing in list_plugins() if listing.group is PluginGroup.FORMATS]
    assert [name for name in formats if f"`{name}`" not in page] == []
    assert [name for name in DebeziumOptions.model_fields if f"| `{name}` |" not in page] == []


def test_no_change_of_a_column_that_the_configuration_names_is_followed_by_omission() -> None:
    """The page's table is made by the rules themselves, so its promises are checked against literal expectations."""
    gone = [STATEMENTS[name] for name in ("dropped", "renamed", "another column takes its name")]
    found = {use: [reaction(USES[use], *statement) for statement in gone] for use in USES}
    assert found.pop("nothing") == [FOLLOWED] * 3
    assert found.pop("mask") == [FOLLOWED, PARKED, PARKED]
    assert set(map(tuple, found.values())) == {(PARKED,) * 3}
    meanings = [name for name in STATEMENTS if name not in ("dropped", "renamed", "another column takes its name")]
    for use in ("expression", "filter", "snapshot filter"):
        made = {name: reaction(USES[use], *STATEMENTS[name]) for name in meanings}
        followed = [name for name in meanings if made[name] == FOLLOWED]
        # Spark compares texts by their bytes, the server by their collation. The server compares all integers alike.
        other = "INT → BIGINT" if use == "snapshot filter" else "VARCHAR: other collation"
        assert sorted(followed) == sorted(["VARCHAR: longer", other]), use


@pytest.mark.parametrize("error", list(named_errors()), ids=lambda error: error.__name__)
def test_a_named_error_has_a_cause_and_a_cure_of_its_own(error: type[RaycdcError]) -> None:
    assert cause(error).endswith(".")
    assert "cure" in vars(error), f"{error.__name__} needs a line that says what people do about it"
    assert error.cure.endswith(".")
    assert (error.cure == REPORT) <= (error.exit_code is ExitCode.BUG)


def test_no_named_error_is_left_out() -> None:
    listed = {error.__name__ for error in named_errors()}
    assert sorted(set(_named_in_the_code()) - listed) == []


def _named_in_the_code() -> Iterator[str]:
    """Classes that are derived from `RaycdcError`, over any number of others, wherever they are written."""
    bases: dict[str, set[str]] = {}
    for path in PACKAGE.rglob("*.py"):
        # Commands raise an error of a private server as one of the source.
        if any(path.is_relative_to(PACKAGE / folder) for folder in ("testing", "sandbox")):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                bases.setdefault(node.name, set()).update(base.id for base in node.bases if isinstance(base, ast.Name))

    def is_named(name: str) -> bool:
        return name == "RaycdcError" or any(is_named(base) for base in bases.get(name, set()))

    return (name for name in bases if name != "RaycdcError" and is_named(name))
