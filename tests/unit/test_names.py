"""One noun for one thing: no public class name stands twice below the package, and no public name has a word that was
given up for the trade's own.

A word is a part of a name: ``look`` is in ``look_at``, ``TableLook`` and ``table_look.py``, and not in ``lookup``. A
phrase of several words is looked for as a whole. The lists of words that are still used may only get shorter: a word
that is used no more fails, too.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.unit.test_tidy import ROOT, parsed, report

PACKAGE = ROOT / "raycdc"
EXCEPTIONS_MAX = 15

#: `name: reason`, for public classes that share a name.
SHARED_NAMES: dict[str, str] = {
    "SourceReader": "Ray's dashboard shows an actor by its class, and the actor is the source's reader",
    "SplitEnumerator": "Ray's dashboard shows an actor by its class, and the actor is the source's enumerator",
}

#: Words and phrases that were given up, with the term to use.
GIVEN_UP: dict[str, str] = {
    "admission": "write checks",
    "alike": "equal",
    "anew": "again",
    "asked room": "log retention",
    "away": "unreachable",
    "begin again": "resnapshot",
    "beginnings": "resnapshot",
    "begins again": "resnapshot",
    "begins anew": "resnapshot",
    "begun again": "resnapshot",
    "began again": "resnapshot",
    "beside": "service, catch-up stream or backfill, by case",
    "board": "activity tracker",
    "crumbs": "small files",
    "demands": "table constraints",
    "descent": "snapshot lineage",
    "desk": "queue",
    "door": "control API, or server",
    "doorway": "listener",
    "driver term": "driver generation",
    "gone": "dropped or deleted",
    "hand over": "engine promotion",
    "handed over": "engine promotion",
    "hidden": "redacted or masked",
    "hides": "redacts or masks",
    "hiding": "redaction or masking",
    "holdings": "target records",
    "init page": "init questions",
    "known rows": "row store",
    "known slots": "row store",
    "let in": "authorize",
    "lets in": "is authorized",
    "letters": "dead-letter queue",
    "lives": "states",
    "look": "probe, inspect or poll, by case",
    "looked": "probed, inspected or polled, by case",
    "looks": "probes, inspects or polls, by case",
    "misfit": "schema mismatch, or unrepresentable value",
    "misfits": "schema mismatches, or unrepresentable values",
    "neighbours": "concurrent writers",
    "new beginning": "resnapshot",
    "news": "event filter, or changes",
    "obstacle": "unsupported feature",
    "obstacles": "unsupported features",
    "odd": "invalid",
    "origins": "source tables",
    "others": "concurrent writers",
    "outlook": "forecast",
    "pace": "rate limit",
    "paced": "rate-limited",
    "patience": "retry",
    "place": "position, location or index, by case",
    "placed": "located",
    "places": "positions, locations or indexes, by case",
    "pulse": "heartbeat",
    "log room": "log retention",
    "room of": "log retention",
    "settle": "resolve or complete",
    "settled": "resolved or complete",
    "settles": "resolves or completes",
    "share": "target batch, quota or reader part, by case",
    "shares": "target batches, quotas or reader parts, by case",
    "sieve": "bad-row filter",
    "sieved": "filtered",
    "sift": "filter",
    "sifted": "filtered",
    "sifting": "filtering",
    "somebody": "the name of the role",
    "stamp": "commit metadata",
    "standing": "stalled, or target state",
    "still in": "authorization",
    "succession": "leader election",
    "table work": "table commit",
    "taker": "output mode",
    "tell": "notify, report, record or warn, by case",
    "tells": "notifies, reports, records or warns, by case",
    "tenure": "leadership",
    "theirs": "the name of the role",
    "told": "notified, reported, recorded or warned, by case",
    "touched": "modified",
    "trouble": "outage",
    "troubles": "outages",
    "untold": "redacted",
    "upkeep": "table maintenance, or state admin",
    "whoever": "the name of the role",
    "works": "commit planner",
}

#: Terms of the trade, or ours, that have a word of the above.
KEPT_TERMS = ("dead letters", "in place", "looked up")

#: Given-up words that public functions and methods still have.
IN_FUNCTIONS: tuple[str, ...] = ()
#: Given-up words that modules and packages still have.
IN_MODULES: tuple[str, ...] = ()

_PART = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")


def parts(name: str) -> str:
    """The parts of a CamelCase or snake_case name, in lower case, each between two blanks."""
    text = "".join(f" {part.lower()} " for part in _PART.findall(name))
    for term in KEPT_TERMS:
        text = text.replace("".join(f" {word} " for word in term.split()), " ")
    return text


def given_up(name: str) -> list[str]:
    """The words and phrases of `name` that were given up."""
    text = parts(name)
    return [phrase for phrase in GIVEN_UP if "".join(f" {word} " for word in phrase.split()) in text]


def statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Of a module or class, with those below ``if``, ``try`` and ``with``; not of its functions."""
    for node in body:
        yield node
        if isinstance(node, ast.If | ast.Try | ast.With):
            inner = [*node.body, *getattr(node, "orelse", []), *getattr(node, "finalbody", [])]
            yield from statements(
                [*inner, *(each for handler in getattr(node, "handlers", []) for each in handler.body)]
            )


def definitions(body: list[ast.stmt]) -> Iterator[ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """Public classes and functions, and those of such classes."""
    for node in statements(body):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from definitions(node.body)


def where_defined(package: Path, kind: str) -> Mapping[str, list[str]]:
    """Where each public name is defined: of ``classes``, ``functions`` or ``modules``."""
    found: dict[str, list[str]] = defaultdict(list)
    for path in sorted(package.rglob("*.py")):
        name = path.parent.name if path.name == "__init__.py" else path.stem
        where = str(path.relative_to(package.parent))
        if kind == "modules":
            found[name].append(where)
            continue
        for node in definitions(parsed(path).body):
            if isinstance(node, ast.ClassDef) == (kind == "classes"):
                found[node.name].append(f"{where}:{node.lineno}")
    return found


def doubles(package: Path) -> dict[str, list[str]]:
    return {name: where for name, where in where_defined(package, "classes").items() if len(where) > 1}


def with_given_up_words(package: Path, kind: str) -> dict[str, list[str]]:
    """By word, the names that have it, with a place of each."""
    found: dict[str, list[str]] = defaultdict(list)
    for name, where in where_defined(package, kind).items():
        for word in given_up(name):
            found[word].append(f"{name} ({where[0]})")
    return found


def test_no_public_class_name_stands_twice() -> None:
    assert len(SHARED_NAMES) <= EXCEPTIONS_MAX
    found = doubles(PACKAGE)
    over = [f"{name}: {', '.join(where)}" for name, where in sorted(found.items()) if name not in SHARED_NAMES]
    report(over, "One of the classes may keep the name; the others say what they are:")
    unused = [name for name in SHARED_NAMES if name not in found]
    report(unused, "These stand once: take them out of the list:")


@pytest.mark.parametrize(("kind", "remaining"), [("classes", ()), ("functions", IN_FUNCTIONS), ("modules", IN_MODULES)])
def test_given_up_words_are_in_no_public_name(kind: str, remaining: tuple[str, ...]) -> None:
    found = with_given_up_words(PACKAGE, kind)
    over = [
        f"{word} -> {GIVEN_UP[word]}: {', '.join(names)}"
        for word, names in sorted(found.items())
        if word not in remaining
    ]
    report(over, f"Names of {kind} with a word that was given up:")
    report(
        [word for word in remaining if word not in found], f"No name of {kind} has these: take them out of the list:"
    )


def planted(package: Path, module: str, source: str) -> None:
    path = package / f"{module}.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source)


def test_a_planted_double_is_found(tmp_path: Path) -> None:
    planted(tmp_path / "raycdc", "a", "class Twice: ...\nclass Once: ...\nclass _Private: ...\n")
    planted(tmp_path / "raycdc", "b/c", "class Outer:\n    class Twice: ...\nclass _Private: ...\n")
    planted(tmp_path / "raycdc", "d", "def f():\n    class Once: ...\n")
    assert doubles(tmp_path / "raycdc") == {"Twice": ["raycdc/a.py:1", "raycdc/b/c.py:2"]}


@pytest.mark.parametrize(
    ("kind", "module", "source", "word"),
    [
        ("classes", "a", "class TableLook: ...", "look"),
        ("classes", "a", "class Outer:\n    class SQLPatience: ...", "patience"),
        ("classes", "a", "if True:\n    class BegunAgain: ...", "begun again"),
        ("functions", "a", "def look_at(): ...", "look"),
        ("functions", "a", "class Outer:\n    async def lets_in(self): ...", "lets in"),
        ("modules", "log_room", "", "log room"),
        ("modules", "beside/__init__", "", "beside"),
    ],
)
def test_a_planted_word_is_found(tmp_path: Path, kind: str, module: str, source: str, word: str) -> None:
    planted(tmp_path / "raycdc", module, source)
    assert [*with_given_up_words(tmp_path / "raycdc", kind)] == [word]


@pytest.mark.parametrize("name", ["Lookup", "lookups", "Placement", "DeadLetters", "AsOf", "SharedConnection", "lets"])
def test_other_words_are_let_alone(tmp_path: Path, name: str) -> None:
    planted(tmp_path / "raycdc", "a", f"class {name}: ...\ndef {name.lower()}(): ...\n")
    found = [with_given_up_words(tmp_path / "raycdc", kind) for kind in ("classes", "functions")]
    assert found == [{}, {}]
