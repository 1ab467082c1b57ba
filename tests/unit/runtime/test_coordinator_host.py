"""The mailbox around the coordinator: what becomes of errors in the enumerator's blocking work."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from raycdc.config import SourceConfig
from raycdc.errors import FencedError, SourceError, SourceUnavailableError
from raycdc.model import TableId
from raycdc.runtime.coordinator import coordinator_host
from raycdc.runtime.coordinator.coordinator_host import BUSY_S, CoordinatorHost, CoordinatorStart
from raycdc.source.connector import Source, SourceFindings, SourceTable
from raycdc.source.protocol.api import EnumeratorStart, SourceReader, SplitEnumerator, SplitEnumeratorContext
from raycdc.source.protocol.coordination import Acknowledgements
from raycdc.source.protocol.coordinator import CoordinatorSettings
from raycdc.source.reader.source_reader_base import ReaderContext
from raycdc.source.schema_document import SchemaDocument
from raycdc.source.snapshot.enumerator.incremental_enumerator import restore_or_create
from raycdc.source.snapshot.enumerator.snapshot_plan import EnumeratorDialect, PlanChunks, PlannedChunks, StartPoint
from raycdc.state.manifests.manifest import Manifest
from raycdc.state.opaque import Position, SealedSplit
from raycdc.state.store import CheckpointStore


class ToldSource(Source[SourceConfig]):
    """A source without tables that remembers what it was told."""

    def __init__(self) -> None:
        super().__init__(SourceConfig(type="told"))
        self.told: list[dict[str, Position]] = []
        self.failures: list[Exception] = []

    def acknowledge(self, positions: Mapping[str, Position]) -> None:
        if self.failures:
            raise self.failures.pop(0)
        self.told.append(dict(positions))

    def check(self, last: Manifest | None, *, names_reported: bool) -> SourceFindings:
        return SourceFindings((), ())

    def preflight(self, last: Manifest | None) -> None:
        """Nothing is refused."""

    def tables(self) -> dict[TableId, SourceTable]:
        return {}

    def create_enumerator(self, context: SplitEnumeratorContext, start: EnumeratorStart) -> SplitEnumerator:
        raise AssertionError("no enumerator")

    def create_reader(self, context: ReaderContext) -> SourceReader:
        raise AssertionError("no reader")


class FailingDialect(EnumeratorDialect):
    """A source that fails as `failures` say before it answers."""

    def __init__(self, *failures: Exception) -> None:
        self.failures = list(failures)
        self.answered = threading.Event()

    def start_point(self) -> StartPoint:
        if self.failures:
            raise self.failures.pop(0)
        self.answered.set()
        return StartPoint(Position.from_json({"at": 1}), 1, ())

    def plan(self, *_: object) -> PlannedChunks:
        raise AssertionError("there are no tables")

    def planning(self) -> AbstractContextManager[PlanChunks]:
        raise AssertionError("there are no tables")

    def captures(self, table: TableId) -> bool:
        return True

    chunk_readers_max = 0
    failover = None

    def current_ordinal(self) -> int:
        return 1


class FailingSource(ToldSource):
    """The source with this dialect; nobody reads of it."""

    def __init__(self, dialect: FailingDialect) -> None:
        super().__init__()
        self.dialect = dialect

    def create_enumerator(self, context: SplitEnumeratorContext, start: EnumeratorStart) -> SplitEnumerator:
        return restore_or_create(context, self.dialect, start)


@contextmanager
def hosted(folder: Path, dialect: FailingDialect) -> Iterator[CoordinatorHost]:
    store = CheckpointStore(folder, pipeline="shop")
    host = CoordinatorHost(
        store,
        FailingSource(dialect),
        start=CoordinatorStart(store.generations.next(), 0),
        begin=EnumeratorStart(None, store.last_manifest(), lambda name: SchemaDocument.from_json(store.document(name))),
        settings=CoordinatorSettings(),
    )
    try:
        yield host
    finally:
        host.close()


def test_discovery_is_tried_again_while_the_source_is_away(tmp_path: Path) -> None:
    dialect = FailingDialect(SourceUnavailableError("restarting"), SourceUnavailableError("restarting"))
    with hosted(tmp_path, dialect) as host:
        assert dialect.answered.wait(timeout=120)
        assert host.status().sealed == 0


def test_a_refusal_of_the_source_ends_the_job_at_once(tmp_path: Path) -> None:
    refused = pytest.raises(SourceError, match="wrong password")
    with hosted(tmp_path, FailingDialect(SourceError("wrong password"))) as host, refused:
        host.next_sealed(0, wait_s=30)


def test_a_call_for_later_is_made_then_and_its_handler_may_ask_again(tmp_path: Path) -> None:
    made: list[str] = []
    thrice = threading.Event()
    with hosted(tmp_path, FailingDialect()) as host:

        def again(name: str) -> None:
            made.append(name)
            if len(made) == 3:
                thrice.set()
            else:
                host._calls.call_async(lambda: threading.current_thread().name, again, 0.01)

        with host._condition:
            again("first")
        assert thrice.wait(timeout=120)
    assert all(name.startswith("enumerator") for name in made[1:])


def test_a_coordinator_that_has_nothing_to_seal_hears_of_its_successor_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(coordinator_host, "SUCCESSOR_POLL_S", 0.01)
    with hosted(tmp_path, FailingDialect()) as host:
        host.status()
        CheckpointStore(tmp_path).generations.next()
        with pytest.raises(FencedError, match="the coordinator carries generation 1, but 2 is the newest"):
            host.next_sealed(0, wait_s=30)


def test_what_the_coordinator_waits_for_itself_is_told_as_no_silence_of_its_readers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with hosted(tmp_path, FailingDialect()) as host:
        busy: list[float] = []
        monkeypatch.setattr(host._core.readers, "was_busy", busy.append)
        monkeypatch.setattr(host._core, "reader_lost", lambda *_: threading.Event().wait(2 * BUSY_S) and None)
        host.reader_lost(0, 1, "a slow disk")
    assert any(2 * BUSY_S <= seconds < 2 for seconds in busy)


class Elsewhere:
    """`call_async` whose calls wait until the test runs them."""

    def __init__(self) -> None:
        self.calls: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def __call__(self, call: Callable[[], Any], handler: Callable[[Any], None], after_s: float) -> None:
        self.calls.append((call, handler))

    def run(self) -> None:
        while self.calls:
            call, handler = self.calls.pop(0)
            handler(call())


def at(position: int) -> dict[str, SealedSplit]:
    return {"stream": SealedSplit.from_json({"version": 2, "position": {"at": position}, "tables": {}})}


def told_of(position: int) -> dict[str, Position]:
    return {"stream": Position.from_json({"at": position})}


def test_the_newest_commit_stands_for_those_before_it_while_the_source_is_told() -> None:
    source, elsewhere = ToldSource(), Elsewhere()
    told = Acknowledgements(source.acknowledge, elsewhere)
    for position in (1, 2, 3):
        told.committed(at(position))
    assert (len(elsewhere.calls), told.idle) == (1, False)
    elsewhere.run()
    assert source.told == [told_of(1), told_of(3)]
    assert told.idle


def test_a_source_that_cannot_be_told_is_a_problem_until_the_next_commit() -> None:
    source, elsewhere = ToldSource(), Elsewhere()
    source.failures.append(SourceUnavailableError("the broker is away"))
    told = Acknowledgements(source.acknowledge, elsewhere)
    told.committed(at(1))
    elsewhere.run()
    assert (told.problems, told.idle, source.told) == ({"acknowledge": "the broker is away"}, True, [])
    told.committed(at(2))
    elsewhere.run()
    assert (told.problems, source.told) == ({}, [told_of(2)])


def test_an_epoch_without_a_log_is_told_to_nobody() -> None:
    elsewhere = Elsewhere()
    Acknowledgements(ToldSource().acknowledge, elsewhere).committed({})
    assert elsewhere.calls == []
