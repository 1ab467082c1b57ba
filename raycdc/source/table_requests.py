"""What is asked of a pipeline's tables while it stands still: by ``raycdc tables``, and when its log was purged.

Everything here works on the state alone, under its lease; the next start carries it out (`raycdc.source.parking`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from raycdc.checkpoint.manifest import Manifest
from raycdc.checkpoint.store import CheckpointStore
from raycdc.errors import SchemaError, StateError
from raycdc.source.parking import PARKED, RESNAPSHOT, Requests
from raycdc.source.split import STREAM_SPLIT_ID


def stream_state(manifest: Manifest | None) -> dict[str, Any]:
    """The log's state in `manifest`. `StateError` when there is none: nothing was read yet, or the source has none."""
    state = manifest.to_splits.get(STREAM_SPLIT_ID) if manifest is not None else None
    if state is None:
        raise StateError(
            "This pipeline has no table with a log yet. Run it first; its first start reads every table anyway."
        )
    found: dict[str, Any] = state
    return found


def requests_of(store: CheckpointStore) -> Requests:
    """What was asked for last, done or not."""
    asked = store.requests()
    return Requests() if asked is None else Requests.from_json(asked)


def ask(store: CheckpointStore, tables: Sequence[str], action: str, *, manifest: Manifest | None = None) -> None:
    """Ask for `action` on `tables`, beside what was asked before and is still to do.

    `manifest` is where reading will go on (default: the newest).
    """
    state = stream_state(manifest or store.last_manifest())
    store.write_requests(requests_of(store).and_also(tables, action, state).to_json())


def ask_to_begin_again(
    store: CheckpointStore, last: Manifest, position: Mapping[str, Any], ordinal: int, tables: Sequence[str]
) -> None:
    """Ask for new snapshots of all `tables`, and of all that are known, with the log from another place on."""
    state = stream_state(last)
    names = {*tables, *state["tables"], *state["parked"]}
    # Paused tables and those that have ended stay as they are.
    names -= {name for name, entry in state["parked"].items() if entry["phase"] != PARKED}
    asked = dict.fromkeys(sorted(names), RESNAPSHOT) | requests_of(store).of_leaving(state)
    store.write_requests(Requests(state["changes"], asked, (position, ordinal)).to_json())


def ask_for_lost_rows(store: CheckpointStore, manifest: Manifest, tables: Sequence[str]) -> None:
    """Ask for new snapshots of `tables`, which lack rows of the epoch of `manifest`; those that are to leave may lack
    them, as whoever takes them up again gets a new snapshot.
    """
    leaving = requests_of(store).of_leaving(stream_state(manifest))
    ask(store, [name for name in tables if name not in leaving], RESNAPSHOT, manifest=manifest)


def complain_of_parked(manifest: Manifest | None) -> None:
    """Raise `SchemaError` for tables that a run which has read everything else leaves behind."""
    stream = manifest.to_splits.get(STREAM_SPLIT_ID) if manifest is not None else None
    parked = {} if stream is None else stream.get("parked", {})
    left = {name: entry for name, entry in parked.items() if entry["phase"] == PARKED and not entry["again"]}
    if not left:
        return
    reasons = "\n".join(f"{name}: {entry['reason']}" for name, entry in sorted(left.items()))
    names = ", ".join(sorted(left))
    raise SchemaError(
        f"Everything is committed but {names}: parked, as the log says what cannot be followed.\n{reasons}\n"
        f"Nothing of it after that place was passed on. Take a new snapshot of it at the next start with: raycdc "
        f"tables resnapshot CONFIG {sorted(left)[0]}; or leave it out (source.exclude)."
    )
