"""``raycdc bench``: measures a user's own pipeline; with a source checkout, raycdc and its peers, each on its own
servers.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from raycdc.cli.commands.groups import OWN_OPTIONS, ConfigPath, Json, command_group

#: The benchmarks of a source checkout, under any name.
_CHECKOUT = "checkout"


class _Benchmarks(TyperGroup):
    """A group with a command for each benchmark of users' pipelines.

    Any other name runs a benchmark of a source checkout.
    """

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        return super().get_command(ctx, cmd_name) or super().get_command(ctx, _CHECKOUT)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        name, command, rest = super().resolve_command(ctx, args)
        # The first word is the benchmark's name.
        is_benchmark = command is not None and command.name == _CHECKOUT and args[0] != _CHECKOUT
        return name, command, args if is_benchmark else rest


bench = command_group(
    "Measure your own pipeline (run, splits), or raycdc and its peers on private servers (other names, in a "
    "checkout of raycdc's source: raycdc bench checkout --help lists them).",
    "Measure your own pipeline, or raycdc on private servers.",
    cls=_Benchmarks,
)


@bench.command(
    "splits",
    short_help="Compare the ways to cut your tables into chunks; of topics, say how many readers to take.",
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
        str, typer.Option(metavar="NUMBERS", help="The numbers of readers to predict times for.")
    ] = "1,2,4,8",
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Of tables: write a page with plots there.")] = None,
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
    from raycdc.cli.bench.bench_splits import ROWS_MAX, BenchSplitsOptions, compare_generated, compare_splits

    asked = BenchSplitsOptions(tuple(names or ()), strategies, rows or ROWS_MAX, readers, html, json, yes)
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
    """Run your pipeline from its beginning into a temporary folder, and print where the time goes.

    Also prints what other settings would change. The real target and state are not touched; the source is read like in
    a run.
    """
    from raycdc.cli.bench.bench_run import BenchRunOptions, measure_run

    return measure_run(config, BenchRunOptions(seconds, rows, tuple(tries or ()), into, local, json))


@bench.command(_CHECKOUT, hidden=True, context_settings=OWN_OPTIONS)
def bench_checkout(context: typer.Context) -> int:
    """Run `python -m bench` with these arguments."""
    return _run_checkout(context.args)


def _run_checkout(words: Sequence[str]) -> int:
    """Run ``python -m bench`` with the arguments `words`; return its exit code.

    Raises `ConfigError` if this installation has no benchmarks.
    """
    from raycdc.errors import ConfigError

    root = Path(__file__).parents[3]
    if not (root / "bench" / "__main__.py").exists():
        raise ConfigError(
            "raycdc bench: the benchmarks are not part of the installed package. Run it in a checkout of raycdc's "
            "source, after make setup."
        )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(root), *filter(None, sys.path)])}
    return subprocess.run([sys.executable, "-m", "bench", *words], env=environment, check=False).returncode
