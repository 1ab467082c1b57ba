"""A pipeline as users run it, for tests that kill it: the real command in its own process, and its events.

`Job` writes the configuration and starts ``raycdc run --json``; `JobRun` is one such process. Fail points are armed by
environment variables (`raycdc.core.failpoints`); one folder of markers belongs to the job, so a point acts once however
often the command is started again.

A story that asks only what a run left, or told, has no need of a process: `Job.run` (and `catch_up`) runs the same
configuration by `raycdc.pipeline.Pipeline` in the test's process, which takes half of the CPU time of a forked command.
`Job.shares_process` says which jobs cannot. Each such run has a `Pipeline` of its own and reads the state as any driver
does; caches of modules outlive it, so that a story about them, or about the end of a process, starts processes.
"""

from __future__ import annotations

import contextlib
import io
import json
import operator
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

from raycdc.cli import main
from raycdc.cli.run import JsonView, RunOptions, drive
from raycdc.config import load_config
from raycdc.errors import RaycdcError
from raycdc.model.engines import NO_ENGINE_ROWS, EngineName, EngineRows
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import DatabaseServer
from tests.support.forked_commands import ForkedCommand, nursery

#: A run of the command that takes longer than this fails the test.
RUN_TIMEOUT_S = 900.0

Process = subprocess.Popen[bytes] | ForkedCommand


def process_state(pid: int) -> str:
    """The state of a process as in proc(5), such as ``T`` if stopped and ``Z`` if a zombie; empty if it ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


@dataclass(slots=True)
class Job:
    """One pipeline: source `server`, tables of `database`, sink in `folder`/lake. Local means without Ray and Spark."""

    folder: Path
    server: DatabaseServer
    database: str
    tables: Sequence[str]
    sink: str = "delta"
    write: str = "upsert"
    local: bool = False
    #: The engines of a run that is not local. With ``auto``, its readers could only be killed separately after the
    #: promotion.
    engines: str = "always"
    chunk_rows: int = 500
    readers: int = 3
    readers_min: int = 1
    #: Further keys of ``[readers]``, as TOML.
    readers_keys: str = ""
    epoch_interval: str = "500ms"
    #: Only MySQL without GTIDs waits for this time; these servers make a transaction visible within milliseconds.
    visible_within: str = "2s"
    #: Further keys of ``source.snapshot``, and of ``source``, as TOML.
    snapshot: str = ""
    source: str = ""
    #: Further keys of ``[pipeline]``, as TOML.
    pipeline: str = ""
    #: Keys of ``[sink]`` instead of a path in the folder, as TOML.
    sink_keys: str = ""
    #: The URL of a state on an object store, instead of a folder.
    state_url: str = ""
    #: Further sections, as TOML.
    sections: str = ""
    #: True if each run starts without the nursery. Otherwise local runs are forked from a process that has imported
    #: everything.
    cold: bool = False
    started: int = field(default=0)
    #: The runs, in order.
    runs: list[Run] = field(default_factory=list)

    @property
    def lake(self) -> Path:
        return self.folder / "lake"

    @property
    def state(self) -> Path:
        return self.folder / "state"

    @property
    def markers(self) -> Path:
        """Return the folder in which failpoints leave ``NAME.hit``."""
        return self.folder / "failpoints"

    def hit(self) -> set[str]:
        """Return the names of the failpoints that have acted."""
        return {path.stem for path in self.markers.glob("*.hit")}

    def stopped_at(self, point: str) -> bool:
        """Return True if the process that the failpoint stops (action ``stop``) is stopped by now.

        The point's mark is there a moment earlier: a SIGCONT sent at the mark could arrive before the SIGSTOP, which
        would then hold the process for good.
        """
        try:
            pid = int((self.markers / f"{point}.hit").read_text())
        except (FileNotFoundError, ValueError):  # The failpoint was not reached yet, or its mark is incomplete.
            return False
        return process_state(pid) == "T"

    def configuration(self) -> Path:
        """Write the configuration and return its path."""
        self.markers.mkdir(parents=True, exist_ok=True)
        path = self.folder / "job.toml"
        path.write_text(
            f"""
[pipeline]
name = "killed"
state = "{self.state_url or self.state}"
epoch_interval = "{self.epoch_interval}"
engines = "{self.engines}"
{self.pipeline}

[source]
{self.source_section()}

[readers]
min = {self.readers_min}
max = {self.readers}
{self.readers_keys}

[sink]
type = "{self.sink}"
{self.sink_keys or f'path = "{self.lake}"'}
write = "{self.write}"

{self.sections}
"""
        )
        return path

    def source_section(self) -> str:
        """Return the keys of ``[source]``."""
        names = ", ".join(json.dumps(f"{self.database}.{table}") for table in self.tables)
        snapshot = f'chunk_rows = {self.chunk_rows}, visible_within = "{self.visible_within}"'
        snapshot += f", {self.snapshot}" if self.snapshot else ""
        return f"""
type = "mysql"
host = "{self.server.host}"
port = {self.server.port}
user = "{self.server.cdc_user}"
password = "${{env:RAYCDC_TEST_PASSWORD}}"
tables = [{names}]
snapshot = {{ {snapshot} }}
{self.source}
"""

    @property
    def shares_process(self) -> bool:
        """Return True if a run that ends by itself can be one of the test's process.

        Not with Ray and Spark, which a process has only once; not if each run must start in a new process; and not into
        a sink that prints rows.
        """
        return self.local and not self.cold and self.sink != "console"

    def environment(self, failpoints: str = "") -> dict[str, str]:
        """Return the environment of a run, in addition to that of the test."""
        return {
            "RAYCDC_TEST_PASSWORD": getattr(self.server, "cdc_user", ""),
            # The job must not join a Ray of another process on this machine.
            "RAY_ADDRESS": "127.0.0.1:1",
            "RAYCDC_FAILPOINTS": failpoints,
            "RAYCDC_FAILPOINT_DIR": str(self.markers),
        }

    def run(self) -> Run:
        """Run until caught up, in this process if possible, and return the ended run."""
        if not self.shares_process:
            run = self.start("--until", "caught-up")
            run.wait()
            return run
        self.started += 1
        path = self.configuration()
        ended = EndedRun(self.folder / f"run-{self.started}.log")
        self.runs.append(ended)
        with pytest.MonkeyPatch.context() as patch, contextlib.chdir(self.folder):
            for name, value in self.environment().items():
                patch.setenv(name, value)
            ended.run(path)
        return ended

    def start(self, *arguments: str, failpoints: str = "") -> JobRun:
        """Start ``raycdc run``; `failpoints` as in ``RAYCDC_FAILPOINTS``."""
        self.started += 1
        environment = {**os.environ, **self.environment(failpoints)}
        words = ["run", str(self.configuration()), "--json", *arguments, *(["--local"] if self.local else [])]
        path = self.folder / f"run-{self.started}.log"
        with path.open("wb") as log:
            process: Process
            if self.local and not self.cold:
                process = nursery().start(words, environment=environment, folder=self.folder, stderr=log)
            else:
                process = subprocess.Popen(
                    [sys.executable, "-m", "raycdc.cli", *words],
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=environment,
                    start_new_session=True,
                    cwd=self.folder,
                )
        run = JobRun(process, path)
        self.runs.append(run)
        return run


@dataclass(slots=True)
class TopicJob(Job):
    """A pipeline from `topic` of maxwell-json messages; `server` is the broker, `columns` are the table's, and `format`
    further keys of ``source.format``, as TOML.
    """

    topic: str = ""
    columns: str = ""
    format: str = ""

    def source_section(self) -> str:
        return f"""
type = "kafka"
bootstrap_servers = "{self.server.host}:{self.server.port}"
topics = [{json.dumps(self.topic)}]
format = {{ type = "maxwell-json", columns = {json.dumps(self.columns)}{self.format and ", " + self.format} }}
{self.source}
"""


@dataclass(slots=True)
class CollectionJob(Job):
    """A pipeline from collections of the MongoDB at `uri`; `server` is not used."""

    uri: str = ""
    startup: str = "snapshot"

    def source_section(self) -> str:
        names = ", ".join(json.dumps(f"{self.database}.{table}") for table in self.tables)
        return f"""
type = "mongodb"
uri = {json.dumps(self.uri)}
collections = [{names}]
startup = "{self.startup}"
{self.source}
"""


class Run:
    """The events of a run of a job; `log` has the other output of the command."""

    def __init__(self, log: Path) -> None:
        self.log = log
        self.events: list[dict[str, Any]] = []

    def wait(self) -> int:
        """Wait for the end, and return the exit code."""
        raise NotImplementedError

    def pids(self) -> dict[str, Any]:
        """The newest ``started`` event's process ids; empty before the first."""
        started = [event for event in list(self.events) if event["event"] == "started"]
        return started[-1]["pids"] if started else {}

    def story(self) -> str:
        """Return the last events and the other output, for a failing test."""
        told = [json.dumps(event) for event in self.events if event["event"] != "progress"][-15:]
        return "\n".join([*told, self.log.read_text(errors="replace")[-3000:]])


class EndedRun(Run):
    """A run in the test's process, which has ended before the object is returned."""

    def __init__(self, log: Path) -> None:
        super().__init__(log)
        self._code = 0

    def wait(self) -> int:
        return self._code

    def run(self, configuration: Path) -> None:
        """Run until caught up, like the command with ``--local --json``, in a thread without its signal handlers."""
        way = RunOptions(until="caught-up", local=True)
        lines = io.StringIO()
        errors: list[BaseException] = []

        def drive_to_end() -> None:
            try:
                config = way.configured(load_config(configuration))
                view = JsonView(lines)
                view.pipeline = config.pipeline.name
                drive(Pipeline.from_config(config), view, way)
            except BaseException as error:  # noqa: BLE001 - for the thread that waits
                errors.append(error)

        with self.log.open("w") as log, contextlib.redirect_stderr(log):
            thread = threading.Thread(target=drive_to_end, name="run of a job")
            thread.start()
            thread.join(RUN_TIMEOUT_S)
            assert not thread.is_alive(), f"the run did not end within {RUN_TIMEOUT_S:g} s\n{lines.getvalue()[-3000:]}"
            for error in errors:
                if not isinstance(error, RaycdcError):
                    raise error
                log.write(f"{error}\n")
                self._code = int(error.exit_code)
        self.events += [json.loads(line) for line in lines.getvalue().splitlines()]


class JobRun(Run):
    """One started command; its events are collected in the background."""

    def __init__(self, process: Process, log: Path) -> None:
        super().__init__(log)
        self.process = process
        self._reader = threading.Thread(target=self._collect, daemon=True)
        self._reader.start()

    @property
    def ended(self) -> bool:
        return self.process.poll() is not None

    def wait(self, *, timeout_s: float = RUN_TIMEOUT_S) -> int:
        """Wait for the end and return the exit code, negative for a signal.

        Kills a command that does not end in time, and reports that.
        """
        try:
            self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError(f"raycdc run did not end within {timeout_s:g} s\n{self.story()}") from None
        self._close()
        assert self.process.returncode is not None
        return self.process.returncode

    def wait_for(self, condition: Callable[[], bool], *, timeout_s: float = RUN_TIMEOUT_S) -> bool:
        """Wait until `condition` holds (True) or the command ended (False)."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if self.ended:
                return condition()
            if time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"nothing came within {timeout_s:g} s\n{self.story()}")
            time.sleep(0.05)
        return True

    def wait_for_rows(self, condition: Callable[[], bool]) -> None:
        """Wait like `wait_for`, for a condition that reads the target.

        The condition is checked after each event, because reading is expensive. Raises `AssertionError` if the command
        ended before it held.
        """
        told = -1

        def holds() -> bool:
            nonlocal told
            if len(self.events) == told:
                return False
            told = len(self.events)
            return condition()

        if not self.wait_for(holds) and not condition():
            raise AssertionError(self.story())

    def wait_for_start(self) -> None:
        """Wait until a reader is up, or the command ended."""
        self.wait_for(lambda: bool(self.pids().get("readers")))

    def interrupt(self) -> int:
        """Ctrl-C, then wait for the orderly end."""
        if not self.ended:
            self.process.send_signal(signal.SIGINT)
        return self.wait()

    def kill(self) -> None:
        """Kill the command, and all processes of its session, by ``kill -9``."""
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            # The process has ended, or was just forked and leads no session yet.
            self.process.kill()
        self.process.wait()
        self._close()

    def _close(self) -> None:
        self._reader.join(timeout=120)
        assert self.process.stdout is not None
        self.process.stdout.close()

    def _collect(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self.events.append(json.loads(line))
            except json.JSONDecodeError:
                self.events.append({"event": "not JSON", "text": line.decode(errors="replace")})


def command(words: Sequence[str], *, environment: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """Run ``raycdc WORDS`` in the test's process; return its exit code, output and errors."""
    out, errors = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        for name, value in environment.items():
            patch.setenv(name, value)
        code = main(list(words))
    return subprocess.CompletedProcess(["raycdc", *words], code, out.getvalue(), errors.getvalue())


def rows_by(*runs: Run) -> EngineRows:
    """Return the committed rows of the runs, by the engine that read and the engine that wrote them."""
    commits = [event for run in runs for event in list(run.events) if event["event"] == "commit"]
    return reduce(operator.add, map(EngineRows.from_json, commits), NO_ENGINE_ROWS)


def require_engines(*runs: Run) -> None:
    """Raise `AssertionError` unless the runs committed rows, all of which Ray's readers read and Spark wrote."""
    rows = rows_by(*runs)
    assert (set(rows.read), set(rows.written)) == ({EngineName.RAY}, {EngineName.SPARK}), f"{rows}\n{runs[-1].story()}"


def run_through(job: Job, *, failpoints: str, busy: Callable[[], bool], deaths_max: int = 60) -> list[int]:
    """Run `job` while it is `busy`, starting it again whenever it dies. Return the exit codes of the killed runs.

    A run that ends by itself with an error is a failure: only kills may end it.
    """
    deaths: list[int] = []
    while busy():
        run = job.start(failpoints=failpoints)
        run.wait_for_start()
        run.wait_for(lambda: not busy())
        code = run.interrupt()
        if code == -signal.SIGKILL:
            deaths.append(code)
            if len(deaths) > deaths_max:
                raise AssertionError(f"died {len(deaths)} times\n{run.story()}")
            continue
        if code not in (0, 130):
            raise AssertionError(f"raycdc run ended with {code}\n{run.story()}")
    return deaths


def catch_up(job: Job) -> None:
    """Run `job` until the sink has everything that the source has now; the workload must have ended."""
    final = job.run()
    code = final.wait()
    if code != 0:
        raise AssertionError(f"raycdc run --until caught-up ended with {code}\n{final.story()}")
