"""Whether rows of a table can be put over those of its target by key, one by one, as a backfill does. Pure.

| a table | has no backfill, because |
|---|---|
| whose target has rows of other tables | a row that comes to such a target is one whose key it must not have yet |
| whose transform gives it another key | likewise: its rows may come to have the same key |
| whose transform leaves rows out | a row that it leaves out would stay in the target as it was |

In the first two a row that is read again would be refused as a second one of its key, and one that the log deletes in
the same epoch would be taken for a row that came and went, which changes nothing (`raycdc.sinks.origins`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from raycdc.checkpoint.store import CommitRecord
from raycdc.errors import ConfigError
from raycdc.model import TableId
from raycdc.model.routes import Router
from raycdc.model.transform import Transforms
from raycdc.source.table_requests import merged_targets

#: `RowsByKey.why_not`, of whatever configuration.
WhyNotByKey = Callable[[TableId, Iterable[TableId], CommitRecord | None], str]


@dataclass(frozen=True, slots=True)
class RowsByKey:
    """The routes and transforms of a configuration."""

    router: Router = field(default_factory=Router)
    transforms: Transforms = field(default_factory=Transforms)

    def why_not(self, table: TableId, tables: Iterable[TableId], record: CommitRecord | None) -> str:
        """Why not, with the way out; empty where they can. `tables` are the pipeline's."""
        anew = f"For all of its rows: raycdc tables resnapshot CONFIG {table}"
        for target, other in self._shared(table, tables, record):
            return (
                f"The rows of {table} in {target} cannot be told from those of {other}, which go there too, so none "
                f"of them is read again by itself. {anew}"
            )
        found = self.transforms.of(table)
        if found is None:
            return ""
        if found.primary_keys:
            return (
                f"{self.transforms.place(table)}.primary_keys gives the rows of {table} a key of its own, so none of "
                f"them is read again by itself: another one may have the same. {anew}"
            )
        drops = found.filter or any(lookup.drop for lookup in found.lookups)
        if drops:
            return (
                f"{self.transforms.place(table)} leaves rows of {table} out (filter, or a lookup that drops), and such "
                f"a row would stay in the target as it was. {anew}"
            )
        return ""

    def _shared(
        self, table: TableId, tables: Iterable[TableId], record: CommitRecord | None
    ) -> Iterator[tuple[str, str]]:
        """The targets that the table shares, each with another table that goes there."""
        for target, sources in ({} if record is None else merged_targets(record)).items():
            if str(table) in sources:
                yield target, next(name for name in sources if name != str(table))
        if not self.router:
            return
        own = set(self.router.targets(table))
        for other in tables:
            for shared in own & set(_targets(self.router, other)) if other != table else ():
                yield str(shared), str(other)


def _targets(router: Router, table: TableId) -> tuple[TableId, ...]:
    try:
        return router.targets(table)
    except ConfigError:
        return ()  # It is parked for that.
