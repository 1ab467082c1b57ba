"""How large a class and a function of the product may be, and the few that are larger, each with its reason.

A class that is over a limit is looked at for the concept that it holds beside its own. The lists below may only get
shorter: an entry that is not needed any more fails, too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.test_tidy import ROOT, nodes, source_files

METHODS_MAX = 20
ATTRIBUTES_MAX = 12
ARGUMENTS_MAX = 6

#: Compiled loops take arrays, one argument each.
LOOPS = "_loops.py"


#: `place: reason`, for classes; the part of the place behind ``raycdc/``.
LARGE_CLASSES: dict[str, str] = {
    "state/manifests/manifest.py:Segment": "what a manifest says of a segment",
    "config/sections/table_rules.py:LookupOptions": "keys of a section of the configuration",
    "config/model.py:PipelineConfig": "sections of the configuration",
    "config/sections/pipeline.py:PipelineOptions": "keys of a section of the configuration",
    "config/sections/storage.py:StorageOptions": "keys of a section of the configuration",
    "connectors/kafka/plugin.py:KafkaSourceConfig": "keys of a section of the configuration",
    "connectors/mongodb/source.py:MongoDbSource": "the page that is a source",
    "connectors/mysql/ddl/parse/statements.py:ColumnDefinition": "a clause of SQL, a value per word",
    "connectors/mysql/ddl/parse/statements.py:DdlDialect": "a list of what a dialect can say",
    "connectors/mysql/plugin.py:MySqlSourceConfig": "keys of a section of the configuration",
    "connectors/mysql/server/client.py:MySqlServerInfo": "settings of a server",
    "connectors/mysql/values/columns.py:MySqlArenaView": "arrays as compiled loops take them",
    "observe/status/model.py:TableReport": "what a status says of a table, a key each",
    "observe/events/run_events.py:TableFigures": "what a run knows of a table, a value each",
    "formats/envelope.py:EnvelopeSpec": "a description of an envelope, one value per part",
    "model/rules/names.py:NameRules": "a list of what a target does to names",
    "verify/results.py:TableJson": "keys of a line of JSON",
    "sinks/api.py:SinkContext": "what a sink is told of its surroundings, a value each",
    "sinks/api.py:TableCommit": "what a sink is told of its share of an epoch, a value each",
    "source/snapshot/rereading/catch_up.py:CatchUp": "steps of one reading, and what the log's reader asks it for",
    "source/snapshot/log/log_reader.py:LogReader": "a method per thing that may reach the log's reader",
    "storage/settings.py:StorageSettings": "keys of a section of the configuration, as libraries get them",
}

#: `place: reason`, for functions and methods.
MANY_ARGUMENTS: dict[str, str] = {
    "cli/app.py:init": "options of the command line",
    "cli/app.py:run": "options of the command line",
    "cli/app.py:verify": "options of the command line",
    "cli/commands/bench.py:bench_run": "options of the command line",
    "cli/commands/bench.py:bench_splits": "options of the command line",
    "config/fields.py:option": "metadata of a key",
    "connectors/mysql/ddl/follow/history.py:DdlHistory.__init__": "the configuration, state and server of one log",
}

OWNERS = ("self", "cls", "super()", "type(self)")
#: Private parts of libraries, which have the names of parts of ours.
OF_LIBRARIES = {
    "core/compiled_build.py: function._numba_type_",
    "connectors/mongodb/bson/decoder.py: self._fields._replace",
    "connectors/mysql/ddl/follow/indirect.py: connection._result",
    "connectors/mysql/values/columns.py: old._replace",
    "formats/decoding/arena.py: old._replace",
    "sinks/iceberg/commits.py: staged._apply",
    "sinks/iceberg/commits.py: staged._updates",
}


def classes(path: Path) -> Iterator[ast.ClassDef]:
    for node in nodes(path):
        if isinstance(node, ast.ClassDef):
            yield node


def methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]


def attributes(node: ast.ClassDef) -> set[str]:
    """Names of fields, and of what any method assigns to ``self``."""
    names = {
        each.target.id for each in node.body if isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name)
    }
    for each in (inner for method in methods(node) for inner in ast.walk(method)):
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and isinstance(each.value, ast.Name):
            names |= {each.attr} if each.value.id == "self" else set()
    return names


def arguments(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    names = [each.arg for each in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    return len(names) - (bool(names) and names[0] in ("self", "cls"))


def named(path: Path, name: str) -> str:
    return f"{path.relative_to(ROOT / 'raycdc')}:{name}"


def product() -> list[Path]:
    return [path for path in source_files("raycdc") if path.relative_to(ROOT).parts[1] not in ("testing", "sandbox")]


def large_classes() -> dict[str, str]:
    found = {}
    for path in product():
        for node in classes(path):
            counts = len(methods(node)), len(attributes(node))
            if counts[0] > METHODS_MAX or counts[1] > ATTRIBUTES_MAX:
                found[named(path, node.name)] = f"{counts[0]} methods, {counts[1]} attributes"
    return found


def many_arguments() -> dict[str, str]:
    found = {}
    for path in product():
        if path.name.endswith(LOOPS):
            continue
        owners = {id(method): node.name for node in classes(path) for method in methods(node)}
        for node in nodes(path):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and arguments(node) > ARGUMENTS_MAX:
                owner = owners.get(id(node))
                name = f"{owner}.{node.name}" if owner else node.name
                found[named(path, name)] = f"{arguments(node)} arguments"
    return found


@pytest.mark.parametrize(
    ("counted", "excused", "advice"),
    [
        (
            large_classes,
            LARGE_CLASSES,
            "Which concept does the class hold beside its own? Give it a class; or a reason:",
        ),
        (many_arguments, MANY_ARGUMENTS, "Values that always travel together are one value; or give a reason:"),
    ],
    ids=["classes", "arguments"],
)
def test_large_ones_are_few_and_have_a_reason(
    counted: Callable[[], dict[str, str]], excused: dict[str, str], advice: str
) -> None:
    found = counted()
    over = [f"{place} has {what}" for place, what in sorted(found.items()) if place not in excused]
    gone = [f"{place} is within the limits: take it out of the list" for place in excused if place not in found]
    if over or gone:
        pytest.fail("\n".join([advice, *over, *gone]), pytrace=False)


def private_names(path: Path) -> set[str]:
    """Private methods, attributes and fields of the classes of a module."""
    names = set()
    for node in classes(path):
        names |= {method.name for method in methods(node)} | attributes(node)
    return {name for name in names if name.startswith("_") and not name.startswith("__")}


def others_private(path: Path, everywhere: set[str]) -> Iterator[ast.Attribute]:
    """Where a module reads what is private to a class of another module. Names that it has itself are passed over, as
    are those of ``self``, whose class may inherit them.
    """
    foreign = everywhere - private_names(path)
    for node in nodes(path):
        if isinstance(node, ast.Attribute) and node.attr in foreign and ast.unparse(node.value) not in OWNERS:
            yield node


def test_what_is_private_to_a_class_is_read_in_its_module_alone() -> None:
    """A class that reads another one's private state is a part of that one, whatever the counts above say."""
    everywhere = set().union(*map(private_names, product()))
    found = {
        f"{path.relative_to(ROOT / 'raycdc')}: {ast.unparse(node)}"
        for path in product()
        for node in others_private(path, everywhere)
    }
    over = sorted(found - OF_LIBRARIES)
    if over:
        pytest.fail("\n".join(["Give the class a method for it, or move the code there:", *over]), pytrace=False)
    assert not OF_LIBRARIES - found, "these are read no more: take them out of the list"
