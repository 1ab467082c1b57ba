"""The command line: assembles the groups of commands and the top-level commands.

A command is its options and a call: it imports its implementation when it runs, so that every command starts quickly.

`configure_logging` sets up the log of a command on standard error: lines of libraries, and of raycdc itself.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from raycdc.cli.commands.bench import bench
from raycdc.cli.commands.groups import (
    OWN_OPTIONS,
    ConfigPath,
    Json,
    TableName,
    Verbose,
    Wait,
    Where,
    change_table_of,
    inspect,
    notify,
    state,
    tables,
)
from raycdc.core.terminal_text import printable_text
from raycdc.errors import ExitCode

_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class _PrintableFormatter(logging.Formatter):
    """Formats log lines with control characters escaped, because lines contain names and texts of servers."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_text(super().format(record))


def configure_logging(verbose: bool) -> None:
    """Show warnings, and with ``--verbose`` also less severe log lines."""
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format=_FORMAT,
        force=True,
    )
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_PrintableFormatter(_FORMAT))


app = typer.Typer(
    name="raycdc",
    help="Change data capture: a database into a lakehouse, exactly once.\n\n"
    "Begin with `raycdc demo`, or with `raycdc init`, which writes a configuration. `raycdc docs start` has more.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
app.add_typer(inspect, name="inspect")
app.add_typer(tables, name="tables")
app.add_typer(state, name="state")
app.add_typer(notify, name="notify")
app.add_typer(bench, name="bench")


#: A user may take the name of a key of a source or sink for an option. The message then shows the right syntax.
_KEYS_OF_PLUGINS = (
    "Other keys of the source's section are --answer KEY=VALUE; those of the sink's, --answer sink.KEY=VALUE."
)


def run_app(words: Sequence[str]) -> int:
    """Parse `words` and run the command; usage errors are printed and end with the exit code of config errors."""
    command = typer.main.get_command(app)
    try:
        result = command.main(args=list(words), prog_name="raycdc", standalone_mode=False)
    except Exception as error:
        # The option parser prints its usage errors itself; `main` handles all other errors.
        show = getattr(error, "show", None)
        if callable(show) and hasattr(error, "exit_code"):
            show()
            if type(error).__name__ == "NoSuchOption" and words[:1] == ["init"]:
                typer.echo(_KEYS_OF_PLUGINS, err=True)
            return int(ExitCode.CONFIG)
        if type(error).__name__ == "Abort":
            raise KeyboardInterrupt from error
        raise
    return result if isinstance(result, int) else int(ExitCode.DONE)


def _version(wanted: bool) -> None:
    if wanted:
        from raycdc import __version__

        print(f"raycdc {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Change data capture: a database into a lakehouse, exactly once."""


@app.command(short_help="Run the pipeline of CONFIG until it is stopped or caught up.")
def run(
    config: ConfigPath,
    until: Annotated[
        str | None, typer.Option("--until", metavar="caught-up", help="Stop when the log's present end is committed.")
    ] = None,
    local: Annotated[bool, typer.Option("--local", help="The same as --engines never.")] = False,
    engines: Annotated[
        str | None,
        typer.Option(
            "--engines",
            metavar="auto|always|never",
            help="When Ray reads and Spark writes, instead of pipeline.engines: never is everything in this process.",
        ),
    ] = None,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait while another run has the state, and take over when it ends.")
    ] = False,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Begin only where all is as `plan --out` sealed it.")
    ] = None,
    ui: Annotated[bool, typer.Option("--ui", help="Print a link to the run's web UI.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Run the pipeline of CONFIG until it is stopped (Ctrl-C) or has caught up."""
    configure_logging(verbose)
    from raycdc.cli.run import RunOptions, run_pipeline

    return run_pipeline(config, RunOptions(until, local, standby, plan, ui, engines), as_json=json, verbose=verbose)


@app.command(short_help="Print how far the pipeline of CONFIG is, running or not.")
def status(
    config: ConfigPath,
    watch: Annotated[bool, typer.Option("--watch", help="Print it again every second, until Ctrl-C.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Print how far each table and the pipeline as a whole is: of a running pipeline, else of its state."""
    configure_logging(verbose)
    from raycdc.cli.status import print_status

    return print_status(config, as_json=json, watch=watch)


@app.command(short_help="Print a link to the web UI of a running pipeline.")
def ui(
    config: ConfigPath,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="The browser that opens the link can only read.")
    ] = False,
    verbose: Verbose = False,
) -> int:
    """Print a link to the web UI of the running pipeline of CONFIG. It signs in one browser, within ten minutes."""
    configure_logging(verbose)
    from raycdc.cli.status import print_ui_link

    return print_ui_link(config, reads_only=read_only)


@app.command(short_help="Print what is missing for CONFIG to run, with its remedy.")
def check(
    config: ConfigPath,
    local: Annotated[bool, typer.Option("--local", help="Check for a run with --local, which needs no Java.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Connect to the source and print what CONFIG still needs to run, with the statements that fix it."""
    configure_logging(verbose)
    from raycdc.cli.planning.check import check_config

    return check_config(config, as_json=json, local=local)


@app.command(short_help="Print the targets that CONFIG would make, with their columns.")
def plan(
    config: ConfigPath,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="Seal the plan as a file for `raycdc run --plan`.")
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Print the targets of CONFIG with their tables, columns and statements.

    Also prints how much a snapshot reads, and the effect of a changed configuration on an existing state.
    """
    configure_logging(verbose)
    from raycdc.cli.planning.plan import plan_config

    return plan_config(config, as_json=json, out=out)


@app.command(short_help="Compare the targets of CONFIG with the source, also during a run.")
def verify(
    config: ConfigPath,
    tables: Annotated[
        list[str] | None, typer.Argument(metavar="[TABLE]...", help="The tables, as DB.TABLE; all without any.")
    ] = None,
    wait: Annotated[
        float, typer.Option("--wait", metavar="SECONDS", help="How long to wait for the run's next commit.", min=0)
    ] = 60.0,
    show_keys: Annotated[
        bool, typer.Option("--show-keys", help="Print the keys of up to 20 rows of each kind that differ.")
    ] = False,
    sample: Annotated[
        str, typer.Option("--sample", metavar="N%", help="Read that part of each table's ranges at the source.")
    ] = "",
    repair: Annotated[bool, typer.Option("--repair", help="Have tables that differ read again.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Compare the rows of targets with those of their source, with or without a running pipeline.

    Exit code 8: rows differ; 9: no rows differ, but a table could not be compared.
    """
    configure_logging(verbose)
    from raycdc.cli.verify import VerifyOptions, verify_config

    return verify_config(config, VerifyOptions(tuple(tables or ()), wait, show_keys, json, sample, repair))


@app.command(short_help="Write a commented configuration by asking the source.")
def init(  # noqa: PLR0913, PLR0917 - each is an option of the command line
    path: Annotated[Path, typer.Argument(metavar="CONFIG", help="The file to write.")] = Path("pipeline.toml"),
    source: Annotated[
        str, typer.Option(metavar="TYPE", help="Type of the source. Default: mongodb with --uri, else mysql.")
    ] = "",
    host: Annotated[str | None, typer.Option(help="Host of the MySQL or MariaDB server.")] = None,
    port: Annotated[int | None, typer.Option(help="Its TCP port.")] = None,
    user: Annotated[str | None, typer.Option(help="The account to connect with.")] = None,
    password_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="The environment variable that holds its password.")
    ] = None,
    uri: Annotated[
        str | None,
        typer.Option(help="A MongoDB instead: its connection string, as '${env:NAME}' if it has a password."),
    ] = None,
    table: Annotated[
        list[str] | None,
        typer.Option(metavar="DB.TABLE", help="A table, collection, topic or pattern to capture; may be repeated."),
    ] = None,
    name: Annotated[str | None, typer.Option(help="Name of the pipeline.")] = None,
    sink: Annotated[str, typer.Option(metavar="TYPE", help="Type of the sink.")] = "delta",
    sink_path: Annotated[
        str | None,
        typer.Option(help="Where a sink of files writes. Default: its key's example, such as ./lake."),
    ] = None,
    answer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="Another key of the source's section, or with sink.KEY of the sink's; may be repeated.",
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite the file.")] = False,
    verbose: Verbose = False,
) -> int:
    """Write a commented configuration from the source's answers; asks for values that no option gives."""
    configure_logging(verbose)
    from raycdc.cli.init import InitOptions, parse_answers, write_config

    own = {"host": host, "port": port, "user": user, "password-env": password_env, "uri": uri, "sink.path": sink_path}
    answers = {key: str(value) for key, value in own.items() if value is not None} | parse_answers(answer or ())
    options = InitOptions(
        source=source or ("mongodb" if uri else "mysql"),
        sink=sink,
        answers=answers,
        tables=tuple(table or ()),
        name=name,
    )
    return write_config(path, options, force=force)


@app.command(short_help="List the installed sources, sinks and formats.")
def plugins(json: Json = False) -> int:
    """List the installed sources, sinks and formats, broken ones with their error."""
    from raycdc.cli.plugins import print_plugins

    return print_plugins(as_json=json)


@app.command(short_help="Print a page of the manual.")
def docs(
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]", help="A page; without it, the list of pages.")] = "",
) -> int:
    """Print a page of the manual: a source, a target, transforms, every option."""
    from raycdc.cli.docs import print_page

    return print_page(topic)


@app.command(short_help="Start a private server to try things on.")
def sandbox(
    kind: Annotated[
        str, typer.Argument(metavar="[KIND]", help="Its kind, such as mariadb; without it, the list of kinds.")
    ] = "",
    port: Annotated[int | None, typer.Option(help="Its TCP port. Default: the usual one, or a free one.")] = None,
    empty: Annotated[bool, typer.Option("--empty", help="Without the small shop that a source has.")] = False,
    live: Annotated[bool, typer.Option("--live", help="Customers buy as long as it runs.")] = False,
) -> int:
    """Start a private server with a small shop in it; prints its address and accounts, and what to type next.

    It runs until Ctrl-C, and its data goes with it.
    """
    from raycdc.cli.sandbox import print_kinds, serve

    return serve(kind, port=port, empty=empty, live=live) if kind else print_kinds()


@app.command(
    short_help="Follow a small shop in a private server into any target.",
    context_settings=OWN_OPTIONS,
)
def demo(context: typer.Context) -> int:
    """Start a private server with a small shop, follow it into any target, and compare both.

    `raycdc demo --help` lists the servers and targets.
    """
    from raycdc.cli import demo as demo_command

    return int(demo_command.main(context.args))


@app.command("backfill", short_help="Read some rows of TABLE again while its log is followed.")
def backfill(config: ConfigPath, table: TableName, where: Where = None, wait: Wait = 600.0) -> int:
    """Read the rows of TABLE that meet a predicate again, and replace those of its target by key.

    Its changes go on meanwhile. Nothing is deleted (raycdc docs backfill).
    """
    return change_table_of(config, table, "backfill", wait, where)
