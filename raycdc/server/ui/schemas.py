"""The columns of a table, as of its newest sealed epoch.

Only names and types are reported, because a column's default may be a value of a row.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from raycdc.errors import RaycdcError
from raycdc.model import LogicalType, TableId
from raycdc.server.blocking import HEADERS, error, threaded
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.tables.table_life import Dropped, Unknown
from raycdc.state.store import CheckpointStore


@dataclass(frozen=True, slots=True)
class ColumnReport:
    """A column of a table."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """A table's schema. `version` is the schema's unique name in the state."""

    table: str
    version: str
    columns: tuple[ColumnReport, ...]
    primary_key: tuple[str, ...]


class Schemas:
    """The schemas of a state. Reading one takes as long as reading the newest manifest."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"Schemas({str(self._store.location)!r})"

    def of(self, name: str) -> SchemaReport | None:
        """Return the schema of the table with this name; None if the state has none.

        Raises `StateError` if the state cannot be read.
        """
        manifest = self._store.last_manifest()
        if manifest is None:
            return None
        stream = stream_of(manifest)
        if stream is None:
            try:
                known = manifest.tables.get(TableId.parse(name))
            except ValueError:
                return None
            version = None if known is None else known.schema
        else:
            state = stream.named(name)
            version = None if isinstance(state, Unknown | Dropped) else state.schema
        if version is None:
            return None
        schema = self._store.schema(version)
        columns = tuple(
            ColumnReport(column.name, _type_text(column.type), column.nullable) for column in schema.columns
        )
        return SchemaReport(name, version, columns, tuple(schema.primary_key))

    def routes(self) -> list[Route]:
        """Return the route ``GET /v1/schema?table=…``."""
        return [Route("/v1/schema", threaded(self._answer))]

    def _answer(self, request: Request) -> Response:
        try:
            found = self.of(request.query_params.get("table", ""))
        except RaycdcError as failed:
            return error(503, str(failed))
        if found is None:
            return error(404, "The state has no schema of a table that is called so.")
        return JSONResponse(asdict(found), headers=HEADERS)


def _type_text(column: LogicalType) -> str:
    """Return ``decimal(10, 2)``, with the source's own type name if it differs."""
    text = f"{column.kind}({column.precision}, {column.scale})" if column.precision else str(column.kind)
    return f"{text} ({column.native})" if column.native and column.native.lower() != text else text
