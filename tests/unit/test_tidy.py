"""The style rules that no tool checks for us; each failure says what is wrong, where, and what to do instead.

A length limit yields to a reason: ``# long: why`` on the line above a function. Files follow concepts and
have no limit; how large classes may be is in ``test_sizes.py``.

What ruff can check (line length, docstrings, imports, prints, commented-out code) is in pyproject.toml.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FUNCTION_LINES_MAX = 70
EXCUSE = re.compile(r"^\s*# long: \w+")
TOP_LEVEL = {
    *("pyproject.toml", "requirements.lock", "README.md", "ARCHITECTURE.md", "Makefile", "LICENSE"),
    *("raycdc", "tests", "bench", "examples"),
}
TEXT_SUFFIXES = {".py", ".md", ".toml", ".lock", ".sql", ".json", ".cfg", ".txt", ""}
#: Written in two halves, so that this file does not contain what it looks for.
MACHINE_PATHS = re.compile("|".join(("/ro" + "ot/", "/wo" + "rk/", "/ho" + "me/[a-z]", "/var/tmp" + "/r")))
REGISTRY_HOSTS = re.compile(
    "|".join(
        re.escape(name)
        for name in (
            "pypi" + ".org",
            "files.python" + "hosted",
            "repo1.mav" + "en",
            "repo.mav" + "en",
            "maven-central" + ".storage",
            "crates" + ".io",
            "registry.npm" + "js",
            "proxy.go" + "lang",
            "deb.deb" + "ian",
            "archive.ubu" + "ntu",
        )
    )
)
UNFINISHED = re.compile(r"\b(" + "|".join(("TO" + "DO", "FIX" + "ME", "X" + "XX", "HA" + "CK")) + r")\b")


def source_files(*folders: str) -> list[Path]:
    return sorted(path for folder in folders for path in (ROOT / folder).rglob("*.py"))


def text_files() -> list[Path]:
    folders = ("raycdc", "tests", "bench", "examples", ".ci")
    inside = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    top = [ROOT / name for name in TOP_LEVEL]
    return sorted(
        path
        for path in (*inside, *top)
        if path.is_file() and path.suffix in TEXT_SUFFIXES and "__pycache__" not in path.parts
    )


def place(path: Path, line: int | None = None) -> str:
    name = str(path.relative_to(ROOT))
    return name if line is None else f"{name}:{line}"


def report(problems: list[str], advice: str) -> None:
    if problems:
        pytest.fail("\n".join([advice, *problems]), pytrace=False)


@cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(parsed(path)))


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in nodes(path):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def function_is_excused(path: Path, node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
    return bool(EXCUSE.match(path.read_text().splitlines()[first - 2]))


def test_functions_fit_on_a_screen() -> None:
    long = [
        f"{place(path, node.lineno)} {node.name} has {length} lines"
        for path in source_files("raycdc", "tests", "bench")
        for node in functions(path)
        if (length := (node.end_lineno or node.lineno) - node.lineno + 1) > FUNCTION_LINES_MAX
        and not function_is_excused(path, node)
    ]
    report(long, f"Functions stay within {FUNCTION_LINES_MAX} lines; let the parent decide and helpers compute:")


def test_every_module_says_what_it_is() -> None:
    bare = [
        place(path)
        for path in source_files("raycdc", "tests", "bench")
        if path.read_text().strip() and ast.get_docstring(parsed(path)) is None
    ]
    report(bare, "A module begins with a docstring: what it is, who calls it, the invariant:")


def test_tests_wait_on_conditions_and_never_sleep() -> None:
    """`tests/support` has the loops that wait."""
    sleeping = [
        place(path, node.lineno)
        for path in source_files("tests")
        if not path.is_relative_to(ROOT / "tests" / "support")
        for node in nodes(path)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute | ast.Name)
        and (node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id) == "sleep"
    ]
    report(sleeping, "A test that sleeps is slow or flaky; wait on a condition (`wait_until`) or advance a clock:")


def test_no_exception_is_swallowed() -> None:
    swallowed = [
        place(path, node.lineno)
        for path in source_files("raycdc", "tests", "bench")
        for node in nodes(path)
        if isinstance(node, ast.ExceptHandler) and swallows(node)
    ]
    report(
        swallowed,
        "An `except` that does nothing hides a fault; react, or name the one harmless exception in "
        "`contextlib.suppress(...)` with a comment that says why it is harmless:",
    )


def swallows(handler: ast.ExceptHandler) -> bool:
    return all(
        isinstance(statement, ast.Pass)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in handler.body
    )


def test_nothing_broad_is_suppressed() -> None:
    broad = re.compile(r"suppress\((?:Base)?Exception\b")
    found = [
        place(path, number)
        for path in source_files("raycdc", "tests", "bench")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if broad.search(line)
    ]
    report(found, "Suppress the one exception that is harmless, not all of them:")


@pytest.mark.parametrize(
    ("pattern", "advice"),
    [
        (MACHINE_PATHS, "A path of one machine means nothing on another; use a temporary or the working folder:"),
        (REGISTRY_HOSTS, "Registries are reached through their clients as configured, never by host name:"),
        (UNFINISHED, "Unfinished work belongs into an issue or is done now; the code says what is true today:"),
    ],
    ids=["machine-paths", "registry-hosts", "unfinished-work"],
)
def test_no_text_contains(pattern: re.Pattern[str], advice: str) -> None:
    found = [
        f"{place(path, number)} {match[0]}"
        for path in text_files()
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), 1)
        if (match := pattern.search(line))
    ]
    report(found, advice)


def test_text_files_are_clean() -> None:
    problems: list[str] = []
    for path in text_files():
        text = path.read_text(errors="replace")
        if "\r" in text:
            problems.append(f"{place(path)} has carriage returns")
        if text and not text.endswith("\n"):
            problems.append(f"{place(path)} does not end with a newline")
        problems += [
            f"{place(path, number)} ends with a blank"
            for number, line in enumerate(text.splitlines(), 1)
            if line != line.rstrip()
        ]
    report(problems, "Unix line ends, a newline at the end, no blanks at the end of a line:")


def test_only_commands_with_private_servers_use_the_test_kit() -> None:
    users = [
        place(path)
        for path in source_files("raycdc")
        if re.search(r"raycdc\.(testing|sandbox)|tests\.support", path.read_text())
        and path.relative_to(ROOT).parts[1] not in ("testing", "sandbox")
        and path.relative_to(ROOT / "raycdc").as_posix()
        not in ("cli/bench/bench_splits.py", "cli/demo.py", "cli/sandbox.py", "cli/app.py", "config/plugins.py")
    ]
    report(users, "The product does not depend on its own test kit:")


def test_clients_of_kafka_are_made_in_one_place() -> None:
    """There, what librdkafka refuses becomes a named error."""
    makers = {"AdminClient", "Consumer", "Producer"}
    problems = [
        place(path, node.lineno)
        for path in source_files("raycdc")
        if "sandbox" not in path.parts and path.parts[-2:] != ("clients", "kafka.py")
        for node in nodes(path)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in makers
    ]
    report(problems, "Make clients with raycdc.clients.kafka.")


PLUGGED = re.compile(r"\w*(Source|Sink|EnumeratorDialect|FailoverDialect|ReaderDialect|SourceConfig|SinkConfig)")


def test_no_plug_in_is_probed() -> None:
    """What a source, a sink or a dialect is able to do stands on its page, so that others can be asked as ours are."""
    probes = []
    for path in source_files("raycdc"):
        for node in nodes(path):
            match node:
                case ast.Call(ast.Name("isinstance"), [_, ast.Name(name)]) if PLUGGED.fullmatch(name):
                    probes.append(f"{place(path, node.lineno)} isinstance(…, {name})")
                case ast.Name("runtime_checkable"):
                    probes.append(f"{place(path, node.lineno)} runtime_checkable")
                case ast.Call(ast.Name("getattr" | "hasattr"), [ast.Name("source" | "sink" | "dialect"), *_]):
                    probes.append(f"{place(path, node.lineno)} {ast.unparse(node)}")
                case _:
                    pass
    report(probes, "Declare it on the page of the plug-in (source/connector.py, sinks/api.py), with a default:")
