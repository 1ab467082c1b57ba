"""No regular expression of the product takes more than linear time, whatever text it is given.

Each expression is run on the inputs of `tests.support.worst_inputs`, in a process of its own whose processor time is
limited, so that an exponential one ends, too. The bound on the time is a hundred times what a linear search takes.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import pkgutil
import re
import resource
import time
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import raycdc
from tests.support.worst_inputs import worst_inputs

#: Expressions that may take quadratic time, each with the reason why their inputs are short.
SHORT_INPUTS = {
    "raycdc.connectors.mysql.ddl.parse.tokens._QUALIFIER": "the 200 characters before a name",
    "raycdc.sinks.jdbc.refusals._MYSQL_VALUES": "`without_value` cuts the server's text",
}
REPEATS = 2048
#: Seconds of processor time for one text of some thousand characters.
LONGEST_S = 0.02
#: Seconds of processor time for all texts of one expression.
PROCESS_S = 5
METHODS = {"match", "fullmatch"}


def modules() -> Iterator[ModuleType]:
    for info in pkgutil.walk_packages(raycdc.__path__, "raycdc."):
        if not info.name.endswith("__main__"):
            yield importlib.import_module(info.name)


@cache
def patterns() -> dict[str, tuple[re.Pattern[str], frozenset[str]]]:
    """Every expression over texts, by its name, with the methods by which its module uses it."""
    found: dict[str, tuple[re.Pattern[str], frozenset[str]]] = {}
    for module in modules():
        tree = ast.parse(Path(module.__file__ or "").read_text(encoding="utf-8"))
        used: dict[str, set[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                used.setdefault(node.value.id, set()).add(node.attr)
            elif (inline := _inline(node)) is not None:
                line, name, expression, flags = inline
                found[f"{module.__name__}:{line}"] = re.compile(expression, flags), frozenset({name})
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern) and isinstance(value.pattern, str) and name in used:
                found[f"{module.__name__}.{name}"] = value, frozenset(used[name])
    return found


def _inline(node: ast.AST) -> tuple[int, str, str, int] | None:
    """The line, function, expression and flags of a call like ``re.search(r"…", text)``."""
    if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
        return None
    called, first = node.func, node.args[0]
    if not (
        isinstance(called.value, ast.Name) and called.value.id == "re" and called.attr not in ("compile", "escape")
    ):
        return None
    if not (isinstance(first, ast.Constant) and isinstance(first.value, str)):
        return None
    given = [*node.args[1:], *(keyword.value for keyword in node.keywords)]
    names = {n.attr for each in given for n in ast.walk(each) if isinstance(n, ast.Attribute) and n.attr.isupper()}
    flags = sum(getattr(re, name) for name in names if hasattr(re, name))
    return node.lineno, called.attr, first.value, int(flags)


def searches(pattern: re.Pattern[str], used: frozenset[str]) -> list[Callable[[str], Any]]:
    if used & METHODS and not used & {"search", "finditer", "findall", "sub", "split"}:
        return [getattr(pattern, name) for name in sorted(used & METHODS)]
    return [lambda text: sum(1 for _ in pattern.finditer(text))]


def slowest(pattern: re.Pattern[str], used: frozenset[str]) -> str:
    """A text that takes long, in Python's notation; empty if there is none."""
    for begin, repeated, end in worst_inputs(pattern):
        text = begin + repeated * REPEATS + end
        for search in searches(pattern, used):
            if all(seconds(search, text) > LONGEST_S for _ in range(4)):
                return f"{begin!r} + {repeated!r} * {REPEATS} + {end!r}"
    return ""


def seconds(search: Callable[[str], Any], text: str) -> float:
    begun = time.thread_time()
    search(text)
    return time.thread_time() - begun


def slow_inputs(patterns: Mapping[str, tuple[re.Pattern[str], frozenset[str]]]) -> dict[str, str]:
    """`slowest` of each expression that is slow, found by other processes.

    An expression that takes longer than `PROCESS_S` ends its process, and the next one goes on with the others.
    """
    found: dict[str, str] = {}
    left = list(patterns)
    while left:
        read, write = os.pipe()
        child = os.fork()
        if child == 0:
            for name in left:
                limit = int(time.process_time()) + PROCESS_S
                resource.setrlimit(resource.RLIMIT_CPU, (limit, resource.RLIM_INFINITY))
                os.write(write, f"{json.dumps(slowest(*patterns[name]))}\n".encode())
            os._exit(0)
        os.close(write)
        with os.fdopen(read) as told:
            done = [json.loads(line) for line in told]
        os.waitpid(child, 0)
        found |= dict(zip(left, done, strict=False))
        left = left[len(done) :]
        if left:
            found[left.pop(0)] = f"something that takes more than {PROCESS_S} seconds"
    return {name: text for name, text in found.items() if text}


def test_every_expression_takes_linear_time() -> None:
    known = patterns()
    assert len(known) > 150
    assert known.keys() >= SHORT_INPUTS.keys()
    assert slow_inputs({name: each for name, each in known.items() if name not in SHORT_INPUTS}) == {}


@pytest.mark.parametrize(
    "expression",
    [r"\s*(?:/\*.*?\*/\s*)*(\w+)", r"(?:[\s…]|/\*.*?\*/)*CREATE", r"(\d+)-(\d+)", r"\bREFERENCES\b.*?\bCASCADE\b"],
)
def test_an_expression_that_takes_longer_is_found(expression: str) -> None:
    assert slow_inputs({"it": (re.compile(expression, re.DOTALL), frozenset({"search"}))})
