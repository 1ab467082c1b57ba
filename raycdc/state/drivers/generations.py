"""The generations of a state: each starting driver claims one, and writes with an older one are refused.

Nothing is kept in memory: every answer comes from storage.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable
from typing import NewType

from raycdc.errors import FencedError, StateError
from raycdc.state import codec
from raycdc.state.drivers.holder import Holder
from raycdc.state.files.state_folder import StateFolder
from raycdc.state.identity import require_usable

#: A generation that a driver claimed itself. The driver's writes must carry this generation, and never one that was
#: read from the state.
OwnGeneration = NewType("OwnGeneration", int)

_GENERATION_FILE = re.compile(r"(\d{10})\.json$")
#: The heartbeat of a generation's driver, in a file next to its claim.
_HEARTBEAT = "generations/{:010d}.pulse.json"


class Generations:
    """The generations of a state; see the module's docstring.

    `raycdc.state.drivers.driver_generation` has a driver's own.
    """

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder
        self._driver: Callable[[], OwnGeneration] | None = None

    def __repr__(self) -> str:
        return f"Generations({self._folder.where!r})"

    def newest(self) -> int:
        """Return the newest generation; 0 before the first start. Never write it as one's own."""

        def act() -> int:
            document = codec.read(self._folder, "gen")
            written = 0 if document is None else int(document["generation"])
            return max([written, *self._claims()])

        return self._folder.atomically(act)

    def next(self) -> OwnGeneration:
        """Claim a generation durably for a driver that starts.

        From now on every writer with an older generation is fenced. Two drivers that start at the same time get
        different generations, even on different machines, where the lease does not exclude them.
        """
        while True:
            generation = self.newest() + 1
            if self._claim(generation):
                return OwnGeneration(generation)

    def take_over(self, after: int) -> OwnGeneration | None:
        """Claim the generation after `after`, for a standby. Returns None if another driver has taken over since."""
        return OwnGeneration(after + 1) if self.newest() == after and self._claim(after + 1) else None

    def raised(self, own: OwnGeneration) -> OwnGeneration:
        """Claim the next generation for the driver of generation `own`.

        Raises `FencedError` if another driver has a newer one.
        """
        self.require_newest(own, "the driver")
        if not self._claim(own + 1):
            raise FencedError(_fenced("the driver", own, own + 1, self._folder.where))
        return OwnGeneration(own + 1)

    def require_newest(self, generation: int, what: str) -> None:
        """Raise `FencedError` if `generation`, which `what` carries, is not the newest: another driver took over."""
        newest = self.newest()
        if generation != newest:
            raise FencedError(_fenced(what, generation, newest, self._folder.where))

    def require_driver(self, driver: Callable[[], OwnGeneration], what: str) -> None:
        """Call `require_newest` for `what` the `driver` does now, whose number its own act may be raising."""
        while True:
            own = driver()
            try:
                self.require_newest(own, what)
                return
            except FencedError:
                if driver() == own:
                    raise

    def write_as(self, driver: Callable[[], OwnGeneration] | None) -> None:
        """Refuse everything that the driver writes through this store once its generation is not the newest."""
        self._driver = driver

    def sweep(self, own: OwnGeneration) -> None:
        """Delete unreadable files of older drivers, for the new driver of generation `own`."""
        self._folder.sweep(own)

    def own(self) -> OwnGeneration | None:
        """Return the generation of the driver that writes through this store (`write_as`); None without one."""
        return None if self._driver is None else self._driver()

    def require_own(self, what: str) -> None:
        """Raise `FencedError` if the driver passed to `write_as` no longer has the newest generation."""
        if self._driver is not None:
            self.require_driver(self._driver, what)

    @property
    def where(self) -> str:
        """The folder or URL of the state, for people."""
        return self._folder.where

    def holder(self, generation: int) -> Holder | None:
        """Return the driver of `generation` as last reported; None for an older raycdc without heartbeats.

        If its heartbeat is damaged, the driver is returned as it was when it claimed the generation. A driver that is
        alive soon writes another heartbeat.
        """
        try:
            document = codec.read_current(self._folder, _HEARTBEAT.format(generation))
        except StateError as error:
            if codec.damage_of(error) is None:
                raise
            document = None
        if document is None:
            document = codec.read_current(self._folder, f"generations/{generation:010d}.json") or {}
        said = document.get("holder")
        return None if said is None else Holder.from_json(said)

    def newest_holder(self) -> tuple[int, Holder | None]:
        """Return the newest generation and its `holder`.

        A new claim removes older reports, so if there is no report, the newest generation is read once more.
        """
        newest = self.newest()
        while True:
            holder = self.holder(newest) if newest else None
            if holder is not None or (now := self.newest()) == newest:
                return newest, holder
            newest = now

    def show(self, generation: OwnGeneration, holder: Holder) -> None:
        """Write the heartbeat of the driver of `generation`. It is ignored once a newer generation exists."""
        document = {"version": codec.DOCUMENT_VERSION, "holder": holder.to_json()}
        self._folder.write(_HEARTBEAT.format(generation), codec.encode(document))

    def _claim(self, generation: int) -> bool:
        name = f"generations/{generation:010d}.json"
        holder = Holder.myself().to_json()
        claim = codec.encode({"version": codec.DOCUMENT_VERSION, "driver": uuid.uuid4().hex, "holder": holder})
        self._folder.create("generations")

        def act() -> list[int] | None:
            # A standby read the identity earlier, and the state may have been moved since.
            require_usable(self._folder)
            self._folder.create_once(name, claim)
            if self._folder.read(name) != claim:
                return None
            # A folder cannot check and claim in one step. A move of the state checks for claims after it has barred the
            # location in ``meta.json``, so either the claim or the move notices the other.
            try:
                require_usable(self._folder)
            except StateError:
                self._folder.delete(name)
                raise
            self._folder.write("gen", codec.encode({"version": codec.DOCUMENT_VERSION, "generation": generation}))
            older = [one for one in self._claims() if one < generation]
            for one in older:
                self._folder.delete(f"generations/{one:010d}.json")
            return older

        replaced = self._folder.atomically(act)
        for one in replaced or ():
            self._folder.delete(_HEARTBEAT.format(one))
        return replaced is not None

    def _claims(self) -> list[int]:
        return [int(found[1]) for name in self._folder.list("generations") if (found := _GENERATION_FILE.match(name))]


def _fenced(what: str, generation: int, newest: int, where: str) -> str:
    return (
        f"{what} carries generation {generation}, but {newest} is the newest in {where}: another driver took over. "
        "This one must stop; nothing of it was accepted."
    )
