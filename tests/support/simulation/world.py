"""A whole job under a random schedule, from one seed: workload, faults, then a calm end and the oracle.

Single-threaded. The same seed gives the same history, so a failing seed is a bug report.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate

from raycdc.errors import FencedError, StateError
from raycdc.model import TableId
from raycdc.model.rules.rate_limit import Until
from raycdc.source.snapshot.log.stream_state import StreamState, stream_of
from raycdc.source.tables.parking import LogStart, TableRequest, can_be_resumed
from raycdc.source.tables.table_life import AsOf, Behind, InSnapshot, Live, Parked, ParkedPhase, phase_word, reading
from raycdc.state.manifests.manifest import Manifest
from tests.support.simulation.backfills import SimBackfills
from tests.support.simulation.chunk_source import SimChunkSource
from tests.support.simulation.cluster import SimCluster
from tests.support.simulation.database import SimDatabase, SimPosition, SimTable
from tests.support.simulation.driver import SimDriver
from tests.support.simulation.names import TableNames
from tests.support.simulation.network import SimulatedClock
from tests.support.simulation.oracle import Oracle
from tests.support.simulation.settings import CALM, Settings, SimSpeeds
from tests.support.simulation.sinks import ModelSink
from tests.support.simulation.state import CrashError, MemorySpool, MemoryState

#: The number of steps of the calm end after which an unfinished job counts as stuck.
CALM_STEPS_MAX = 8_000
#: The number of events that a failure shows.
TRACE_LENGTH = 60


class SimulationError(AssertionError):
    """The job broke a promise; the text has the seed, what is wrong and the last events."""


class Simulation:
    """See the module's docstring. `run` raises `SimulationError`, or whatever the real classes raise."""

    def __init__(self, seed: int, *, steps: int = 1500, settings: Settings | None = None) -> None:
        self.seed = seed
        self.random = random.Random(seed)
        self.settings = settings or Settings.of(self.random, steps)
        self.clock = SimulatedClock()
        self.trace: deque[str] = deque(maxlen=TRACE_LENGTH)
        self.database = SimDatabase(self.random, visibility=self.settings.visibility, kinds=list(self.settings.kinds))
        self.database.fails_over = self.settings.failovers > 0
        self.database.breaks, self.database.purges = self.settings.breaks, self.settings.purges
        self.database.stretches, self.database.overtaken = self.settings.stretches, self.settings.overtaken
        self.database.keeps_dropped = self.settings.keeps_dropped
        self.names = TableNames(self.database, self.random)
        pace = SimSpeeds.of(self.random)
        self._set_pace(replace(pace, transactions=0.01) if self.settings.quiet else pace)
        self.spool = MemorySpool()
        self.state = MemoryState(self.random)
        #: A manifest, and the log's state in it.
        self._read: tuple[Manifest | None, StreamState | None] = (None, None)
        self.sink = ModelSink(self.spool)
        self.driver = SimDriver(self.state, self.sink, self.spool)
        self.oracle = Oracle(self.database, self.spool, self.state.schema_document)
        self.oracle.tells_made_tables = self.settings.selects
        self.backfills = SimBackfills(self.database, self.state, self.sink, self.random)
        self.state.on_manifest.append(self._look_at_manifest)
        if self.settings.backfills and not self.settings.damages:
            self.driver.on_record.append(lambda manifest: self.oracle.committed(manifest, self.sink))
        for _ in range(self.random.randrange(30)):
            self.database.transaction(now_s=self.clock.now_s, size=2)
        #: How many tables were caught up from where they were left.
        self.joined = 0
        #: The generation that was asked to stop before its end.
        self.stopped = 0
        self.cluster = self._start()
        self.zombies: list[SimCluster] = []

    def run(self) -> None:
        """Run the whole story."""
        try:
            self._chaos(self.settings.steps)
            if self.settings.damages and (stream := self._committed_stream()) is not None:
                self.backfills.damage(stream)
                self._restart(until=None)
                self._chaos(self.settings.steps // 4)
            self._calm()
            if self.settings.quiet:
                self._speak_of_tables_that_rest()
                self._calm()
            stream = self._stream()
            assert stream is not None, "a run that is over has sealed something"
            self.oracle.refused = [TableId.parse(one) for entry in self.state.parked.values() for one in entry.sources]
            self.oracle.final(self.sink, stream)
            self._compare_phases(stream)
            self._check()
        except SimulationError:
            raise
        except Exception as error:
            raise SimulationError(self._report(f"{type(error).__name__}: {error}")) from error

    # -- phases -----------------------------------------------------------------------------------------------------

    def _chaos(self, steps: int) -> None:
        self.state.crash_probability = self.settings.crashes * 3
        self.driver.half_commits, self.driver.refusals = self.settings.half_commits, self.settings.refusals
        for _ in range(steps):
            self.clock.advance(self.random.uniform(0, 0.05))
            self._guarded(self._something)
            if self.zombies and self.random.random() < 0.2:
                self._zombie(self.random.choice(self.zombies))
            self._check()

    def _calm(self) -> None:
        """No more transactions and no more faults but those of the network: the job must catch up, and end if told to.

        Half of the runs start again for that, until caught up; in the others what goes on must get there by itself.
        """
        self.state.crash_probability = self.driver.half_commits = self.driver.refusals = 0.0
        self.database.breaks = self.database.purges = self.database.overtaken = 0.0
        self._set_pace(CALM)
        self.zombies.clear()
        for reader in self.cluster.readers.values():
            reader.paused_until_s = 0.0
        if self.database.locked:
            self._others_go_on()
            self.database.locked.clear()
        again = self.random.random() < 0.5 or bool(self._parked())
        if again:
            self._ask(self._parked())
            self._restart(until=Until.CAUGHT_UP)
        for _ in range(CALM_STEPS_MAX * (3 if self.settings.backfills or self.settings.damages else 1)):
            self.clock.advance(self.random.uniform(0, 0.05))
            self._routine()
            self._check()
            if self._caught_up() and (self.driver.finished or not again):
                if not self.backfills.repair():
                    return
                again = True
                self._restart(until=Until.CAUGHT_UP)
            if self.driver.finished or (self._parked() and self._is_at_the_end()):
                again = True
                self._ask(self._parked())
                self._restart(until=Until.CAUGHT_UP)
        raise SimulationError(self._report("the job is stuck"))

    def _compare_phases(self, stream: StreamState) -> None:
        """People are told of tables what the log's state has of them."""
        assert self.cluster.enumerator is not None
        told = self.cluster.enumerator.statistics().progress.tables()
        for table in self.database.tables:
            if table in told and told[table].phase != (phase := phase_word(stream[table])):
                self.oracle.problems.append(f"{table} is said to be {told[table].phase}, and is {phase}")

    def _speak_of_tables_that_rest(self) -> None:
        """A statement is the first thing that is heard of tables behind the place that they were read as of."""
        stream = self._stream()
        assert stream is not None, "a run that is over has sealed something"
        for name, state in stream.followed.items():
            if isinstance(state, Behind) and (table := self.database.tables.get(name)) is not None:
                statement = self.random.choice(
                    [self.names.drop, self.names.rename_away, self.names.renew, self._puzzle]
                )
                self._note(f"{statement.__name__} of {name}, which rests")
                statement(table, now_s=self.clock.now_s)

    def _puzzle(self, table: SimTable, *, now_s: float) -> None:
        self.database.puzzle(now_s=now_s, table=table)

    def _stream(self) -> StreamState | None:
        """The log's state in the last manifest, which is read once: each step of the calm end asks for it."""
        last = self.state.last
        if last is not self._read[0]:
            self._read = last, stream_of(last)
        return self._read[1]

    def _committed_stream(self) -> StreamState | None:
        """`_stream`, if the sink holds it."""
        last = self.state.last
        return self._stream() if last is not None and last.epoch == self.state.committed else None

    def _is_at_the_end(self) -> bool:
        stream = self._committed_stream()
        return stream is not None and SimPosition.of(stream.position).ordinal == self.database.end

    def _caught_up(self) -> bool:
        if not self._is_at_the_end():
            return False
        stream = self._stream()
        assert stream is not None
        reading = [state for state in stream.followed.values() if isinstance(state, InSnapshot | AsOf)]
        parked = any(not self._has_ended(table, one) for table, one in stream.parked.items())
        refused = {TableId.parse(name) for entry in self.state.parked.values() for name in entry.sources}
        waits = bool(parked or refused & set(self.database.tables) or reading or stream.catching_up)
        return not (waits or self.state.requests.rows)

    def _has_ended(self, table: TableId, parked: Parked) -> bool:
        return parked.phase is ParkedPhase.ENDED and table not in self.database.tables

    def _parked(self) -> list[str]:
        """Tables that nobody but the user can set going again, in the last manifest."""
        stream = self._stream()
        asked = self.state.requests
        if stream is None:
            return []
        ended = {str(table) for table, parked in stream.parked.items() if self._has_ended(table, parked)}
        waiting = {str(table) for table, parked in stream.parked.items() if not parked.again} - ended
        followed = set(map(str, stream.followed))
        # The last epoch of a run may be the one that a target refuses.
        refused = {name for entry in self.state.parked.values() for name in entry.sources if name in followed}
        return [name for name in sorted(waiting | refused) if not asked.acts_on(name, stream)]

    def _ask(self, tables: list[str], *, start: int | None = None) -> None:
        """Ask for new snapshots; from `start` on, where the log before is lost."""
        stream = self._stream()
        if stream is None or not (tables or start is not None):
            return
        resumed = [name for name in tables if self._can_go_on(name, stream)]
        asked = self.state.requests.and_also(resumed, TableRequest.RESUME, stream)
        asked = asked.and_also([name for name in tables if name not in resumed], TableRequest.RESNAPSHOT, stream)
        self.state.requests = asked
        if start is not None:
            place = SimPosition(start, self.database.server)
            counted = self.database.counted(start, place.server)
            self.state.requests = replace(asked, start=LogStart(place.sealed(), counted))
            self.oracle.starts.add(start)
        self._note(f"new snapshots asked for: {self.state.requests}")

    def _can_go_on(self, name: str, stream: StreamState) -> bool:
        """Whether a paused table goes on from where it was left. People whose target is parked are told to read it
        anew instead (`raycdc.source.tables.table_commands`); the protocol does not rely on that.
        """
        paused = stream.named(name)
        return isinstance(paused, Parked) and paused.left is not None

    def _pause_or_resume(self) -> None:
        """The user pauses a table, or lets one go on; a new generation carries it out."""
        stream = self._stream()
        if stream is None:
            return
        paused = [str(table) for table, one in stream.parked.items() if can_be_resumed(one)]
        others = [str(table) for table in (*stream.followed, *stream.catching_up)]
        live = [name for name in others if not isinstance(stream.named(name), InSnapshot | AsOf)]
        # One that is read has nothing to go on from, and is paused as well, but seldom.
        others = live if live and self.random.random() < 0.9 else others
        if paused and (self.random.random() < 0.6 or not others):
            self._ask([self.random.choice(paused)])
        elif others:
            name = self.random.choice(others)
            self.state.requests = self.state.requests.and_also([name], TableRequest.PAUSE, stream)
            self._note(f"{name} is to be paused")
        self._restart(until=self._until())

    def _something(self) -> None:
        dice = self.random.random()
        pace = self.pace
        if self.settings.backfills and self.random.random() < self.settings.backfills:
            self._ask_for_rows()
        elif self.settings.failovers and self.random.random() < self.settings.failovers:
            self._fail_over()
        elif self.settings.pauses and self.random.random() < self.settings.pauses:
            self._pause_or_resume()
        elif self.settings.fills and self.random.random() < self.settings.fills:
            self.database.fill(now_s=self.clock.now_s)
            self._note("a statement with rows")
        elif self.settings.locks and self.random.random() < self.settings.locks:
            self._lock_or_unlock()
        elif self.settings.names and (not self.database.tables or self.random.random() < self.settings.names):
            self._note(self.names.step(self._aimed(), now_s=self.clock.now_s))
        elif dice < self.settings.crashes:
            self._fault()
        elif self.database.troubled is not None and self.random.random() < 0.02:
            self.database.add_column(now_s=self.clock.now_s)
            self._note("add column")
        elif (swapped := self._about_to_be_read()) and self.random.random() < self.settings.swaps:
            self.database.swap(swapped, now_s=self.clock.now_s)
            self._note(f"swap {swapped}")
        elif self.random.random() < pace.schema_changes:
            self._change_schema()
        elif self.random.random() < pace.transactions:
            self.database.transaction(now_s=self.clock.now_s, size=self.random.choice([1, 1, 1, 2, 3, 5]))
        else:
            self._routine()
        if self.driver.finished:
            self._note("finished; run again")
            self._restart(until=self._until())

    def _aimed(self) -> list[TableId]:
        """Tables about which a statement comes at a bad time: they are read, were just read, or are caught up."""
        stream = self._stream()
        to_read = [table for chunks in self._chunk_sources() for table in chunks.to_read]
        if stream is None:
            return to_read
        # Few statements find a table before its first change behind the place that it was read as of.
        behind = [table for table, state in stream.followed.items() if isinstance(state, Behind)]
        reading = [table for table, state in stream.followed.items() if isinstance(state, AsOf)]
        return behind or [*to_read, *reading, *stream.catching_up]

    def _lock_or_unlock(self) -> None:
        # Mostly one that is about to be read: others are found locked when they are planned.
        to_read = [table for chunks in self._chunk_sources() for table in chunks.to_read]
        table = self.random.choice(to_read or sorted(self.database.tables))
        self.database.locked ^= {table}
        self._note(f"{table} is {'locked' if table in self.database.locked else 'free'}")

    def _others_go_on(self) -> None:
        """Tables that nobody has locked are read while others are."""
        locked = self.database.locked
        for _ in range(CALM_STEPS_MAX):
            self.clock.advance(self.random.uniform(0, 0.05))
            self._routine()
            self._check()
            if self.driver.finished:
                self._restart(until=None)
            stream = self._stream()
            lives = {} if stream is None else stream.followed
            if stream is not None and not any(reading(state) for table, state in lives.items() if table not in locked):
                return
        raise SimulationError(self._report("locked tables hold up others"))

    def _about_to_be_read(self) -> list[TableId]:
        """Tables that another may take the name of between a snapshot and its SELECT."""
        if not self.settings.swaps:
            return []
        about = [source.about_to_select for source in self._chunk_sources()]
        return [table for table in about if table in self.database.tables]

    def _chunk_sources(self) -> list[SimChunkSource]:
        readers = self.cluster.readers.values()
        return [reader.dialect.chunks for reader in readers if reader.runs and reader.dialect.chunks is not None]

    def _change_schema(self) -> None:
        if self.random.random() < 0.2 and len(self.database.tables) < 4:
            self.database.create_table(now_s=self.clock.now_s)
            self._note("create table")
        elif self.settings.truncations and self.random.random() < self.settings.truncations:
            self.database.truncate(now_s=self.clock.now_s)
            self._note("truncate")
        elif self.settings.unfollowed and self.random.random() < self.settings.unfollowed:
            kind = self.random.choice([self.database.rewrite, self.database.puzzle, self.database.add_unlogged_column])
            kind(now_s=self.clock.now_s)
            self._note(kind.__name__)
        else:
            self.database.add_column(now_s=self.clock.now_s)
            self._note("add column")

    def _routine(self) -> None:
        """Any process does the next thing it would do anyway."""
        self.database.settle(now_s=self.clock.now_s)
        self.random.choices(self._actions, cum_weights=self._weights)[0]()

    def _deliver(self) -> None:
        for _ in range(self.pace.deliveries):
            self.cluster.deliver()

    def _reader_step(self, action: str, *, times: int = 1) -> None:
        running = [r for r in self.cluster.readers.values() if r.runs]
        if running:
            reader = self.random.choice(running)
            for _ in range(times):
                self.cluster.step_reader(reader, action)
            if action == "poll" and reader.has_changes:
                self.cluster.step_reader(reader, "speak")

    # -- faults -----------------------------------------------------------------------------------------------------

    def _fault(self) -> None:
        readers = list(self.cluster.readers.values())
        dice = self.random.random()
        if readers and dice < 0.45:
            reader = self.random.choice(readers)
            reader.ended = True
            self._note(f"reader {reader.address} crashes")
        elif readers and dice < 0.65:
            reader = self.random.choice(readers)
            reader.paused_until_s = self.clock.now_s + self.random.uniform(1, 8)
            self._note(f"reader {reader.address} pauses")
        elif dice < 0.72 and self.settings.readers > 1:
            # The log's reader as well as any other.
            subtask = self.random.randrange(self.settings.readers)
            self._note(f"retire {subtask}: {self.cluster.retire(subtask)}")
        elif dice < 0.78:
            subtask = self.random.randrange(self.settings.readers)
            self._note(f"reader {subtask} started anew")
            self.cluster.start_reader(subtask)
        elif dice < 0.82:
            self._note("stop requested")
            self.cluster.coordinator.stop()
            self.stopped = self.cluster.generation
        else:
            raise CrashError

    def _fail_over(self) -> None:
        """Another server takes over; it has the transactions after the newest manifest, whatever it calls their places.

        Who was connected notices when he next looks; reports already sent arrive.
        """
        stream = self._stream()
        self.database.fail_over(SimPosition.of(stream.position).ordinal if stream is not None else 0)
        self._note(f"server {self.database.server} takes over")

    def _guarded(self, action: Callable[[], None]) -> None:
        try:
            action()
        except CrashError:
            if self.random.random() < 0.4:
                self.zombies.append(self.cluster)
            self._restart(until=self._until())

    def _restart(self, *, until: Until | None) -> None:
        """The coordinator or the driver died: everything of this generation is over, state and segments stay."""
        driver_too = self.driver.finished or self.random.random() < 0.6
        if driver_too:
            self.driver.crash()
            if self.random.random() < self.settings.losses:
                self._lose_a_segment()
            self._recover()
            if self.settings.selects:
                self._follow_made_tables()
            if self.pace is not CALM and self.settings.unfollowed and self.random.random() < self.settings.unfollowed:
                self._ask_something()
        self.cluster = self._start(until)
        self._note(f"generation {self.cluster.generation} starts, until={until}, driver too: {driver_too}")

    def _recover(self) -> None:
        """The driver starts, and may die in the middle of its recovery, again and again."""
        while True:
            try:
                self.driver.recover()
                return
            except CrashError:
                self._note("the driver dies in its recovery")

    def _ask_something(self) -> None:
        """While nothing runs, the user asks for new snapshots; or the log is found purged."""
        tables = [str(table) for table in self.database.tables if self.random.random() < 0.5]
        if self.random.random() < 0.3:
            stream = self._stream()
            known = () if stream is None else stream.tables
            self._ask([*dict.fromkeys(map(str, (*self.database.tables, *known)))], start=self.database.end)
        else:
            self._ask(tables)

    def _follow_made_tables(self) -> None:
        """A start finds tables that the state does not know: they were made since."""
        stream = self._stream()
        if stream is not None:
            new = [str(table) for table in self.database.tables if table not in stream.tables]
            asked = [name for name in new if not self.state.requests.acts_on(name, stream)]
            if asked:
                self.state.requests = self.state.requests.and_also(asked, TableRequest.FOLLOW, stream)
                self._note(f"made since: {asked}")

    def _ask_for_rows(self) -> None:
        """The user asks for a backfill, with which a new generation begins."""
        stream = self._stream()
        if stream is not None:
            self.backfills.ask_for_some(stream)
            self._note(f"backfills asked for: {list(self.state.requests.rows.values())}")
            self._restart(until=self._until())

    def _lose_a_segment(self) -> None:
        """The spool loses a segment of the first epoch that is not recorded: it cannot be replayed as it was."""
        open_epochs = [m for e, m in sorted(self.state.manifests.items()) if e > self.state.committed]
        if open_epochs and open_epochs[0].segments:
            manifest = open_epochs[0]
            lacking = [s for s in manifest.segments if self.sink.holds(s.table) < manifest.epoch]
            segment = self.random.choice(lacking or manifest.segments)
            self.spool.delete(segment.path)
            held = [str(table) for table in manifest.tables if self.sink.holds(table) >= manifest.epoch]
            self._note(f"a segment of epoch {manifest.epoch}, {segment.table}, is lost; {held} hold the epoch")

    def _zombie(self, zombie: SimCluster) -> None:
        """A coordinator and readers of an older generation that nobody managed to kill go on for a while."""
        try:
            for reader in [r for r in zombie.readers.values() if r.runs]:
                zombie.step_reader(reader, self.random.choice(["poll", "speak", "chunks"]))
            zombie.deliver()
            zombie.tick()
        except (FencedError, StateError, CrashError):
            self.zombies.remove(zombie)

    # -- helpers ----------------------------------------------------------------------------------------------------

    def _start(self, until: Until | None = None) -> SimCluster:
        return SimCluster(
            database=self.database,
            state=self.state,
            spool=self.spool,
            clock=self.clock,
            chance=self.random,
            readers=self.settings.readers,
            until=until,
            faults=self.settings.network_faults,
            committed=self.state.committed,
        )

    def _set_pace(self, pace: SimSpeeds) -> None:
        self.pace = pace
        self.database.log_silence = pace.log_silence
        actions: list[tuple[int, Callable[[], object]]] = [
            (12, self._deliver),
            (12, lambda: self._reader_step("poll", times=pace.polls)),
            (3, lambda: self._reader_step("speak")),
            (pace.chunks, lambda: self._reader_step("chunks")),
            (pace.reveals, self.database.reveal),
            (3, lambda: self.cluster.tick()),  # noqa: PLW0108 - of whatever cluster there is then
            (4, lambda: self.cluster.call()),  # noqa: PLW0108
            (2, lambda: self.cluster.supervise(zombies=self.random.random() < 0.5)),
            (4, lambda: self.driver.step(self.cluster)),
        ]
        self._actions = [action for _, action in actions]
        self._weights = list(accumulate(weight for weight, _ in actions))

    def _until(self) -> Until | None:
        return self.random.choice([None, None, Until.CAUGHT_UP])

    def _look_at_manifest(self, manifest: Manifest) -> None:
        stream, before = stream_of(manifest), self._stream()
        if stream is not None and before is not None:
            left = {t: one.left for t, one in before.parked.items() if one.left is not None}
            left |= {table: one.left for table, one in before.catching_up.items()}
            live = {table: state for table in left if isinstance(state := stream[table], Live)}
            self.joined += sum(state.incarnation == left[table].incarnation for table, state in live.items())
        self.backfills.saw(manifest)
        self._note(
            f"epoch {manifest.epoch} of generation {manifest.generation} sealed: "
            f"{[(s.kind, str(s.table), s.rows) for s in manifest.segments]} "
            f"at {None if stream is None else stream.ordinal}"
        )
        if self.cluster.enumerator is not None:
            # It writes again only the tables of which something was heard.
            planning = self.cluster.enumerator._planning
            tables = {table: planning.sealed_planning(table) for table in planning._tables}
            whole = {str(table): sealed.to_json() for table, sealed in tables.items() if sealed is not None}
            told = manifest.enumerator.to_json()["tables"]
            assert told == whole, f"the enumerator sealed {told} and has {whole}"
        asked_to_stop = self.stopped == self.cluster.generation
        self.oracle.manifest(manifest, self.state.last, caught_up=manifest.final and not asked_to_stop)

    def _note(self, event: str) -> None:
        self.trace.append(f"{self.clock.now_s:8.2f} {event}")

    def _check(self) -> None:
        if self.oracle.problems:
            raise SimulationError(self._report("\n".join(self.oracle.problems[:5])))

    def _report(self, what: str) -> str:
        trace = "\n  ".join(self.trace)
        return f"seed {self.seed}: {what}\n{self.settings}\n{self.pace}\n{self.cluster}\nlast events:\n  {trace}"
