"""The tasks that write an epoch of a collection, and what they are told of it."""

from __future__ import annotations

from collections.abc import Sequence

from raycdc.sinks.api import SinkContext
from raycdc.sinks.api import TableWork as Work
from raycdc.sinks.mongodb.tasks import Load, Mode, ServerAddress
from raycdc.sinks.mongodb.writing import Layout, short
from raycdc.sinks.origins import Origins
from raycdc.sinks.plan import Input
from raycdc.sinks.record import Held


class LoadTasks:
    """See the module's docstring. `address` is where tasks find the servers."""

    def __init__(self, context: SinkContext, address: ServerAddress) -> None:
        self._context = context
        self._address = address

    def run(
        self, work: Work, layout: Layout, mode: Mode, groups: Sequence[Sequence[Input]], fences: Sequence[str] = ()
    ) -> None:
        """A round of tasks, one for each of `groups`; where they write, each stands behind its fence."""
        tasks = [
            Load(
                self._context.table_input(work, inputs),
                layout=layout,
                mode=mode,
                origins=self.origins(work),
                address=self._address,
                app_id=self._context.app_id,
                fence=fences[number] if fences else "",
            )
            for number, inputs in enumerate(groups)
        ]
        if tasks:
            self._context.run_tasks(tasks)

    def origins(self, work: Work) -> Origins | None:
        """Where rows to merge come from, if not from one table under its own key."""
        return Origins.of(work) if self._context.upsert else None

    def layout(self, work: Work, held: Held) -> Layout:
        """The documents of `work` in a collection with the record `held`."""
        written = {column.name for column in work.schema.columns}
        gone = tuple(column.name for column in held.columns if column.name not in written)
        upsert = self._context.upsert
        return Layout(
            work.target,
            work.schema,
            short(self._context.app_id),
            changelog=not upsert,
            adopted=upsert and not held.created,
            gone=gone,
            made=work.made,
        )
