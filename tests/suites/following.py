"""A batch of scripts and one run of raycdc that follows them; afterwards a verdict for each table.

The run is ``raycdc run --local`` with the defaults and a changelog in JSON lines, under way while the scripts are
played; another one, ``--until caught-up``, reads what is left. A run that ends otherwise than with 0 or, where tables
are parked, 4 is a failure of the batch.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raycdc.sandbox.servers import DatabaseServer
from raycdc.sandbox.servers.private import wait_until
from tests.fuzz.second_reader import LogReader, LogReaderError, differences
from tests.suites.compare import KNOWN_TYPES, table_differences
from tests.suites.playing import Played, Stage
from tests.suites.script import Script

#: Engines without rows of their own; "none" is a table that cannot be opened.
_NOT_COMPARED = frozenset({"none", "blackhole", "federated", "mrg_myisam", "sequence", "performance_schema"})
#: What a run says that ends with 4 for its parked tables alone.
_PARKED = "Everything is committed except "
_START_S = 120.0
_RUN_S = 1800.0


@dataclass(frozen=True, slots=True)
class Verdict:
    """One table: equal (neither), parked for a reason, or with differences. `script` made it."""

    script: str
    table: str
    parked: str = ""
    problems: tuple[str, ...] = ()


@dataclass(slots=True)
class Batch:
    """What came of a batch."""

    played: list[Played] = field(default_factory=list)
    left_out: list[Script] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
    #: Runs that ended otherwise than they should.
    ended: list[str] = field(default_factory=list)
    #: Rows of the logs that mysqlbinlog and raycdc have read, and how the two readings differ.
    read_twice: int = 0
    read_otherwise: list[str] = field(default_factory=list)
    #: Logs at which mysqlbinlog itself breaks off.
    read_once: list[str] = field(default_factory=list)

    def summary(self) -> str:
        """The figures, as text."""
        parked = Counter(kind_of(verdict.parked) for verdict in self.verdicts if verdict.parked)
        differ = [verdict for verdict in self.verdicts if verdict.problems]
        equal = len(self.verdicts) - len(differ) - parked.total()
        lines = [
            f"{len(self.played)} scripts played, {len(self.left_out)} left out",
            f"{len(self.verdicts)} tables compared: {equal} equal, {parked.total()} parked, {len(differ)} different",
            f"{self.read_twice} rows of logs read twice, {len(self.read_otherwise)} otherwise",
            f"{len(self.read_once)} logs at which mysqlbinlog itself broke off",
            f"{len(self.ended)} runs ended",
        ]
        lines += [f"  left out: {count:5} {reason}" for reason, count in _counted(s.left_out for s in self.left_out)]
        lines += [
            f"  not to the end: {count:5} {reason}"
            for reason, count in _counted(p.ended for p in self.played if p.ended)
        ]
        lines += [f"  parked: {count:5} {reason}" for reason, count in parked.most_common()]
        return "\n".join(lines)


def follow(
    stage: Stage, scripts: Sequence[Script], folder: Path, *, told: Callable[[str], None] = lambda _: None
) -> Batch:
    """Play `scripts` while raycdc follows, and compare. The databases of earlier batches must be gone."""
    batch = Batch(left_out=[script for script in scripts if script.left_out])
    to_play = [script for script in scripts if not script.left_out]
    folder.mkdir(parents=True)
    (folder / "job.toml").write_text(_configuration(stage.server, folder / "target"))
    live = _Run(folder, "live")
    try:
        live.wait_until_it_follows()
        for script in to_play:
            began = time.monotonic()
            batch.played.append(stage.play(script))
            told(f"{script.name} {time.monotonic() - began:.1f} s {batch.played[-1].ended}")
    finally:
        code = live.stop()
    if live.ended_by_itself or code not in (0, 4):
        batch.ended.append(f"the run beside the scripts ended with {code}: {live.last_words()}")
    last = _Run(folder, "last", "--until", "caught-up")
    code = last.wait()
    if code != 0 and not (code == 4 and last.has_said(_PARKED)):
        batch.ended.append(f"the run after the scripts ended with {code}: {last.last_words()}")
    _judge(stage, folder, batch)
    _read_twice(stage, batch)
    return batch


def _read_twice(stage: Stage, batch: Batch) -> None:
    """All logs of the server, by mysqlbinlog and by raycdc."""
    stage.execute("FLUSH BINARY LOGS")
    # Both are read by name only where raycdc knows the schema; of a log alone it cannot be told.
    apart = {played.script.database for played in batch.played if played.script.not_read_alone}
    for path in stage.server.binlog_paths()[:-1]:
        try:
            rows, problems = differences(path, LogReader.of_mariadb(stage.package), mariadb=True, apart=apart)
        except LogReaderError as error:
            batch.read_once.append(f"{path.name}: {error}")
            continue
        batch.read_twice += rows
        batch.read_otherwise += [f"{path.name}: {problem}" for problem in problems]


def _judge(stage: Stage, folder: Path, batch: Batch) -> None:
    listed = subprocess.run(
        [sys.executable, "-m", "raycdc.cli", "tables", "list", "job.toml", "--json"],
        cwd=folder, env=_environment(), capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    if listed.returncode != 0:
        batch.ended.append(f"`raycdc tables list` ended with {listed.returncode}: {listed.stderr[-1000:]}")
    entries = {entry["table"]: entry for entry in map(json.loads, listed.stdout.splitlines())}
    scripts = {played.script.database: played.script.name for played in batch.played}
    changes = _schema_changes(folder)
    for database, table, engine in stage.tables():
        if engine.lower() in _NOT_COMPARED:
            continue
        name = f"{database}.{table}"
        script = scripts.get(database, "(another database)")
        entry = entries.get(name)
        if entry is not None and entry["phase"] == "parked":
            batch.verdicts.append(Verdict(script, name, parked=str(entry["reason"]) or "no reason"))
            continue
        # One that gave a result up is of no use any more.
        with stage.connect() as connection:
            if not _comparable(connection, database, table):
                continue
            dropped = [
                change.removeprefix("drop_column ") for change in changes[name] if change.startswith("drop_column ")
            ]
            back = [column for column in dropped if f"add_column {column}" in changes[name]]
            changelog = folder / "target" / database / table
            problems = table_differences(connection, changelog, database, table, came_back=back)
        if not problems or not problems[0].startswith("NOT READABLE"):
            batch.verdicts.append(Verdict(script, name, problems=tuple(problems)))


def _schema_changes(folder: Path) -> dict[str, set[str]]:
    """By table all schema changes that the runs told."""
    changes: dict[str, set[str]] = defaultdict(set)
    for said in folder.glob("*.out"):
        for line in said.read_text().splitlines():
            if line.endswith("}") and '"schema_changed"' in line:
                event = json.loads(line)
                changes[event["table"]].update(event["changes"])
    return changes


def _comparable(connection: Any, database: str, table: str) -> bool:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT LOWER(DATA_TYPE) FROM information_schema.COLUMNS WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            (database, table),
        )
        return all(str(kind) in KNOWN_TYPES for (kind,) in cursor.fetchall())


def kind_of(reason: str) -> str:
    """A reason without the names in it, so that equal ones are counted together."""
    text = re.sub(r"binlog\.\d+:\d+", "LOG:POSITION", reason.split("\n", maxsplit=1)[0])
    text = re.sub(r"`[^`]*`|\"[^\"]*\"|'[^']*'", "NAME", text)
    text = re.sub(r"\bs\d+_\w+(\.\w+)?", "NAME", text)
    return re.sub(r"\d+", "N", text)[:160]


def _counted(reasons: Iterable[str]) -> list[tuple[str, int]]:
    return Counter(reasons).most_common()


def _environment() -> dict[str, str]:
    return {**os.environ, "RAY_ADDRESS": "127.0.0.1:1", "SOURCE_PASSWORD": "cdc"}


def _configuration(server: DatabaseServer, target: Path) -> str:
    return f"""
[pipeline]
name = "suites"
state = "state"
schema_change = "evolve"
epoch_interval = "300ms"

[source]
type = "mysql"
host = "{server.host}"
port = {server.port}
user = "cdc"
password = "${{env:SOURCE_PASSWORD}}"
tables = ['.*\\..*']

[sink]
type = "jsonl"
path = "{target}"
"""


class _Run:
    """``raycdc run`` as a process; what it says goes to files."""

    def __init__(self, folder: Path, name: str, *arguments: str) -> None:
        self._out, self._err = folder / f"{name}.out", folder / f"{name}.err"
        self.ended_by_itself = False
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "raycdc.cli", "run", "job.toml", "--json", "--local", *arguments],
                cwd=folder,
                env=_environment(),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )

    def wait_until_it_follows(self) -> None:
        """Wait for the first line of progress in which everything that is there is followed."""
        wait_until(self._follows, timeout_s=_START_S, what=f"the start of raycdc ({self._err})")
        if self.process.poll() is not None:
            raise AssertionError(f"raycdc did not begin: {self.last_words()}")

    def _follows(self) -> bool:
        lines = [line for line in self._out.read_text().splitlines() if line.endswith("}")]
        progress = [event["tables"] for event in map(json.loads, lines) if event["event"] == "progress"]
        follows = any(tables and all(table["phase"] == "stream" for table in tables) for tables in progress)
        return follows or self.process.poll() is not None

    def stop(self) -> int:
        """SIGTERM; it commits what it read."""
        self.ended_by_itself = self.process.poll() is not None
        if not self.ended_by_itself:
            self.process.send_signal(signal.SIGTERM)
        return self.wait()

    def wait(self) -> int:
        """Its exit code."""
        try:
            return self.process.wait(_RUN_S)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()
            return -9

    def has_said(self, text: str) -> bool:
        """Whether `text` is among what it said."""
        return text in self._err.read_text()

    def last_words(self) -> str:
        """The end of what it said."""
        return self._err.read_text()[-3000:]
