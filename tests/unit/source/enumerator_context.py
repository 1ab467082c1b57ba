"""The surroundings of an enumerator that a test has by itself: they keep what it does."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from raycdc.source.protocol.metrics import SplitLoad
from raycdc.source.protocol.source_event import SourceEvent
from raycdc.source.split import SourceSplit


class KeptContext:
    """One reader, which gets whatever is assigned; blocking calls wait until they are made, and no time passes."""

    now_s = 0.0

    def __init__(self, *, open_epoch: int = 1) -> None:
        self.open_epoch = open_epoch
        self.assigned: list[SourceSplit] = []
        self.events: list[SourceEvent] = []
        self.calls: list[tuple[Callable[[], Any], Callable[[Any], None]]] = []

    def split_loads(self) -> dict[str, SplitLoad]:
        return {}

    def may_have_splits(self, subtask_id: int) -> bool:
        return subtask_id in self.registered_readers()

    def registered_readers(self) -> Sequence[int]:
        return [0]

    def assign_splits(self, assignment: Mapping[int, Sequence[SourceSplit]]) -> None:
        self.assigned += [split for splits in assignment.values() for split in splits]

    def send_event(self, subtask_id: int, event: SourceEvent) -> None:
        self.events.append(event)

    def end_split(self, split_id: str, *, attempt: int) -> None: ...

    def remove_splits(self, subtask_id: int, split_ids: Sequence[str]) -> None: ...

    def signal_no_more_splits(self, subtask_id: int) -> None: ...

    def call_async(self, call: Callable[[], Any], handler: Callable[[Any], None], *, after_s: float = 0.0) -> None:
        self.calls.append((call, handler))

    def make_calls(self) -> None:
        while self.calls:
            call, handler = self.calls.pop(0)
            handler(call())
