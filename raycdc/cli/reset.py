"""``raycdc reset``: a table begins anew, which is said before it is done. ``raycdc rewind``: why nothing goes back."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from raycdc.checkpoint.store import CheckpointStore
from raycdc.cli.inspect_checkpoint import place_of_state
from raycdc.cli.places import place_text_of
from raycdc.cli.tables import change_table, command_rules_of
from raycdc.config.load import read_toml
from raycdc.config.toml import section_of
from raycdc.driver.commands import CommandDesk
from raycdc.errors import ConfigError, ExitCode
from raycdc.printable import printable_text
from raycdc.source.parking import Asked
from raycdc.source.table_commands import Command, TableAction
from raycdc.source.table_life import phase_word
from raycdc.source.table_requests import stream_state

_UPSERT = (
    "Its target is emptied, and the snapshot fills it again: until that is complete, the target has a part of the rows."
)
_CHANGELOG = "Its target keeps what it has; a new beginning of the table follows, with every row once more."
_MERGED = (
    'With pipeline.on_existing = "merge", a target that was there before is not emptied, because rows of others would '
    "go: its table is parked (raycdc explain targets)."
)


def reset_table(config: Path, table: str, *, yes: bool, wait_s: float) -> int:
    """Say what a new beginning of the table means, ask, and have it begin anew. `ConfigError` where it is refused, or
    there is nobody to ask.
    """
    store = CheckpointStore(place_of_state(config), create=False)
    rules = command_rules_of(config)
    answer = CommandDesk(store).looked_at(Command.new(TableAction.RESNAPSHOT, table), rules)
    if answer.refused:
        raise ConfigError(answer.text)
    for line in _said(config, store, answer, updates_rows=rules.updates_rows):
        print(printable_text(line, indent="  "), flush=True)
    if not (yes or _agreed()):
        print("Nothing was changed.")
        return int(ExitCode.DONE)
    return change_table(config, table, TableAction.RESNAPSHOT, wait_s=wait_s)


def refuse_rewind(config: Path) -> int:
    """Say why a pipeline does not go back, and the ways to what is wanted. Always a `ConfigError`."""
    store = CheckpointStore(place_of_state(config), create=False)
    record = store.last_commit()
    held = "nothing yet" if record is None else f"everything up to epoch {record.epoch}"
    raise ConfigError(
        f"A pipeline does not go back by itself: the targets hold {held}, and changes that they hold would be written "
        f"to them again. Nothing was changed. The ways to what you may want:\n"
        f"  rows of one table are wrong      raycdc verify {config} TABLE --repair, or raycdc reset {config} TABLE\n"
        f'  all is to be read again          another pipeline.state and pipeline.on_existing = "replace"\n'
        f"  targets were brought back to an earlier moment\n"
        f"                                   bring back the state of that moment with them (raycdc state backup), or\n"
        f"                                   raycdc reset {config} TABLE for each"
    )


def _said(config: Path, store: CheckpointStore, answer: Asked, *, updates_rows: bool) -> Iterator[str]:
    state, place_text = stream_state(store.last_manifest()), place_text_of(store)
    yield f"{answer.text}."
    for name in answer.tables:
        yield f"  {name}: {phase_word(state.named(name))}"
    yield f"  the log is read up to {place_text(state.position).partition('   ')[0]}; the other tables go on from there"
    document = read_toml(config) if config.is_file() else {}
    yield f"  {_UPSERT if updates_rows else _CHANGELOG}"
    if section_of(document, "pipeline").get("on_existing") == "merge":
        yield f"  {_MERGED}"


def _agreed() -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("Nothing was changed, because there is nobody to ask: say --yes.")
    try:
        return input("Do it? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D: nothing was said.
        print()
        return False
