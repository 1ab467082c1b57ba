"""Documents of the driver's own beside the epochs: requests, column names, figures of bad rows, and the like.

Each has a module that knows what stands in it (`raycdc.checkpoint.kinds` lists all kinds of files).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from raycdc.checkpoint import codec
from raycdc.checkpoint.generations import Generations
from raycdc.checkpoint.kinds import kind_of
from raycdc.checkpoint.state_folder import StateFolder

T = TypeVar("T")

#: What was asked of the tables (`raycdc.source.parking.Requests`); the coordinator that starts next carries it out.
REQUESTS = "requests.json"


class DriverDocuments:
    """See the module's docstring. Written under the lease only."""

    def __init__(self, folder: StateFolder, generations: Generations) -> None:
        #: All documents of the state, for whoever has some of its own kind.
        self.folder = folder
        self._generations = generations
        #: Held by a thread of the driver that writes a document as it has read it, but for a change.
        self.changing = threading.RLock()

    def read(self, name: str) -> dict[str, Any] | None:
        """The document `name` as it was written last; None when it never was."""
        return codec.read_current(self.folder, name)

    def write(self, name: str, document: Mapping[str, Any]) -> None:
        """Replace the document `name`, durably. `FencedError` where another driver took over."""
        assert kind_of(name), f"{name} is none of the kinds of files in raycdc.checkpoint.kinds"
        data = codec.encode({"version": codec.DOCUMENT_VERSION, **document})
        self.as_driver(name, lambda: self.folder.write(name, data))

    def as_driver(self, what: str, act: Callable[[], T]) -> T:
        """The result of `act`, which is one step with the look at the generations where the storage can do that.
        `FencedError` where another driver took over; it says that `what` was not done.
        """

        def own() -> T:
            self._generations.require_own(what)
            return act()

        return self.folder.atomically(own)
