"""The interface between sources and ``raycdc bench splits``, which compares ways of cutting tables into chunks, and
ways of dividing partitions among readers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

SourceT_co = TypeVar("SourceT_co", covariant=True)


@dataclass(frozen=True, slots=True)
class ServerCosts:
    """A server's work: statements, rows read, and CPU seconds of all its threads and clients.

    A field is None if the server does not report it.
    """

    queries: int | None = None
    rows_read: int | None = None
    cpu_s: float | None = None

    def since(self, before: ServerCosts) -> ServerCosts:
        """Return the difference from `before`."""
        return ServerCosts(
            None if self.queries is None or before.queries is None else self.queries - before.queries,
            None if self.rows_read is None or before.rows_read is None else self.rows_read - before.rows_read,
            None if self.cpu_s is None or before.cpu_s is None else self.cpu_s - before.cpu_s,
        )


@dataclass(frozen=True, slots=True)
class SplitTrial(Generic[SourceT_co]):
    """One way of cutting tables, to be compared with others. `source` is the user's source with this way of cutting
    configured; it can be pickled. `costs` returns the work of its server so far, and blocks. If the server can separate
    it, that is only the work for statements of `source` in this process. `settings` are the lines of the configuration
    that choose this way.
    """

    name: str
    settings: str
    source: SourceT_co
    costs: Callable[[], ServerCosts]


@dataclass(frozen=True, slots=True)
class TrialPartition:
    """A partition and its content: the offsets from `first` up to `end`. An offset may have no message, for example
    because it is a transaction marker or because compaction removed the message. `name` is the name of the partition's
    split.
    """

    name: str
    topic: str
    number: int
    first: int
    end: int

    @property
    def messages_max(self) -> int:
        """Return the greatest possible number of messages."""
        return max(0, self.end - self.first)


@dataclass(frozen=True, slots=True)
class Piece:
    """Messages of a partition that were read, and the time that decoding them took. `done` is True if nothing of the
    partition is left to read.
    """

    name: str
    messages: int
    rows: int
    size: int
    decode_s: float
    done: bool


class TrialReader(Protocol):
    """The consumer of one reader. For one thread."""

    def read(self, messages_max: Mapping[TrialPartition, int]) -> Iterator[Piece]:
        """Yield the messages of each partition's first offsets, as many as given for it, with all partitions
        interleaved as in a job. Blocks. Raises `SourceError`, and `DataError` for a message that a run would refuse.
        """
        ...

    def close(self) -> None: ...


class PartitionTrial(Protocol):
    """A way of reading a source's partitions for a comparison. Can be pickled, because it holds no connection."""

    def partitions(self) -> Sequence[TrialPartition]:
        """Return all partitions, in the order of their names. Queries the source, blocks, and raises `SourceError`."""
        ...

    def reader(self) -> TrialReader:
        """Return a reader for this process."""
        ...

    def warm_up(self) -> None:
        """Do the unmeasured work of a process before its first message."""
        ...
