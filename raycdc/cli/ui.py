"""``raycdc ui``: a link to the web UI of a running pipeline."""

from __future__ import annotations

import sys
from pathlib import Path

from raycdc.cli.inspect.inspect_checkpoint import state_location_of
from raycdc.cli.status import find_run
from raycdc.core.terminal_text import printable_text
from raycdc.errors import ExitCode, StateError
from raycdc.server.client import NoRun
from raycdc.state.store import CheckpointStore


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
