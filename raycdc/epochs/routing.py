"""Where tables go and what their rows become on the way: the parts that `pipeline.py` hands to the epoch loop."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from raycdc.bridge.bad_rows import BadRecords, Sifted
from raycdc.checkpoint.manifest import Segment
from raycdc.epochs.sieve import Sieve
from raycdc.model.routes import Router
from raycdc.transform import ResolvedTransform, TransformedTables

if TYPE_CHECKING:  # Delta's libraries are loaded by pipelines that keep known rows alone.
    from raycdc.epochs.known_rows import KnownRows


class Derives(Protocol):
    """The maker of derived segments (`raycdc.spark.derive.Deriver`)."""

    def __call__(self, segments: Sequence[Segment], resolved: ResolvedTransform, epoch: int) -> list[Sifted]:
        """The derived segment of each, and what was left out of it. Blocks."""

    def forget(self, segments: Iterable[Segment]) -> None:
        """Nobody needs these any more."""

    def sweep(self) -> None:
        """Delete what is left of earlier runs."""


class Joins(Protocol):
    """The maker of joined segments (`raycdc.lookup.Joiner`)."""

    def __call__(
        self, segments: Sequence[Segment], made: Sequence[Sifted], resolved: ResolvedTransform, epoch: int
    ) -> list[Sifted]:
        """The segments `made` of each segment, joined by the lookups of their rows. Blocks."""

    def forget(self, epoch: int) -> None:
        """An epoch is recorded."""

    def sweep(self, committed: int) -> None:
        """Delete what is left of epochs up to `committed`."""


@dataclass(frozen=True, slots=True)
class Routing:
    """Where tables go and as what; whether the sink updates rows; why several tables cannot go to one target, if so.

    `deriver` goes through the rows of segments whose transform needs that, `joiner` adds to them what is looked up, and
    `sieve` goes through those that a merged target may not be able to hold. `records` is what becomes of bad rows.
    `known` makes changes exact before all that, where that is asked for.
    """

    router: Router
    upsert: bool = False
    no_merging: str = ""
    transforms: TransformedTables = field(default_factory=TransformedTables)
    deriver: Derives | None = None
    sieve: Sieve | None = None
    records: BadRecords = field(default_factory=BadRecords)
    joiner: Joins | None = None
    known: KnownRows | None = None

    @property
    def makers(self) -> list[Derives | Sieve | KnownRows]:
        """Whoever makes segments."""
        return [maker for maker in (self.deriver, self.sieve, self.known) if maker is not None]
