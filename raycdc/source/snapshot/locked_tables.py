"""Tables of which nothing can be read now, because somebody at the source has them locked.

They keep nobody waiting: nothing of them is planned or given out, and the source is asked in calls of their own, each
about all of them, who has them locked still. The pause between two calls grows, and begins anew with each table that
is found locked. Nothing here is state: after a restart a table is found locked again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial

from raycdc.model import TableId
from raycdc.source.protocol.api import SplitEnumeratorContext
from raycdc.source.snapshot.snapshot_plan import EnumeratorDialect
from raycdc.waiting.stages import Stage, Standing

#: Pauses between two calls: locks of statements go within seconds, and those of maintenance within hours.
_FIRST_S, _LONGEST_S = 1.0, 60.0
#: What a table does that waits for its lock to go.
WAITS = "is locked at the source, and the other tables go on without it"


@dataclass(frozen=True, slots=True)
class _Locked:
    """Found so at `since_s`; `why` is what the source said when it was asked first, empty before that."""

    since_s: float
    why: str = ""


class LockedTables:
    """See the module's docstring. Owned by the enumerator; `on_free` hears that a table can be read again."""

    def __init__(
        self, context: SplitEnumeratorContext, dialect: EnumeratorDialect, *, on_free: Callable[[], None]
    ) -> None:
        self._context, self._dialect, self._on_free = context, dialect, on_free
        #: In the order in which the source is asked about them.
        self._locked: dict[TableId, _Locked] = {}
        self._pause_s = _FIRST_S
        #: The call that is due next: one that was put off before it is made no more.
        self._next = 0
        self._asking = False

    def __repr__(self) -> str:
        return f"LockedTables({list(self._locked)})"

    def __contains__(self, table: TableId) -> bool:
        return table in self._locked

    def __bool__(self) -> bool:
        return bool(self._locked)

    def __iter__(self) -> Iterator[TableId]:
        return iter(self._locked)

    def note(self, table: TableId) -> None:
        """The table was found locked; of one that is known to be, nothing is new."""
        if table in self._locked:
            return
        self._locked[table] = _Locked(self._context.now_s)
        self._pause_s = _FIRST_S
        if not self._asking:
            self._ask_later()

    def forget(self, table: TableId) -> None:
        """There is nothing to read of the table any more."""
        self._locked.pop(table, None)

    @property
    def problems(self) -> Mapping[str, str]:
        """Those that did not come free at once: who has them locked, and what people can do, by the table's name."""
        return {str(table): locked.why for table, locked in self._locked.items() if locked.why}

    @property
    def standing(self) -> tuple[Standing, ...]:
        """Each, with how long it has been locked as far as is known here."""
        now_s = self._context.now_s
        return tuple(
            Standing(Stage.CHUNK, str(table), "", WAITS, "", round(now_s - locked.since_s, 1))
            for table, locked in self._locked.items()
        )

    def _ask_later(self) -> None:
        self._next += 1
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_S)
        self._context.call_async(_nothing, partial(self._ask, self._next), after_s=pause_s)

    def _ask(self, number: int, _: None) -> None:
        if number != self._next or self._asking or not self._locked:
            return
        self._asking = True
        self._context.call_async(partial(self._dialect.locked_by, tuple(self._locked)), self._take)

    def _take(self, answers: Mapping[TableId, str]) -> None:
        self._asking = False
        freed = False
        for table, why in answers.items():
            known = self._locked.pop(table, None)
            if known is not None and why:
                # Behind those that there was no time to ask about; and people are told once, whoever else waits for it.
                self._locked[table] = known if known.why else replace(known, why=why)
            freed |= known is not None and not why
        if self._locked:
            self._ask_later()
        if freed:
            self._on_free()


def _nothing() -> None:
    """A call that is made to hear of its time."""
