"""The catalog of a sink, which is opened anew where its keys are others now, or where it lets us in no more.

A catalog of pyiceberg's keeps the keys that it was opened with, and the token that it got for them. So before a table
is read or changed the references are looked at, and a catalog with newer keys takes the place of the one before. What
is under way ends with that one.

*An answer that forbids a table* is doubted once: the catalog is opened anew and asked for the same again. Where it does
not even let us in, keys or a token have come to their end, and no table is concerned. Where it does and forbids again,
it is about this table. A request that was forbidden was not carried out, so it may be made twice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any, TypeVar

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError
from pyiceberg.table import CommitTableResponse, Table

from raycdc.errors import SinkError, SinkUnavailableError
from raycdc.sinks.iceberg.catalog import open_catalog, where_is
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions
from raycdc.sinks.iceberg.refusals import is_forbidden
from raycdc.stores.settings import StorageSettings

T = TypeVar("T")


class ReopenedCatalog:
    """See the module's docstring. Raises what pyiceberg's catalogs raise, and `SinkError` where the catalog cannot be
    opened: `SinkUnavailableError` where it is away, or was open before and its keys may be others soon. For any thread.
    """

    def __init__(self, options: IcebergCatalogOptions, storage: StorageSettings) -> None:
        """Asks nobody yet."""
        self._options = options
        self._storage = storage
        self._lock = threading.Lock()
        self._catalog: Catalog | None = None
        #: The catalog's address and keys, and the store's, with which it was opened.
        self._opened_as: tuple[IcebergCatalogOptions, StorageSettings] | None = None

    @property
    def where(self) -> str:
        """Which one it is, for people."""
        return where_is(self._options)

    def open(self) -> None:
        """Open it now, where it is not open yet with the keys as they are now."""
        self._newest()

    @property
    def refuses_for_certain(self) -> bool:
        """Whether a commit that another writer is said to have overtaken is in no case one that went through before it
        was asked for a second time, as between us and a server.
        """
        return self._options.type in ("hadoop", "sql")

    def load_table(self, name: tuple[str, str]) -> Table:
        """The table as it is now."""
        return self._asked(lambda catalog: catalog.load_table(name))

    def create_table(self, name: tuple[str, str], schema: Any, *, partition_spec: Any, properties: Any) -> None:
        """Make a table, and its namespace where there is none."""

        def make_in_namespace(catalog: Catalog) -> None:
            catalog.create_table(name, schema, partition_spec=partition_spec, properties=properties)

        def make(catalog: Catalog) -> None:
            try:
                make_in_namespace(catalog)
            except NoSuchNamespaceError:
                # Only now: who may make tables in a namespace that is there may often make none.
                catalog.create_namespace_if_not_exists(name[:1])
                make_in_namespace(catalog)

        self._asked(make)

    def commit_table(self, table: Table, requirements: Any, updates: Any) -> CommitTableResponse:
        """Replace the metadata of a table by the next ones, if it is as `requirements` say."""
        return self._asked(lambda catalog: catalog.commit_table(table, requirements, updates))

    def close(self) -> None:
        """Let go of the connections."""
        if self._catalog is not None:
            self._catalog.close()

    def _asked(self, ask: Callable[[Catalog], T]) -> T:
        catalog = self._newest()
        try:
            return ask(catalog)
        except Exception as cause:
            if not is_forbidden(cause):
                raise
            return ask(self._newest(refused=catalog))

    def _newest(self, *, refused: Catalog | None = None) -> Catalog:
        """The catalog with the keys as they are now, and another one than was `refused`."""
        with self._lock:
            now, storage = self._options.now(), self._storage.now()
            before = self._catalog
            if before is None:
                self._catalog, self._opened_as = open_catalog(now, self._storage), (now, storage)
            elif before is refused or self._opened_as != (now, storage):
                try:
                    self._catalog, self._opened_as = open_catalog(now, self._storage), (now, storage)
                except SinkError as cause:
                    if not (self._options.changes or self._storage.changes):
                        raise
                    # It was right before: somebody is just changing keys, one after the other.
                    raise SinkUnavailableError(str(cause)) from cause
                # Connections on which somebody is asking are closed when they come back.
                before.close()
            assert self._catalog is not None
            return self._catalog
