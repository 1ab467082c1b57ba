"""``raycdc status``: how far a pipeline is, as its run says, or its state where nobody runs it."""

from __future__ import annotations

import sys
import threading
import tomllib
from pathlib import Path

from raycdc.checkpoint.store import CheckpointStore
from raycdc.cli.inspect_checkpoint import place_of_state
from raycdc.cli.places import place_text_of
from raycdc.config.load import control_section
from raycdc.control.at_rest import status_at_rest
from raycdc.control.client import NoRun, find
from raycdc.control.model import Status
from raycdc.errors import ExitCode
from raycdc.printable import printable_json, printable_text

#: Between two looks of ``--watch``.
WATCH_S = 1.0


def print_status(config: Path, *, as_json: bool, watch: bool) -> int:
    """Print it once, or again and again until Ctrl-C."""
    store = CheckpointStore(place_of_state(config), create=False)
    while True:
        status = status_of(config, store)
        if as_json:
            print(printable_json(status.to_json().decode()), flush=True)
        else:
            print(printable_text(str(status)), flush=True)
        if not watch:
            return int(ExitCode.DONE)
        threading.Event().wait(WATCH_S)


def status_of(config: Path, store: CheckpointStore) -> Status:
    """As the run says, if there is one, else as the state does."""
    token = control_section(tomllib.loads(config.read_text(encoding="utf-8"))).token if config.is_file() else None
    found = find(store, "" if token is None else token.reveal(), wait=_say)
    if isinstance(found, NoRun):
        said = f"the state in {store.place}; the pipeline is not running: {found.why}"
        return status_at_rest(store, said, place_text_of(store))
    return found.status()


def _say(text: str) -> None:
    print(printable_text(text), file=sys.stderr, flush=True)
