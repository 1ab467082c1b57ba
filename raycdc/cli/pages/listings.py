"""The pages ``changes``, ``errors``, ``formats`` and ``requirements``, generated from tables of the code.

``changes`` has the effect of a source table's changes on a target, by setting and kind of target. ``errors`` has every
named error with its exit code, cause and remedy, from the docstring of its class. ``formats`` has the message formats
with all their options, and shows for each format if it can be written. ``requirements`` has what a table of a database
target must be like.
"""

from __future__ import annotations

import importlib
from collections.abc import Iterable, Iterator, Sequence

from raycdc.cli.pages.uses import uses_table
from raycdc.config.reference import format_sections
from raycdc.errors import ConfigError, ExitCode, ParkReason, RaycdcError, TableRefusedError
from raycdc.formats.plugins import load_format
from raycdc.model import Column, LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.evolution.effects import CHANGES, TARGETS, ChangeEffect, SchemaChangeBehavior, effect
from raycdc.plugins import PluginGroup, list_plugins
from raycdc.sinks.jdbc.requirements import REQUIREMENTS
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

The messages of Kafka topics (`raycdc docs kafka`) are in one of these formats. `format = "maxwell-json"` selects a
format with its defaults, `format = { type = "maxwell-json", on_error = "skip" }` with options. Set it in `[source]`
for topics that are read, and in `[sink]` for topics that are written. `raycdc inspect messages --format FORMAT FILE`
prints the changes that messages describe; `raycdc docs types` says how each format writes values."""

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

`pipeline.schema_change` says how far a target follows its source's table (`raycdc docs configuration`). The tests of
raycdc check every cell of these tables with every kind of target.

- *follows*: the target changes as the table did, before a row with the new columns is written.
- *stays*: the target keeps its columns. Later rows have null in a column that the source dropped, and a column that the
  source added is left out.
- *keeps both*: the target keeps its columns and gets the new ones.
- *refused*: the table is parked before a row with the new columns is written, and the other tables continue.

`try_evolve` is like `evolve`, but leaves out a change that the target cannot make. Under `fail` every change ends the
run.

A file or message has the columns that its rows had at the source, and the columns of earlier files and messages do not
matter. Files cannot ignore a change. A truncation is written to a topic only if the message format has a message for
it; the cells for kafka are those of `maxwell-json`, which has none. The position of a column does not matter in
databases and MongoDB, because columns are found by name there."""

_ROWS = """## What existing rows get

The table below is for upsert targets. The rows of a changelog, of files and of topics are not changed, and have null in
a column that was added later; under `evolve`, lakes and databases show the values of renamed columns under the new
names. Copying values takes one commit of the whole table in Delta and Iceberg, one `UPDATE` in a database, and in
MongoDB changes of all documents, some thousand at a time. It is done once, before rows with the new columns are
written, even if a process dies meanwhile."""

_TYPES = """## A new type of a column

A server does not log the rows that a statement converts. If a statement of MySQL or MariaDB may change values (`INT` to
`VARCHAR`, a smaller `INT`, a `DECIMAL` with fewer digits, a `DATETIME` with fewer fractional digits, a shorter text),
raycdc therefore resnapshots the table automatically, under `evolve`, `try_evolve` and `lenient`: the rows of an upsert
target are deleted, the target gets the new type, and all rows are read again. A line and the event `parked` with
`again` report the reason, and so does `raycdc status` while the table is read. If the target cannot get the type (under
`ignore`, or in a changelog of a lake or database, which keeps its rows), the table is parked instead; under `fail` the
run ends. The same holds if a column is added whose value in existing rows is computed (`raycdc docs
troubleshooting`)."""

_OTHERS = """\
Renaming a key column is refused under `lenient`. If the source renames a column and gives the old name to a different
column at the same time, the target has no place for the values under the old name: they are under the new name only.

A target into which several tables are merged never loses a column. If one of the tables renames a column, the target
gets an additional column with the new name. In an upsert target, existing rows get the old column's values in the new
column, too, and tables that still use the old name write their values under both names. In a changelog, these rows have
null in the new column."""


_USES = """## A column that the configuration names

A change of a column may give another meaning to an expression, a filter or a mask that names it. The table below says
what becomes of a MySQL or MariaDB table then, for each kind of use. It is made by the rules that judge the statements
of the log. Its reactions hold at the statement, before a row after it is read; they are the same after a restart.

- *follows*: the target follows the change as the tables above say.
- *resnapshot*: the table is resnapshotted automatically, so that all rows are judged by one meaning. If its rows cannot
  be distinguished from those of another table in a merged upsert target, it is parked instead.
- *parked*: the table waits until the change is taken back or the configuration fits it, and for `raycdc tables
  resnapshot`; the other tables continue.

A table of another source is parked where the table says *resnapshot*. Routes name tables only."""


def changes_page() -> str:
    """Return the text of the page."""
    parts = [_CHANGES_BEGIN, _effects(), _ROWS, _rows(), _OTHERS, _TYPES, _USES, table(*uses_table())]
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


_REQUIREMENTS = """# Requirements for tables of a database target

A table of a database target (`raycdc docs targets`) must meet these requirements, so that its server neither loses nor
changes, merges or duplicates rows without an error. Each cell has a statement of another client by which a table breaks
the requirement; `–` means that the server has no such feature. The tests of raycdc run every statement of this page at
every time.

A table is examined

- when it is adopted (`pipeline.on_existing = "merge"`), and by `raycdc check` before that;
- at each start, even if there are no new rows;
- before each change of its columns, and after a statement that the server refused;
- at the end of each commit's transaction, so that rows are rolled back if the table was changed during the commit.

A table that breaks a requirement is not adopted. A table of the pipeline is parked before a row is written; undo the
change, then run `raycdc tables resnapshot`. The error names the feature, and the statement that removes it.

At its adoption a table must also have exactly the types that raycdc would give its columns; columns that it lacks are
added."""


def requirements_page() -> str:
    """Return the text of the page."""
    rows = [
        (
            requirement + (" (adoption only)" if searched.adopts else ""),
            *(code(breach.text()) if breach is not None else "–" for breach in (searched.postgres, searched.mysql)),
        )
        for requirement, searched in REQUIREMENTS.items()
    ]
    return f"{_REQUIREMENTS}\n\n{table(('requirement', 'PostgreSQL', 'MySQL, MariaDB'), rows)}\n"


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

A command that fails prints one paragraph: what happened, where, and what to do. This text has more details than this
page, which lists the classes of errors. `raycdc run --json` names the class (`"event": "error"`), and so does a log.
The tables are grouped by the exit code with which the command ends. *Again* has "yes" if a run retries by itself, for
up to five minutes, before it ends.

`raycdc docs troubleshooting` is sorted by symptom, and describes what raycdc does by itself.

## Exit codes

| code | meaning |
|---|---|
| 0 | done; also after SIGTERM, by which systemd and Kubernetes stop a process |
| 1 | a bug in raycdc; the traceback is shown |
| 2 | the configuration is wrong; all its problems are listed |
| 3 | the source cannot be reached, or does not permit what is needed |
| 4 | data or a schema that cannot be handled |
| 5 | the sink refused, or cannot be reached |
| 6 | the state cannot be used, or another driver has taken it over (`FencedError`) |
| 7 | Ray was lost, or did not start; the next run continues from the last sealed epoch |
| 8 | `verify` found rows that differ |
| 9 | `verify` found no difference, but could not compare a table |
| 130 | interrupted with Ctrl-C; nothing is lost |"""

_PARKED = """## Errors that park a table

These errors do not end a run: the table is parked, the other tables continue, and `raycdc tables list` shows the reason
and the text. A run with `--until caught-up` ends with 4 when the other tables have caught up. With
`pipeline.on_table_error = "fail"` every run ends immediately, with the exit code in the table. When the cause is
removed, resnapshot the table with `raycdc tables resnapshot`."""

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
    parts += [
        "`raycdc tables list` prints one of these solutions for each parked table, by its reason:",
        table(("reason", "solution"), reasons),
    ]
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
