"""The page ``changes``: the effect of a source table's changes on a target, by setting and kind of target."""

from __future__ import annotations

from raycdc.cli.pages.markdown import table
from raycdc.model.evolution.effects import CHANGES, TARGETS, ChangeEffect, SchemaChangeBehavior, effect

_BEGIN = """# Schema changes: what becomes of the target

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
    parts = [_BEGIN, _effects(), _ROWS, _rows(), _OTHERS, _TYPES]
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
