"""``raycdc tables``: the phases of single tables, and requests about them, which act at the pipeline's next start."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, assert_never

from raycdc.checkpoint.bad_rows import bad_rows
from raycdc.checkpoint.opaque import Position
from raycdc.checkpoint.store import CheckpointStore, CommitRecord
from raycdc.checkpoint.term import brief_term
from raycdc.cli.inspect_checkpoint import place_of_state
from raycdc.cli.places import place_text_of
from raycdc.errors import ConfigError, ExitCode
from raycdc.model import TableId
from raycdc.model.selector import plain_table
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.printable import printable, printable_json, printable_text
from raycdc.source.parking import TableRequest, with_refusals
from raycdc.source.snapshot.stream_state import StreamState
from raycdc.source.table_life import AsOf, Behind, Gone, InSnapshot, Live, Parked, Phase, TableState, Unknown
from raycdc.source.table_requests import (
    ask,
    left_behind,
    read_together,
    refusals_of,
    requests_of,
    stream_state,
)

#: Action → the request that it makes, and the text that it prints.
_ACTIONS = {
    "resnapshot": (TableRequest.RESNAPSHOT, "is read again"),
    "add": (TableRequest.RESNAPSHOT, "is added, beginning with a snapshot,"),
    "pause": (TableRequest.PAUSE, "is paused (its target keeps what it has)"),
    "remove": (TableRequest.REMOVE, "is no longer followed (its target keeps what it has, and `add` reads it anew)"),
    "resume": (TableRequest.RESNAPSHOT, "goes on, beginning with a new snapshot,"),
}


def print_tables(config: Path, *, as_json: bool) -> int:
    """Print each table's phase, and why one is not followed."""
    store = CheckpointStore(place_of_state(config), create=False)
    tables, place_text = table_list(store), place_text_of(store)
    if as_json:
        for table in tables:
            print(printable_json(json.dumps(table, ensure_ascii=False)))
        return int(ExitCode.DONE)
    for table in tables:
        asked = f", {table['asked']} asked for" if table["asked"] else ""
        asked += f", {table['bad_rows']} rows left out" if "bad_rows" in table else ""
        again = ", begins again" if table["again"] else ""
        position = table["position"]
        where = f" at {_short(place_text(Position.from_json(position)))}" if position else ""
        print(printable(f"{table['table']}  {table['phase']}{where}{again}{asked}"))
        if table["reason"]:
            print("    " + printable_text(table["reason"], indent="    "))
    return int(ExitCode.DONE)


def _short(place: str) -> str:
    """A place without its further particulars, which stand behind three spaces."""
    return place.partition("   ")[0]


def table_list(store: CheckpointStore) -> list[dict[str, Any]]:
    """The tables of the newest manifest, JSON-able."""
    manifest, record = store.last_manifest(), store.last_commit()
    state, requests = _with_refusals(stream_state(manifest), record), requests_of(store)
    lost = bad_rows(store, record.epoch if record else 0)
    found = []
    for name in sorted({*state.names, *requests.tables}):
        table = state.named(name)
        if isinstance(table, Unknown) and not requests.acts_on(name, state):
            continue
        parked = table if isinstance(table, Parked) else None
        found.append(
            {
                "table": name,
                "phase": _phase(table),
                "again": parked is not None and parked.again,
                "reason": parked.reason if parked else None,
                "position": parked.position.to_json() if parked else None,
                "ts_ms": parked.ts_ms if parked else None,
                "asked": requests.tables[name] if requests.acts_on(name, state) else None,
                **({"bad_rows": lost[name]} if name in lost else {}),
            }
        )
    return found


def _phase(table: TableState) -> str:
    match table:
        case Parked(phase=phase):
            return str(phase)
        case InSnapshot() | AsOf():
            return "snapshot"
        case Behind() | Live() | Gone():
            return "stream"
        case Unknown():
            return "new"
        case _:
            assert_never(table)


def _with_refusals(state: StreamState, record: CommitRecord | None) -> StreamState:
    """The log's state as the next start finds it: with the tables parked that the record says a target refused."""
    return state if record is None else with_refusals(state, refusals_of(record.parked))


def change_table(config: Path, name: str, action: str) -> int:
    """Ask for `action` on the table called `name`, under the state's lease: the pipeline must not run."""
    asked, done = _ACTIONS[action]
    store = CheckpointStore(place_of_state(config), create=False)
    with store.lease(), brief_term(store):
        state = _with_refusals(stream_state(store.last_manifest()), store.last_commit())
        table = _table_called(name, state)
        now = state.named(table)
        parked = now if isinstance(now, Parked) else None
        known = not isinstance(now, Unknown)
        removed = parked is not None and parked.phase is Phase.REMOVED
        if action == "add":
            _check_selected(config, table, known=known and not removed)
        elif not known:
            raise ConfigError(
                f"{table} is none of the pipeline's tables ({', '.join(state.names)}). Add it with: raycdc tables add."
            )
        if removed and action in ("resume", "resnapshot"):
            raise ConfigError(f"{table} was removed. Add it with: raycdc tables add.")
        if action == "resume" and (parked is None or parked.phase is not Phase.PAUSED):
            raise ConfigError(f"{table} is not paused. For a new snapshot of it: raycdc tables resnapshot.")
        idle = parked is not None and parked.phase is not Phase.PARKED
        if parked is not None and ((action == "pause" and idle) or (action == "remove" and removed)):
            raise ConfigError(f"{table} is {parked.phase} already: {parked.reason}")
        record = store.last_commit() if asked is TableRequest.RESNAPSHOT and _updates_rows(config) else None
        together = read_together(record, [table], state)
        ask(store, sorted(together), asked)
        left = left_behind(record, together)
    print(f"{printable(table)} {done} at the next start of the pipeline; the other tables go on meanwhile.")
    print(printable_text(_said_of(together, left)), end="")
    return int(ExitCode.DONE)


def _table_called(name: str, state: StreamState) -> str:
    """The table's name as the state has it, where people may have written it as a plain name of the configuration."""
    if "." not in name or not isinstance(state.named(name), Unknown):
        return name
    return str(plain_table(name) or TableId.parse(name))


def _said_of(together: Mapping[str, str], left: Sequence[str]) -> str:
    """A text about the other tables that are read again; empty where the table has its targets for itself."""
    targets = ", ".join(sorted(set(together.values()) - {""}))
    if not targets:
        return ""
    those = f" and the rows of {', '.join(left)}, which nobody reads again, leave it" if left else ""
    return (
        f"Its rows in {targets} cannot be told from those of other tables, so {targets} is emptied{those}, and "
        f"{', '.join(sorted(together))} are read again together.\n"
    )


def _updates_rows(config: Path) -> bool:
    """Whether the sink holds one row per key; taken for granted where there is no configuration to ask."""
    if not config.is_file():
        return True
    sink = tomllib.loads(config.read_text(encoding="utf-8")).get("sink", {})
    fields = load_plugin(PluginGroup.SINKS, str(sink.get("type", ""))).config.model_fields
    return bool(sink.get("write", fields["write"].default) == "upsert")


def _check_selected(config: Path, table: str, *, known: bool) -> None:
    """`ConfigError` unless the configuration selects the table, and the state does not have it yet."""
    if known:
        raise ConfigError(f"{table} is one of the pipeline's tables. To read it again: raycdc tables resnapshot.")
    if not config.is_file():
        raise ConfigError(f"{config} is no configuration; name the pipeline's TOML file.")
    from raycdc.config import SourceConfig
    from raycdc.model.selector import TableSelector

    source = tomllib.loads(config.read_text(encoding="utf-8")).get("source", {})
    model: type[SourceConfig] = load_plugin(PluginGroup.SOURCES, str(source.get("type", ""))).config
    key = model.tables_key
    selector = TableSelector(tuple(source.get(key, ())), tuple(source.get("exclude", ())))
    if not selector.matches(TableId.parse(table)):
        raise ConfigError(f"{config}: source.{key} does not select {table}. Put it there, and add it again.")
