"""Trial object stores, and a catalog of Iceberg on one: what they say of themselves is a piece of a configuration."""

from __future__ import annotations

from contextlib import ExitStack
from typing import ClassVar, Self

from raycdc.testing.servers import AzuriteServer, GcsServer, IcebergRestServer, MotoServer, S3MockServer
from raycdc.testing.servers.private import PrivateServer
from raycdc.testing.trials.trial import Trial

#: The bucket or container that is there.
BUCKET = "lake"


class StoreTrial(Trial):
    """An object store with an empty bucket. It believes every key."""

    title: ClassVar[str] = "An object store"

    def __init__(self, server: MotoServer | S3MockServer | AzuriteServer | GcsServer) -> None:
        super().__init__(server)
        self._store = server

    def prepare(self) -> None:
        if isinstance(self._store, AzuriteServer):
            self._store.create_container(BUCKET)
        else:
            self._store.create_bucket(BUCKET)

    @property
    def version(self) -> str:
        kinds = {MotoServer: "S3 (moto)", S3MockServer: "S3 (S3Mock)", AzuriteServer: "Azure's blobs (Azurite)"}
        return kinds.get(type(self._store), "Google Cloud Storage (fake-gcs-server)")

    @property
    def url(self) -> str:
        scheme = {AzuriteServer: "az", GcsServer: "gs"}.get(type(self._store), "s3")
        return f"{scheme}://{BUCKET}/tables"

    @property
    def piece(self) -> str:
        sink = f'[sink]\ntype = "delta"\npath = "{self.url}"\n'
        store = self._store
        if isinstance(store, AzuriteServer):
            keys = f'account = "{store.account}"\naccount_key = "{store.key}"\n'
            return f'{sink}\n[storage]\nendpoint = "{store.endpoint}"\n{keys}allow_http = true\n'
        return sink + store.section


class CatalogTrial(Trial):
    """Iceberg's REST catalog, on an S3 of its own."""

    title: ClassVar[str] = "Iceberg's REST catalog"

    def __init__(self, *, port: int | None = None) -> None:
        self._store = MotoServer()
        catalog = IcebergRestServer(self._store, f"s3://{BUCKET}/tables", port=port)
        super().__init__(catalog)
        self._catalog = catalog
        self._all = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as started:
            started.callback(self._catalog.close)
            server: PrivateServer = started.enter_context(self._store)
            assert server is self._store
            self._store.create_bucket(BUCKET)
            started.enter_context(self._catalog)
            self._all = started.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._all.close()

    @property
    def url(self) -> str:
        return self._catalog.uri

    @property
    def piece(self) -> str:
        return f'[sink]\ntype = "iceberg"\ncatalog = {{ type = "rest", uri = "{self.url}" }}\n{self._store.section}'
