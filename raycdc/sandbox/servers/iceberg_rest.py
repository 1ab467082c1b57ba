"""A private REST catalog of Iceberg. It is the catalog with which Apache Iceberg tests its clients, from Maven's jars.

The tables are in a warehouse on a server of the S3 API. The catalog's own data is in an SQLite file.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import ClassVar

from raycdc.sandbox.cache import build_once, fetch_exactly
from raycdc.sandbox.servers.private import PrivateServer, ServerError
from raycdc.sandbox.servers.s3 import ACCESS_KEY, SECRET_KEY, S3Server
from raycdc.spark.artifacts import java_command

VERSION = "1.10.1"
_ICEBERG = "org.apache.iceberg"
COORDINATES = (
    f"{_ICEBERG}:iceberg-open-api:{VERSION}:test-fixtures",
    f"{_ICEBERG}:iceberg-core:{VERSION}:tests",
    f"{_ICEBERG}:iceberg-core:{VERSION}+",
    f"{_ICEBERG}:iceberg-aws:{VERSION}",
    f"{_ICEBERG}:iceberg-aws-bundle:{VERSION}",
    "dev.failsafe:failsafe:3.3.2",
    "org.eclipse.jetty:jetty-servlet:11.0.26+",
    "org.xerial:sqlite-jdbc:3.50.3.0+",
)
_MAIN = "org.apache.iceberg.rest.RESTCatalogServer"
_START_TIMEOUT_S = 300.0


class IcebergRestServer(PrivateServer):
    """``with IcebergRestServer(moto, "s3://lake/warehouse") as catalog:``; clients use `uri`."""

    flavor: ClassVar[str] = "iceberg-rest"

    def __init__(self, store: S3Server | None = None, warehouse: str = "", *, port: int | None = None) -> None:
        """Create the server. `store` may be left out if the catalog is only prepared."""
        super().__init__(port=port)
        self._store = store
        self._warehouse = warehouse

    @property
    def uri(self) -> str:
        """Return the address for clients."""
        return f"http://{self.host}:{self.port}"

    def prepare(self) -> None:
        """Download the jars (95 MB), once per machine. May take a minute; later calls are free."""
        _home()

    def _launch(self) -> None:
        if (store := self._store) is None:
            raise ServerError("Iceberg's REST catalog needs a store for its tables: IcebergRestServer(moto, WAREHOUSE)")
        # After the prefix, two underscores stand for a dash, and one for a dot.
        settings = {
            "CATALOG_WAREHOUSE": self._warehouse,
            # In memory, each connection would have its own database.
            "CATALOG_URI": f"jdbc:sqlite:{self.folder}/catalog.db?busy_timeout=20000&journal_mode=WAL",
            "CATALOG_CLIENTS": "1",
            "CATALOG_IO__IMPL": "org.apache.iceberg.aws.s3.S3FileIO",
            "CATALOG_S3_ENDPOINT": store.endpoint,
            "CATALOG_S3_PATH__STYLE__ACCESS": "true",
            "CATALOG_S3_ACCESS__KEY__ID": ACCESS_KEY,
            "CATALOG_S3_SECRET__ACCESS__KEY": SECRET_KEY,
            "CATALOG_REST_PORT": str(self.port),
            **store.environment,
        }
        memory = ["-Xmx384m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", f"-Djava.io.tmpdir={self.folder}"]
        class_path = os.pathsep.join([f"{_home()}/*", *map(str, _hadoop())])
        command = [java_command(), *memory, "-cp", class_path, _MAIN]
        log = self.folder / "out.log"
        self._run(
            command,
            self._listens,
            name="Iceberg's REST catalog",
            logs=[log],
            timeout_s=_START_TIMEOUT_S,
            environment=settings,
        )


def _hadoop() -> list[Path]:
    """Return Hadoop's jars from Spark, because the configuration is Hadoop's."""
    import pyspark

    return sorted(Path(pyspark.__file__).with_name("jars").glob("hadoop-client-*.jar"))


def _home() -> Path:
    def unpack(folder: Path) -> None:
        fetch_exactly(folder, COORDINATES)

    return build_once(f"iceberg-rest-{VERSION}", unpack)
