"""Compares the tables that the configuration selects with those of the state, at each start.

| a table is | then |
|---|---|
| named in full, unknown to the state, and not at the source | an error, with the most similar name |
| selected and at the source, unknown to the state | new: read with a snapshot while the others stream |
| the same, and the configuration of the last start selected it, too | created since: followed from its creation in \
the log, or read as a new one if the log has none |
| selected and at the source, ended in the state | selected or created again: read again |
| in the state, and not selected any more | ended: its target keeps its rows, and the state says so |

Pure; sources list their tables (`raycdc.source.connector.Source.selection`). Tables of the last row are ended when the
state is loaded (`without_left`). For the other rows, requests are made (`raycdc.source.tables.table_requests`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from raycdc.config.checks import CheckResult
from raycdc.model import TableId
from raycdc.model.rules.selector import TableSelector
from raycdc.plugins import did_you_mean
from raycdc.source.snapshot.log.stream_state import StreamState, stream_of
from raycdc.source.tables.parking import Requests
from raycdc.source.tables.table_life import Parked, ParkedPhase, ParkingCause, TableState, Unknown, had_rows
from raycdc.state.manifests.manifest import Manifest

#: The reason for the end of a table that the source still has.
_LEFT = "the configuration does not select it any more"
_KEPT = "its target keeps what it had"


@dataclass(frozen=True, slots=True)
class TableSelection:
    """The tables of a source that its configuration selects.

    `tables` are the selected tables, `there` are all tables that exist, `named` are the names that the configuration
    gives in full, and `patterns` are its other entries. `key_path` is the configuration key.
    """

    key_path: str
    tables: tuple[TableId, ...]
    there: tuple[TableId, ...]
    named: tuple[TableId, ...] = ()
    patterns: tuple[str, ...] = ()
    #: Names that could be selected but are not tables, such as views, with their kinds.
    others: Mapping[TableId, str] = field(default_factory=dict)
    noun: str = "table"

    @classmethod
    def of(
        cls,
        key_path: str,
        selector: TableSelector,
        tables: Iterable[TableId],
        there: Iterable[TableId],
        *,
        others: Mapping[TableId, str] | None = None,
        noun: str = "table",
    ) -> TableSelection:
        """Return the selection that `selector` makes among existing tables."""
        names = selector.plain_names, selector.patterns
        return cls(key_path, tuple(tables), tuple(there), *names, others=others or {}, noun=noun)

    def unmatched(self) -> list[str]:
        """Return messages about patterns that select nothing."""
        return [matches_nothing(pattern, self.key_path, self.noun) for pattern in unmatched(self.patterns, self.there)]

    def misspelt(self, known: set[str]) -> list[str]:
        """Return the messages about named tables that do not exist and were never followed, with similar names."""
        return [f"{self.key_path}: {self._why(table)}" for table in self.missing(known)]

    def missing(self, known: set[str]) -> list[TableId]:
        """Return the tables that `misspelt` reports, in its order."""
        return [table for table in self.named if table not in self.there and str(table) not in known]

    def _why(self, table: TableId) -> str:
        if kind := self.others.get(table):
            return f"{table} is {kind}, not a {self.noun}. Leave it out."
        # A difference in case is the most likely mistake, and the matcher compares lower case.
        names = {str(one).lower(): str(one) for one in self.there}
        hint = did_you_mean(str(table), names) or "."
        for lower, name in names.items():
            hint = hint.replace(f'"{lower}"', f'"{name}"')
        return (
            f"there is no {self.noun} {table}, or this account does not see it{hint} Correct the name, or grant the "
            "privilege to read it."
        )


def unmatched(patterns: Iterable[str], tables: Iterable[TableId]) -> list[str]:
    """Return the `patterns` that match none of the `tables`."""
    names = [table.dotted for table in tables]
    return [pattern for pattern in patterns if not any(re.fullmatch(pattern, name) for name in names)]


def matches_nothing(pattern: str, key_path: str, noun: str) -> str:
    """Return the message about a pattern that selects nothing."""
    return f"The pattern {pattern} of {key_path} matches no {noun} yet."


def pattern_results(
    key_path: str, patterns: Iterable[str], tables: Iterable[TableId], *, noun: str, fix: str
) -> list[CheckResult]:
    """Return the warnings of ``raycdc check`` for patterns that select nothing; in their text, `fix` says what happens
    to tables that are created later.
    """
    return [
        CheckResult(f"{noun}s", matches_nothing(pattern, key_path, noun), fix, required=False)
        for pattern in unmatched(patterns, tables)
    ]


@dataclass(frozen=True, slots=True)
class SelectionChanges:
    """The changes of the selection at a start, by table name: `new` tables, tables that are selected again (`back`),
    and tables that are no longer selected (`left`).

    `made` are new tables that were created since the last start; the configuration of the last start would have
    selected them, too.
    """

    new: tuple[str, ...] = ()
    made: tuple[str, ...] = ()
    back: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


def known_tables(last: Manifest | None) -> set[str]:
    """Return all tables that are in the state or were in it, including dropped tables."""
    if last is None:
        return set()
    stream = stream_of(last)
    return {*(stream.names if stream is not None else ()), *last.enumerator.tables}


def changes_of(
    selection: TableSelection, last: Manifest | None, requests: Requests, captures: Callable[[TableId], bool]
) -> SelectionChanges:
    """Return the tables that are new, selected again, or no longer selected.

    All are empty before the first start, which reads all selected tables.
    """
    stream = stream_of(last)
    if stream is None:
        return SelectionChanges()
    new = [str(table) for table in selection.tables if isinstance(stream[table], Unknown)]
    back = [str(table) for table in selection.tables if _has_ended(stream[table])]
    asked = {name for name in (*new, *back) if requests.acts_on(name, stream)}
    left = [str(table) for table in _left(stream, captures)]
    return SelectionChanges(
        new=tuple(name for name in new if name not in asked),
        back=tuple(name for name in back if name not in asked),
        left=tuple(sorted(left)),
    )


def without_left(state: StreamState, captures: Callable[[TableId], bool]) -> StreamState:
    """Return the stream split's state with unselected tables ended; unchanged if there are none.

    The result need not be stored before a manifest contains it, because the same configuration gives the same result
    again.
    """
    number = state.changes + 1
    for table in _left(state, captures):
        why = f"{_LEFT}; {_KEPT}" if had_rows(state[table]) else _LEFT
        state = state.park(table, ParkingCause(why, state.position, 0, phase=ParkedPhase.ENDED), number=number)
    return state


def _left(state: StreamState, captures: Callable[[TableId], bool]) -> list[TableId]:
    """Return the tables that are no longer selected, and have not ended for that reason yet."""
    return [t for t in state.tables if not captures(t) and not _has_ended(state[t])]


def _has_ended(state: TableState) -> bool:
    return isinstance(state, Parked) and state.phase is ParkedPhase.ENDED and not state.again
