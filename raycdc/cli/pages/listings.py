"""The pages ``changes``, ``errors`` and ``formats``, generated from tables of the code.

``changes`` has the effect of a source table's changes on a target, by setting and kind of target. ``errors`` has every
named error with its exit code, cause and remedy, from the docstring of its class. ``formats`` has the message formats,
if they can be written, and every option of each.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence

from raycdc.config.reference import format_sections
from raycdc.errors import ConfigError, ExitCode, ParkReason, RaycdcError, TableRefusedError
from raycdc.formats.plugins import load_format
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution.effects import CHANGES, TARGETS, ChangeEffect, SchemaChangeBehavior, effect
from raycdc.plugins import PluginGroup, list_plugins
from raycdc.state.parked import WAYS_OUT


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table with the titles `head`; each row has as many cells as there are titles."""
    lines = [_table_line(row) for row in rows]
    return "\n".join([_table_line(head), "|" + "---|" * len(head), *lines])


def code(text: str) -> str:
    """Return `text` in code quotes; an empty text stays empty."""
    return f"`{text}`" if text else ""


def _table_line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


_FORMATS_BEGIN = """# Message formats and their options

Messages of Kafka's topics (`raycdc docs kafka`) are in one of these formats. `format = "maxwell-json"` takes one as
it is, `format = { type = "maxwell-json", on_error = "skip" }` with options; it stands in `[source]` where messages are
read, and in `[sink]` where they are written. `raycdc inspect messages --format FORMAT FILE` prints what messages mean,
and `raycdc docs types` how values look in each."""

_KEY = LogicalType(TypeKind.INT32)


def formats_page() -> str:
    """Return the text of the page."""
    rows = [
        (f"`{listing.type}`", listing.summary, "yes" if is_written(listing.type) else "no")
        for listing in list_plugins()
        if listing.group is PluginGroup.FORMATS and listing.package == "raycdc"
    ]
    parts = [_FORMATS_BEGIN, table(("format", "its messages", "can be written"), rows)]
    return "\n\n".join([*parts, *format_sections()]) + "\n"


def is_written(identifier: str) -> bool:
    """Return True if messages in this format can be written, too, and not only read."""
    try:
        load_format(identifier).encoder(TableId("shop", "orders"), TableSchema((Column("id", _KEY),), ("id",)))
    except ConfigError:
        return False
    return True


_CHANGES_BEGIN = """# Schema changes: what becomes of the target

`pipeline.schema_change` says how far a target follows its source's table (`raycdc docs configuration`). Every cell
of these tables is played into every target by the tests of raycdc.

*follows*: the target changes as the table did, before a row of the new shape is written. *stays*: it keeps its columns;
later rows have null in one that went, and a column that came is left out. *keeps both*: it keeps what it has and gets
what is new. *refused*: the table is parked before a row of the new shape is written, and the others go on. `fail`
refuses every change, and the run ends; `try_evolve` is `evolve`, and leaves out what a target cannot have. Files and
messages have the columns of their rows, whatever those before had; files cannot be told to `ignore`. That rows go is a
message where a format has one, which `maxwell-json`, of which the table is, has not. Columns of databases and documents
are found by name, and have no places."""

_ROWS = """## What the rows get that exist

In an upsert target. Rows of a changelog, of files and of topics keep what they had, and have null in a column that came
later; under `evolve` lakes and databases show them under the names of today. Copying values is one commit of the whole
table for Delta and Iceberg, one `UPDATE` for a database, and changes of all documents, some thousand at a time, for
MongoDB; it is done once, before rows of the new shape, whatever dies meanwhile."""

_TYPES = """## Another type

A server does not log the rows that a statement converts. So a statement of MySQL or MariaDB that may change values
(`INT` to `VARCHAR`, a smaller `INT`, a `DECIMAL` with fewer digits, a `DATETIME` with fewer fractions, a shorter text)
resnapshots the table automatically, under `evolve`, `try_evolve` and `lenient`: its rows are deleted from an upsert
target, which gets the new type, and all are read again. A line and the event `parked` with `again` report the reason,
and so does `raycdc status` while the table is read. If the target cannot get the type (`ignore`, or a changelog of a
lake or database, whose rows stay) the table is parked instead, and under `fail` the run ends. The same holds for a new
column whose value in old rows is computed (`raycdc docs troubleshooting`)."""

_OTHERS = """A renamed key column is refused under `lenient`. Where the source gives a renamed column's name to another
column at once, the target has no second place for its values: they are under the new name alone. Where several tables
are merged into one target, it only grows: a column that one of them renames is one more, with the values of the old one
in the rows that exist, and tables that have the old name write theirs under both; in a changelog it has null there."""


def changes_page() -> str:
    """Return the text of the page."""
    parts = [_CHANGES_BEGIN, _effects(), _ROWS, _rows(), _OTHERS, _TYPES]
    return "\n\n".join(parts) + "\n"


def _effects() -> str:
    columns = (SchemaChangeBehavior.EVOLVE, SchemaChangeBehavior.LENIENT, SchemaChangeBehavior.IGNORE)
    head = ("change", "`evolve`, `try_evolve`", "`lenient` (default)", "`ignore`")
    lines = ((f"`{name}`: {change.statement}", *(_cell(name, b) for b in columns)) for name, change in CHANGES.items())
    return table(head, lines)


def _cell(change: str, behavior: SchemaChangeBehavior) -> str:
    """Return the effect on most targets, and the targets with a different one."""
    by_effect: dict[ChangeEffect, list[str]] = {}
    for target in TARGETS:
        by_effect.setdefault(effect(target, behavior, change), []).append(target)
    most = max(by_effect, key=lambda one: len(by_effect[one]))
    others = [f"{', '.join(by_effect[one])}: {one}" for one in by_effect if one is not most]
    return "; ".join([most, *others])


def _rows() -> str:
    head = ("change", "`evolve`, `try_evolve`", "`lenient` (default)")
    followed = ((name, change) for name, change in CHANGES.items() if set(change.effects) != {ChangeEffect.REFUSED})
    return table(head, [(f"`{name}`", change.evolve_rows, change.lenient_rows) for name, change in followed])


#: The modules that define named errors.
MODULES = (
    "raycdc.errors",
    "raycdc.state.commits.record_bases",
    "raycdc.connectors.mysql.binlog.wire.log_dump",
    "raycdc.connectors.mysql.server.checks",
    "raycdc.connectors.mysql.ddl.alter",
    "raycdc.connectors.mysql.ddl.follow.history",
    "raycdc.connectors.mysql.server.mariadb_log",
    "raycdc.connectors.mysql.snapshot.planning.chunks",
    "raycdc.connectors.mysql.snapshot.row_filter",
    "raycdc.formats.api",
    "raycdc.sinks.mongodb.documents",
    "raycdc.spark.artifacts",
)

_BEGIN = """# Errors and exit codes

A command that fails prints one paragraph: what happened, where, and what to do. That text knows more than this page,
which has the classes behind the texts: `raycdc run --json` names them (`"event": "error"`), and so does a log. The exit
code is the command's. *Again* says that a run tries it again by itself, for up to five minutes, before it ends.

`raycdc docs troubleshooting` is sorted by symptom, and describes the automatic reaction to each.

## Exit codes

| code | meaning |
|---|---|
| 0 | done; also ended in order by SIGTERM, as systemd and Kubernetes do |
| 1 | a bug in raycdc; the traceback is shown |
| 2 | the configuration is wrong; all its problems are listed |
| 3 | the source cannot be reached, or does not permit what is needed |
| 4 | data or a schema that cannot be handled |
| 5 | the sink refused |
| 6 | the state cannot be used; also ended because another driver took it over (`FencedError`) |
| 7 | Ray was lost, or did not start; the next run goes on from what was sealed |
| 8 | `verify` found rows that differ |
| 9 | `verify` found none, but could not compare a table |
| 130 | interrupted with Ctrl-C; nothing is lost |"""

_PARKED = """## Errors that park a table

They end no run: the table is parked, the others go on, and `raycdc tables list` has the reason and the text. `--until
caught-up` ends with 4 once the others are done; with `pipeline.on_table_error = "fail"` every run ends at once, with
the code below. After the cure, `raycdc tables resnapshot` begins the table anew."""

_CODES = {
    ExitCode.BUG: "a bug in raycdc, or an error without a name of its own",
    ExitCode.CONFIG: "the configuration",
    ExitCode.SOURCE: "the source",
    ExitCode.DATA: "data and schemas",
    ExitCode.SINK: "the target",
    ExitCode.STATE: "the state",
    ExitCode.CLUSTER: "the Ray cluster",
}


def errors_page() -> str:
    """Return the text of the page."""
    known = list(named_errors())
    parking = [error for error in known if issubclass(error, TableRefusedError) and error is not TableRefusedError]
    parts = [_BEGIN]
    for exit_code, about in _CODES.items():
        own = [error for error in known if error.exit_code is exit_code and not issubclass(error, TableRefusedError)]
        rows = [(f"`{e.__name__}`", cause(e), "yes" if e.retryable else "", e.cure) for e in own]
        parts += [f"## Exit code {exit_code.value}: {about}", table(("error", "it means", "again", "what to do"), rows)]
    parts += [_PARKED, table(("error", "exit code", "reason", "it means", "what to do"), map(_parking, parking))]
    reasons = [(f"`{reason}`", f"{WAYS_OUT[reason]}.") for reason in ParkReason]
    parts += ["As `raycdc tables list` says the way out, by the reason:", table(("reason", "way out"), reasons)]
    return "\n\n".join(parts) + "\n"


def named_errors() -> Iterator[type[RaycdcError]]:
    """Yield every error class of raycdc, base classes before derived ones."""
    for module in MODULES:
        importlib.import_module(module)
    yield from _below(RaycdcError, set())


def _below(error: type[RaycdcError], seen: set[type[RaycdcError]]) -> Iterator[type[RaycdcError]]:
    """Return the classes derived from `error`, except those in `seen`, in an order that does not depend on imports."""
    here = [each for each in error.__subclasses__() if each.__module__ in MODULES and each not in seen]
    for each in sorted(here, key=lambda each: MODULES.index(each.__module__)):
        seen.add(each)
        yield each
        yield from _below(each, seen)


def cause(error: type[RaycdcError]) -> str:
    """Return the class's description: its docstring's first paragraph."""
    first = (error.__doc__ or "").strip().partition("\n\n")[0]
    return " ".join(first.split())


def _parking(error: type[TableRefusedError]) -> tuple[str, ...]:
    return f"`{error.__name__}`", str(error.exit_code.value), f"`{error.reason}`", cause(error), error.cure
