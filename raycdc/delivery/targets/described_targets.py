"""The description of each target: at first from the commit record, then after each planned epoch.

Owned by `raycdc.delivery.targets.commit_planner`, which uses it for each part of an epoch. All descriptions can be
restored after a restart:

| columns of this pipeline that a target has, or may have | known from |
|---|---|
| of the last epoch that it holds | the commit record |
| of epochs that it refused after some steps | the commit record (`RoutedTarget.refused`) |
| of earlier epochs that are not recorded yet | this process; these epochs are repeated after a restart |
| of a target that an older raycdc wrote without a description | the state of the log at the record |

The last row of the table does not apply to topics as a source, whose tables are never resnapshotted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from raycdc.model import TableId, TableSchema
from raycdc.model.evolution.targets import TargetSchema
from raycdc.source.snapshot.log.stream_state import StreamState
from raycdc.source.tables.table_life import Unknown
from raycdc.state.store import CheckpointStore, RoutedTarget
from raycdc.transform import TransformedTables

#: Returns the newest record's description of a target.
Recorded = Callable[[TableId], RoutedTarget | None]


class DescribedTargets(Mapping[TableId, TargetSchema]):
    """The descriptions of targets; see the module's docstring.

    Used by the thread that stages. The thread that commits may call `recorded`.
    """

    def __init__(self, store: CheckpointStore, transforms: TransformedTables, recorded: Recorded) -> None:
        self._store = store
        self._transforms = transforms
        self._recorded = recorded
        self._at_first: Mapping[TableId, RoutedTarget] = {}
        self._since: dict[TableId, tuple[TargetSchema, RoutedTarget]] = {}
        self._stream: StreamState | None = None
        self._schemas: dict[str, TableSchema] = {}

    def __repr__(self) -> str:
        return f"DescribedTargets({len(self)})"

    def __getitem__(self, name: TableId) -> TargetSchema:
        """Return the target's schema after the last planned epoch with rows for it.

        A schema of the state is read at first use.
        """
        if name not in self._since:
            described = self._at_first[name]
            schema = self.schema(described.schema) if described.schema else None
            dropped = {source: frozenset(columns) for source, columns in described.dropped.items()}
            sources = tuple(map(TableId.parse, described.sources))
            self._since[name] = TargetSchema(sources, schema, dropped, described.named), described
        return self._since[name][0]

    def __contains__(self, name: object) -> bool:
        return name in self._since or name in self._at_first

    def __iter__(self) -> Iterator[TableId]:
        yield from self._at_first
        yield from (name for name in self._since if name not in self._at_first)

    def __len__(self) -> int:
        return len(self._at_first.keys() | self._since.keys())

    def start(self, known: Mapping[TableId, RoutedTarget], stream: StreamState | None) -> None:
        """Start with the targets that a record describes. `stream` is the state of the source's log at the record's
        epoch.
        """
        self._at_first, self._since, self._stream = known, {}, stream

    def schema(self, fingerprint: str) -> TableSchema:
        """Return the schema that the state has under this fingerprint. Each schema is read once."""
        if fingerprint not in self._schemas:
            self._schemas[fingerprint] = self._store.schema(fingerprint)
        return self._schemas[fingerprint]

    def follow(self, targets: Mapping[TableId, TargetSchema]) -> dict[str, RoutedTarget]:
        """Set the descriptions of `targets`, and return them in the form in which a commit record has them.

        New schemas are durable afterwards. If they cannot be written, no description changes.
        """
        lacking = (target.schema for name, target in targets.items() if self._fingerprint(name, target) is None)
        # Tens of thousands of tables of tenants may share one schema object.
        new = {id(schema): schema for schema in lacking if schema is not None}
        written = {number: schema.fingerprint() for number, schema in new.items()}
        self._store.put_documents({written[number]: schema.to_json() for number, schema in new.items()})
        described: dict[str, RoutedTarget] = {}
        for name, target in targets.items():
            fingerprint = self._fingerprint(name, target) or written[id(target.schema)]
            one = self._described(target, fingerprint)
            was = self._since.get(name, (None, None))[1]
            described[str(name)] = was if was is not None and was == one else one
        self._since.update({name: (target, described[str(name)]) for name, target in targets.items()})
        return described

    def columns_of(self, name: TableId) -> tuple[str, ...]:
        """Return the columns of this pipeline that the target has, or may have."""
        recorded = self._recorded(name)
        names: list[str] = []
        for fingerprint in () if recorded is None else recorded.schemas:
            names += [column.name for column in self.schema(fingerprint).columns]
        target = self.get(name)
        if target is not None and target.schema is not None:
            names += [column.name for column in target.schema.columns]
        if target is not None and target.schema is None and self._stream is not None:
            names += self._of_log(name, self._stream)
        return tuple(dict.fromkeys(names))

    def _of_log(self, table: TableId, stream: StreamState) -> list[str]:
        """Return the names in targets of a table's columns at the record."""
        state = stream[table]
        if isinstance(state, Unknown) or state.schema is None:
            return []
        columns = [column.name for column in self.schema(state.schema).columns]
        return list(self._transforms.naming.of(table, columns).values())

    def _fingerprint(self, name: TableId, target: TargetSchema) -> str | None:
        """Return the fingerprint of the target's schema if the schema has not changed; else None."""
        before = self._since.get(name)
        return before[1].schema if before is not None and before[0].schema == target.schema else None

    def _described(self, target: TargetSchema, fingerprint: str) -> RoutedTarget:
        transforms = {str(s): identity for s in target.sources if (identity := self._transforms.identity(s))}
        dropped = {source: sorted(columns) for source, columns in sorted(target.dropped.items())}
        sources = tuple(map(str, target.sources))
        return RoutedTarget(sources, fingerprint, dropped, transforms, named=dict(target.named))
