"""Starts readers in a Ray cluster: an actor waits for resources, then gets a spool, and then runs the reader.

| a reader | meaning |
|---|---|
| waits | its actor has no process yet; the actor is started on a different node if the intended node does not answer |
| has a process | its node's spool server is being started |
| runs | the reader works until its call returns, with the reason of its end |
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any
from weakref import WeakSet

import ray
from ray.exceptions import RayError

from raycdc.errors import FencedError, RaycdcError
from raycdc.runtime.ray.ray_actors import last_line, plain_error
from raycdc.runtime.ray.ray_head import RayletQuestions
from raycdc.runtime.ray.ray_spools import RaySpools
from raycdc.runtime.reader.reader_worker import ReaderIdentity
from raycdc.runtime.restarts import ProcessEnd
from raycdc.segments.access import SpoolAddress

#: The longest time that a reader waits for its intended node, before it may run on any node.
PLACEMENT_S = 10.0
#: When a reader has waited this long, the nodes that Ray may have chosen for it are checked.
ASKS_AFTER_S = 3.0
#: The longest time that a reader with a process waits for its node's spool server.
SPOOL_S = 60.0

#: The number of nodes, for each waiting reader, on which spool servers are started in advance.
EXPECTED_MAX = 2

#: Seconds for which the result of a check of all calls stays valid. The supervisor checks less often than this, but
#: each of its checks has two steps, which share one result.
ANSWERED_S = 0.1

#: Starts an actor for the given node, or any node, and returns it with the pending answer of its node.
New = Callable[[str], tuple[Any, Any]]
#: Starts the call in which an actor runs this reader, writing to this spool.
Run = Callable[[Any, ReaderIdentity, SpoolAddress | None], Any]
#: Returns the calls that have ended.
Wait = Callable[[list[Any]], Iterable[Any]]


def ended_calls(calls: list[Any]) -> Iterable[Any]:
    """Return the calls that have ended, as far as Ray knows now."""
    return ray.wait(calls, num_returns=len(calls), timeout=0)[0] if calls else ()


class FinishedCalls:
    """The readers' calls that have ended. Ray is queried for all calls together, whatever the number of readers.

    Called by the supervisor's thread.
    """

    def __init__(self, *, wait: Wait = ended_calls, clock: Callable[[], float] = time.monotonic) -> None:
        #: The readers that are still referenced. Ray ends an idle actor without references.
        self.readers: WeakSet[RayReader] = WeakSet()
        self._wait = wait
        self._clock = clock
        self._ended: frozenset[Any] = frozenset()
        self._until_s = float("-inf")

    def __contains__(self, call: Any) -> bool:
        if (now_s := self._clock()) >= self._until_s:
            self._ended = frozenset(self._wait([reader.call for reader in list(self.readers)]))
            self._until_s = now_s + ANSWERED_S
        return call in self._ended


class RayReader:
    """A handle of a `SourceReader`; `answered` queries Ray for all readers."""

    def __init__(self, identity: ReaderIdentity, actor: Any, where: Any, answered: FinishedCalls) -> None:
        self.identity = identity
        self._answered = answered
        answered.readers.add(self)
        self.node = ""
        #: The intended node, or empty.
        self.node_id = ""
        self._run: Any = None
        self.wait_with(actor, where)

    @property
    def has_process(self) -> bool:
        return bool(self.node) or self._run is not None

    @property
    def call(self) -> Any:
        """Return the reader's present call."""
        return self._where if self._run is None else self._run

    @property
    def waits_s(self) -> float:
        """Return the seconds since the reader began to wait, or since it got a process; 0.0 once it runs."""
        return 0.0 if self._run is not None else time.monotonic() - self._since_s

    def wait_with(self, actor: Any, where: Any) -> None:
        """Wait for a process of `actor`, which replaces the previous actor; `where` is its first answer."""
        self._actor, self._where, self._since_s = actor, where, time.monotonic()

    def take_node(self) -> str:
        """Return the node when the actor has a process; empty before."""
        if not self.node and self._where in self._answered:
            with suppress(RayError):  # `ended` reports the error.
                self.node, self._since_s = ray.get(self._where), time.monotonic()
        return self.node

    def begin(self, run: Run, spool: SpoolAddress | None) -> None:
        """Start the reader's work, writing to `spool`."""
        self._run = run(self._actor, self.identity, spool)

    @property
    def begun(self) -> bool:
        return self._run is not None

    def ended(self) -> ProcessEnd | None:
        if self.call not in self._answered:
            return self._stuck()
        try:
            ray.get(self.call)
        except FencedError:
            return ProcessEnd("fenced")
        except RaycdcError as error:
            plain = plain_error(error)
            return ProcessEnd.of(plain, last_line(plain))
        except RayError as error:
            return ProcessEnd(last_line(error))
        return ProcessEnd("left") if self._run is not None else self._stuck()

    def _stuck(self) -> ProcessEnd | None:
        if self.node and self._run is None and self.waits_s > SPOOL_S:
            return ProcessEnd(f"no spool server on its node within {SPOOL_S:g} s")
        return None

    def kill(self) -> None:
        ray.kill(self._actor)


class RayReaders:
    """See the module's docstring. Without `spools` Ray has one node, and every reader begins immediately.

    Called by the supervisor's thread.
    """

    def __init__(self, new: New, run: Run, spools: RaySpools | None) -> None:
        self._new, self._run = new, run
        self._spools = spools
        self._questions = RayletQuestions()
        self._answered = FinishedCalls()
        #: Processes that are started in advance, while Spark starts.
        self._prepared: list[tuple[Any, Any]] = []
        #: The number of readers without a process at the last check.
        self.waiting = 0

    def __repr__(self) -> str:
        return f"RayReaders({len(self._answered.readers)}, {len(self._prepared)} prepared)"

    def prepare(self, count: int) -> None:
        """Start this many readers in advance."""
        self._prepared = [self._new("") for _ in range(count)]

    def keep_prepared(self, count: int) -> None:
        """End prepared readers beyond `count`."""
        while len(self._prepared) > count:
            ray.kill(self._prepared.pop()[0])

    def start(self, identity: ReaderIdentity, node: str) -> RayReader:
        """Start another reader; `node` is its intended node, or empty."""
        actor, where = self._prepared.pop() if self._prepared else self._new(node)
        reader = RayReader(identity, actor, where, self._answered)
        reader.node_id = node
        if self._spools is None:
            reader.begin(self._run, None)
        return reader

    def choose_again(self) -> None:
        """Start waiting readers again, because Ray may have chosen a node that cannot be used any more."""
        for reader in list(self._answered.readers):
            if not reader.has_process and reader.ended() is None:
                self._restart(reader)

    def poll(self) -> set[str]:
        """Provide spools for readers that do not run yet.

        Returns the nodes that have readers, or may have some soon.
        """
        readers = [reader for reader in list(self._answered.readers) if reader.ended() is None]
        if self._spools is None:
            return set()
        for reader in readers:
            if not reader.begun:
                self._help(reader, self._spools)
        self._leave_silent(readers, self._spools)
        waiting = sum(not reader.has_process for reader in readers)
        room = self._spools.nodes.with_room() if waiting else []
        if len(room) <= EXPECTED_MAX * waiting:
            # Ray will choose some of these nodes. Servers take as long to start as readers, so they are started now.
            for node in room:
                self._spools.want(node)
        self.waiting = waiting
        return {*(reader.node for reader in readers), *room}

    def _leave_silent(self, readers: list[RayReader], spools: RaySpools) -> None:
        """Start waiting readers again if a node was found silent, or is not silent any more."""
        late = [reader for reader in readers if not reader.has_process and reader.waits_s > ASKS_AFTER_S]
        nodes = spools.nodes
        for node in {*(nodes.with_room() if late else ()), *(reader.node_id for reader in late)}:
            if (raylet := nodes.raylet(node)) is not None:
                self._questions.ask(node, *raylet)
        silent = [node for node in self._questions.take_silent() if nodes.does_not_answer(node)]
        if silent or nodes.take_again():
            self.choose_again()

    def _help(self, reader: RayReader, spools: RaySpools) -> None:
        if not (node := reader.take_node()):
            if reader.node_id and reader.waits_s > PLACEMENT_S:
                self._restart(reader)
            return
        if not spools.nodes.may_have_readers(node):
            # Ray learned about the node only after the reader was started.
            self._restart(reader)
            return
        spools.want(node)
        if (spool := spools.addresses().get(node)) is not None:
            reader.begin(self._run, spool)

    def _restart(self, reader: RayReader) -> None:
        """Replace a waiting reader's actor by one that waits for any node.

        The old actor has not begun its work.
        """
        reader.kill()
        reader.node_id = reader.node = ""
        reader.wait_with(*self._new(""))
