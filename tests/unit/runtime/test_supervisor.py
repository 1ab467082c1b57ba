"""The supervisor over made-up processes: what it does when a coordinator is lost."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from threading import Event, Thread

import pytest

from raycdc.errors import RaycdcError, SourceUnavailableError
from raycdc.model.engines import EngineName
from raycdc.runtime.coordinator.coordinator_host import CoordinatorStart
from raycdc.runtime.launcher import CoordinatorHandle, CoordinatorLostError, ReaderHandle, this_machine
from raycdc.runtime.reader.reader_worker import ReaderIdentity
from raycdc.runtime.restarts import RESTARTS_MAX, ProcessEnd
from raycdc.runtime.scaling import ReaderLimits, SeenNode
from raycdc.runtime.supervisor import Supervisor, SupervisorSettings
from raycdc.source.protocol.job_status import JobStatus, ReaderStatus
from raycdc.source.tables.parking import Refusal


class Coordinator:
    """Answers, or is lost, or has failed."""

    pid = 1

    def __init__(self, generation: int, error: Exception | None) -> None:
        self.generation = generation
        self.closed = False
        self.told: list[ReaderStatus] = []
        self.retired: list[int] = []
        self.lost: list[tuple[int, int, str]] = []
        self.asked_for_tables = False
        self.stops = 0
        self.stopped = Event()
        self._error = error

    def _check(self) -> None:
        if self._error is not None:
            raise self._error

    def next_sealed(self, after: int, *, wait_s: float) -> tuple[int | None, int | None]:
        self._check()
        return self.generation, None

    def status(self, *, tables: bool) -> JobStatus:
        self._check()
        self.asked_for_tables |= tables
        return JobStatus(self.generation, sealed=0, committed=0, readers=tuple(self.told))

    def take_lost(self) -> list[tuple[int, int, str]]:
        self._check()
        lost, self.lost = self.lost, []
        return lost

    def exchange(self, subtask_id: int, incarnation: int, packet: bytes, *, wait_s: float) -> bytes:
        raise AssertionError("no reader here speaks")

    def epoch_committed(self, epoch: int) -> None: ...

    def park_tables(self, refusals: Sequence[Refusal]) -> None: ...

    def reader_lost(self, subtask_id: int, incarnation: int, reason: str) -> None: ...

    def retire(self, subtask_id: int) -> bool:
        """A reader that has something gives it back first."""
        self.retired.append(subtask_id)
        self.told = [replace(r, leaving=r.subtask == subtask_id or r.leaving) for r in self.told]
        return self.retired.count(subtask_id) > 1

    def stop(self) -> None:
        self._check()
        self.stops += 1
        self.stopped.set()

    def shutdown_readers(self, reason: str) -> None: ...

    def close(self) -> None:
        self.closed = True


class Reader:
    has_process = True
    node = ""

    def __init__(self, identity: ReaderIdentity) -> None:
        self.identity = identity
        self.killed = False

    def ended(self) -> ProcessEnd | None:
        return ProcessEnd("killed") if self.killed else None

    def kill(self) -> None:
        self.killed = True


class Processes:
    """A `Launcher`; the coordinator of generation n meets `errors[n]`, or none."""

    engine = EngineName.RAY

    def __init__(self, errors: dict[int, Exception]) -> None:
        self.errors = errors
        self.coordinators: list[Coordinator] = []
        self.readers: list[Reader] = []
        self.requested: list[int] = []

    def start_coordinator(self, start: CoordinatorStart) -> CoordinatorHandle:
        self.coordinators.append(Coordinator(start.generation, self.errors.get(start.generation)))
        return self.coordinators[-1]

    def start_reader(self, identity: ReaderIdentity, coordinator: CoordinatorHandle, *, node: str = "") -> ReaderHandle:
        self.readers.append(Reader(identity))
        return self.readers[-1]

    def request_readers(self, count: int) -> None:
        self.requested.append(count)

    def nodes(self) -> Sequence[SeenNode]:
        return [this_machine()]

    def avoid(self, node: str) -> None: ...

    def poll(self, owing: Collection[str] | None = None) -> None: ...

    def flights(self) -> Mapping[str, str]:
        return {}

    def sweep(self, needed: Collection[str]) -> None: ...

    def renew(self) -> bool:
        return False

    def close(self) -> None: ...


@contextmanager
def supervised(processes: Processes, warn: Callable[[str], None] = lambda _: None) -> Iterator[Supervisor]:
    generations = count(1)
    settings = SupervisorSettings(
        limits=ReaderLimits(1, 2),
        next_generation=lambda: next(generations),
        committed=lambda: 0,
        on_processes=lambda *_: None,
        on_warning=warn,
    )
    supervisor = Supervisor(processes, settings)
    try:
        yield supervisor
    finally:
        supervisor.close()


def test_a_coordinator_lost_while_it_starts_is_replaced_as_any_other() -> None:
    processes = Processes({1: CoordinatorLostError("silent"), 2: CoordinatorLostError("silent again")})

    with supervised(processes) as supervisor:
        answers = (supervisor.next_sealed(0, wait_s=0)[0] for _ in range(50))
        assert next(answer for answer in answers if answer is not None) == 3

    assert all(coordinator.closed for coordinator in processes.coordinators)
    assert {reader.identity.generation for reader in processes.readers} == {3}


def test_a_reader_that_was_silent_is_replaced_and_told() -> None:
    processes, told, news = Processes({}), list[str](), Event()

    def warn(text: str) -> None:
        told.append(text)
        news.set()

    with supervised(processes, warn):
        processes.coordinators[0].lost.append((0, 1, "silent for 10 s"))
        assert news.wait(120)

    assert told == ["Reader 0 is replaced: it was silent for 10 s."]
    assert processes.readers[0].killed


def test_a_start_that_fails_leaves_nothing_running() -> None:
    processes = Processes({1: SourceUnavailableError("away")})
    failing = processes.start_reader

    def start_reader(identity: ReaderIdentity, coordinator: CoordinatorHandle, *, node: str = "") -> ReaderHandle:
        if identity.subtask_id == 1:
            raise SourceUnavailableError("away")
        return failing(identity, coordinator)

    processes.start_reader = start_reader  # type: ignore[method-assign]
    with pytest.raises(SourceUnavailableError), supervised(processes):
        pass

    assert [coordinator.closed for coordinator in processes.coordinators] == [True]
    assert [reader.killed for reader in processes.readers] == [True]


def test_readers_that_end_together_do_not_use_up_one_anothers_restarts() -> None:
    processes = Processes({})
    with supervised(processes) as supervisor:
        for _ in range(RESTARTS_MAX):
            supervisor._schedule(0, ProcessEnd("gone"))
        supervisor._schedule(1, ProcessEnd("gone"))
        with pytest.raises(RaycdcError, match="A reader ended 21 times"):
            supervisor._schedule(0, ProcessEnd("gone"))


def test_listeners_are_called_without_the_supervisors_lock() -> None:
    """Another thread may ask the supervisor for anything while a listener waits for it."""
    answers: list[object] = []

    def listen(*_: object) -> None:
        asking = Thread(target=lambda: answers.append(supervisors and supervisors[0].next_sealed(0, wait_s=0)))
        asking.start()
        asking.join(timeout=120)
        assert not asking.is_alive()

    supervisors: list[Supervisor] = []
    processes = Processes({})
    generations = count(1)
    settings = SupervisorSettings(ReaderLimits(1, 1), lambda: next(generations), lambda: 0, listen)
    supervisors.append(Supervisor(processes, settings))
    try:
        heard = len(answers)
        processes.coordinators[0].pid = 2
        supervisors[0]._step()
        assert len(answers) > heard or answers[-1] == (1, None)
    finally:
        supervisors[0].close()


def test_a_stop_waits_for_nobody_and_reaches_the_coordinator_that_there_is_then() -> None:
    """Whoever recovers with the supervisor's lock tells what it does, and listeners are told one after the other: one
    of them that stops the run must not wait for that lock.
    """
    processes = Processes({})
    with supervised(processes) as supervisor:

        def recover() -> None:
            stopping = Thread(target=supervisor.stop, daemon=True)
            stopping.start()
            stopping.join(timeout=120)
            assert not stopping.is_alive(), "it waits for the lock"

        supervisor.start_over(recover)
        while len(processes.coordinators) < 2:
            pass
        assert processes.coordinators[1].stopped.wait(120)
        assert supervisor.ending
        supervisor._step()
    assert [coordinator.stops for coordinator in processes.coordinators] == [0, 1]


def test_a_stop_is_carried_out_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raycdc.runtime.supervisor.WATCH_S", 3600.0)
    processes = Processes({})
    with supervised(processes) as supervisor:
        supervisor.stop()
        assert processes.coordinators[0].stopped.wait(120)


def test_a_job_that_has_failed_is_stopped_without_an_error() -> None:
    """Its error is told to whoever waits for its work."""
    processes = Processes({})
    with supervised(processes) as supervisor:
        supervisor.fail(SourceUnavailableError("away"))
        supervisor.stop()


def test_looking_at_processes_asks_for_no_tables_but_people_do() -> None:
    processes = Processes({})
    with supervised(processes) as supervisor:
        (coordinator,) = processes.coordinators
        supervisor._step()
        assert not coordinator.asked_for_tables
        supervisor.status()
        assert coordinator.asked_for_tables


def test_starting_over_ends_everything_before_it_recovers_and_raises_the_generation() -> None:
    processes = Processes({})
    with supervised(processes) as supervisor:
        before = list(processes.readers)

        def recover() -> tuple[bool, bool]:
            return all(c.closed for c in processes.coordinators), all(r.killed for r in before)

        assert supervisor.start_over(recover) == (True, True)
        answers = (supervisor.next_sealed(0, wait_s=0)[0] for _ in range(100))
        assert next(answer for answer in answers if answer is not None and answer > 1) == 3


def test_readers_leave_when_they_have_given_everything_back_and_come_again_when_needed() -> None:
    processes = Processes({})
    with supervised(processes) as supervisor:
        supervisor._closed.set()
        supervisor._thread.join()
        coordinator = processes.coordinators[-1]

        def tell(partitions: int) -> None:
            coordinator.told = [
                ReaderStatus(
                    r.identity.subtask_id,
                    r.identity.incarnation,
                    pid=0,
                    node="",
                    partitions=n,
                    leaving=r.identity.subtask_id in coordinator.retired,
                )
                for n, r in zip([partitions, 0], [r for r in processes.readers if not r.killed], strict=False)
            ]

        tell(1)
        supervisor._step()
        assert [r.killed for r in processes.readers] == [False, False]
        supervisor._step()
        assert [r.killed for r in processes.readers] == [False, True]
        assert processes.requested == [2]
        supervisor._scaler.policy.readers = 2
        coordinator.retired.clear()
        tell(2)
        supervisor._step()
        assert [(r.identity.subtask_id, r.identity.incarnation) for r in processes.readers] == [(0, 1), (1, 1), (1, 2)]
