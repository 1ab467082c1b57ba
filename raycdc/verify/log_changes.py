"""Which keys the log has changes of, read over a connection of its own. Used by one thread."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np

from raycdc.model import RowKind
from raycdc.source.connector import IncrementalSource
from raycdc.source.snapshot.log_unit import rows_of, updates_of
from raycdc.source.snapshot.reading import BlockingLog
from raycdc.source.split import StreamSplit
from raycdc.verify.canonical import Compared
from raycdc.verify.some_rows import NamedKeys
from raycdc.verify.source_rows import RowMaker

#: The log's end was asked for, so it is there: a log that does not come to it is told as such.
REACHED_WITHIN_S = 120.0


class LogSaysMoreError(Exception):
    """The log has a change of the table itself (its columns, all of its rows), so keys alone do not tell."""


@dataclass(slots=True)
class LogChanges:
    """The changes of one table, whose rows `maker` makes the target's, from the place of `split` on.

    A context manager; the log is opened when it is first asked.
    """

    source: IncrementalSource[Any]
    split: StreamSplit
    maker: RowMaker
    compared: Compared
    #: Keeps the values of the keys that are asked about.
    named: NamedKeys
    _log: BlockingLog | None = None
    _keys: list[np.ndarray] = field(default_factory=list)
    _ordinals: list[np.ndarray] = field(default_factory=list)
    _reached: int = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._log is not None:
            self._log.close()

    def after(self, low: int, high: int, asked: np.ndarray) -> np.ndarray:
        """Hashes of the keys that changed behind the ordinal `low`; the log is read to `high` first. Blocks.

        `asked` are hashes of the keys that somebody wants to know it of: of those only that were asked about before.
        Raises `LogSaysMoreError`, and what reading a log raises (`LogLostError` among it).
        """
        self._read_to(high, asked)
        if not self._keys:
            return np.zeros(0, np.uint64)
        keys, ordinals = np.concatenate(self._keys), np.concatenate(self._ordinals)
        return np.unique(keys[ordinals > low])

    def _read_to(self, high: int, asked: np.ndarray) -> None:
        if self._log is None:
            self._log = self.source.log_reader(self.split)
            self._reached = self.split.state.ordinal
        deadline = time.monotonic() + REACHED_WITHIN_S
        while self._reached < high:
            unit = self._log.fetch()
            if unit is None:
                if time.monotonic() > deadline:
                    raise LogSaysMoreError(f"the log did not come to its end within {REACHED_WITHIN_S:g} s")
                continue
            table = self.maker.table
            if any(update.table == table for update in updates_of(unit)):
                raise LogSaysMoreError("the table itself was changed meanwhile (its columns, or what it is)")
            for rows in rows_of(unit):
                if rows.table != table or not rows.batch.num_rows:
                    continue
                ops = rows.batch.column("_op").to_numpy(zero_copy_only=False)
                if (ops == RowKind.TRUNCATE).any():
                    raise LogSaysMoreError("the table was emptied meanwhile")
                columns = self.maker.columns(rows.batch)
                hashes = self.compared.key_hashes(columns, rows.batch.num_rows)
                self.named.look(asked, hashes, rows.batch, columns)
                self._keys.append(hashes)
                self._ordinals.append(np.asarray(rows.ordinals))
            if unit.place.ordinal > self._reached:
                self._reached, deadline = unit.place.ordinal, time.monotonic() + REACHED_WITHIN_S
