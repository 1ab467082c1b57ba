"""What a run without Ray and Spark calls is there on macOS, too, as far as that can be said without one.

The standard library's own stubs say which names exist on which system. Nothing of raycdc uses one that only Linux has,
but behind a question for the system; and a run in one process goes through without them. No test ran on macOS.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODULES = ("os", "socket", "select", "signal", "fcntl", "resource", "time", "mmap", "threading", "multiprocessing")
#: Only servers of demos and tests, which are Linux' own programs.
LEFT_OUT = ROOT / "raycdc" / "sandbox"
#: Where a kernel's files are named, and what becomes of it where there are none.
KERNEL_FILES = {
    "state/drivers/holder.py": "macOS is asked for the same by another name",
    "connectors/mysql/source.py": "the server's CPU seconds are not told",
    "datasource/bounded.py": "Spark's process is the parent then",
    "driver/startup_checks.py": "a path that is refused",
}
#: Runs a command where Python says that it is macOS, and without the names; libraries were built for Linux.
WITHOUT = """
import importlib, json, subprocess, sys
import deltalake, numba, numpy, pandas, pyarrow.dataset
sys.platform = "darwin"
# Python 3.13 asks the system for this once, when it is imported.
subprocess._HAVE_POSIX_SPAWN_CLOSEFROM = False
for module, names in json.loads(sys.argv[1]).items():
    for name in names:
        vars(importlib.import_module(module)).pop(name, None)
from raycdc.cli import main
sys.exit(main(sys.argv[2:]))
"""


def stub(module: str) -> ast.Module:
    mypy = importlib.util.find_spec("mypy")
    assert mypy is not None
    assert mypy.origin is not None
    folder = Path(mypy.origin).parent / "typeshed" / "stdlib"
    paths = [folder / f"{module}.pyi", folder / module / "__init__.pyi"]
    return ast.parse(next(path for path in paths if path.exists()).read_text())


def holds(test: ast.expr, platform: str) -> bool:
    """Whether a condition of a stub is true on `platform`, for the newest Python."""
    match test:
        case ast.BoolOp(op=ast.And()):
            return all(holds(value, platform) for value in test.values)
        case ast.BoolOp():
            return any(holds(value, platform) for value in test.values)
        case ast.UnaryOp(op=ast.Not()):
            return not holds(test.operand, platform)
        case ast.Compare(left=ast.Attribute(attr="platform"), ops=[op], comparators=[ast.Constant(value=str(name))]):
            return (platform == name) == isinstance(op, ast.Eq)
        case ast.Compare(left=ast.Attribute(attr="version_info"), ops=[op]):
            return isinstance(op, ast.Gt | ast.GtE)
        case _:
            return True


def names(body: list[ast.stmt], platform: str) -> Iterator[str]:
    for node in body:
        match node:
            case ast.If():
                yield from names(node.body if holds(node.test, platform) else node.orelse, platform)
            case ast.FunctionDef() | ast.ClassDef():
                yield node.name
            case ast.AnnAssign(target=ast.Name(id=name)) | ast.Assign(targets=[ast.Name(id=name)]):
                yield name
            case ast.ImportFrom():
                yield from (alias.asname or alias.name for alias in node.names)


def only_on_linux(module: str) -> frozenset[str]:
    body = stub(module).body
    return frozenset(names(body, "linux")) - frozenset(names(body, "darwin"))


LINUX = {module: only_on_linux(module) for module in MODULES}


def asks_for_the_system(node: ast.AST) -> bool:
    return isinstance(node, ast.If | ast.IfExp) and "sys.platform" in ast.unparse(node.test)


def unguarded(module: ast.Module) -> Iterator[ast.AST]:
    """The nodes of a module, without what stands behind a question for the system."""
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        yield node
        waiting += [child for child in ast.iter_child_nodes(node) if not asks_for_the_system(child)]


@cache
def modules_of_raycdc() -> dict[str, ast.Module]:
    """The modules that have one of the words at all."""
    rare = frozenset({"proc", "shm"}).union(*LINUX.values())
    paths = [path for path in sorted((ROOT / "raycdc").rglob("*.py")) if not path.is_relative_to(LEFT_OUT)]
    texts = {str(path.relative_to(ROOT / "raycdc")): path.read_text() for path in paths}
    return {path: ast.parse(text) for path, text in texts.items() if not rare.isdisjoint(re.findall(r"\w+", text))}


def test_the_stubs_tell_linux_from_macos() -> None:
    assert {"pidfd_open", "sched_getaffinity", "memfd_create", "O_TMPFILE"} <= LINUX["os"]
    assert "epoll" in LINUX["select"]
    assert {"fork", "O_DIRECTORY", "fsync"} & LINUX["os"] == set()
    assert "flock" not in LINUX["fcntl"]
    assert {"SO_REUSEADDR", "AF_UNIX"} & LINUX["socket"] == set()


def test_nothing_uses_what_only_linux_has() -> None:
    found = []
    for path, module in modules_of_raycdc().items():
        for node in unguarded(module):
            match node:
                case ast.Attribute(value=ast.Name(id=owner), attr=name) if name in LINUX.get(owner, ()):
                    found.append(f"{path}:{node.lineno} {owner}.{name}")
                case ast.ImportFrom(module=str(owner)):
                    taken = [alias.name for alias in node.names if alias.name in LINUX.get(owner, ())]
                    found += [f"{path}:{node.lineno} {owner}.{name}" for name in taken]
    assert found == []


def test_files_of_the_kernel_are_named_only_where_they_may_be_missing() -> None:
    found = set()
    for path, module in modules_of_raycdc().items():
        for node in ast.walk(module):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                named = node.value.startswith(("/proc", "/dev/shm"))
                found |= {path} if named else set()
    assert found == set(KERNEL_FILES)


def test_a_run_in_one_process_goes_through_without_what_only_linux_has(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text(f"""
[pipeline]
name = "shop"
state = "{tmp_path}/state"
[source]
type = "datagen"
tables = ["shop.orders"]
rows = 50
events = 20
per_second = 0
[sink]
type = "delta"
path = "{tmp_path}/lake"
write = "changelog"
""")
    taken = json.dumps({module: sorted(found) for module, found in LINUX.items()})
    words = ["run", str(file), "--local", "--until", "caught-up"]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT, taken, *words], capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert list((tmp_path / "lake").rglob("*.*"))
