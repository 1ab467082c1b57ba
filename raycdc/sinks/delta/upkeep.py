"""Upkeep of Delta tables on a schedule: small files made large ones, and files that nobody needs deleted.

Called by `raycdc.sinks.delta.sink` after a commit; `raycdc.sinks.lake_upkeep` says what it may do, and when. Its commit
is for the very next version of the table after the one that it read.

Work beyond moving rows of plain files (deletion vectors, an order of rows) is done by Spark's OPTIMIZE.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from deltalake import CommitProperties
from deltalake.exceptions import CommitFailedError

from raycdc.errors import ConfigError, SinkError, TargetTouchedError
from raycdc.failpoints import reach
from raycdc.sinks.absence import is_absent, is_refused
from raycdc.sinks.api import told_nobody
from raycdc.sinks.delta import spark_merge
from raycdc.sinks.delta.commits import hooks
from raycdc.sinks.delta.compaction import compaction
from raycdc.sinks.delta.demands import without_values
from raycdc.sinks.delta.plugin import NO_SPARK_ORDER, DeltaOptimizeOptions
from raycdc.sinks.delta.table import DeltaTarget, is_the_tables
from raycdc.sinks.lake_upkeep import MARK, Outcome, Schedule
from raycdc.sinks.statistics import has_bounds


class Upkeep:
    """One per sink; holds nothing of a table."""

    def __init__(
        self,
        options: DeltaOptimizeOptions,
        *,
        upsert: bool,
        session: Callable[[], Any] | None = None,
        clock: Callable[[], float] = time.time,
        warn: Callable[[str], None] = told_nobody,
    ) -> None:
        """`ConfigError` where the options want Spark and there is none."""
        if options.z_order and session is None:
            raise ConfigError(NO_SPARK_ORDER)
        self._options = options
        self._upsert = upsert
        self._session = session
        self._schedule = Schedule(options.every, clock, warn)

    def after_commit(self, target: DeltaTarget, generation: int) -> None:
        """Optimise the table if it is time. `SinkError` with its name for what is no other writer's doing."""
        mark = target.path / "_raycdc" / MARK
        self._schedule.run(target, mark, generation, lambda run_bytes: self._done(target, run_bytes))

    def _done(self, target: DeltaTarget, run_bytes: int) -> Outcome:
        try:
            reach("before_optimize")
            done = self._optimize(target, run_bytes)
            reach("after_optimize")
            # The new files are on the disk before anything older goes.
            target.refresh()
            if self._options.vacuum is not None:
                self._vacuum(target, self._options.vacuum)
        except CommitFailedError:
            return Outcome.OVERTAKEN
        except Exception as cause:
            if not is_the_tables(cause):
                raise
            raise (SinkError if is_absent(cause) or is_refused(cause) else TargetTouchedError)(
                f"{target.place} cannot be optimised: {without_values(str(cause))}. Leave sink.optimize out to "
                "go on without."
            ) from cause
        return Outcome.DONE if done else Outcome.MORE

    def _optimize(self, target: DeltaTarget, run_bytes: int) -> bool:
        """Whether nothing is left to do."""
        fields = {field.name: field.type for field in target.arrow() if field.name not in target.partition_columns}
        # By other columns no file could be left out: they have no bounds.
        order = [name for name in self._options.z_order if name in fields and has_bounds(fields[name])]
        found = None
        if not order:
            size = self._options.target_file
            # A changelog may be read as a stream, which wants no changes but new rows.
            found = compaction(
                target.table, target.path, target_bytes=size, run_bytes=run_bytes, data_change=self._upsert
            )
        if found is None:
            session = None if self._session is None else self._session()
            spark_merge.optimize(session, target, order, target_bytes=self._options.target_file)
            return True
        if found.actions:
            target.table.create_write_transaction(
                found.actions,
                mode="append",
                schema=target.table.schema(),
                partition_by=target.partition_columns,
                commit_properties=CommitProperties(
                    max_commit_retries=0, custom_metadata={"userMetadata": json.dumps({"raycdc": "optimize"})}
                ),
                post_commithook_properties=hooks(target.table),
            )
        return found.whole

    def _vacuum(self, target: DeltaTarget, retention: timedelta) -> None:
        """Only files that commits removed: those of an epoch that is being staged are in no commit yet."""
        hours = math.ceil(retention.total_seconds() / 3600)
        target.table.vacuum(hours, dry_run=False, enforce_retention_duration=False, full=False)
        target.refresh()
