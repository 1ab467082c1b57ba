"""Compares a configuration with that of an existing state: the changed keys, and their effects.

`raycdc.config.changes` has the effect of each key. A key about the location or the way in which the sink writes may be
corrected until a target has rows of the state. A new location of a target is accepted after the target there was found
to hold the committed rows. Functions of this module record both kinds of changes, under the lease.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import assert_never

from raycdc.config import PipelineConfig
from raycdc.config.changes import ConfigChangeClass
from raycdc.errors import ConfigError, SinkError
from raycdc.model import TableId
from raycdc.model.state_key import require_state_key
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.tables.table_requests import requests_of
from raycdc.state.configured import (
    Difference,
    Setting,
    configured_keys,
    differences,
    kept_sink,
    read_configured,
    write_configured,
)
from raycdc.state.store import CheckpointStore

_NEW_STATE = (
    "rows already written would not match. Take it back, or begin with another pipeline.state, a new snapshot and "
    'another target; or with pipeline.on_existing = "replace", for which the old target is emptied.'
)


def require_fitting(config: PipelineConfig, store: CheckpointStore, *, has_sink: bool = True) -> list[Difference]:
    """Return the allowed differences from the configuration of the state.

    Raises `ConfigError` with all other differences and their remedies, and `StateError` for a different
    ``pipeline.state_key``.
    """
    was, last = read_configured(store), store.last_manifest()
    if last is not None:
        states = [state.to_json() for state in (*last.to_splits.values(), last.enumerator)]
        require_state_key(config.state_key, json.dumps(states))
    if was is None or last is None:
        return []  # Nothing was written yet, or an older version that did not record its configuration wrote it.
    changes = differences(was, configured_keys(config, has_sink=has_sink), config)
    if other_reader := _other_reader(was, has_sink=has_sink):
        raise ConfigError(other_reader)
    other = [d for d in changes if d.change is ConfigChangeClass.NEW_STATE and not _is_correction(d, store)]
    problems = [f"{d}: {_NEW_STATE}" for d in other]
    stream = stream_of(last)
    for difference in (d for d in changes if d.change is ConfigChangeClass.NEW_SNAPSHOT):
        if stream is None:
            problems.append(f"{difference}: {_NEW_STATE}")
            continue
        requests = requests_of(store)
        followed = [str(table) for table in stream.followed if config.source.captures(table)]
        stay = [n for n in difference.tables(followed) if not requests.acts_on(n, stream)]
        if stay:
            each = "; ".join(f"raycdc tables resnapshot CONFIG {name}" for name in stay)
            problems.append(
                f"{difference}: rows of {', '.join(stay)} already written would not match later ones. Take it "
                f"back, or read these tables anew, and start again: {each}"
            )
    if problems:
        raise ConfigError(*problems)
    return changes


def _is_correction(difference: Difference, store: CheckpointStore) -> bool:
    """Return True if the key may still change because the sink has written no rows yet.

    ``sink.type`` and ``sink.write`` are excluded: rows already read for one of them would not fit another.
    """
    of_sink = difference.key.startswith("sink.") and difference.key not in ("sink.type", "sink.write")
    return of_sink and difference.change is ConfigChangeClass.NEW_STATE and store.last_commit() is None


def _other_reader(was: Mapping[str, Setting], *, has_sink: bool) -> str:
    """Return the refusal if the state's epochs go to a different kind of consumer; empty if the kind fits.

    The epochs of a state go either to a sink or to a Python caller, because each would miss the epochs of the other.
    """
    kind = kept_sink(was)
    if has_sink == (kind is not None):
        return ""
    done = f"epochs of this state go to a {kind} sink, by `raycdc run`" if kind else "epochs of this state were read"
    asks = f"`raycdc run` would not write to {kind or 'its sink'}" if not has_sink else "the sink would lack"
    rest = f"{asks} what is acknowledged here" if not has_sink else f"{asks} what their reader acknowledged"
    return f"pipeline.state: {done}, and {rest}. Use another pipeline.state, which begins with a new snapshot."


def effects_of(changed: Sequence[Difference]) -> list[str]:
    """Return the effect of changed keys on a state, for people."""
    said = []
    for difference in changed:
        match difference.change:
            case ConfigChangeClass.NEW_TABLES:
                said.append(f"{difference}: it applies to tables that begin from now on.")
            case ConfigChangeClass.LOCATION:
                said.append(f"{difference}: the run goes on only if the target there holds what was committed.")
            case ConfigChangeClass.JUDGED:
                said.append(f"{difference.key} changed: tables whose rows already written would not match are refused.")
            case ConfigChangeClass.NEW_STATE:
                said.append(f"{difference}: it is taken, because nothing was committed yet.")
            case ConfigChangeClass.FREE | ConfigChangeClass.NEW_SNAPSHOT:
                pass
            case other:
                assert_never(other)
    return said


def require_nothing_written(
    changed: Sequence[Difference], store: CheckpointStore, written: Callable[[], Sequence[TableId]]
) -> list[Difference]:
    """Return those of the `changed` keys that were corrected before anything was committed.

    Raises `ConfigError` if a target has rows although nothing was recorded, because a run died between the write and
    the record. `written` asks the targets that may have an epoch.
    """
    corrected = [difference for difference in changed if _is_correction(difference, store)]
    if corrected and (targets := written()):
        named = ", ".join(map(str, targets))
        raise ConfigError(*(f"{d}: {_NEW_STATE} Rows are in {named} already." for d in corrected))
    return corrected


@contextmanager
def naming_location(changed: Sequence[Difference]) -> Iterator[None]:
    """Add the `changed` location keys to a `SinkError` about a target that is not the recorded one."""
    try:
        yield
    except SinkError as error:
        locations = [
            f"{d}. Take it back, or move the whole target there."
            for d in changed
            if d.change is ConfigChangeClass.LOCATION
        ]
        raise SinkError("\n".join([*locations, str(error)])) if locations else error from error.__cause__


@contextmanager
def proving_target(
    config: PipelineConfig,
    store: CheckpointStore,
    changed: Sequence[Difference],
    written: Callable[[], Sequence[TableId]],
) -> Iterator[None]:
    """Record the changed keys around the block, which is a recovery that checks the rows of the targets.

    Corrected keys are recorded before the block, after `written` was checked. The rest are recorded after the block,
    which has then shown that the target at the new location holds the committed rows.
    """
    with naming_location(changed):
        if corrected := require_nothing_written(changed, store, written):
            was = read_configured(store) or {}
            write_configured(store, {**was, **{difference.key: difference.now for difference in corrected}})
        yield
    write_configured(store, configured_keys(config))
