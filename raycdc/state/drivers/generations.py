"""The generations of a state: each driver that starts claims one, and whoever writes with an older one is refused.

Like the store that it is a part of, it keeps nothing in memory: every answer comes from storage.
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

#: A generation that a driver claimed for itself, and did not look up: what it writes must carry its own.
OwnGeneration = NewType("OwnGeneration", int)

_GENERATION_FILE = re.compile(r"(\d{10})\.json$")
#: The signs of life of a generation's driver, beside its claim.
_HEARTBEAT = "generations/{:010d}.pulse.json"


class Generations:
    """See the module's docstring. `raycdc.state.drivers.driver_generation` is a driver's own."""

    def __init__(self, folder: StateFolder) -> None:
        self._folder = folder
        self._driver: Callable[[], OwnGeneration] | None = None

    def __repr__(self) -> str:
        return f"Generations({self._folder.where!r})"

    def newest(self) -> int:
        """The newest generation, whoever has it; 0 before the first start. Never to be written as one's own."""

        def act() -> int:
            document = codec.read(self._folder, "gen")
            written = 0 if document is None else int(document["generation"])
            return max([written, *self._claims()])

        return self._folder.atomically(act)

    def next(self) -> OwnGeneration:
        """Claim a generation, durably, for a driver that starts; every writer with an older one is fenced from now on.

        Two that start at once get different ones, also where the lease binds processes of one machine only.
        """
        while True:
            generation = self.newest() + 1
            if self._claim(generation):
                return OwnGeneration(generation)

    def take_over(self, after: int) -> OwnGeneration | None:
        """`next`, of a driver that waited until the one of generation `after` gave way; None where another one has
        taken over since.
        """
        return OwnGeneration(after + 1) if self.newest() == after and self._claim(after + 1) else None

    def raised(self, own: OwnGeneration) -> OwnGeneration:
        """Claim the next generation for the driver that has `own`; `FencedError` when another one has a newer one."""
        self.require_newest(own, "the driver")
        if not self._claim(own + 1):
            raise FencedError(_fenced("the driver", own, own + 1, self._folder.where))
        return OwnGeneration(own + 1)

    def require_newest(self, generation: int, what: str) -> None:
        """`FencedError` where `what` carries a generation that is not the newest: another driver took over."""
        newest = self.newest()
        if generation != newest:
            raise FencedError(_fenced(what, generation, newest, self._folder.where))

    def require_driver(self, driver: Callable[[], OwnGeneration], what: str) -> None:
        """`require_newest` for `what` the `driver` does now, whose number may just rise by its own act."""
        while True:
            own = driver()
            try:
                self.require_newest(own, what)
                return
            except FencedError:
                if driver() == own:
                    raise

    def write_as(self, driver: Callable[[], OwnGeneration] | None) -> None:
        """Have everything that a driver writes by the store refused once its generation is not the newest any more."""
        self._driver = driver

    def sweep(self, own: OwnGeneration) -> None:
        """Delete what older drivers wrote that nobody can read; for the driver of generation `own`, which begins."""
        self._folder.sweep(own)

    def own(self) -> OwnGeneration | None:
        """The generation of the driver that writes by the store (`write_as`); None where none does."""
        return None if self._driver is None else self._driver()

    def require_own(self, what: str) -> None:
        """`FencedError` where the driver that writes by the store (`write_as`) is not the newest any more."""
        if self._driver is not None:
            self.require_driver(self._driver, what)

    @property
    def where(self) -> str:
        """The folder or URL of the state, for people."""
        return self._folder.where

    def holder(self, generation: int) -> Holder | None:
        """The driver of `generation`, as it said last; None for one of a raycdc that gave no signs of life."""
        document = codec.read_current(self._folder, _HEARTBEAT.format(generation))
        if document is None:
            document = codec.read_current(self._folder, f"generations/{generation:010d}.json") or {}
        said = document.get("holder")
        return None if said is None else Holder.from_json(said)

    def newest_holder(self) -> tuple[int, Holder | None]:
        """The newest generation, and its `holder`. Whoever claims one removes what older ones said, so where nothing is
        said it may not be the newest any more, and is looked for once more.
        """
        newest = self.newest()
        while True:
            holder = self.holder(newest) if newest else None
            if holder is not None or (now := self.newest()) == newest:
                return newest, holder
            newest = now

    def show(self, generation: OwnGeneration, holder: Holder) -> None:
        """Say that the driver of `generation` is there. Nobody reads it once there is a newer one."""
        document = {"version": codec.DOCUMENT_VERSION, "holder": holder.to_json()}
        self._folder.write(_HEARTBEAT.format(generation), codec.encode(document))

    def _claim(self, generation: int) -> bool:
        name = f"generations/{generation:010d}.json"
        holder = Holder.myself().to_json()
        claim = codec.encode({"version": codec.DOCUMENT_VERSION, "driver": uuid.uuid4().hex, "holder": holder})
        self._folder.create("generations")

        def act() -> list[int] | None:
            # Whoever waited for the state read it long ago, and it may have been moved since.
            require_usable(self._folder)
            self._folder.create_once(name, claim)
            if self._folder.read(name) != claim:
                return None
            # A folder cannot make look and claim one step. Who moves the state looks for claims behind its bar, so one
            # of the two always sees the other.
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
