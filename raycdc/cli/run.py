"""``raycdc run``: runs a pipeline in the foreground, shows its progress, and stops it in order at Ctrl-C."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Protocol, TextIO, cast, get_args

from raycdc.cli.demo_mark import require_servers
from raycdc.config import PipelineConfig, load_config
from raycdc.config.sections.observability import UiAccess
from raycdc.config.sections.pipeline import Engines
from raycdc.core.startup_tuning import without_pandas
from raycdc.core.terminal_text import printable_text
from raycdc.errors import ConfigError, ExitCode, RaycdcError
from raycdc.observe.events import Failed, Listener, RunEvent, Starting
from raycdc.observe.status import RunStatus
from raycdc.plugins import third_parties
from raycdc.server.client import page_link

if TYPE_CHECKING:  # The import is here, so that a command that is refused immediately does not wait for it.
    from raycdc.driver.resolve import ResolvedRun


UNTIL_CAUGHT_UP = "caught-up"


@dataclass(frozen=True, slots=True)
class RunOptions:
    """The options of `raycdc.pipeline.Pipeline.run` from the command line, and three more.

    `plan` is the sealed plan to follow. If `ui` is True, a link to the web UI is printed. `engines` replaces
    ``pipeline.engines``.
    """

    until: str | None = None
    local: bool = False
    standby: bool = False
    plan: Path | None = None
    ui: bool = False
    engines: str | None = None

    def configured(self, config: PipelineConfig) -> PipelineConfig:
        """Return `config` with the engines that the command line asks for. Raises `ConfigError` for an unknown name."""
        engines = "never" if self.local and self.engines is None else self.engines
        if engines is None:
            return config
        if engines not in get_args(Engines):
            raise ConfigError(f'--engines "{engines}" is unknown; it is one of {", ".join(get_args(Engines))}')
        if self.local and engines != "never":
            raise ConfigError(f"--local is --engines never, and --engines {engines} says otherwise: leave one out.")
        return config.with_engines(cast("Engines", engines))


class RunningPipeline(Protocol):
    """The part of `raycdc.pipeline.Pipeline` that this command uses."""

    def run(
        self,
        *,
        until: str | None,
        local: bool,
        standby: bool,
        listener: Listener,
        show_page: Callable[[str, str], None] | None = None,
        planned: ResolvedRun | None = None,
    ) -> None: ...

    def status(self) -> RunStatus: ...

    def stop(self) -> None: ...


class View(Protocol):
    """Shows the pipeline's events; `close` restores the terminal for the next command."""

    def show(self, event: RunEvent) -> None: ...

    def note(self, text: str) -> None: ...

    def announce(self, text: str) -> None:
        """Print a text that stays on the screen."""

    def close(self) -> None: ...


def run_pipeline(path: Path, way: RunOptions, *, as_json: bool, verbose: bool) -> int:
    """Load and run the pipeline; return the exit code. Named errors reach `main` after the view is closed."""
    if way.until not in (None, UNTIL_CAUGHT_UP):
        raise ConfigError(f'--until "{way.until}" is unknown; the only value is "{UNTIL_CAUGHT_UP}"')
    with own_output(as_json) as out:
        view = None if out is None else JsonView(out)
        try:
            return _run(path, view, out, way, verbose=verbose)
        except Exception as error:
            # Errors before the pipeline has a listener, and bugs, are printed as events, too, because programs read
            # only this output.
            if view is not None and not view.reported_error:
                view.show(Failed.of(error))
            raise


def _run(path: Path, view: JsonView | None, out: TextIO | None, way: RunOptions, *, verbose: bool) -> int:
    written = load_config(path)
    config = way.configured(written)
    way = replace(way, local=config.is_local)
    require_servers(path)
    if view is not None:
        view.pipeline = config.pipeline.name
    if out is not None and config.sink.prints_rows:
        sys.stdout = out  # The sink's rows are printed between the events.
    for warning in config.warnings:
        print(printable_text(f"Warning: {warning}"), file=sys.stderr)
    if way.local and not third_parties():
        without_pandas()  # No code of raycdc needs pandas in a run without Spark.
    planned = None
    if way.plan is not None:
        from raycdc.cli.planning.plan import require_planned
        from raycdc.driver.resolve import next_run

        planned = next_run(config)
        require_planned(planned, written, way.plan)
    if way.ui:
        _require_ui(config)
    from raycdc.pipeline import Pipeline

    pipeline: RunningPipeline = Pipeline.from_config(config)
    return drive(pipeline, view or make_view(config, pipeline.status, verbose=verbose), way, planned)


def _require_ui(config: PipelineConfig) -> None:
    """Raise `ConfigError` if the run will have no web UI."""
    if not config.control.enabled:
        raise ConfigError("--ui needs the control API, and control.enabled is false: leave one of them out.")
    if config.control.ui is UiAccess.OFF:
        raise ConfigError('--ui needs the web UI, and control.ui is "off": leave one of them out.')


@contextlib.contextmanager
def own_output(as_json: bool) -> Iterator[TextIO | None]:
    """Return a stream only for JSON lines; other output to standard output goes to standard error meanwhile.

    Libraries, their C++ code and their processes may write to standard output at any time. The result is None if
    `as_json` is False.
    """
    if not as_json:
        yield None
        return
    try:
        real = sys.stdout.fileno()
        sys.stdout.flush()
        kept = os.dup(real)
        os.dup2(sys.stderr.fileno(), real)
    except (OSError, ValueError):  # A stream of a test or of an embedding program, to which no other code writes.
        yield sys.stdout
        return
    stdout = sys.stdout
    try:
        with os.fdopen(kept, "w", encoding="utf-8", closefd=False) as out:
            yield out
    finally:
        sys.stdout = stdout
        os.dup2(kept, real)
        os.close(kept)


def make_view(config: PipelineConfig, status: Callable[[], RunStatus], *, verbose: bool) -> View:
    """Return a live table on a terminal, else plain lines."""
    from raycdc.cli.screens.progress import LiveView, PlainView

    # Rows of such a sink and log lines appear on the same screen, and would overwrite a live table.
    others_write = verbose or config.sink.prints_rows
    if sys.stdout.isatty() and not others_write and os.environ.get("TERM") != "dumb":
        return LiveView(status, config.pipeline.name)
    return PlainView(status, config.pipeline.name)


def drive(pipeline: RunningPipeline, view: View, way: RunOptions, planned: ResolvedRun | None = None) -> int:
    """Run `pipeline` with `view` and signal handlers, as it was `planned`; return 130 if Ctrl-C ended it.

    After SIGTERM, by which systemd and Kubernetes end a service, the code is 0, because they treat any other code as a
    failure.
    """
    stopper = _Stopper(pipeline, view)
    with stopper.stopping(), stopper.signals():
        try:
            pipeline.run(
                until=way.until,
                local=way.local,
                standby=way.standby,
                listener=stopper.listen,
                show_page=stopper.show_page if way.ui else None,
                planned=planned,
            )
        except RaycdcError as error:
            if type(error).__name__ not in stopper.errors_shown:
                stopper.listen(Failed.of(error))
            raise
        finally:
            view.close()
    if stopper.output_lost:
        raise BrokenPipeError
    return int(ExitCode.INTERRUPTED if stopper.interrupted else ExitCode.DONE)


class _Ask(Enum):
    """A request to the thread that stops the pipeline."""

    STOP = "stop"
    STOP_AND_SAY = "stop, and say so"
    NOTHING_MORE = "nothing more"


class _Stopper:
    """Stops the pipeline at signals.

    The first signal seals and commits what was read, the second raises an interrupt in the main thread, and the third
    ends the process immediately. A stop takes locks of the pipeline, and a signal handler interrupts the main thread,
    which may hold a lock that another thread waits for. Therefore a separate thread stops the pipeline.
    """

    def __init__(self, pipeline: RunningPipeline, view: View) -> None:
        self._pipeline = pipeline
        self._view = view
        self._lock = threading.RLock()
        #: A SimpleQueue is the only kind of queue that a signal handler may put something into.
        self._asked: queue.SimpleQueue[_Ask] = queue.SimpleQueue()
        self._signals = 0
        self._interrupted = False
        self.output_lost = False
        self.errors_shown: set[str] = set()

    @property
    def interrupted(self) -> bool:
        """Return True if a person interrupted the pipeline; a service manager's stop does not count."""
        return self._interrupted

    def listen(self, event: RunEvent) -> None:
        """Show an event of the pipeline, which calls this from any of its threads.

        If the output cannot be written any more, the pipeline is stopped.
        """
        with self._lock:
            if self.output_lost:
                return
            if isinstance(event, Failed):
                if event.error in self.errors_shown:
                    return
                self.errors_shown.add(event.error)
            try:
                self._view.show(event)
            except BrokenPipeError:
                self.output_lost = True
                self._asked.put(_Ask.STOP)

    def show_page(self, url: str, code: str) -> None:
        """Show the address of the web UI, from the server's thread.

        A login link is only shown on a terminal, not in a log.
        """
        if sys.stdout.isatty():
            text = f"Web UI: {page_link(url, code)}   (works once; another: raycdc ui CONFIG)"
        else:
            text = f"Web UI: {url} (raycdc ui CONFIG prints a login link)"
        with self._lock, contextlib.suppress(BrokenPipeError):
            self._view.announce(text)

    @contextlib.contextmanager
    def stopping(self) -> Iterator[None]:
        """Carry out stops that are requested within the block, on a separate thread."""

        def carry_out() -> None:
            while (asked := self._asked.get()) is not _Ask.NOTHING_MORE:
                self._pipeline.stop()
                if asked is _Ask.STOP_AND_SAY:
                    # The message may fail or block, because the terminal is paused, a pipe is full, or a stream is
                    # closed. The stop must not depend on it.
                    with contextlib.suppress(OSError, ValueError):
                        self._view.note(
                            "Stopping: rows that were read are sealed and committed. Press Ctrl-C again to stop "
                            "immediately."
                        )

        thread = threading.Thread(target=carry_out, name="stopper", daemon=True)
        thread.start()
        try:
            yield
        finally:
            self._asked.put(_Ask.NOTHING_MORE)
            thread.join(timeout=5)

    @contextlib.contextmanager
    def signals(self) -> Iterator[None]:
        """Install the signal handlers while the pipeline runs; only the main thread may do that."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._on_signal) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, _frame: FrameType | None) -> None:
        self._signals += 1
        self._interrupted = self._interrupted or number != signal.SIGTERM
        if self._signals == 1:
            self._asked.put(_Ask.STOP_AND_SAY)
        elif self._signals == 2:
            raise KeyboardInterrupt
        else:
            os._exit(int(ExitCode.INTERRUPTED))


class JsonView:
    """Prints each event as one line, and flushes it, so that a program can wait for it.

    The first event is ``started``.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        """Create the view; `out` is standard output unless given."""
        self._out = out
        #: The name of the pipeline, once it is known.
        self.pipeline: str | None = None
        #: True if an event was an error.
        self.reported_error = False

    def show(self, event: RunEvent) -> None:
        if isinstance(event, Starting):
            return
        self.reported_error = self.reported_error or isinstance(event, Failed)
        from raycdc.observe.events.lines import line_of  # Pydantic, which only JSON lines need.

        out = self._out or sys.stdout
        out.write(line_of(event, self.pipeline) + "\n")
        out.flush()

    def note(self, text: str) -> None:
        print(printable_text(text), file=sys.stderr)

    def announce(self, text: str) -> None:
        self.note(text)

    def close(self) -> None:
        """Do nothing: there is nothing to restore."""
