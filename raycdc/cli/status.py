"""``raycdc status`` and ``raycdc ui``: print the status of a pipeline, and a link to its web UI.

The status comes from the pipeline's run. If the pipeline is not running, the status is computed from its state.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

from raycdc.cli.inspect.inspect_checkpoint import state_location_of
from raycdc.cli.screens.formatting import position_text_of
from raycdc.config.load import control_section, read_toml
from raycdc.core.startup_tuning import without_pandas
from raycdc.core.terminal_text import printable_json, printable_text
from raycdc.errors import ExitCode, StateError
from raycdc.observe.status.at_rest import status_at_rest
from raycdc.observe.status.model import Status
from raycdc.server.client import ControlClient, NoRun, find
from raycdc.state.store import CheckpointStore

#: Seconds between two updates of ``--watch``.
WATCH_S = 1.0


def print_status(config: Path, *, as_json: bool, watch: bool) -> int:
    """Print the status once, or with `watch` repeatedly until Ctrl-C."""
    without_pandas()
    asking = StatusSource(config)
    if as_json:
        while True:
            print(printable_json(asking.status().to_json().decode()), flush=True)
            if not watch:
                return int(ExitCode.DONE)
            threading.Event().wait(WATCH_S)
    from rich.console import Console

    from raycdc.cli.screens.status_screen import screen

    console = Console(soft_wrap=not sys.stdout.isatty())
    if not watch:
        console.print(screen(asking.status()))
        return int(ExitCode.DONE)
    if not console.is_terminal:
        while True:
            console.print(screen(asking.status()), "")
            threading.Event().wait(WATCH_S)
    from rich.live import Live

    with Live(screen(asking.status(), height=console.size.height), console=console, auto_refresh=False) as live:
        while True:
            threading.Event().wait(WATCH_S)
            live.update(screen(asking.status(), height=console.size.height), refresh=True)


class StatusSource:
    """The status of a pipeline, which is given by its configuration or its state's folder."""

    def __init__(self, config: Path) -> None:
        self._config = config
        self._store = CheckpointStore(state_location_of(config), create=False)
        self._run: ControlClient | None = None

    def status(self) -> Status:
        """Return the status from the run, or from the state if there is no run.

        If the known run has ended, a new run is searched for.
        """
        if self._run is not None:
            try:
                return self._run.status()
            except StateError:
                self._run = None
        found = find_run(self._config, self._store, _say)
        if isinstance(found, NoRun):
            runs = "running" if found.runs else "not running"
            said = f"{runs}: {found.why}; this is the status in the state {self._store.location}"
            return status_at_rest(self._store, said, position_text_of(self._store), runs=found.runs)
        self._run = found
        return found.status()


def find_run(config: Path, store: CheckpointStore, wait: Callable[[str], None] | None = None) -> ControlClient | NoRun:
    """Return the run that has the state; `wait` is called while waiting.

    Raises `StateError` if the run cannot be reached.
    """
    token = ""
    if config.is_file():
        token = control_section(read_toml(config)).token.reveal()
    return find(store, token, wait=wait)


def _say(text: str) -> None:
    print(printable_text(text), file=sys.stderr, flush=True)


def print_ui_link(config: Path, *, reads_only: bool) -> int:
    """Print a new link on standard output, and information about it on standard error.

    Raises `StateError` if the pipeline is not running or the run has no web UI.
    """

    def say(text: str) -> None:
        print(printable_text(text), file=sys.stderr, flush=True)

    store = CheckpointStore(state_location_of(config), create=False)
    run = find_run(config, store, say)
    if isinstance(run, NoRun) and run.runs:
        raise StateError(
            f"The web UI is not up yet: {run.why}. Ask again in a moment; a run that was started with control.enabled "
            "= false has no web UI."
        )
    if isinstance(run, NoRun):
        raise StateError(
            f"There is no web UI, because the pipeline is not running: {run.why}. Start it with: raycdc run {config} "
            "--ui"
        )
    link = run.page_link(reads_only=reads_only)
    print(printable_text(link), flush=True)
    say(
        "The link signs in one browser, within ten minutes; it can "
        + ("only read." if reads_only else "read, and act on tables.")
    )
    return int(ExitCode.DONE)
