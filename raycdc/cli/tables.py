"""``raycdc tables``: the phases of single tables, and commands about them.

A running pipeline carries commands out immediately, a stopped one at its next start. `resnapshot_table` explains the
effect of a resnapshot, asks at a terminal, and requests it.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict, assert_never

from raycdc.cli.inspect.inspect_checkpoint import state_location_of
from raycdc.cli.screens.formatting import position_text_of
from raycdc.config.fields import section_of, texts_of
from raycdc.config.load import read_toml
from raycdc.core.terminal_text import printable, printable_json, printable_text
from raycdc.driver.command_queue import CommandQueue, CommandState, CommandStatus
from raycdc.errors import ConfigError, ExitCode, SchemaError, StateError
from raycdc.model import TableId
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.split import BackfillRows
from raycdc.source.tables.parking import CommandDecision
from raycdc.source.tables.table_commands import CommandRules, RowsByKey, TableAction, TableCommand, as_it_is, no_rows
from raycdc.source.tables.table_life import Parked, phase_word
from raycdc.source.tables.table_requests import each_table, requests_of, stream_state
from raycdc.state.bad_row_counts import bad_rows
from raycdc.state.drivers.driver_generation import brief_term
from raycdc.state.drivers.heartbeat import DriverWatch, Vacancy
from raycdc.state.opaque import Position
from raycdc.state.store import CheckpointStore, CommitRecord

if TYPE_CHECKING:
    from raycdc.config import SourceConfig

#: Seconds between two polls for the answer of a running pipeline.
_POLL_S = 0.2
#: How long the command waits for a running pipeline to answer.
WAIT_S = 60.0


def print_tables(config: Path, *, as_json: bool) -> int:
    """Print each table's phase, and why one is not followed."""
    store = CheckpointStore(state_location_of(config), create=False)
    tables, position_text = table_list(store), position_text_of(store)
    if as_json:
        for table in tables:
            print(printable_json(json.dumps(table, ensure_ascii=False)))
        return int(ExitCode.DONE)
    for table in tables:
        asked = f", {table['asked']} asked for" if table["asked"] else ""
        asked += f", {table['bad_rows']} rows left out" if "bad_rows" in table else ""
        again = ", begins again" if table["again"] else ""
        position = table["position"]
        where = f" at {_short(position_text(Position.from_json(position)))}" if position else ""
        print(printable(f"{table['table']}  {table['phase']}{where}{again}{asked}"))
        if table["reason"]:
            print("    " + printable_text(table["reason"], indent="    "))
    return int(ExitCode.DONE)


def _short(location: str) -> str:
    """Return a position without its details, which come after three spaces."""
    return location.partition("   ")[0]


class TableListLine(TypedDict):
    """A line of ``raycdc tables list --json``. The form of the position depends on the table's connector."""

    table: str
    phase: str
    again: bool
    reason: str | None
    position: Any
    ts_ms: int | None
    asked: str | None
    bad_rows: NotRequired[int]


def table_list(store: CheckpointStore) -> list[TableListLine]:
    """Return a line for each table of the newest manifest."""
    manifest, record = store.last_manifest(), store.last_commit()
    state, requests = as_it_is(stream_state(manifest), record), requests_of(store)
    lost = bad_rows(store, record.epoch if record else 0)
    lines: list[TableListLine] = []
    for name, table, asked in each_table(state, requests):
        parked = table if isinstance(table, Parked) else None
        line: TableListLine = {
            "table": name,
            "phase": phase_word(table),
            "again": parked is not None and parked.again,
            "reason": parked.reason if parked else None,
            "position": parked.position.to_json() if parked else None,
            "ts_ms": parked.ts_ms if parked else None,
            "asked": asked,
        }
        if name in lost:
            line["bad_rows"] = lost[name]
        lines.append(line)
    return lines


def change_table(config: Path, name: str, action: str, *, wait_s: float = WAIT_S) -> int:
    """Have `action` carried out for the table called `name`, as in `carry_out`."""
    return carry_out(config, TableCommand.new(TableAction(action), name), wait_s=wait_s)


def carry_out(config: Path, command: TableCommand, *, wait_s: float = WAIT_S) -> int:
    """Have `command` carried out; return the exit code.

    If a driver has the state or locks it meanwhile, it gets the command, and this function waits up to `wait_s` seconds
    for its answer. Otherwise the command is recorded under the state's lease for the next start. Raises `ConfigError`
    if the command is refused, `SchemaError` if the table's first rows park it again.
    """
    store = CheckpointStore(state_location_of(config), create=False)
    queue = CommandQueue(store)
    if command.where:
        print(
            printable(
                f"Rows of {command.table} that meet {command.where} are read again and replace those of its target by "
                "key. Nothing is deleted: raycdc verify --repair finds and deletes rows that the target has and the "
                "source has not."
            ),
            flush=True,
        )
    watch = DriverWatch(store.generations, store.lock.holder, lock=store.lock.identity)
    driver = watch.poll()
    if isinstance(driver, Vacancy):
        answer = _taken(store, queue, command, command_rules_of(config))
        if answer is not None:
            return _print_answer(answer)
        driver = f"process {store.lock.holder() or 'unknown'}"
    queue.submit(command)
    print(printable(f"Asked {driver}, which runs the pipeline (command {command.id})."), flush=True)
    deadline = time.monotonic() + wait_s
    waits = False
    while not (status := _status(queue, command)).over and time.monotonic() < deadline:
        if status.state is CommandState.ACTING and not waits:
            waits = True
            print(
                printable_text(f"{status.text}: waiting up to {wait_s:g} s until its target has that ..."), flush=True
            )
        time.sleep(_POLL_S)
        if isinstance(watch.poll(), Vacancy):
            answer = _taken(store, queue, command, command_rules_of(config))
            if answer is not None:
                return _print_answer(answer)
    match status.state:
        case CommandState.REFUSED:
            raise ConfigError(status.text)
        case CommandState.DONE:
            print(
                printable_text(
                    _sentence(status.text, "Its target has the result, and the other tables were not interrupted.")
                )
            )
        case CommandState.PARKED:
            raise SchemaError(status.text)
        case CommandState.ACTING:
            then = f"Its epoch is not in the sink after {wait_s:g} s, so the result is not known yet."
            print(printable_text(_sentence(status.text, then)))
            print(printable(f"To ask again: raycdc tables commands {config} {command.id}"))
        case CommandState.ACCEPTED if status.text:
            print(printable_text(_sentence(status.text, f"The run has not carried it out after {wait_s:g} s.")))
            print(printable(f"To ask again: raycdc tables commands {config} {command.id}"))
        case CommandState.ACCEPTED:
            print("The run has not accepted the command yet. If this run does not, the next start does.")
            print(printable(f"To ask again: raycdc tables commands {config} {command.id}"))
        case _:
            assert_never(status.state)
    return int(ExitCode.DONE)


def _status(queue: CommandQueue, command: TableCommand) -> CommandStatus:
    """Return the status of a command.

    A command that is not in the list any more, because of many later commands, counts as accepted.
    """
    state = queue.state(command.id)
    return state or CommandStatus(command.id, str(command.action), command.table, CommandState.ACCEPTED)


def _taken(
    store: CheckpointStore, queue: CommandQueue, command: TableCommand, rules: CommandRules
) -> CommandDecision | None:
    """Record the command for the next start, and return the answer.

    Returns None if a run that is starting, or another command, has locked the state meanwhile.
    """
    try:
        lease = store.lease()
    except StateError as error:
        if isinstance(error.__cause__, BlockingIOError):
            return None
        raise
    with lease, brief_term(store):
        stream_state(store.last_manifest())
        queue.take([*(one for one in queue.waiting() if one.id != command.id), command], rules)
    return next(asked for asked in requests_of(store).commands if asked.command == command.id)


def _print_answer(answer: CommandDecision) -> int:
    """Print the effect at the next start. Raises `ConfigError` if the command is refused."""
    if answer.refused:
        raise ConfigError(answer.text)
    print(printable_text(_sentence(answer.text, "It takes effect at the next start of the pipeline.")))
    return int(ExitCode.DONE)


def _sentence(text: str, then: str) -> str:
    """Return the first line of a command's text as a sentence, then the sentence `then`, then the other lines."""
    first, _, more = text.partition("\n")
    return f"{first}. {then}\n{more}".rstrip()


def print_commands(config: Path, command: str | None, *, as_json: bool) -> int:
    """Print the status of all commands or of one. Raises `ConfigError` for an unknown one."""
    queue = CommandQueue(CheckpointStore(state_location_of(config), create=False))
    statuses = [status for status in queue.all() if command in (None, status.id)]
    if command is not None and not statuses:
        raise ConfigError(
            f"There is no command {command}: it was never given, or many commands came after it was done."
        )
    for status in statuses:
        if as_json:
            print(printable_json(json.dumps(asdict(status), ensure_ascii=False)))
            continue
        print(printable(f"{status.id}  {status.action} {status.table}  {status.state}"))
        if status.text:
            print("    " + printable_text(status.text, indent="    "))
    return int(ExitCode.DONE)


def command_rules_of(config: Path) -> CommandRules:
    """Return the rules for judging commands, from the configuration file, of which only the needed keys must be valid.

    If `config` is a state's folder, there is no configuration, and the rules refuse nothing because of it.
    """
    selected, rows = partial(_check_selected, config), partial(_require_rows, config)
    by_key, once = partial(_why_not_by_key, config), partial(_why_read_once, config)
    return CommandRules(_updates_rows(config), selected, rows, by_key, once, partial(_targets, config))


def _why_read_once(config: Path) -> str:
    """Return the reason why the log cannot be read twice at a time, as far as the unvalidated section shows it."""
    if not config.is_file():
        return ""
    source, model = _source_of(config)
    try:
        return model.model_construct(**source).why_read_once
    except ValueError:
        return ""  # A start reports an invalid section.


def _why_not_by_key(config: Path, table: TableId, tables: Iterable[TableId], record: CommitRecord | None) -> str:
    """Return the reason why rows of the table cannot replace those of its target; empty if they can.

    Without a configuration the answer comes from the state only.
    """
    return _rows_by_key(config).why_not(table, tables, record)


def _targets(config: Path, table: TableId) -> tuple[TableId, ...]:
    """Return the targets of the table; the one of its own name without a configuration."""
    return _rows_by_key(config).targets(table)


def _rows_by_key(config: Path) -> RowsByKey:
    if not config.is_file():
        return RowsByKey()
    from raycdc.config import load_config

    loaded = load_config(config)
    return RowsByKey(loaded.router(), loaded.transformed())


def _require_rows(config: Path, table: TableId, document: SchemaDocument, again: BackfillRows) -> None:
    """Raise `ConfigError` if the configured source cannot read these rows."""
    if not config.is_file():
        no_rows(table, document, again)
    from raycdc.config import load_config
    from raycdc.driver.resolve import ResolvedRun
    from raycdc.driver.startup_checks import Start

    ResolvedRun(Start(load_config(config)), None).require_rows(table, document, again)


def _updates_rows(config: Path) -> bool:
    """Return True if the sink holds one row per key; also True without a configuration."""
    if not config.is_file():
        return True
    sink = section_of(read_toml(config), "sink")
    fields = load_plugin(PluginGroup.SINKS, str(sink.get("type", ""))).config.model_fields
    return bool(sink.get("write", fields["write"].default) == "upsert")


def _source_of(config: Path) -> tuple[Any, type[SourceConfig]]:
    """Return the unvalidated section of the source, and its model."""
    source = section_of(read_toml(config), "source")
    return source, load_plugin(PluginGroup.SOURCES, str(source.get("type", ""))).config


def _check_selected(config: Path, table: TableId) -> None:
    """Raise `ConfigError` unless the configuration selects the table."""
    if not config.is_file():
        raise ConfigError(f"{config} is no configuration; name the pipeline's TOML file.")
    from raycdc.model.rules.selector import TableSelector

    source, model = _source_of(config)
    key = model.tables_key
    selector = TableSelector(texts_of(source, key), texts_of(source, "exclude"))
    if not selector.matches(table):
        raise ConfigError(f"{config}: source.{key} does not select {table}. Put it there, and add it again.")


_UPSERT = (
    "Its target is emptied, and the snapshot fills it again: until that is complete, the target has a part of the rows."
)
_CHANGELOG = "Its target keeps its rows; the resnapshot appends every row of the table once more."
_MERGED = (
    'With pipeline.on_existing = "merge", a target that was there before is not emptied, because rows of other '
    "writers would be lost: its table is parked (raycdc docs targets)."
)


def resnapshot_table(config: Path, command: TableCommand, *, yes: bool, wait_s: float) -> int:
    """Print the effect of a resnapshot, ask for confirmation, and carry out `command`; return the exit code.

    The effect concerns the table, its target and other tables. Asks only if standard input is a terminal and `yes` is
    false. Raises `ConfigError` if it is refused.
    """
    store = CheckpointStore(state_location_of(config), create=False)
    rules = command_rules_of(config)
    answer = CommandQueue(store).preview(command, rules)
    if not answer.refused:  # A refused command is carried out, too, so that it is in the state's list of commands.
        for line in _said(config, store, answer, updates_rows=rules.updates_rows):
            print(printable_text(line, indent="  "), flush=True)
        if sys.stdin.isatty() and not (yes or _confirmed()):
            print("Nothing was changed.")
            return int(ExitCode.DONE)
    return carry_out(config, command, wait_s=wait_s)


def _said(config: Path, store: CheckpointStore, answer: CommandDecision, *, updates_rows: bool) -> Iterator[str]:
    state, position_text = stream_state(store.last_manifest()), position_text_of(store)
    yield f"{answer.text}."
    for name in answer.tables:
        yield f"  {name}: {phase_word(state.named(name))}"
    read_to = position_text(state.position).partition("   ")[0]
    yield f"  the log is read up to {read_to}; the other tables go on from there"
    document = read_toml(config) if config.is_file() else {}
    yield f"  {_UPSERT if updates_rows else _CHANGELOG}"
    if section_of(document, "pipeline").get("on_existing") == "merge":
        yield f"  {_MERGED}"


def _confirmed() -> bool:
    try:
        return input("Resnapshot it? [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:  # Ctrl-D: no answer.
        print()
        return False
