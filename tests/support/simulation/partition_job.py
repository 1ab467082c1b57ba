"""A job over many partitions under a random schedule, from one seed: moves, losses, restarts, and an oracle.

The coordinator and the links are the real ones. Sinks are left out: what a sealed manifest says is what would be
committed, so the oracle reads manifests.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from raycdc.errors import FencedError, StateError
from raycdc.model.rules.rate_limit import RateLimit, Until
from raycdc.source.protocol.api import SplitEnumeratorContext
from raycdc.source.protocol.coordinator import (
    CoordinatorEnvironment,
    CoordinatorSettings,
    RecoveryPoint,
    SourceCoordinator,
)
from raycdc.source.protocol.link import Link, SenderIdentity, read_packet
from raycdc.source.protocol.rate_budget import WHOLE
from raycdc.source.protocol.source_event import Message, ReaderRegistration, Shutdown
from raycdc.source.reader.reader_quota import ReaderRateLimiter
from raycdc.state.manifests.manifest import Manifest
from tests.support.simulation.network import Address, Datagram, FaultyNetwork, SimulatedClock
from tests.support.simulation.partitions import PartitionEnumerator, PartitionReader, SimTopic, sealed
from tests.support.simulation.state import CrashError, MemoryState
from tests.support.simulation.world import SimulationError

SETTINGS = CoordinatorSettings(
    epoch_interval_s=0.7, epoch_bytes_max=3_000, in_flight_max=2, reader_timeout_s=3.0, progress_timeout_s=18.0
)
#: What is read at a pace must not be lost again and again.
PACED_SETTINGS = replace(SETTINGS, is_rate_limited=True, reader_timeout_s=8.0)
HEARTBEAT_S = 0.3
#: Steps of the calm end after which a job that has not read everything counts as stuck.
CALM_STEPS_MAX = 8_000
TRACE_LENGTH = 60


@dataclass(frozen=True, slots=True)
class PartitionSettings:
    """The settings of a run; probabilities are per step, and per packet (`network_faults`)."""

    readers: int
    partitions: int
    steps: int
    network_faults: float
    crashes: float
    scaling: float
    pace: RateLimit | None = None

    @classmethod
    def of(cls, chance: random.Random, steps: int) -> PartitionSettings:
        return cls(
            readers=chance.choice([1, 2, 3, 5]),
            partitions=chance.choice([1, 3, 7]),
            steps=chance.randrange(steps // 2, steps * 3 // 2),
            network_faults=chance.choice([0.0, 0.05, 0.3]),
            crashes=chance.choice([0.0, 0.003, 0.01]),
            scaling=chance.choice([0.0, 0.01, 0.03]),
        )


@dataclass(slots=True)
class _Call:
    """Blocking work of the enumerator, not before `due_s`: first done, later handed back."""

    call: Callable[[], Any]
    handler: Callable[[Any], None]
    due_s: float
    done: bool = False
    result: Any = None


class PartitionProcess:
    """A reader process."""

    def __init__(self, job: PartitionJob, address: Address, generation: int) -> None:
        self.address = address
        self.ended = False
        self.paused_until_s = 0.0
        self.dies_at_s = math.inf
        self.link = Link(SenderIdentity(generation, address[1]))
        name = f"g{generation}-r{address[0]}.{address[1]}"
        self.reader = job.make_reader(self.link.send, name)
        self.pace = ReaderRateLimiter(job.settings.pace, lambda: job.clock.now_s) if job.settings.pace else None
        if self.pace is not None:
            self.reader.pace = self.pace
        self._clock = job.clock
        self._next_heartbeat_s = 0.0
        self.link.send(ReaderRegistration("sim", address[0] + 1, ""))

    def __repr__(self) -> str:
        return f"PartitionProcess({self.address}, ended={self.ended}, {self.reader!r})"

    @property
    def runs(self) -> bool:
        return not self.ended and self._clock.now_s >= self.paused_until_s

    def receive(self, data: bytes, *, began_s: float) -> None:
        try:
            messages = self.link.receive(read_packet(data))
        except FencedError:
            self.ended = True
            return
        if self.pace is not None:
            self.pace.reached(began_s)
        for message in messages:
            if isinstance(message, Shutdown):
                self.ended = True
            elif not self.ended:
                self.reader.handle(message)

    def speak(self) -> bytes:
        if self._clock.now_s >= self._next_heartbeat_s:
            self.link.send(self.reader.heartbeat())
            self._next_heartbeat_s = self._clock.now_s + HEARTBEAT_S
        return self.link.packet()


class PartitionJob:
    """See the module's docstring. `run` raises `SimulationError`."""

    def __init__(self, seed: int, *, steps: int = 700, settings: PartitionSettings | None = None) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.settings = settings or PartitionSettings.of(self.random, steps)
        self.clock = SimulatedClock()
        #: Leases are short: where they matter more happens within a second.
        self._step_s = 0.05 if self.settings.pace is None else 0.015
        self.trace: deque[str] = deque(maxlen=TRACE_LENGTH)
        self.topic: Any = self.make_topic()
        self.spool: dict[str, list[Any]] = {}
        self.state = MemoryState(self.random)
        self.state.on_manifest.append(self._look_at_manifest)
        #: Records of sealed epochs, which is what a sink would hold.
        self.read: dict[str, int] = {}
        self.problems: list[str] = []
        #: Every process that may still read, those that were given up and those of earlier generations, too.
        self._reading: list[PartitionProcess] = []
        #: The greatest part of the budget that was ever in use at once.
        self.budget_used = 0
        self._is_calm = False
        self._start(until=None)

    # -- what another kind of topic has of its own

    def make_topic(self) -> Any:
        return SimTopic({f"p{n}": 0 for n in range(self.settings.partitions)})

    def make_reader(self, send: Callable[[Message], None], name: str) -> Any:
        return PartitionReader(self.topic, self.spool, send, name)

    def make_enumerator(self, context: SplitEnumeratorContext, until: Until | None, last: Manifest | None) -> Any:
        return PartitionEnumerator(context, self.topic, until=until, last=last)

    def run(self) -> None:
        """The whole story."""
        try:
            self.state.crash_probability = self.settings.crashes
            for _ in range(self.settings.steps):
                self.clock.advance(self.random.uniform(0, self._step_s))
                self._guarded(self._something)
                self._check()
            self._calm()
        except SimulationError:
            raise
        except Exception as error:
            raise SimulationError(self._report(f"{type(error).__name__}: {error}")) from error

    def _calm(self) -> None:
        """Nothing new and no faults but the network's: everything must be read, and who was to leave must have left.

        Half of the runs start again for that, until caught up.
        """
        self.state.crash_probability = 0.0
        self._is_calm = True
        for process in self.processes.values():
            process.paused_until_s, process.dies_at_s = 0.0, math.inf
        bounded = self.random.random() < 0.5
        if bounded:
            self._start(until=Until.CAUGHT_UP)
        for _ in range(CALM_STEPS_MAX):
            self.clock.advance(self.random.uniform(0, self._step_s))
            self._routine()
            self._check()
            everything = all(self.read.get(p, 0) == length for p, length in self.topic.lengths.items())
            if everything and (self.coordinator.epochs.final is not None if bounded else not self._leaving):
                return
        raise SimulationError(self._report("the job is stuck"))

    # -- what happens -----------------------------------------------------------------------------------------------

    def _something(self) -> None:
        dice = self.random.random()
        if dice < self.settings.crashes:
            self._fault()
        elif dice < self.settings.crashes + self.settings.scaling:
            self._scale()
        elif self.random.random() < 0.12:
            self.topic.append(self.random)
        elif self.random.random() < 0.005:
            self.topic.grow()
        else:
            self._routine()

    def _routine(self) -> None:
        running = [p for p in self.processes.values() if p.runs]
        actions: list[tuple[int, Callable[[], object]]] = [
            # A lease that ends while packets wait for each other would stop a job that is read at a pace.
            (12 if self.settings.pace is None else 24, self._deliver),
            (10, lambda: self.random.choice(running).reader.poll(self.random, calm=self._is_calm) if running else None),
            (6, lambda: self._speak(self.random.choice(running)) if running else None),
            (3, lambda: self.coordinator.tick(now_s=self.clock.now_s)),
            (4, self._call),
            (2, self._supervise),
            (3, self._commit),
        ]
        weights = [weight for weight, _ in actions]
        self.random.choices([action for _, action in actions], weights=weights)[0]()

    def _fault(self) -> None:
        processes = list(self.processes.values())
        if self.settings.pace is not None and processes and self.random.random() < 0.6:
            self._cut_off(self.random.choice(processes))
            return
        dice = self.random.random()
        if processes and dice < 0.5:
            process = self.random.choice(processes)
            process.ended = True
            self._note(f"reader {process.address} crashes")
        elif processes and dice < 0.75:
            process = self.random.choice(processes)
            process.paused_until_s = self.clock.now_s + self.random.uniform(1, 8)
            self._note(f"reader {process.address} pauses")
        else:
            raise CrashError

    def _cut_off(self, process: PartitionProcess) -> None:
        """Its node is taken for lost, or all nodes are, and it lives on there."""
        if self.random.random() < 0.5:
            raise CrashError
        self._note(f"reader {process.address} is cut off")
        # Nobody reaches it any more, and nobody can end it.
        del self.processes[process.address]
        self.coordinator.reader_lost(*process.address, "cut off")

    def _scale(self) -> None:
        """More readers, or fewer: as the supervisor does it, one that leaves is asked again until it has gone."""
        if self.random.random() < 0.5:
            absent = [n for n in range(self.settings.readers + 2) if n not in self._wanted]
            if absent:
                self._wanted.add(absent[0])
                self._start_reader(absent[0])
                if self.settings.crashes and self.random.random() < 0.5:
                    # Soon enough that partitions which were to move to it have not arrived.
                    self.processes[absent[0], self._incarnations[absent[0]]].dies_at_s = (
                        self.clock.now_s + self.random.uniform(0, 3)
                    )
        elif len(self._wanted - self._leaving) > 1:
            self._leaving.add(self.random.choice(sorted(self._wanted - self._leaving)))
            self._note(f"leaving: {sorted(self._leaving)}")

    def _guarded(self, action: Callable[[], object]) -> None:
        try:
            action()
        except CrashError:
            self._start(until=None)

    # -- processes --------------------------------------------------------------------------------------------------

    def _start(self, until: Until | None) -> None:
        """A new generation: coordinator and readers start from the last manifest."""
        self.state.generation += 1
        self.network = FaultyNetwork(self.random, self.settings.network_faults)
        self.processes: dict[Address, PartitionProcess] = {}
        self._calls: list[_Call] = []
        self._incarnations: dict[int, int] = {}
        self._wanted = set(range(self.settings.readers))
        self._leaving: set[int] = set()
        last = self.state.last
        self.coordinator = SourceCoordinator(
            lambda context: self.make_enumerator(context, until, last),
            recovered=RecoveryPoint(self.state.generation, last, last.epoch if last else 0, self.state.next_epoch),
            settings=SETTINGS if self.settings.pace is None else PACED_SETTINGS,
            surroundings=CoordinatorEnvironment(self.state, self._call_async, lambda: int(self.clock.now_s * 1000)),
        )
        self.coordinator.start()
        self._note(f"generation {self.state.generation} starts, until={until}")
        for subtask in sorted(self._wanted):
            self._start_reader(subtask)

    def _call_async(self, call: Callable[[], Any], handler: Callable[[Any], None], after_s: float) -> None:
        self._calls.append(_Call(call, handler, self.clock.now_s + after_s))

    def _start_reader(self, subtask: int) -> None:
        incarnation = self._incarnations.get(subtask, 0) + 1
        self._incarnations[subtask] = incarnation
        process = PartitionProcess(self, (subtask, incarnation), self.state.generation)
        self.processes[subtask, incarnation] = process
        self._reading.append(process)

    def _supervise(self) -> None:
        """Replace what ended or was fenced, some of which lives on for a while; let go of who leaves."""
        for subtask, incarnation, reason in self.coordinator.readers.take_lost():
            self._note(f"reader {subtask}.{incarnation} lost: {reason}")
            fenced = self.processes.get((subtask, incarnation))
            if fenced is not None and self.random.random() < 0.5:
                fenced.ended = True
            self._replace(subtask, incarnation)
        for address, process in list(self.processes.items()):
            if process.ended or process.dies_at_s <= self.clock.now_s:
                process.ended = True
                del self.processes[address]
                self.coordinator.reader_lost(*address, "ended")
                self.coordinator.readers.take_lost()
                self._replace(*address)
        for subtask in sorted(self._leaving):
            if self.coordinator.retire(subtask):
                self._note(f"reader {subtask} has left")
                self._leaving.discard(subtask)
                self._wanted.discard(subtask)
                self.processes.pop((subtask, self._incarnations[subtask]), None)

    def _replace(self, subtask: int, incarnation: int) -> None:
        if self._incarnations.get(subtask) != incarnation:
            return
        if subtask in self._leaving:
            self._leaving.discard(subtask)
            self._wanted.discard(subtask)
        elif subtask in self._wanted:
            self._start_reader(subtask)

    def _call(self) -> None:
        due = [call for call in self._calls if call.due_s <= self.clock.now_s]
        if not due:
            return
        call = self.random.choice(due)
        if not call.done:
            call.result, call.done = call.call(), True
            return
        self._calls.remove(call)
        call.handler(call.result)

    def _commit(self) -> None:
        epoch = self.coordinator.epochs.sealed_after(0)
        if epoch is not None:
            self.coordinator.epoch_committed(epoch)

    # -- packets ----------------------------------------------------------------------------------------------------

    def _speak(self, process: PartitionProcess) -> None:
        spoken = Datagram(process.address, to_coordinator=True, data=process.speak(), began_s=self.clock.now_s)
        self.network.send(spoken)

    def _deliver(self) -> None:
        datagram = self.network.take()
        if datagram is None:
            return
        process = self.processes.get(datagram.reader)
        if not datagram.to_coordinator:
            if process is not None and process.runs:
                process.receive(datagram.data, began_s=datagram.began_s)
            return
        subtask, incarnation = datagram.reader
        try:
            self.coordinator.receive(subtask, datagram.data, now_s=self.clock.now_s)
        except FencedError:
            if process is not None and process.runs and self.random.random() < 0.5:
                process.ended = True
            return
        except StateError as error:
            raise CrashError from error
        answer = self.coordinator.readers.outgoing(subtask, incarnation)
        if answer is not None:
            answered = Datagram(datagram.reader, to_coordinator=False, data=answer, began_s=datagram.began_s)
            self.network.send(answered)

    # -- the oracle -------------------------------------------------------------------------------------------------

    def _look_at_manifest(self, manifest: Manifest) -> None:
        """Each partition's records come in order, each once, and its sealed position is how many there were."""
        before = dict(self.read)
        for segment in manifest.segments:
            for partition, number in self.spool[segment.path]:
                if number != self.read.get(partition, 0):
                    self.problems.append(
                        f"epoch {manifest.epoch}: record {number} of {partition} came after {self.read.get(partition)}"
                    )
                self.read[partition] = max(self.read.get(partition, 0), number + 1)
        for partition, state in manifest.to_splits.items():
            if state != sealed(self.read.get(partition, 0)):
                self.problems.append(
                    f"epoch {manifest.epoch}: {partition} is sealed at {state.position}, "
                    f"but {self.read.get(partition, 0)} records were"
                )
        waiting = manifest.enumerator.to_json()["waiting"]
        lost = set(self.topic.lengths) & set(before) - set(manifest.to_splits) - set(waiting)
        self.problems.extend(f"epoch {manifest.epoch} forgot {partition}" for partition in sorted(lost))
        moved = {p: (before.get(p, 0), n) for p, n in self.read.items() if n != before.get(p, 0)}
        self._note(f"epoch {manifest.epoch} of generation {manifest.generation} sealed: {moved}")

    def _note(self, event: str) -> None:
        self.trace.append(f"{self.clock.now_s:8.2f} {event}")

    def _check(self) -> None:
        if self.settings.pace is not None:
            self._look_at_budget()
        if self.problems:
            raise SimulationError(self._report("\n".join(self.problems[:5])))

    def _look_at_budget(self) -> None:
        """All who may still read keep to no more than the whole."""
        self._reading = [process for process in self._reading if not process.ended]
        shares = {
            process.address: sum(process.pace.quotas.values()) for process in self._reading if process.pace is not None
        }
        used = sum(shares.values())
        self.budget_used = max(self.budget_used, used)
        if used > WHOLE:
            self.problems.append(f"readers keep to {used} of {WHOLE} parts of the budget: {shares}")

    def _report(self, what: str) -> str:
        trace = "\n  ".join(self.trace)
        shown = "\n".join(map(repr, self.processes.values()))
        return f"seed {self.seed}: {what}\n{self.settings}\n{self.coordinator}\n{shown}\nlast events:\n  {trace}"
