"""Arguments and options that several commands have, and the groups of commands that use them.

The groups are ``raycdc notify`` (receivers of notifications), ``raycdc state`` (the state of a pipeline), ``raycdc
tables`` (single tables, of a running or stopped pipeline), and ``raycdc inspect`` (the content of checkpoints, logs,
messages and statements).
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer.core import TyperGroup

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="The table, as DB.TABLE.")]
ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="The pipeline's TOML file.")]
StatePath = Annotated[Path, typer.Argument(metavar="CONFIG", help="The pipeline's TOML file, or its state folder.")]
NewLocation = Annotated[str, typer.Argument(metavar="TO", help="An empty folder, or a URL such as s3://BUCKET/PREFIX.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
Wait = Annotated[float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for a running pipeline.")]
Where = Annotated[
    str | None,
    typer.Option(
        "--where",
        metavar="PREDICATE",
        help="Which rows: what stands behind WHERE in SQL; a filter document of MongoDB.",
        show_default=False,
    ),
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Replace the parked target, with all that others put into it or did to it.")
]
Verbose = Annotated[bool, typer.Option("--verbose", help="Log to stderr; show tracebacks of errors.")]

#: Settings of a command that parses its own options.
OWN_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}


def command_group(help_text: str, short: str | None = None, cls: type[TyperGroup] | None = None) -> typer.Typer:
    """Return a group for commands under one name; `short` is its text in the list of all commands."""
    return typer.Typer(cls=cls, help=help_text, short_help=short, no_args_is_help=True, rich_markup_mode=None)


notify = command_group("Try the receivers of notifications.")


@notify.callback()
def _notify() -> None:
    """Exist as a callback, so that `notify` stays a group although it has one command."""


@notify.command("test", short_help="Send a test notification to each receiver.")
def notify_test(config: ConfigPath) -> int:
    """Send a test notification to each [[notify]] of CONFIG, and print if it was accepted."""
    from raycdc.config import load_config
    from raycdc.core.terminal_text import printable_text
    from raycdc.errors import ConfigError, ExitCode
    from raycdc.observe.notify.notifier import receiver_of, test_message
    from raycdc.observe.notify.outbox import NotSentError

    pipeline = load_config(config)
    if not pipeline.notifications:
        raise ConfigError(f"{config} has no [[notify]]. raycdc docs notifications shows one.")
    refused = []
    for options in pipeline.notifications:
        receiver = receiver_of(options)
        try:
            receiver.send(test_message(pipeline.pipeline.name))
        except NotSentError as error:
            refused.append(f"{receiver.name} has not accepted it: {error}.")
        except Exception as wrong:  # noqa: BLE001 - of the URL or this machine; its text may be secret
            refused.append(f"{receiver.name} has not accepted it: {type(wrong).__name__}.")
        else:
            print(printable_text(f"{receiver.name} has accepted it."))
    if refused:
        raise ConfigError(*refused)
    return int(ExitCode.DONE)


state = command_group(
    "Examine the state of a pipeline, copy it, and move it to another location.",
    "Examine, copy and move a pipeline's state.",
)


@state.command("check", short_help="Read the whole state, and say what is damaged.")
def state_check(config: StatePath, json: Json = False) -> int:
    """Read the whole state and print its content, any damage, and remedies. Changes nothing.

    Exit code 6: something that a start would read is damaged or missing.
    """
    from raycdc.cli.state import check_state

    return check_state(config, as_json=json)


@state.command("backup", short_help="Copy the state, during a run or without one.")
def state_backup(config: StatePath, to: NewLocation) -> int:
    """Copy the state to TO as of one moment, while the pipeline runs or is stopped."""
    from raycdc.cli.state import back_up_state

    return back_up_state(config, to)


@state.command("move", short_help="Take the state to another folder or store.")
def state_move(config: StatePath, to: NewLocation) -> int:
    """Move the state of a stopped pipeline to TO. The old location is barred from further use."""
    from raycdc.cli.state import move_state

    return move_state(config, to)


tables = command_group(
    "List the tables of a pipeline, and change what is done with them: at once where it runs, else at its start.",
    "List the tables of a pipeline, and change them.",
)


@tables.command("list", short_help="Print each table's phase, and why one is not followed.")
def tables_list(config: ConfigPath, json: Json = False) -> int:
    """Print each table's phase, and where and why one is not followed."""
    from raycdc.cli.tables import print_tables

    return print_tables(config, as_json=json)


@tables.command("resnapshot", short_help="Read TABLE again.")
def tables_resnapshot(
    config: ConfigPath,
    table: TableName,
    where: Where = None,
    replace: Replace = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    wait: Wait = 60.0,
) -> int:
    """Read TABLE again while the others go on; rows that the source deleted are removed from the target.

    First prints the effect on the table, its target and other tables; at a terminal, asks before it goes on. With
    --where, only some rows are read again and nothing is emptied, like `raycdc backfill`. With --replace, the new
    snapshot replaces a parked target, whatever another writer did to it.
    """
    if where is not None:
        return change_table_of(config, table, "resnapshot", wait, where, replaces=replace)
    from raycdc.cli.tables import resnapshot_table
    from raycdc.source.tables.table_commands import TableAction, TableCommand

    command = TableCommand.new(TableAction.RESNAPSHOT, table, replaces=replace)
    return resnapshot_table(config, command, yes=yes, wait_s=wait)


@tables.command("add", short_help="Add TABLE, with a snapshot.")
def tables_add(config: ConfigPath, table: TableName, wait: Wait = 60.0) -> int:
    """Add TABLE, which source.tables selects by now, with a snapshot."""
    return change_table_of(config, table, "add", wait)


@tables.command("pause", short_help="Stop following TABLE.")
def tables_pause(config: ConfigPath, table: TableName, wait: Wait = 60.0) -> int:
    """Stop following TABLE; its target stays unchanged."""
    return change_table_of(config, table, "pause", wait)


@tables.command("remove", short_help="Leave TABLE out.")
def tables_remove(config: ConfigPath, table: TableName, wait: Wait = 60.0) -> int:
    """Remove TABLE from the pipeline; its target keeps its rows."""
    return change_table_of(config, table, "remove", wait)


@tables.command("resume", short_help="Follow a paused TABLE again, from where it was left.")
def tables_resume(config: ConfigPath, table: TableName, wait: Wait = 60.0) -> int:
    """Follow a paused TABLE again from its last position; the answer says if it must be read again."""
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


def change_table_of(
    config: Path, table: str, action: str, wait_s: float, where: str | None = None, *, replaces: bool = False
) -> int:
    """Have `action` carried out for a table by the running pipeline or at its next start.

    `where` selects rows; None means all rows.
    """
    from raycdc.cli.tables import carry_out
    from raycdc.errors import ConfigError
    from raycdc.source.tables.table_commands import TableAction, TableCommand

    if where is not None and not where.strip():
        raise ConfigError("--where is empty. For all rows of the table: raycdc tables resnapshot, without it.")
    if where is not None and replaces:
        raise ConfigError("--where is about some rows, and --replace about the whole target. Leave one of them out.")
    command = TableCommand.new(TableAction(action), table, where=where or "", replaces=replaces)
    return carry_out(config, command, wait_s=wait_s)


inspect = command_group("Look into checkpoints, binlogs, messages and DDL.")


@inspect.callback()
def _inspect() -> None:
    from raycdc.core.startup_tuning import without_pandas

    without_pandas()


@inspect.command("checkpoint", short_help="Print the newest checkpoint as JSON.")
def inspect_checkpoint(
    state: Annotated[Path, typer.Argument(metavar="STATE_OR_CONFIG", help="State folder, or a pipeline's TOML file.")],
    json: Annotated[bool, typer.Option("--json", help="The whole document on one line.")] = False,
    summary: Annotated[bool, typer.Option("--summary", help="A few lines for people.")] = False,
) -> int:
    """Print the newest checkpoint as JSON: epochs, positions, tables, segments."""
    from raycdc.cli.inspect.inspect_checkpoint import print_checkpoint

    return print_checkpoint(state, one_line=json, summary=summary)


@inspect.command("binlog")
def inspect_binlog(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Binlog files, in order.")],
    schema: Annotated[
        Path | None, typer.Option(metavar="SCHEMA.sql", help="CREATE TABLE statements that name the columns.")
    ] = None,
) -> int:
    """Print the row changes of binlog files as JSON lines."""
    from raycdc.cli.inspect import inspect_binlog as command

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
    from raycdc.cli.inspect.inspect_messages import print_messages

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
    from raycdc.cli.inspect.inspect_ddl import print_ddl

    return print_ddl(file, tables=tables, server=server)
