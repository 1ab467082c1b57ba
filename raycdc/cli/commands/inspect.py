"""``raycdc inspect``: what is inside of checkpoints, logs, messages and statements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from raycdc.cli.commands.options import command_group

inspect = command_group("Look into checkpoints, binlogs, messages and DDL.")


@inspect.callback()
def _inspect() -> None:
    from raycdc.lean import without_pandas

    without_pandas()


@inspect.command("checkpoint", short_help="Print the newest checkpoint as JSON.")
def inspect_checkpoint(
    state: Annotated[Path, typer.Argument(metavar="STATE_OR_CONFIG", help="State folder, or a pipeline's TOML file.")],
    json: Annotated[bool, typer.Option("--json", help="The whole document on one line.")] = False,
    summary: Annotated[bool, typer.Option("--summary", help="A few lines for people.")] = False,
) -> int:
    """Print the newest checkpoint as JSON: epochs, positions, tables, segments."""
    from raycdc.cli.inspect_checkpoint import print_checkpoint

    return print_checkpoint(state, one_line=json, summary=summary)


@inspect.command("binlog")
def inspect_binlog(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Binlog files, in order.")],
    schema: Annotated[
        Path | None, typer.Option(metavar="SCHEMA.sql", help="CREATE TABLE statements that name the columns.")
    ] = None,
) -> int:
    """Print the row changes of binlog files as JSON lines."""
    from raycdc.cli import inspect_binlog as command

    return int(command.run(files, schema) or 0)


@inspect.command("messages")
def inspect_messages(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="One message per line; an empty line is a tombstone.")],
    format_: Annotated[str, typer.Option("--format", metavar="FORMAT", help="maxwell-json, canal-json, …")],
    schema: Annotated[
        str | None, typer.Option(metavar="COLUMNS", help='The columns, e.g. "id BIGINT, name STRING".')
    ] = None,
) -> int:
    """Print the changelog that messages mean as JSON lines."""
    from raycdc.cli.inspect_messages import print_messages

    return int(print_messages(file, format_, schema))


@inspect.command("ddl", short_help="Print the schema changes of DDL statements as JSON lines.")
def inspect_ddl(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="SQL statements, each ended by ; at a line's end.")],
    tables: Annotated[bool, typer.Option("--tables", help="Print the resulting tables instead of the events.")] = False,
    server: Annotated[
        str,
        typer.Option(
            help="The server by whose rules types are read and spelled: mysql (8.0.19 on), mysql-5.7 or mariadb."
        ),
    ] = "mysql",
) -> int:
    """Print the schema changes that DDL statements mean, as JSON lines."""
    from raycdc.cli.inspect_ddl import print_ddl

    return print_ddl(file, tables=tables, server=server)
