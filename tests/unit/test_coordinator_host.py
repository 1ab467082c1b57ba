"""The mailbox around the coordinator: what becomes of errors in the enumerator's blocking work."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from raycdc.checkpoint.store import CheckpointStore
from raycdc.errors import SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.runtime.coordinator_host import BUSY_S, CoordinatorHost
from raycdc.source.coordinator import CoordinatorSettings
from raycdc.source.enumerator import restore_or_create
from raycdc.source.snapshot_plan import PlannedChunks, StartPoint


class Dialect:
    """A source that fails as `failures` say before it answers."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.answered = threading.Event()

    def start_point(self) -> StartPoint:
        if self.failures:
            raise self.failures.pop(0)
        self.answered.set()
        return StartPoint({"at": 1}, 1, ())

    def plan(self, *_: object) -> PlannedChunks:
        raise AssertionError("there are no tables")

    def captures(self, table: TableId) -> bool:
        return True

    @property
    def chunk_readers_max(self) -> int:
        return 0

    def current_ordinal(self) -> int:
        return 1


@contextmanager
def hosted(folder: Path, dialect: Dialect) -> Iterator[CoordinatorHost]:
    store = CheckpointStore(folder, pipeline="shop")
    host = CoordinatorHost(
        store=store,
        generation=store.next_generation(),
        committed=0,
        make_enumerator=lambda context, **how: restore_or_create(context, dialect, **how),
        until=None,
        settings=CoordinatorSettings(),
    )
    try:
        yield host
    finally:
        host.close()


def test_discovery_is_tried_again_while_the_source_is_away(tmp_path: Path) -> None:
    dialect = Dialect(SourceUnavailableError("restarting"), SourceUnavailableError("restarting"))
    with hosted(tmp_path, dialect) as host:
        assert dialect.answered.wait(timeout=30)
        assert host.status()["sealed"] == 0


def test_a_refusal_of_the_source_ends_the_job_at_once(tmp_path: Path) -> None:
    refused = pytest.raises(SourceError, match="wrong password")
    with hosted(tmp_path, Dialect(SourceError("wrong password"))) as host, refused:
        host.next_sealed(0, wait_s=30)


def test_a_call_for_later_is_made_then_and_its_handler_may_ask_again(tmp_path: Path) -> None:
    made: list[str] = []
    thrice = threading.Event()
    with hosted(tmp_path, Dialect()) as host:

        def again(name: str) -> None:
            made.append(name)
            if len(made) == 3:
                thrice.set()
            else:
                host._core.call_async(lambda: threading.current_thread().name, again, after_s=0.01)

        with host._condition:
            again("first")
        assert thrice.wait(timeout=30)
    assert all(name.startswith("enumerator") for name in made[1:])


def test_what_the_coordinator_waits_for_itself_is_told_as_no_silence_of_its_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path, Dialect()) as host:
        busy: list[float] = []
        monkeypatch.setattr(host._core, "was_busy", busy.append)
        monkeypatch.setattr(host._core, "reader_lost", lambda *_: threading.Event().wait(2 * BUSY_S) and None)
        host.reader_lost(0, 1, "a slow disk")
    assert any(2 * BUSY_S <= seconds < 2 for seconds in busy)
