"""The commands and their options. Each imports what it needs when it runs."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from raycdc.errors import ExitCode
from raycdc.printable import printable_text

_LOG_FORMAT = "%(asctime)s %(levelname)s %(name)s: %(message)s"

#: The benchmarks of a source checkout, whatever their names.
_CHECKOUT = "checkout"
#: Of a command that reads its options by itself.
_OWN_OPTIONS = {"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []}

app = typer.Typer(
    name="raycdc",
    help="Change data capture: a database into a lakehouse, exactly once.\n\n"
    "Begin with `raycdc demo`, or with `raycdc init`, which writes a configuration. `raycdc explain start` has more.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


def _group(name: str, help_text: str, short: str | None = None, cls: type[TyperGroup] | None = None) -> typer.Typer:
    """Commands under one name; `short` is for the list of all."""
    group = typer.Typer(cls=cls, help=help_text, short_help=short, no_args_is_help=True, rich_markup_mode=None)
    app.add_typer(group, name=name)
    return group


inspect = _group("inspect", "Look into checkpoints, binlogs, messages and DDL.")
tables = _group(
    "tables",
    "List the tables of a pipeline, and change what is done with them: at once where it runs, else at its start.",
    "List the tables of a pipeline, and change them.",
)
state = _group(
    "state",
    "Examine the state of a pipeline, copy it, and move it to another place.",
    "Examine, copy and move a pipeline's state.",
)
notify = _group("notify", "Try the receivers of notifications.")

TableName = Annotated[str, typer.Argument(metavar="TABLE", help="The table, as DB.TABLE.")]
ConfigPath = Annotated[Path, typer.Argument(metavar="CONFIG", help="The pipeline's TOML file.")]
StatePath = Annotated[Path, typer.Argument(metavar="CONFIG", help="The pipeline's TOML file, or its state folder.")]
NewPlace = Annotated[str, typer.Argument(metavar="TO", help="An empty folder, or a URL such as s3://BUCKET/PREFIX.")]
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
Verbose = Annotated[bool, typer.Option("--verbose", help="Log to stderr; show tracebacks of errors.")]


#: An option may be meant as a key of a source or a sink, which are told in another way.
_KEYS_OF_PLUGINS = (
    "Other keys of the source's section are --answer KEY=VALUE; those of the sink's, --answer sink.KEY=VALUE."
)


def run_app(words: Sequence[str]) -> int:
    """Parse `words` and run the command; usage errors are printed and end with the exit code of config errors."""
    command = typer.main.get_command(app)
    try:
        result = command.main(args=list(words), prog_name="raycdc", standalone_mode=False)
    except Exception as error:
        # The parser's own errors know how to show themselves; everything else goes up to `main`.
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
    local: Annotated[bool, typer.Option("--local", help="Everything in this process, without Ray.")] = False,
    standby: Annotated[
        bool, typer.Option("--standby", help="Wait while another run has the state, and take over when it ends.")
    ] = False,
    plan: Annotated[
        Path | None, typer.Option("--plan", metavar="FILE", help="Begin only where all is as `plan --out` sealed it.")
    ] = None,
    page: Annotated[bool, typer.Option("--page", help="Print the address of the run's page for browsers.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Run the pipeline of CONFIG until it is stopped (Ctrl-C) or has caught up."""
    _configure_logging(verbose)
    from raycdc.cli.run import Way, run_pipeline

    return run_pipeline(config, Way(until, local, standby, plan, page), as_json=json, verbose=verbose)


@app.command(short_help="Print how far the pipeline of CONFIG is, running or not.")
def status(
    config: ConfigPath,
    watch: Annotated[bool, typer.Option("--watch", help="Print it again every second, until Ctrl-C.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Print how far each table and the pipeline as a whole is: of a running pipeline, else of its state."""
    _configure_logging(verbose)
    from raycdc.cli.status import print_status

    return print_status(config, as_json=json, watch=watch)


@app.command(short_help="Print a link to the page of a running pipeline.")
def page(
    config: ConfigPath,
    read_only: Annotated[
        bool, typer.Option("--read-only", help="Whoever opens the link may look, and has no buttons.")
    ] = False,
    verbose: Verbose = False,
) -> int:
    """Print a link to the page of the running pipeline of CONFIG, which lets one browser in within ten minutes."""
    _configure_logging(verbose)
    from raycdc.cli.page import print_page_link

    return print_page_link(config, reads_only=read_only)


@app.command(short_help="Print what is missing for CONFIG to run, with its remedy.")
def check(
    config: ConfigPath,
    local: Annotated[bool, typer.Option("--local", help="Check for a run with --local, which needs no Java.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Connect to the source and print what is missing for CONFIG to run, with the statements that fix it."""
    _configure_logging(verbose)
    from raycdc.cli.check import check_config

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
    """Print the targets that CONFIG would make, of which tables, with which columns and statements; how much a snapshot
    reads, and what a changed configuration does to the state that there is.
    """
    _configure_logging(verbose)
    from raycdc.cli.plan import plan_config

    return plan_config(config, as_json=json, out=out)


@app.command(short_help="Have TABLE begin anew, after saying what that means.")
def reset(
    config: ConfigPath,
    table: TableName,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask; for scripts.")] = False,
    wait: Wait = 60.0,
) -> int:
    """Have TABLE begin anew with a snapshot: at once where the pipeline runs, else at its next start.

    It says first what becomes of the table, of its target and of other tables, and asks.
    """
    from raycdc.cli.reset import reset_table

    return reset_table(config, table, yes=yes, wait_s=wait)


@app.command(short_help="Say why a pipeline does not go back, and what does instead.")
def rewind(config: ConfigPath) -> int:
    """Say why a pipeline does not go back to an earlier moment by itself, and the ways to what you may want."""
    from raycdc.cli.reset import refuse_rewind

    return refuse_rewind(config)


@app.command(short_help="Compare the targets of CONFIG with the source, beside a run.")
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
    repair: Annotated[bool, typer.Option("--repair", help="Have tables that differ read anew.")] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> int:
    """Compare the rows of targets with those of their source, while a run goes on or while none does.

    Exit code 8 says that rows differ; 9 that none does, but a table could not be compared.
    """
    _configure_logging(verbose)
    from raycdc.cli.verify import Asked, verify_config

    return verify_config(config, Asked(tuple(tables or ()), wait, show_keys, json, sample, repair))


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
    """Write a commented configuration by asking the source; asks for what no option says."""
    _configure_logging(verbose)
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
def explain(
    topic: Annotated[str, typer.Argument(metavar="[TOPIC]", help="A page; without it, the list of pages.")] = "",
) -> int:
    """Print a page of the manual: a source, a target, transforms, every option."""
    from raycdc.cli.explain import print_page

    return print_page(topic)


@app.command(short_help="Start a private server to try things on.")
def trial(
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
    from raycdc.cli.trial import print_kinds, serve

    return serve(kind, port=port, empty=empty, live=live) if kind else print_kinds()


@app.command(
    short_help="Follow a small shop in a private server into any target.",
    context_settings=_OWN_OPTIONS,
)
def demo(context: typer.Context) -> int:
    """Start a private server with a small shop, follow it into any target, and compare both.

    `raycdc demo --help` lists the servers and targets.
    """
    from raycdc.cli import demo as demo_command

    return int(demo_command.main(context.args))


class _Benchmarks(TyperGroup):
    """Those of users' own pipelines are commands; any other name is one of a source checkout, with its own options."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or super().get_command(ctx, _CHECKOUT)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        # A benchmark's name is its first word.
        is_benchmark = command is not None and command.name == _CHECKOUT and args[0] != _CHECKOUT
        return name, command, args if is_benchmark else rest


bench = _group(
    "bench",
    "Measure your own pipeline (run, splits), or raycdc and its peers on servers of their own (other names, in a "
    "checkout of raycdc's source: raycdc bench checkout --help lists them).",
    "Measure your own pipeline, or raycdc on servers of its own.",
    cls=_Benchmarks,
)


@bench.command(
    "splits",
    short_help="Compare the ways to cut your tables into chunks, and to share partitions.",
)
def bench_splits(
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG", help="The pipeline's TOML file; without it, generated tables.")
    ] = None,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="TABLE…", help="Tables, as DB.TABLE, or topics. Default: all.")
    ] = None,
    strategies: Annotated[str, typer.Option(metavar="NAMES", help="Comma-separated. Default: all there are.")] = "",
    rows: Annotated[
        int | None,
        typer.Option(help="About so many rows of a table are read, for each strategy and number of readers.", min=1),
    ] = None,
    readers: Annotated[
        str, typer.Option(metavar="NUMBERS", help="The numbers of readers that times are told for.")
    ] = "1,2,4,8",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Write a page with plots there.")] = None,
    json: Json = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask before rows are read.")] = False,
    cases: Annotated[
        str, typer.Option(metavar="NAMES", help="Of generated tables: which ones, comma-separated. Default: all.")
    ] = "",
    server: Annotated[str, typer.Option(help="Of generated tables: mariadb or mysql.")] = "mariadb",
) -> int:
    """Cut your tables by each strategy, read chunks of them as readers do, and say which strategy to take; of topics,
    read the partitions, and say how many readers to take. It reads only, at the pace of source.rows_per_second, and
    says beforehand how much.
    """
    from raycdc.cli.bench_splits import ROWS_MAX, Asked, compare_generated, compare_splits

    asked = Asked(tuple(names or ()), strategies, rows or ROWS_MAX, readers, html, json, yes)
    return compare_generated(asked, cases=cases, server=server) if config is None else compare_splits(config, asked)


@bench.command("run", short_help="Measure your pipeline into a target that is thrown away.")
def bench_run(
    config: ConfigPath,
    seconds: Annotated[float, typer.Option(help="A run ends after so long; 0: when it has caught up.", min=0)] = 30.0,
    rows: Annotated[int, typer.Option(help="Or after so many rows in the target; 0: any number.", min=0)] = 0,
    tries: Annotated[
        list[str] | None,
        typer.Option(
            "--try", metavar="KEY=VALUE", help="Run once more with this value, such as readers.max=4. Repeat."
        ),
    ] = None,
    into: Annotated[
        str, typer.Option(metavar="TYPE", help="Files of this type in place of the sink: parquet, jsonl or delta.")
    ] = "",
    local: Annotated[bool, typer.Option("--local", help="Without Ray and Spark.")] = False,
    json: Json = False,
) -> int:
    """Run your pipeline from its beginning into a folder of its own, which is removed, and say where the time goes and
    what other settings would do. The real target and state are not touched; the source is read as by a run.
    """
    from raycdc.cli.bench_run import Asked, measure_run

    return measure_run(config, Asked(seconds, rows, tuple(tries or ()), into, local, json))


@bench.command(_CHECKOUT, hidden=True, context_settings=_OWN_OPTIONS)
def bench_checkout(context: typer.Context) -> int:
    """Run `python -m bench` with these words."""
    from raycdc.cli import bench as bench_command

    return bench_command.run(context.args)


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
    return _change_table(config, table, "resnapshot", wait, where)


@tables.command("add", short_help="Add TABLE, with a snapshot.")
def tables_add(config: ConfigPath, table: TableName, wait: Wait = 60.0) -> int:
    """Add TABLE, which source.tables selects by now, with a snapshot."""
    return _change_table(config, table, "add", wait)


@tables.command("pause", short_help="Stop following TABLE.")
def tables_pause(config: ConfigPath, table: TableName, wait: Wait = 60.0) -> int:
    """Stop following TABLE; its target stays as it is."""
    return _change_table(config, table, "pause", wait)


@tables.command("remove", short_help="Leave TABLE out.")
def tables_remove(config: ConfigPath, table: TableName, wait: Wait = 60.0) -> int:
    """Leave TABLE out; its target keeps what it has."""
    return _change_table(config, table, "remove", wait)


@tables.command("resume", short_help="Follow a paused TABLE again, from where it was left.")
def tables_resume(config: ConfigPath, table: TableName, wait: Wait = 60.0) -> int:
    """Follow a paused TABLE again, from where it was left; the answer says so where it has to be read anew."""
    return _change_table(config, table, "resume", wait)


@tables.command("commands", short_help="Print how far such commands are.")
def tables_commands(
    config: ConfigPath,
    command: Annotated[str | None, typer.Argument(metavar="ID", help="One of them.", show_default=False)] = None,
    json: Json = False,
) -> int:
    """Print the last commands about tables, and how far each is: accepted, acting, done or refused."""
    from raycdc.cli.tables import print_commands

    return print_commands(config, command, as_json=json)


@app.command("backfill", short_help="Read some rows of TABLE again, beside its log.")
def backfill(config: ConfigPath, table: TableName, where: Where = None, wait: Wait = 600.0) -> int:
    """Read the rows of TABLE that meet a predicate again, while its changes go on, and put them over those of its
    target by key. Nothing is deleted (raycdc explain backfill).
    """
    return _change_table(config, table, "backfill", wait, where)


def _change_table(config: Path, table: str, action: str, wait_s: float, where: str | None = None) -> int:
    from raycdc.cli.tables import change_table
    from raycdc.errors import ConfigError

    if where is not None and not where.strip():
        raise ConfigError("--where is empty. For all rows of the table: raycdc tables resnapshot, without it.")
    return change_table(config, table, action, wait_s=wait_s, where=where or "")


@notify.callback()
def _notify() -> None:
    """Keeps its one command from being the group itself."""


@notify.command("test", short_help="Send a test notification to each receiver.")
def notify_test(config: ConfigPath) -> int:
    """Send a test notification to each [[notify]] of CONFIG, and say whether it was taken."""
    from raycdc.cli.notify import send_test

    return send_test(config)


@state.command("check", short_help="Read the whole state, and say what is damaged.")
def state_check(config: StatePath, json: Json = False) -> int:
    """Read the whole state: what it has, what of it is damaged or gone, and the way out. Changes nothing.

    Exit code 6 says that something is not as it was written that a start would read.
    """
    from raycdc.cli.state import check_state

    return check_state(config, as_json=json)


@state.command("backup", short_help="Copy the state, beside a run or without one.")
def state_backup(config: StatePath, to: NewPlace) -> int:
    """Copy the state to TO as it is at one moment, while the pipeline runs or stands still."""
    from raycdc.cli.state import back_up_state

    return back_up_state(config, to)


@state.command("move", short_help="Take the state to another folder or store.")
def state_move(config: StatePath, to: NewPlace) -> int:
    """Take the state of a pipeline that stands still to TO. The old place is barred: nobody goes on from it."""
    from raycdc.cli.state import move_state

    return move_state(config, to)


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


class _PrintableFormatter(logging.Formatter):
    """Log lines hold names and servers' words."""

    def format(self, record: logging.LogRecord) -> str:
        return printable_text(super().format(record))


def _configure_logging(verbose: bool) -> None:
    logging.basicConfig(
        level=logging.INFO if verbose else logging.WARNING,
        format=_LOG_FORMAT,
        force=True,
    )
    for handler in logging.getLogger().handlers:
        handler.setFormatter(_PrintableFormatter(_LOG_FORMAT))
