"""A seed's story: random statements beside a pipeline that is killed, stopped, commanded and started again.

After each act a run catches up, and each captured table must be equal to its target, or be parked for a statement that
is known to do that. A changelog must be exact besides. A table that is parked is read anew, and must be equal then.
"""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from raycdc.errors import ExitCode
from raycdc.sandbox.servers import DatabaseServer
from tests.blackbox.command import Outcome, Pipeline
from tests.blackbox.compare import differences, print_table
from tests.blackbox.targets import DeltaTarget, JsonlTarget, Target
from tests.fuzz.servers.workload import Workload
from tests.support.forked_commands import nursery
from tests.support.jobs import JobRun

#: Fail points that every local run reaches, where a run may be killed.
POINTS = (
    "after_open", "before_select", "after_select", "after_high_watermark", "after_close", "before_seal", "after_seal",
    "before_manifest", "after_manifest", "before_stage", "after_stage", "before_schema", "after_schema",
    "before_commit", "in_commit", "before_park", "after_commit", "between_tables", "after_last_commit", "after_record",
    "half_written", "while_catching_up", "after_join", "before_command", "after_command", "before_park_reported",
)  # fmt: skip
#: What a changelog says of a row whose column got another type in between.
_RETYPED = "of another row than"
#: The reason of a table that parks with a transaction from before the job's first position.
_COMMITTED = re.compile(r"XA COMMIT x'([0-9a-f]+)'.* was prepared before the position this job began at")


@dataclass(frozen=True, slots=True)
class Plan:
    """How large a story is."""

    acts: int = 3
    steps: int = 120
    #: Whether the server is started again now and then.
    restarts: bool = True


@dataclass(slots=True)
class Verdict:
    """What came of a story: problems (none: it is as it must be), and what it had in it."""

    seed: int
    problems: list[str] = field(default_factory=list)
    statements: int = 0
    deaths: int = 0
    compared: int = 0
    #: Reasons of parked tables, each with its table and act.
    parked: list[str] = field(default_factory=list)


class ServerStory:
    """Plays one seed on a running server, with its files in `folder`: ``sql.log`` has all statements with their errors,
    ``commands.log`` the commands, kills and starts between them.
    """

    def __init__(self, server: DatabaseServer, folder: Path, seed: int, plan: Plan | None = None) -> None:
        self._server = server
        self.folder = folder
        self._plan = plan or Plan()
        self._random = random.Random(seed)
        self._database = f"fz{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        changelog = self._random.random() < 0.7
        self._target: Target = (JsonlTarget if changelog else DeltaTarget)(folder / "target")
        self._pipeline = Pipeline(folder, self._configuration())
        self._run: JobRun | None = None
        self._paused: set[str] = set()
        self._stopped = False
        self._outcomes = 0
        #: XA transactions that were prepared before the job's first position: whoever commits one parks its tables.
        self._never_seen: set[str] = set()
        self.verdict = Verdict(seed)

    def play(self) -> None:
        """Play all acts; the databases are dropped unless something is wrong."""
        server, name = self._server, self._database
        server.execute(f"DROP DATABASE IF EXISTS `{name}`", f"DROP DATABASE IF EXISTS `{name}_other`")
        server.execute(f"CREATE DATABASE `{name}` DEFAULT CHARACTER SET utf8mb4")
        server.execute("GRANT SHOW VIEW ON *.* TO cdc@'%'")
        with (
            (self.folder / "sql.log").open("w", buffering=1) as sql,
            (self.folder / "commands.log").open("w", buffering=1) as told,
        ):
            workload = Workload(server, name, self.verdict.seed, sql)
            workload.set_up()
            try:
                for act in range(self._plan.acts):
                    self._act(workload, act, told)
                    if self.verdict.problems:
                        break
            finally:
                self._kill()
                workload.give_up_prepared()
                server.execute("REVOKE SHOW VIEW ON *.* FROM cdc@'%'")
        if self.verdict.problems:
            server.execute("FLUSH BINARY LOGS")
            (self.folder / "logs").mkdir()
            for path in server.binlog_paths():
                shutil.copy(path, self.folder / "logs")
        else:
            server.execute(f"DROP DATABASE `{name}`", f"DROP DATABASE `{name}_other`")

    # -- an act

    def _act(self, workload: Workload, act: int, told: IO[str]) -> None:
        live = self._random.random() < 0.8
        for step in range(self._plan.steps):
            if live:
                self._meddle(workload, told)
            if self._random.random() < 0.004 and self._plan.restarts:
                told.write(f"{act}.{step}: the server is started again\n")
                self._start_server_again(workload)
            workload.step()
            self.verdict.statements += 1
            if live:
                self._note_prepared(workload)
        workload.finish()
        self._wake()
        if self._run is not None and self._random.random() < 0.5:
            told.write(f"{act}: SIGTERM\n")
            self._end_run()
        self._kill()
        self._judge(workload, act, told)

    def _judge(self, workload: Workload, act: int, told: IO[str]) -> None:
        """Catch up and compare; what is parked is read anew, and compared after another run."""
        for table in sorted(self._paused):
            told.write(f"{act}: tables resume {table}\n")
            self._command(told, "tables", "resume", "job.toml", f"{self._database}.{table}")
        self._paused.clear()
        self._note_prepared(workload)
        if not self._caught_up(f"act {act}"):
            return
        parked = self._parked(workload, act)
        self._compare(workload, act, without=[*parked, *workload.unlogged])
        # What the server did without logging it no log tells.
        again = [*parked, *sorted(workload.unlogged.intersection(workload.tables()).difference(parked))]
        workload.unlogged.clear()
        if self.verdict.problems or not again:
            return
        for table in again:
            told.write(f"{act}: tables resnapshot {table}\n")
            self._command(told, "tables", "resnapshot", "job.toml", f"{self._database}.{table}")
        if self._caught_up(f"act {act}, read anew"):
            left = self._parked(workload, act)
            self.verdict.problems += [f"act {act}: {table} is parked again after a new snapshot" for table in left]
            self._compare(workload, act, without=left)

    def _caught_up(self, act: str) -> bool:
        outcome = self._pipeline.run()
        self._outcomes += 1
        (self.folder / f"caught-up-{self._outcomes}.log").write_text(f"{act}\n{outcome.out}\n{outcome.err}")
        parked = [
            event
            for event in outcome.events
            if event["event"] == "parked" and event["phase"] == "parked" and not event["again"]
        ]
        if outcome.code == (4 if parked else 0) and "Traceback" not in outcome.said:
            return True
        self.verdict.problems.append(f"{act}: ended with {outcome.code}: {outcome.story()[-1500:]}")
        return False

    def _parked(self, workload: Workload, act: int) -> list[str]:
        """The parked tables; one that no statement foresees is a problem."""
        found = []
        for name, entry in self._pipeline.listed().items():
            table = name.split(".", 1)[1]
            if entry["phase"] != "parked":
                continue
            found.append(table)
            self.verdict.parked.append(f"{act} {table}: {entry['reason']}")
            committed = _COMMITTED.search(str(entry["reason"]))
            never_seen = committed is not None and bytes.fromhex(committed[1]).decode() in self._never_seen
            if table not in workload.foreseen and not never_seen:
                self.verdict.problems.append(f"act {act}: {name} is parked: {entry['reason']}")
        return found

    def _compare(self, workload: Workload, act: int, without: Sequence[str]) -> None:
        for table in workload.tables():
            if table in without:
                continue
            with self._server.connect(database=self._database) as connection:
                source = print_table(connection, self._database, table)
                key = self._key(table)
            assert source is not None
            held, wrong = self._target.read(self._database, table, key)
            self.verdict.compared += 1
            if table in workload.retyped:
                wrong = [problem for problem in wrong if _RETYPED not in problem]
            if held is None:
                wrong += [f"there is no target, and {len(source.rows)} rows"] if source.rows else []
            else:
                wrong += differences(source, held)
            self.verdict.problems += [f"act {act}: {table}: {problem}" for problem in wrong]

    def _note_prepared(self, workload: Workload) -> None:
        """Note what is prepared while there is no state yet."""
        workload.job_began = workload.job_began or bool(list((self.folder / "state").glob("epochs/*.json")))
        if not workload.job_began:
            self._never_seen |= workload.prepared()

    # -- meddling with the run

    def _meddle(self, workload: Workload, told: IO[str]) -> None:
        """Start the run where there is none; now and then kill it, stop it for some statements, or command it."""
        if self._run is None or self._run.ended:
            if self._run is not None:
                self._died(told)
            self._start(told)
            return
        roll = self._random.random()
        if roll < 0.01:
            told.write("kill -9\n")
            self._kill()
        elif roll < 0.03:
            self._wake() if self._stopped else self._stop()
        elif roll < 0.06 and not self._stopped:
            self._tell(workload, told)

    def _tell(self, workload: Workload, told: IO[str]) -> None:
        """A command about a table."""
        table = self._random.choice(workload.tables())
        name = f"{self._database}.{table}"
        match self._random.choice(["resnapshot", "pause", "resume", "backfill"]):
            case "pause":
                self._paused.add(table)
                self._command(told, "tables", "pause", "job.toml", name)
            case "resume" if self._paused:
                table = sorted(self._paused)[0]
                if self._command(told, "tables", "resume", "job.toml", f"{self._database}.{table}"):
                    self._paused.discard(table)
            case "backfill":
                self._command(told, "backfill", "job.toml", name, "--where", "id < 50", "--wait", "5")
            case _:
                self._command(told, "tables", "resnapshot", "job.toml", name, "--wait", "5")

    def _command(self, told: IO[str], *arguments: str) -> bool:
        outcome: Outcome = self._pipeline.command(*arguments)
        told.write(f"{' '.join(arguments)}: {outcome.code} {outcome.said.strip()[-300:]}\n")
        if "Traceback" in outcome.said:
            self.verdict.problems.append(outcome.story())
        return outcome.code == ExitCode.DONE

    def _start(self, told: IO[str]) -> None:
        points = ""
        if self._random.random() < 0.7:
            points = f"{self._random.choice(POINTS)}=kill@{self._random.randint(1, 6)}"
        told.write(f"run {points}\n")
        markers = self.folder / f"failpoints-{self.verdict.deaths}"
        markers.mkdir(exist_ok=True)
        environment = {
            **os.environ, "SOURCE_PASSWORD": "cdc", "RAY_ADDRESS": "127.0.0.1:1",
            "RAYCDC_FAILPOINTS": points, "RAYCDC_FAILPOINT_DIR": str(markers),
        }  # fmt: skip
        self._pipeline.toml = self._configuration()
        self._pipeline.write_config()
        output = (self.folder / "run.log").open("ab")
        with output:
            arguments = ["run", "job.toml", "--json", "--local"]
            process = nursery().start(arguments, environment=environment, folder=self.folder, stderr=output)
        self._run = JobRun(process, self.folder / "run.log")

    def _died(self, told: IO[str]) -> None:
        """A run ended by itself: by a fail point, or it is a problem."""
        assert self._run is not None
        self.verdict.deaths += 1
        code = self._run.wait()
        told.write(f"the run ended with {code}\n")
        if code != -signal.SIGKILL and not self._could_not_begin(self._run, code):
            self.verdict.problems.append(f"the run ended with {code}: {self._run.story()[-1500:]}")
        self._run = None

    def _could_not_begin(self, run: JobRun, code: int) -> bool:
        """Whether a run could not begin: without a state nothing is waited for, and a command may have its lease."""
        first = code == ExitCode.SOURCE and not list((self.folder / "state").glob("epochs/*.json"))
        return first or (code == ExitCode.STATE and "in use by process" in run.story())

    def _end_run(self) -> None:
        """SIGTERM, and the end that follows."""
        run, self._run = self._run, None
        if run is None:
            return
        run.process.send_signal(signal.SIGTERM)
        code = run.wait(timeout_s=120)
        # Before anything was said nobody listens to the signal yet.
        early = code == -signal.SIGTERM and not run.events
        if code not in (0, 4, -signal.SIGKILL) and not early and not self._could_not_begin(run, code):
            self.verdict.problems.append(f"SIGTERM: the run ended with {code}: {run.story()[-1500:]}")

    def _stop(self) -> None:
        if self._run is not None and not self._run.ended:
            self._run.process.send_signal(signal.SIGSTOP)
            self._stopped = True

    def _wake(self) -> None:
        if self._run is not None and self._stopped:
            self._run.process.send_signal(signal.SIGCONT)
        self._stopped = False

    def _kill(self) -> None:
        if self._run is None:
            return
        self._run.kill()
        self._run, self._stopped = None, False
        self.verdict.deaths += 1

    def _start_server_again(self, workload: Workload) -> None:
        workload.lost_connections()
        self._server.stop()
        self._server.start()

    # -- parts

    def _key(self, table: str) -> list[str]:
        rows = self._server.execute(
            "SELECT COLUMN_NAME FROM information_schema.COLUMNS WHERE COLUMN_KEY = 'PRI' AND "
            f"TABLE_SCHEMA = '{self._database}' AND TABLE_NAME = '{table}' ORDER BY ORDINAL_POSITION"
        )
        return [str(name) for (name,) in rows]

    def _configuration(self) -> str:
        return f"""
[pipeline]
name = "fuzzed"
state = "state"
schema_change = "evolve"
epoch_interval = "{self._random.choice(["100ms", "300ms", "1s"])}"

[source]
type = "mysql"
host = "{self._server.host}"
port = {self._server.port}
user = "cdc"
password = "${{env:SOURCE_PASSWORD}}"
tables = [{json.dumps(self._database + chr(92) + ".t_.*")}]
snapshot = {{ chunk_rows = 40, visible_within = "500ms" }}

[sink]
{self._target.toml}
"""


def play(server: DatabaseServer, seed: int, plan: Plan | None = None, folder: Path | None = None) -> ServerStory:
    """Play a seed in `folder`, or else in a new one; returns the story, with its `verdict` and its logs' `folder`."""
    place = folder or Path(tempfile.mkdtemp(prefix=f"raycdc-fuzz-{seed}-"))
    story = ServerStory(server, place, seed, plan)
    story.play()
    return story
