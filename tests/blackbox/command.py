"""The command line as users have it: a folder with a configuration, and what each command answered.

The command has a process of its own, and its exit code, its output and its errors are all there is to judge by. But for
runs on Ray and Spark the process is forked from one that has imported everything.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO, Any

from tests.support.forked_commands import ForkedCommand, ended, nursery

#: A command that takes longer hangs. The longest here reads sixty tables on a machine that others share.
COMMAND_TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a command ended, and what it said."""

    arguments: tuple[str, ...]
    code: int
    out: str
    err: str

    @property
    def said(self) -> str:
        """Everything that a user saw."""
        return self.out + self.err

    @property
    def events(self) -> list[dict[str, Any]]:
        """The events of ``--json``."""
        return [json.loads(line) for line in self.out.splitlines() if line.startswith("{")]

    def story(self) -> str:
        """For a failing test: the command, its code, and the end of what it said."""
        told = [line for line in self.out.splitlines() if '"event":"progress"' not in line]
        end = "\n".join(told[-20:])
        return f"raycdc {' '.join(self.arguments)} ended with {self.code}\n{end[-3000:]}\n{self.err[-4000:]}"

    def expect(self, code: int) -> Outcome:
        """The outcome itself, if it has `code` and no traceback."""
        assert self.code == code, self.story()
        assert "Traceback" not in self.said, self.story()
        return self


@dataclass(slots=True)
class Pipeline:
    """A folder with ``job.toml``; commands are run in it."""

    folder: Path
    toml: str
    environment: Mapping[str, str] = field(default_factory=dict)
    #: Without Ray and Spark: starts in a second.
    local: bool = True

    @property
    def config(self) -> Path:
        """The configuration, written anew by each command."""
        return self.folder / "job.toml"

    @property
    def state(self) -> Path:
        """Where the state is unless the configuration says otherwise: all of this suite's say ``state``."""
        return self.folder / "state"

    def write_config(self) -> None:
        """Write the configuration as one step: another command may read it at this moment."""
        self.folder.mkdir(parents=True, exist_ok=True)
        written = self.config.with_suffix(".new")
        written.write_text(self.toml)
        written.replace(self.config)

    def command(self, *arguments: str) -> Outcome:
        """Run ``raycdc ARGUMENTS`` to its end."""
        return self._start(*arguments).to_its_end()

    def run(self, *arguments: str) -> Outcome:
        """``raycdc run --until caught-up``, with events."""
        return self.command(*self._run, "--until", "caught-up", *arguments)

    @property
    def _run(self) -> tuple[str, ...]:
        return "run", "job.toml", "--json", *(["--local"] if self.local else [])

    def check(self) -> Outcome:
        """``raycdc check``."""
        return self.command("check", "job.toml", *(["--local"] if self.local else []))

    def tables(self, action: str, table: str) -> Outcome:
        """``raycdc tables ACTION`` of one table."""
        return self.command("tables", action, "job.toml", table)

    def listed(self) -> dict[str, dict[str, Any]]:
        """``raycdc tables list`` by name of the table."""
        told = self.command("tables", "list", "job.toml", "--json").expect(0)
        return {entry["table"]: entry for entry in map(json.loads, told.out.splitlines())}

    def live(
        self, *, until: Callable[[dict[str, Any]], bool], meanwhile: Callable[[], None], stopped: bool = True
    ) -> Outcome:
        """``raycdc run`` without an end: `meanwhile` is called when an event is as `until` says, then SIGTERM.

        The command ends by itself after that, having committed what it read; and without it unless `stopped`, as
        what `meanwhile` did must end it.
        """
        command = self._start(*self._run)
        seen: list[str] = []
        assert command.process.stdout is not None
        for line in command.process.stdout:
            seen.append(line.decode(errors="replace"))
            if line.startswith(b"{") and until(json.loads(line)):
                meanwhile()
                if stopped:
                    command.process.send_signal(signal.SIGTERM)
                break
        outcome = command.to_its_end()
        return replace(outcome, out="".join(seen) + outcome.out)

    def _start(self, *arguments: str) -> _Command:
        self.write_config()
        environment = {
            **os.environ,
            "RAY_ADDRESS": "127.0.0.1:1",
            "SOURCE_PASSWORD": "cdc",
            "SINK_PASSWORD": "postgres",
            **self.environment,
        }
        errors = tempfile.TemporaryFile()  # noqa: SIM115  # `to_its_end` closes it.
        process: subprocess.Popen[bytes] | ForkedCommand
        if arguments[0] != "run" or "--local" in arguments:
            process = nursery().start(arguments, environment=environment, folder=self.folder, stderr=errors)
        else:
            process = subprocess.Popen(
                [sys.executable, "-m", "raycdc.cli", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=self.folder,
                env=environment,
                start_new_session=True,
            )
        return _Command(arguments, process, errors)


@dataclass(frozen=True, slots=True)
class _Command:
    """A command under way."""

    arguments: tuple[str, ...]
    process: subprocess.Popen[bytes] | ForkedCommand
    errors: IO[bytes]

    def to_its_end(self) -> Outcome:
        """How it ended; one that hangs is killed with what it started, as they are one session: `AssertionError`."""
        late = threading.Event()

        def kill() -> None:
            late.set()
            os.killpg(self.process.pid, signal.SIGKILL)

        with self.errors as errors:
            code, out, err = ended(self.process, errors, timeout_s=COMMAND_TIMEOUT_S, kill=kill)
        if late.is_set():
            raise AssertionError(f"raycdc {' '.join(self.arguments)} did not end\n{out[-3000:]}\n{err[-3000:]}")
        return Outcome(self.arguments, code, out, err)
