"""``raycdc demo``: a temporary server with a small shop, followed into any target while customers buy.

It uses the product as a user does: it writes a configuration file, which is kept, and starts ``raycdc run`` with it in
a separate process. Afterwards source and target are read independently and compared: by ``raycdc verify`` if possible,
else by the keys and one column. If they differ, the exit code is that of a data error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from raycdc.cli.demo_mark import is_marked, mark, serving
from raycdc.config.init_questions import toml_list, toml_text
from raycdc.errors import ConfigError, ExitCode, SourceError, StateError
from raycdc.model.engines import EngineRows
from raycdc.server.client import NoRun, find
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.store import CheckpointStore

if TYPE_CHECKING:
    from raycdc.sandbox.trials import SandboxSourceServer
    from raycdc.sandbox.trials.targets import SandboxTarget

FOLDER = Path("demo-lake")
CONFIG = FOLDER / "demo.toml"
_STATE = FOLDER / ".raycdc-state"
_LOG = FOLDER / "run.log"
#: Time limits for a pipeline that hangs.
_SNAPSHOT_TIMEOUT_S = 900.0
_STOP_TIMEOUT_S = 300.0
#: If the target lacks rows after this time, a second run fetches them.
_CATCH_UP_TIMEOUT_S = 60.0
_WORKLOAD_PAUSE_S = 0.005
_POLL_S = 0.25
#: Numbers of rows of the largest table: for databases, which generate the rows themselves, and for all other sources.
_ORDERS, _ORDERS_SENT = 200_000, 20_000


@dataclass(frozen=True, slots=True)
class _Options:
    source: str
    sink: str
    orders: int
    seconds: float
    local: bool
    stay: bool
    ui: bool
    #: The TCP port of Spark's web UI while the pipeline runs.
    spark_port: int = 0

    def run_words(self) -> list[str]:
        return ["run", str(CONFIG), *(["--local"] if self.local else [])]

    def followed_words(self) -> list[str]:
        """Return the arguments of the run on the screen, with `--ui` if the web page is wanted."""
        return [*self.run_words(), *(["--ui"] if self.ui else [])]


def main(arguments: Sequence[str]) -> int:
    """Run the demo; return its exit code.

    Prints only before and after the pipeline runs, because the pipeline uses the screen in between.
    """
    options = _parse(arguments)
    from raycdc.sandbox.servers import ServerError
    from raycdc.sandbox.shop import ShopSize
    from raycdc.sandbox.trials import SandboxSourceServer, new_trial
    from raycdc.sandbox.trials.targets import new_target
    from raycdc.spark.artifacts import ArtifactError

    began = time.monotonic()
    _empty_folder()
    size = ShopSize(max(10, options.orders // 10), max(10, options.orders // 100), options.orders)
    try:
        trial = new_trial(options.source)
        assert isinstance(trial, SandboxSourceServer)
        target = new_target(options.sink, FOLDER)
        print(f"Starting {options.source}{f' and {options.sink}' if target.is_server else ''} …", flush=True)
        with target, trial:
            print(f"{trial.version} is at {trial.address}; filling a shop with {size.rows:,} rows …", flush=True)
            trial.fill(size)
            CONFIG.write_text(_configuration(trial, target, options), encoding="utf-8")
            with serving(CONFIG):
                _print_engines(options)
                print(f"raycdc {' '.join(options.followed_words())}   (while customers buy)\n", flush=True)
                status = _follow(trial, options)
                if status is not ExitCode.DONE:
                    return int(status)
                print(f"\nMeanwhile {trial.summary()}.\n{_engine_rows()}.\n", flush=True)
                findings = _compared(trial, target, options)
                status = _print_findings(findings)
                _print_end(target, options, seconds=time.monotonic() - began)
                if options.stay:
                    _stay()
    except (ServerError, ArtifactError) as cause:
        raise SourceError(str(cause)) from cause
    return int(status)


def _parse(arguments: Sequence[str]) -> _Options:
    from raycdc.sandbox.servers.private import free_port
    from raycdc.sandbox.trials import SOURCES
    from raycdc.sandbox.trials.targets import FOLDERS, SERVERS

    parser = argparse.ArgumentParser(
        prog="raycdc demo",
        description="Follow a small shop in a private server into any target, and compare both. Needs nothing that is "
        "not here: servers are fetched when they are first started.",
    )
    for name, known, default in (("--source", [*SOURCES], "mariadb"), ("--sink", [*FOLDERS, *SERVERS], "delta")):
        summary = f"{', '.join(known)}; default: {default}"
        parser.add_argument(name, choices=known, default=default, metavar="KIND", help=summary)
    parser.add_argument("--orders", type=int, help="rows of the largest table")
    parser.add_argument("--seconds", type=float, default=10.0, help="how long customers go on after the snapshot (10)")
    parser.add_argument("--local", action="store_true", help="run the pipeline without Ray and Spark")
    parser.add_argument(
        "--stay",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="leave the servers up until Ctrl-C; default: on a terminal, where the target is a server",
    )
    parser.add_argument(
        "--ui",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="print a link to the run's web UI (default)",
    )
    chosen = parser.parse_args(list(arguments))
    fills_itself = chosen.source.startswith(("mariadb", "mysql"))
    return _Options(
        source=chosen.source,
        sink=chosen.sink,
        orders=chosen.orders or (_ORDERS if fills_itself else _ORDERS_SENT),
        seconds=chosen.seconds,
        local=chosen.local,
        stay=sys.stdin.isatty() and chosen.sink in SERVERS if chosen.stay is None else chosen.stay,
        spark_port=free_port(),
        ui=chosen.ui,
    )


def _empty_folder() -> None:
    no_folder = FOLDER.is_symlink() or (FOLDER.exists() and not FOLDER.is_dir())
    if no_folder or (FOLDER.exists() and any(FOLDER.iterdir()) and not is_marked(FOLDER)):
        raise ConfigError(
            f"./{FOLDER} is or holds something that is not from a demo. Move it away, or run in another folder."
        )
    if FOLDER.exists():
        shutil.rmtree(FOLDER)
    FOLDER.mkdir()
    mark(FOLDER)


def _configuration(trial: SandboxSourceServer, target: SandboxTarget, options: _Options) -> str:
    lines = ["# Written by raycdc demo. Every option: raycdc docs options", "", "[pipeline]", 'name = "demo"']
    lines += [f"state = {toml_text(f'./{_STATE}')}", 'engines = "always"']
    lines += ["", "[source]", *_keys(trial.as_source), "", "[readers]", "max = 2", "", "[sink]", *_keys(target.keys)]
    lines += ["", "[logging]", f"file = {toml_text(f'./{_LOG}')}", 'format = "json"']
    lines += ["", "[spark.conf]", '"spark.ui.enabled" = "true"', f'"spark.ui.port" = "{options.spark_port}"']
    return "\n".join([*lines, '"spark.ui.killEnabled" = "false"']) + "\n"


def _keys(section: Mapping[str, str | int | Sequence[str]]) -> Iterator[str]:
    for name, value in section.items():
        match value:
            case str():
                yield f"{name} = {toml_text(value)}"
            case int():
                yield f"{name} = {value}"
            case _:
                yield f"{name} = {toml_list(value)}"


def _print_engines(options: _Options) -> None:
    """Print which engines will read and write, and the addresses where they can be watched."""
    if options.local:
        print("This process reads and writes, because of --local.", flush=True)
        return
    missing = "" if find_spec("aiohttp") is not None else " (not installed: pip install 'ray[default]')"
    print(
        'Ray\'s actors read, and every epoch is a Spark job (engines = "always").\n'
        f"Spark's web UI while it runs: http://127.0.0.1:{options.spark_port}\n"
        f"Ray's dashboard{missing}: raycdc starts its own Ray without one;\n"
        'your own Ray can have one: `ray start --head`, and ray.address = "auto".',
        flush=True,
    )


def _engine_rows() -> str:
    """Return how many rows each engine read and wrote in all runs of the demo, from their logs."""
    engines = EngineRows()
    for line in _LOG.read_text(encoding="utf-8").splitlines():
        said = json.loads(line)
        if said["event"] in ("caught_up", "stopped"):
            engines += EngineRows.from_json(said)
    text = str(engines) or "no row was read"
    return f"{text[0].upper()}{text[1:]}"


def _follow(trial: SandboxSourceServer, options: _Options) -> ExitCode:
    """Run the pipeline until it has committed all of the customers' changes; return the exit code."""
    with _pipeline(options) as pipeline:
        progress = _Progress(pipeline)
        with _buying(trial):
            if not progress.wait_for_snapshot():
                return progress.give_up("the snapshot was not finished")
        trial.alter()  # This is not inside the block, because the customers' connection serves one thread at a time.
        with _buying(trial):
            ended = time.monotonic() + options.seconds
            while time.monotonic() < ended and pipeline.poll() is None:
                time.sleep(_POLL_S)
        progress.wait_until_seen(time.time())
        if pipeline.poll() is not None:
            return progress.give_up("it had not caught up with the customers")
    return ExitCode.DONE


@contextlib.contextmanager
def _pipeline(options: _Options) -> Iterator[subprocess.Popen[bytes]]:
    """Start ``raycdc run`` in a separate process, and end it with the signal of Ctrl-C."""
    with subprocess.Popen([sys.executable, "-m", "raycdc.cli", *options.followed_words()]) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(_STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                print("The pipeline did not stop when asked and was killed.", file=sys.stderr)


def _buying(trial: SandboxSourceServer) -> AbstractContextManager[None]:
    """Simulate customers in a thread during the block. Their error is raised at the end of the block."""
    from raycdc.sandbox.background import again_and_again

    def step() -> None:
        try:
            trial.step()
        except Exception as error:
            raise SourceError(f"The demo's customers failed: {error}") from error

    return again_and_again(step, pause_s=_WORKLOAD_PAUSE_S)


class _Progress:
    """The progress of the pipeline, read from its checkpoints and its status."""

    def __init__(self, pipeline: subprocess.Popen[bytes]) -> None:
        from raycdc.sandbox.trials.trial import COMPARED, DATABASE

        self._tables = {f"{DATABASE}.{table}" for table in COMPARED}
        self._pipeline = pipeline

    def wait_for_snapshot(self) -> bool:
        """Wait until every table has left its snapshot in a committed epoch.

        Return False if the pipeline ended before.
        """
        waiting = set(self._tables)

        def finished() -> bool:
            manifest = self._committed()
            for table, part in manifest.tables.items() if manifest else ():
                if not part.snapshot:
                    waiting.discard(str(table))
            return not waiting

        return self._wait(finished, _SNAPSHOT_TIMEOUT_S)

    def wait_until_seen(self, moment: float) -> None:
        """Wait until the target has the source's rows of `moment`, the pipeline has ended, or the time is over."""

        def seen() -> bool:
            try:
                run = find(CheckpointStore(_STATE, create=False), timeout_s=0)
                lag_ms = None if isinstance(run, NoRun) else run.status().job.lag_ms
            except StateError:
                return False  # The caller polls again.
            return lag_ms is not None and time.time() - lag_ms / 1000 > moment

        self._wait(seen, _CATCH_UP_TIMEOUT_S)

    def give_up(self, what: str) -> ExitCode:
        """Return the exit code of a demo that failed, after printing the reason in one line."""
        code = self._pipeline.poll()
        if code is None:
            print(f"\nThe demo gave up: {what} in time. Try fewer rows: --orders 1000", file=sys.stderr)
            return ExitCode.BUG
        print(f"\nThe pipeline ended by itself with exit code {code}: {what}.", file=sys.stderr)
        return ExitCode(code) if code in set(ExitCode) and code else ExitCode.BUG

    def _wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        deadline = time.monotonic() + timeout_s
        while self._pipeline.poll() is None and time.monotonic() < deadline:
            if condition():
                return True
            time.sleep(_POLL_S)
        return False

    def _committed(self) -> Manifest | None:
        """Return the manifest of the last committed epoch, or None if there is none yet."""
        try:
            store = CheckpointStore(_STATE, create=False)
            record = store.last_commit()
            return None if record is None else store.manifest(record.epoch)
        except StateError:
            return None  # The state does not exist yet, or is being written. The caller polls again.


@dataclass(frozen=True, slots=True)
class _Finding:
    """The comparison of one table: rows on both sides, and the method."""

    table: str
    source_rows: int
    target_rows: int
    equal: bool
    by: str


def _compared(trial: SandboxSourceServer, target: SandboxTarget, options: _Options) -> list[_Finding]:
    """Compare all tables.

    If they differ, another run first fetches rows that were not sealed when the pipeline ended.
    """
    findings = _findings(trial, target)
    if not all(finding.equal for finding in findings):
        _raycdc(*options.run_words(), "--until", "caught-up")
        findings = _findings(trial, target)
    return findings


def _findings(trial: SandboxSourceServer, target: SandboxTarget) -> list[_Finding]:
    from raycdc.sandbox.trials.trial import COMPARED, DATABASE

    verified = {}
    for line in _raycdc("verify", str(CONFIG), "--json", "--wait", "5").stdout.splitlines():
        said = json.loads(line)
        verified[said["table"]] = said
    findings = []
    for table, column in COMPARED.items():
        name = f"{DATABASE}.{table}"
        said = verified.get(name)
        if said is not None and said["verdict"] not in ("not compared", "left out"):
            rows = int(said["source_rows"]), int(said["target_rows"])
            findings.append(_Finding(name, *rows, said["verdict"] == "equal", "all columns"))
        else:
            ours, theirs = trial.held(table), target.held(table)
            findings.append(_Finding(name, len(ours), len(theirs), ours == theirs, f"key and {column}"))
    return findings


def _raycdc(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "raycdc.cli", *words], capture_output=True, text=True, check=False)


def _print_findings(findings: Sequence[_Finding]) -> ExitCode:
    print(f"{'table':16} {'rows of source':>14} {'of target':>10}")
    for finding in findings:
        verdict = "equal" if finding.equal else "DIFFERENT"
        rows = f"{finding.source_rows:>14,} {finding.target_rows:>10,}"
        print(f"{finding.table:16} {rows}  {verdict} (by {finding.by})")
    return ExitCode.DONE if all(finding.equal for finding in findings) else ExitCode.DATA


def _print_end(target: SandboxTarget, options: _Options, *, seconds: float) -> None:
    """Print where the data is, code that shows it, and the next commands to try, ready to be copied."""
    from raycdc.sandbox.trials.trial import program, python_command

    print(f"\n{seconds:.0f} s in all.\nThe tables are {target.where}.")
    if target.is_server and not options.stay:
        print("They are gone with the demo; with --stay its servers stay up until Ctrl-C.")
    else:
        print("\n".join(["\nLook at it:", "", *python_command(target.preview_code)]))
    commands = []
    if options.stay:
        commands.append((f"run {CONFIG} --ui", "in another terminal: it goes on"))
    commands += [
        (f"status {CONFIG}", "how far it is"),
        ("sandbox mariadb", "a server to try things on"),
        ("init shop.toml", "a configuration of your own"),
        ("run shop.toml", "your own tables"),
    ]
    width = max(len(command) for command, _ in commands)
    print("\n".join(["\nNext:", *(f"  {program('raycdc')} {command:{width}}  {why}" for command, why in commands)]))


def _stay() -> None:
    print("\nThe servers stay up until Ctrl-C.", flush=True)
    with contextlib.suppress(KeyboardInterrupt):
        signal.pause()
