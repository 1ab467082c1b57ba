"""``raycdc tables``: what becomes of single tables of a pipeline. Changes take effect at its next start."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

from raycdc.checkpoint.bad_rows import bad_rows
from raycdc.checkpoint.store import CheckpointStore
from raycdc.cli.inspect_checkpoint import state_folder
from raycdc.errors import ConfigError, ExitCode
from raycdc.model import TableId
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.source.parking import PAUSE, PAUSED, REMOVE, REMOVED, RESNAPSHOT
from raycdc.source.table_requests import ask, requests_of, stream_state

#: Action → what it asks for, and what it says when that is done.
_ACTIONS = {
    "resnapshot": (RESNAPSHOT, "is read again"),
    "add": (RESNAPSHOT, "is added, beginning with a snapshot,"),
    "pause": (PAUSE, "is paused (its target keeps what it has)"),
    "remove": (REMOVE, "is no longer followed (its target keeps what it has, and `add` reads it anew)"),
    "resume": (RESNAPSHOT, "goes on, beginning with a new snapshot,"),
}


def print_tables(config: Path, *, as_json: bool) -> int:
    """Print each table's phase, and why one is not followed."""
    store = CheckpointStore(state_folder(config), create=False)
    tables = table_list(store)
    if as_json:
        for table in tables:
            print(json.dumps(table, ensure_ascii=False))
        return int(ExitCode.DONE)
    for table in tables:
        asked = f", {table['asked']} asked for" if table["asked"] else ""
        asked += f", {table['bad_rows']} rows left out" if "bad_rows" in table else ""
        again = ", begins again" if table["again"] else ""
        place = table["position"]
        where = f" at {place['file']}:{place['pos']}" if place and "file" in place else ""
        print(f"{table['table']}  {table['phase']}{where}{again}{asked}")
        if table["reason"]:
            print("    " + table["reason"].replace("\n", "\n    "))
    return int(ExitCode.DONE)


def table_list(store: CheckpointStore) -> list[dict[str, Any]]:
    """The tables of the newest manifest, JSON-able."""
    state, requests = stream_state(store.last_manifest()), requests_of(store)
    record = store.last_commit()
    lost = bad_rows(store, record.epoch if record else 0)
    found = []
    for name in sorted({*state["tables"], *state["parked"], *requests.tables}):
        entry = state["parked"].get(name, {})
        followed = state["tables"].get(name)
        phase = entry.get("phase") or ("new" if followed is None else "snapshot" if followed["snapshot"] else "stream")
        if phase == "new" and not requests.acts_on(name, state):
            continue
        found.append(
            {
                "table": name,
                "phase": phase,
                "again": entry.get("again", False),
                "reason": entry.get("reason"),
                "position": entry.get("position"),
                "ts_ms": entry.get("ts_ms"),
                "asked": requests.tables[name] if requests.acts_on(name, state) else None,
                **({"bad_rows": lost[name]} if name in lost else {}),
            }
        )
    return found


def change_table(config: Path, name: str, action: str) -> int:
    """Ask for `action` on the table called `name`, under the state's lease: the pipeline must not run."""
    asked, done = _ACTIONS[action]
    table = str(TableId.parse(name)) if "." in name else name
    store = CheckpointStore(state_folder(config), create=False)
    with store.lease():
        state = stream_state(store.last_manifest())
        parked = state["parked"].get(table)
        known = parked is not None or table in state["tables"]
        removed = parked is not None and parked["phase"] == REMOVED
        if action == "add":
            _check_selected(config, table, known=known and not removed)
        elif not known:
            followed = ", ".join(sorted({*state["tables"], *state["parked"]}))
            raise ConfigError(f"{table} is none of the pipeline's tables ({followed}). Add it with: raycdc tables add.")
        if removed and action in ("resume", "resnapshot"):
            raise ConfigError(f"{table} was removed. Add it with: raycdc tables add.")
        if action == "resume" and (parked is None or parked["phase"] != PAUSED):
            raise ConfigError(f"{table} is not paused. For a new snapshot of it: raycdc tables resnapshot.")
        if (action == "pause" and parked is not None) or (action == "remove" and removed):
            raise ConfigError(f"{table} is {parked['phase']} already: {parked['reason']}")
        if asked == RESNAPSHOT:
            _check_can_begin_again(config, store, table)
        ask(store, [table], asked)
    print(f"{table} {done} at the next start of the pipeline; the other tables go on meanwhile.")
    return int(ExitCode.DONE)


def _check_can_begin_again(config: Path, store: CheckpointStore, table: str) -> None:
    """`ConfigError` where the table's rows are among others' in a target that holds one row per key."""
    record = store.last_commit()
    target = record.merged.get(table) if record is not None else None
    if target is None or not _updates_rows(config):
        return
    raise ConfigError(
        f"{table} is merged with other tables into {target}, which would have to lose its rows first, and they cannot "
        "be told from the others'. Take a new snapshot of all of them with another pipeline.state."
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
    from raycdc.model.selector import TableSelector

    source = tomllib.loads(config.read_text(encoding="utf-8")).get("source", {})
    key = "collections" if source.get("type") == "mongodb" else "tables"
    selector = TableSelector(tuple(source.get(key, ())), tuple(source.get("exclude", ())))
    if not selector.matches(TableId.parse(table)):
        raise ConfigError(f"{config}: source.{key} does not select {table}. Put it there, and add it again.")
