"""``raycdc page``: a link to the page of a running pipeline."""

from __future__ import annotations

import sys
from pathlib import Path

from raycdc.checkpoint.store import CheckpointStore
from raycdc.cli.inspect_checkpoint import place_of_state
from raycdc.cli.status import find_run
from raycdc.control.client import NoRun
from raycdc.errors import ExitCode, StateError
from raycdc.printable import printable_text


def print_page_link(config: Path, *, reads_only: bool) -> int:
    """Print a new link on standard output, and what is to be known of it beside it. `StateError` where nobody runs the
    pipeline, or the run has no page.
    """

    def say(text: str) -> None:
        print(printable_text(text), file=sys.stderr, flush=True)

    store = CheckpointStore(place_of_state(config), create=False)
    run = find_run(config, store, say)
    if isinstance(run, NoRun) and run.runs:
        raise StateError(
            f"There is no page yet: {run.why}. Ask again in a moment; a run that was started with control.enabled = "
            "false has no door, and no page."
        )
    if isinstance(run, NoRun):
        raise StateError(
            f"There is no page, because the pipeline is not running: {run.why}. Start it with: raycdc run {config} "
            "--page"
        )
    link = run.page_link(reads_only=reads_only)
    print(printable_text(link), flush=True)
    say(
        "The link works once, and for ten minutes. Whoever opens it may " + ("look." if reads_only else "look and act.")
    )
    return int(ExitCode.DONE)
