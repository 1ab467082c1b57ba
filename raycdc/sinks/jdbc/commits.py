"""The records of targets in ``raycdc_commit``, for every kind of server: written over older ones only.

A row per pipeline and target. Whoever is about to commit to a target or to alter it has its row locked until the
transaction ends.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from raycdc.checkpoint.opaque import Positions
from raycdc.errors import FencedError, SinkLockedError
from raycdc.model import TableId
from raycdc.sinks.jdbc.sql import Dialect, Statements
from raycdc.sinks.record import PLACE, Held


class Commits:
    """The records of all pipelines on a server, in one transaction. `table` is ``raycdc_commit`` as SQL writes it."""

    def __init__(self, statements: Statements, dialect: Dialect, table: str) -> None:
        self._statements = statements
        self._dialect = dialect
        self._table = table
        self._names = tuple(map(dialect.quote, Held.NAMES))

    def held(self, app_id: str, target: TableId, *, marker: Callable[[TableId], str | None]) -> Held | None:
        """The record of `target`. `marker` tells whether an intent was carried out (`Held.known`)."""
        return self._known(self._found(app_id, target), target, marker)

    def locked(self, app_id: str, target: TableId, *, marker: Callable[[TableId], str | None]) -> Held | None:
        """As `held`, and nobody else can commit to `target` or alter it before this transaction ends, even where there
        is no record yet. `SinkError` when another session has the lock for a minute.
        """
        rows = self._found(app_id, target, " FOR UPDATE")
        if not rows:
            # A row that is not there cannot be locked: whoever comes second waits here for the first.
            quote, parameters = self._dialect.quote, self._dialect.parameters(2 + len(PLACE))
            columns = ", ".join(map(quote, ("app_id", "target", *Held.NAMES, "positions", "committed_at")))
            self._statements.run(
                f"INSERT INTO {self._table} ({columns}) VALUES ({', '.join(parameters)}, '{{}}', {self._dialect.now}) "
                f"{self._dialect.or_stays('app_id')}",
                app_id,
                str(target),
                *PLACE,
            )
            rows = self._found(app_id, target, " FOR UPDATE")
        return self._known(rows, target, marker)

    def is_free(self, app_id: str, target: TableId) -> bool:
        """Whether nobody else has the record of `target` locked, as far as this session waits for a lock; the
        transaction is to be rolled back then.
        """
        try:
            self._found(app_id, target, " FOR UPDATE")
        except SinkLockedError:
            return False
        return True

    def hold(self, app_id: str, target: TableId, held: Held, positions: Positions) -> None:
        """Write the record, which is `locked`. `FencedError` where there is one of a newer driver or a later step."""
        vector, dialect = held.vector, self._dialect
        given = [*held.row(), json.dumps(dict(positions)), app_id, str(target)]
        names = [*self._names, dialect.quote("positions")]
        *sets, app, name, generation, later, same, step = dialect.parameters(len(given) + 4)
        changed = ", ".join(f"{column} = {value}" for column, value in zip(names, sets, strict=True))
        written = self._statements.changed(
            f"UPDATE {self._table} SET {changed}, {dialect.quote('committed_at')} = {dialect.now} "
            f"WHERE {dialect.quote('app_id')} = {app} AND {dialect.quote('target')} = {name} "
            f"AND {dialect.quote('generation')} <= {generation} AND ({dialect.quote('epoch')} < {later} "
            f"OR ({dialect.quote('epoch')} = {same} AND {dialect.quote('step')} <= {step}))",
            *given,
            vector.generation,
            vector.epoch,
            vector.epoch,
            vector.step,
        )
        if written != 1:
            raise FencedError(f"The record of {target} was written by a newer driver.")

    def owners(self, target: TableId) -> dict[str, bool]:
        """The identities whose commits the record has for `target`, and whether each made the table."""
        quote, (place,) = self._dialect.quote, self._dialect.parameters(1)
        rows = self._statements.rows(
            f"SELECT {quote('app_id')}, {quote('created')} FROM {self._table} WHERE {quote('target')} = {place}",
            str(target),
        )
        return {str(app_id): bool(created) for app_id, created in rows}

    def forget_others(self, app_id: str, target: TableId) -> None:
        """Remove the records of other pipelines: what they wrote to `target` is gone."""
        quote, (name, app) = self._dialect.quote, self._dialect.parameters(2)
        self._statements.run(
            f"DELETE FROM {self._table} WHERE {quote('target')} = {name} AND {quote('app_id')} <> {app}",
            str(target),
            app_id,
        )

    def _found(self, app_id: str, target: TableId, lock: str = "") -> list[tuple[Any, ...]]:
        quote, (app, name) = self._dialect.quote, self._dialect.parameters(2)
        return self._statements.rows(
            f"SELECT {', '.join(self._names)} FROM {self._table} "
            f"WHERE {quote('app_id')} = {app} AND {quote('target')} = {name}{lock}",
            app_id,
            str(target),
        )

    @staticmethod
    def _known(rows: list[tuple[Any, ...]], target: TableId, marker: Callable[[TableId], str | None]) -> Held | None:
        held = Held.from_row(rows[0]) if rows else None
        return held.known(marker(target)) if held is not None and held.intent is not None else held
