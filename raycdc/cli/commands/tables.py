"""``raycdc tables``: what is done with single tables, of a pipeline that runs or stands still."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raycdc.cli.commands.options import ConfigPath, Json, TableName, Wait, Where, command_group

tables = command_group(
    "List the tables of a pipeline, and change what is done with them: at once where it runs, else at its start.",
    "List the tables of a pipeline, and change them.",
)


@tables.command("list", short_help="Print each table's phase, and why one is not followed.")
def tables_list(config: ConfigPath, json: Json = False) -> int:
    """Print each table's phase, and where and why one is not followed."""
    from raycdc.cli.tables import print_tables

    return print_tables(config, as_json=json)


@tables.command("resnapshot", short_help="Read TABLE anew.")
def tables_resnapshot(config: ConfigPath, table: TableName, where: Where = None, wait: Wait = 60.0) -> int:
    """Read TABLE anew while the others go on; rows that are gone at the source leave the target. With --where some rows
    are read again, and nothing is emptied, as `raycdc backfill` does it.
    """
    return change_table_of(config, table, "resnapshot", wait, where)


@tables.command("add", short_help="Add TABLE, with a snapshot.")
def tables_add(config: ConfigPath, table: TableName, wait: Wait = 60.0) -> int:
    """Add TABLE, which source.tables selects by now, with a snapshot."""
    return change_table_of(config, table, "add", wait)


@tables.command("pause", short_help="Stop following TABLE.")
def tables_pause(config: ConfigPath, table: TableName, wait: Wait = 60.0) -> int:
    """Stop following TABLE; its target stays as it is."""
    return change_table_of(config, table, "pause", wait)


@tables.command("remove", short_help="Leave TABLE out.")
def tables_remove(config: ConfigPath, table: TableName, wait: Wait = 60.0) -> int:
    """Leave TABLE out; its target keeps what it has."""
    return change_table_of(config, table, "remove", wait)


@tables.command("resume", short_help="Follow a paused TABLE again, from where it was left.")
def tables_resume(config: ConfigPath, table: TableName, wait: Wait = 60.0) -> int:
    """Follow a paused TABLE again, from where it was left; the answer says so where it has to be read anew."""
    return change_table_of(config, table, "resume", wait)


@tables.command("commands", short_help="Print how far such commands are.")
def tables_commands(
    config: ConfigPath,
    command: Annotated[str | None, typer.Argument(metavar="ID", help="One of them.", show_default=False)] = None,
    json: Json = False,
) -> int:
    """Print the last commands about tables, and how far each is: accepted, acting, done or refused."""
    from raycdc.cli.tables import print_commands

    return print_commands(config, command, as_json=json)


def change_table_of(config: Path, table: str, action: str, wait_s: float, where: str | None = None) -> int:
    """Have a running pipeline do `action` with a table, or its next start; `where` chooses rows, None means all."""
    from raycdc.cli.tables import change_table
    from raycdc.errors import ConfigError

    if where is not None and not where.strip():
        raise ConfigError("--where is empty. For all rows of the table: raycdc tables resnapshot, without it.")
    return change_table(config, table, action, wait_s=wait_s, where=where or "")
