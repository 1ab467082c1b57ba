"""How many dictionaries of anything stand in the product: JSON and TOML are for the edges, values inside have types.

A place counts where it says ``dict[str, Any]`` (or ``Mapping``, ``MutableMapping``, or ``object``), and wherever it
uses an alias of such a dictionary. A limit is the count itself, so it can only go down, and only by being
edited: whoever takes places away lowers the folder's limit.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.test_tidy import ROOT, nodes, source_files

#: Places by package folder, files beside the folders together under "".
PLACES_MAX = {
    "clients": 2,
    "config": 6,
    "connectors": 35,
    "core": 4,
    "delivery": 1,
    "formats": 7,
    "model": 3,
    "observe": 1,
    "runtime": 4,
    "sandbox": 15,
    "sinks": 24,
    "source": 8,
    "spark": 1,
    "state": 23,
    "testing": 17,
}


def is_of_anything(node: ast.expr | None) -> bool:
    """Whether the annotation is a dictionary from texts to anything."""
    match node:
        case ast.Subscript(
            ast.Name("dict" | "Mapping" | "MutableMapping"), ast.Tuple([ast.Name("str"), ast.Name(name)])
        ):
            return name in ("Any", "object")
        case _:
            return False


def aliases(path: Path) -> Iterator[str]:
    """Names that a module gives to such a dictionary."""
    for node in nodes(path):
        match node:
            case ast.Assign([ast.Name(name)], value) | ast.AnnAssign(ast.Name(name), _, value) if is_of_anything(value):
                yield name
            case _:
                pass


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def places(path: Path, known: set[tuple[str, str]]) -> list[int]:
    """The lines of a file where a dictionary of anything stands; `known` are aliases, by their modules."""
    own = {name for module, name in known if module == module_of(path)}
    for node in nodes(path):
        if isinstance(node, ast.ImportFrom):
            own |= {alias.asname or alias.name for alias in node.names if (node.module, alias.name) in known}
    return [node.lineno for node in nodes(path) if isinstance(node, ast.expr) and is_location(node, own)]


def is_location(node: ast.expr, own_aliases: set[str]) -> bool:
    match node:
        case ast.Subscript():
            return is_of_anything(node)
        case ast.Name(name, ast.Load()):
            return name in own_aliases
        case _:
            return False


def folder_of(path: Path) -> str:
    parts = path.relative_to(ROOT / "raycdc").parts
    return parts[0] if len(parts) > 1 else ""


def counted() -> dict[str, list[str]]:
    """Every place, by package folder."""
    files = source_files("raycdc")
    known = {(module_of(path), name) for path in files for name in aliases(path)}
    found: dict[str, list[str]] = {}
    for path in files:
        for line in places(path, known):
            found.setdefault(folder_of(path), []).append(f"{path.relative_to(ROOT)}:{line}")
    return found


def test_dictionaries_of_anything_stand_at_the_edges_alone() -> None:
    found = counted()
    over = [
        f"{folder or 'raycdc'}: {len(lines)} places, {PLACES_MAX.get(folder, 0)} allowed: {', '.join(lines)}"
        for folder, lines in sorted(found.items())
        if len(lines) > PLACES_MAX.get(folder, 0)
    ]
    if over:
        advice = "A value with a known shape is a frozen dataclass or has a precise type:"
        pytest.fail("\n".join([advice, *over]), pytrace=False)


def test_a_limit_is_the_count_itself() -> None:
    found = counted()
    slack = [
        f"{folder or 'raycdc'}: {len(found.get(folder, ()))} places, {limit} allowed"
        for folder, limit in sorted(PLACES_MAX.items())
        if limit > len(found.get(folder, ()))
    ]
    if slack:
        pytest.fail("\n".join(["There are fewer places than PLACES_MAX allows; lower it:", *slack]), pytrace=False)
