"""The tasks that load rows of an epoch into a MongoDB collection: one for each group of segments, side by side.

Made and run by the collection's target, on the driver. A task may run in another process, so it gets all that it needs
as one value (`Load`): its rows, the layout of documents, the servers' address, and the token of its fence
(`raycdc.sinks.mongodb.commits`), without which it writes nothing.
"""

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
    """See the module's docstring. `address` is that of the servers, as tasks reach them."""

    def __init__(self, context: SinkContext, address: ServerAddress) -> None:
        self._context = context
        self._address = address

    def run(
        self, work: Work, layout: Layout, mode: Mode, groups: Sequence[Sequence[Input]], fences: Sequence[str] = ()
    ) -> None:
        """Run a task for each of `groups`, and return when all are done. `fences` are the tokens of their fences, in
        the same order; tasks that only check rows need none.
        """
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
        """The tables whose rows are merged, and their keys; None where rows come from one table under its own key."""
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
