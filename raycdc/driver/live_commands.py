"""Takes the commands of a running pipeline; see `raycdc.driver.command_queue` for their progress."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

from raycdc.config import PipelineConfig
from raycdc.core.failpoints import reach
from raycdc.core.threads import THREADS, Threads
from raycdc.driver.command_queue import CommandQueue
from raycdc.driver.resolve import ResolvedRun
from raycdc.errors import ConfigError, RaycdcError, StateError
from raycdc.model import TableId
from raycdc.observe.events import Commanded
from raycdc.runtime.launcher import CoordinatorLostError
from raycdc.sinks.api import UPSERT
from raycdc.source.tables.parking import CommandDecision
from raycdc.source.tables.table_commands import CommandRules, RequireRows, RowsByKey
from raycdc.state.store import CheckpointStore

#: Seconds between two checks for commands. In a folder, a check is cheap; on a store, it is a request, so checks are
#: less frequent.
POLL_S = 0.5
POLL_STORE_S = 3.0
#: Seconds until commands are tried again after a failure, because each attempt ends a generation.
AGAIN_S = 10.0


def command_rules(config: PipelineConfig, require_rows: RequireRows) -> CommandRules:
    """Return the run's rules for judging commands. The source judges some of them."""

    def is_selected(table: TableId) -> None:
        if not config.source.captures(table):
            raise ConfigError(
                f"source.{config.source.tables_key} of the running pipeline does not select {table}. Put it there, and "
                "start the pipeline again, which adds it."
            )

    by_key = RowsByKey(config.router(), config.transformed())
    return CommandRules(
        config.sink.write == UPSERT,
        is_selected,
        require_rows,
        by_key.why_not,
        lambda: config.source.why_read_once,
        by_key.targets,
    )


class RunCommands:
    """The commands of one run: those that waited for its start, and those that come while it runs.

    They are judged by the run's rules. `notify` receives the answers.
    """

    def __init__(self, resolved: ResolvedRun, store: CheckpointStore, notify: Callable[[Commanded], None]) -> None:
        self._queue = CommandQueue(store)
        self._rules = command_rules(resolved.config, resolved.require_rows)
        self._notify = notify
        self._every_s = POLL_STORE_S if store.location.on_store else POLL_S

    def __repr__(self) -> str:
        return f"RunCommands({self._queue!r})"

    def judge_rows(self) -> None:
        """End requested backfills that the present configuration does not allow. Called while no reader runs."""
        self._queue.judge_rows(self._rules)

    def begin(self) -> None:
        """Take all waiting commands. Called while no reader runs."""
        for answer in self._queue.begin(self._rules):
            self._answered(answer)

    def follow(self, source_side: CommandedSource) -> LiveCommands:
        """Take commands for the running `source_side` until the returned object is closed."""
        return LiveCommands(self._queue, self._rules, source_side, notify=self._answered, every_s=self._every_s)

    def _answered(self, answer: CommandDecision) -> None:
        self._notify(Commanded(answer))


class CommandedSource(Protocol):
    """The part of the supervisor that carries out commands."""

    @property
    def ending(self) -> bool:
        """Return True if the job is about to end, so that commands are left for the next start."""

    def start_over(self, recover: Callable[[], list[CommandDecision]]) -> list[CommandDecision]:
        """End every process that reads, call `recover`, and start again from the resulting state."""

    def fail(self, error: BaseException) -> None:
        """End the job with `error`."""


class LiveCommands:
    """Takes the commands of a running pipeline on its own thread until `close`.

    `notify` is called with the result of each command. A state that cannot be read or written is tried again later
    without a report, because other parts of the run report it.
    """

    def __init__(
        self,
        queue: CommandQueue,
        rules: CommandRules,
        source_side: CommandedSource,
        *,
        notify: Callable[[CommandDecision], None],
        every_s: float = POLL_S,
        threads: Threads = THREADS,
    ) -> None:
        self._queue, self._rules, self._source_side = queue, rules, source_side
        self._notify, self._every_s, self._threads = notify, every_s, threads
        self._closed = threading.Event()
        self._thread = threads.start(self._run, "commands")

    def __repr__(self) -> str:
        return f"LiveCommands({self._queue!r})"

    def close(self) -> None:
        """Stop taking commands. Waiting ones are left for the next start."""
        self._closed.set()
        self._thread.join(timeout=30)

    def step(self) -> bool:
        """Take the waiting commands. Returns False if there are none, or if they cannot be carried out now."""
        waiting = self._queue.waiting()
        if not waiting or self._source_side.ending:
            return False
        # Commands that are refused are answered first, because they must not end a generation.
        senseless, sensible = self._queue.sorted_out(waiting, self._rules)
        answers = self._queue.take(senseless, self._rules)
        if sensible:
            reach("before_command")
            answers += self._source_side.start_over(lambda: self._queue.take(sensible, self._rules))
        for answer in answers:
            self._notify(answer)
        return True

    def _run(self) -> None:
        pause_s = self._every_s
        while not self._threads.wait(self._closed, pause_s):
            pause_s = self._every_s
            try:
                self.step()
            except StateError:
                pause_s = AGAIN_S
            except (RaycdcError, CoordinatorLostError):
                return  # The job has ended, which its supervisor reports.
            except Exception as error:  # noqa: BLE001 - a bug ends the job, raised to every caller
                self._source_side.fail(error)
                return
