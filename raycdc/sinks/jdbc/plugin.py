"""The section ``[sink] type = "jdbc"`` of the configuration, and its address."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal
from urllib.parse import parse_qsl, unquote, urlsplit

from pydantic import field_validator

from raycdc.config import Secret, SinkConfig, option
from raycdc.config.tls import TlsMode, TlsOptions
from raycdc.core.secrets import from_private, private_text
from raycdc.errors import SinkError
from raycdc.model.rules.names import NAMES, NameRules
from raycdc.plugins import Plugin

#: The name of the table with commit records. It is in the database that the URL names (PostgreSQL: in its schema
#: ``public``).
COMMIT_TABLE = "raycdc_commit"
#: The prefix of the names of staging tables.
STAGE_PREFIX = "raycdc_stage_"
#: The schema of staging tables on a PostgreSQL server.
STAGE_SCHEMA = "raycdc_stage"

_PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306}


@dataclass(frozen=True, slots=True)
class Address:
    """A target database and the account that connects. Its ``repr`` never shows the password."""

    kind: str
    host: str
    port: int
    database: str
    user: str = ""
    password: str = field(default="", repr=False)
    tls_mode: TlsMode = TlsMode.AUTO
    tls_ca: str | None = None
    allow_public_key_retrieval: bool = False

    def __str__(self) -> str:
        return f"{self.kind}://{self.host}:{self.port}/{self.database}"

    @property
    def names(self) -> NameRules:
        """Return the rules for names: the rules of the server, which also exclude the names of raycdc's own tables."""
        rules = NAMES[self.kind]
        if self.kind == "postgresql":
            return replace(rules, ours=frozenset({f"public.{COMMIT_TABLE}", f"{STAGE_SCHEMA}."}))
        return replace(rules, ours=frozenset({f"{self.database.lower()}.{COMMIT_TABLE}"}), ours_first=STAGE_PREFIX)

    def for_tasks(self, password_file: str) -> TaskAddress:
        """Return the address for tasks, with the password's file in place of the password."""
        return TaskAddress(replace(self, password=""), password_file)


@dataclass(frozen=True, slots=True)
class TaskAddress:
    """An address for tasks: without the password, but with the name of the file that contains it (empty: no password).
    `as_private` writes that file.
    """

    address: Address
    password_file: str = ""

    def open(self) -> Address:
        """Return the address with its password; called where the task runs. Raises `SinkError` if the password's file
        is missing.
        """
        path = self.password_file
        try:
            password = from_private(private_text(path)) if path else ""
        except OSError as cause:
            raise SinkError(
                f"The password of the sink cannot be read from {path}: {cause.strerror}. Somebody removed it: "
                "start the pipeline again."
            ) from cause
        return replace(self.address, password=password)


def parse_url(url: str) -> Address:
    """Parse ``[jdbc:]postgresql://host[:port]/database`` and similar URLs. Raises ValueError with the problem."""
    parts = urlsplit(url.removeprefix("jdbc:"))
    kind = {"postgres": "postgresql"}.get(parts.scheme, parts.scheme)
    if kind not in _PORTS:
        raise ValueError(f'must begin with jdbc:postgresql://, jdbc:mysql:// or jdbc:mariadb://, got "{parts.scheme}"')
    database = unquote(parts.path.removeprefix("/"))
    if not database or "/" in database:
        raise ValueError(f"must name a database, which holds the record of commits: {kind}://host:port/DATABASE")
    if parts.username or parts.password or {"user", "password"} & dict(parse_qsl(parts.query)).keys():
        raise ValueError("must not hold user or password: set sink.user and sink.password")
    if parts.query:
        raise ValueError(f'takes no parameters ("{parts.query}"): encryption is sink.tls')
    try:
        port = parts.port
    except ValueError as cause:
        raise ValueError("names a port that is no number up to 65535") from cause
    return Address(kind, parts.hostname or "127.0.0.1", port or _PORTS[kind], database)


class JdbcSinkConfig(SinkConfig):
    """``[sink] type = "jdbc"``: tables of a PostgreSQL, MySQL or MariaDB server."""

    type: Literal["jdbc"] = option("jdbc", help="Tables of a database server.")
    url: str = option(
        help="The server and the database that holds the record of commits. Table DB.TABLE is TABLE in schema DB of "
        "that database (PostgreSQL), or in database DB (MySQL, MariaDB).",
        example="jdbc:postgresql://127.0.0.1:5432/lake",
        min_length=1,
    )
    user: str = option(help="Account that may create schemas (databases) and tables.", example="cdc", min_length=1)
    password: Secret = option(Secret(""), help="Its password, by reference.", example="${env:SINK_PASSWORD}", init=True)
    tls: TlsOptions = option(TlsOptions(), help="Encryption.", example={"mode": "verify-identity", "ca": "ca.pem"})

    @field_validator("url")
    @classmethod
    def _understood(cls, value: str) -> str:
        parse_url(value)
        return value

    @property
    def names(self) -> NameRules:
        return parse_url(self.url).names

    @property
    def modules(self) -> tuple[str, ...]:
        return ("adbc_driver_postgresql",) if parse_url(self.url).kind == "postgresql" else ()

    def address(self) -> Address:
        """Return the address and the account of the connection."""
        found = parse_url(self.url)
        return Address(
            found.kind,
            found.host,
            found.port,
            found.database,
            self.user,
            self.password.reveal(),
            self.tls.mode,
            self.tls.ca,
            self.tls.allow_public_key_retrieval,
        )


JDBC = Plugin(
    "jdbc",
    "PostgreSQL, MySQL and MariaDB tables, upsert or changelog",
    JdbcSinkConfig,
    "raycdc.sinks.jdbc.sink:JdbcSink",
)
