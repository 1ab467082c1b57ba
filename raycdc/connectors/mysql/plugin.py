"""The MySQL and MariaDB source as a plug-in: its section of the configuration, and the factory of the source."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Literal, Self

from pydantic import BeforeValidator, PlainSerializer, model_validator

from raycdc.clients.mysql import MySqlSettings
from raycdc.config import Duration, Options, Secret, Size, TablePattern, option
from raycdc.config.tls import TlsOptions
from raycdc.connectors.mysql.values.types import TypeOptions
from raycdc.model import TableId
from raycdc.model.rules.selector import TableSelector
from raycdc.plugins import Plugin
from raycdc.source.startup import SelectedTablesConfig, StartupMode, StartupOptions, require_selected

#: Server ids are 32-bit numbers, and 0 means "no replica" (MySQL manual, "Replication and Binary Logging Options").
_SERVER_ID_MAX = 2**32 - 1


@dataclass(frozen=True, slots=True)
class ServerIdRange:
    """The replica ids that a pipeline may use, both ends included. Each job leases one of them."""

    first: int
    last: int

    def __str__(self) -> str:
        return str(self.first) if self.first == self.last else f"{self.first}-{self.last}"


def parse_server_id(value: ServerIdRange | int | str) -> ServerIdRange:
    """Parse ``5400`` or ``"5400-5499"``. Raises ValueError with the accepted forms for any other value."""
    if isinstance(value, ServerIdRange):
        return value
    first, dash, last = str(value).partition("-")
    if isinstance(value, bool) or not first.strip().isdecimal() or (dash and not last.strip().isdecimal()):
        raise ValueError(f'must be a number such as 5400 or a range such as "5400-5499", got "{value}"')
    ids = ServerIdRange(int(first), int(last) if dash else int(first))
    if not 1 <= ids.first <= ids.last <= _SERVER_ID_MAX:
        raise ValueError(f'must lie between 1 and {_SERVER_ID_MAX}, smaller end first, got "{value}"')
    return ids


ServerIds = Annotated[
    ServerIdRange,
    BeforeValidator(parse_server_id, json_schema_input_type=int | str),
    PlainSerializer(str, return_type=str),
]


class MySqlStartupOptions(StartupOptions):
    """The start position. It is used only while the pipeline has no state."""

    mode: StartupMode = option(
        StartupMode.INITIAL,
        help="initial: snapshot, then the log. snapshot: the snapshot only. latest: the log from now on. earliest: the "
        "log from its oldest file on. offset: from file and pos, or after gtid_set. timestamp: from timestamp_ms on.",
    )
    file: str | None = option(None, help="Binlog file to start in, with mode = offset.", example="binlog.000007")
    pos: int = option(4, help="Position in that file, between two transactions.", ge=4)
    gtid_set: str | None = option(None, help="GTID set to start after, with mode = offset.")
    skip_events: int = option(0, help="Events of the log to leave out after the offset.", ge=0)
    skip_rows: int = option(0, help="Changed rows of the next event to leave out.", ge=0)
    timestamp_ms: int | None = option(None, help="Commit time to start at, with mode = timestamp.", unit="ms", ge=0)

    @model_validator(mode="after")
    def _names_a_position(self) -> Self:
        if self.mode is StartupMode.OFFSET and (self.file is None) == (self.gtid_set is None):
            raise ValueError('mode = "offset" needs either file (and pos) or gtid_set')
        return self


class MySqlSnapshotOptions(Options):
    """The options to cut the initial snapshot into chunks."""

    strategy: Literal["auto", "even", "uneven", "sampled"] = option(
        "auto",
        help="even: arithmetic on an integer key. uneven: the server walks the key's index. sampled: by the "
        "optimizer's estimates, without reading the index. auto: even for dense keys, sampled for large tables, else "
        "uneven.",
    )
    chunk_rows: int = option(100_000, help="About this many rows per chunk.", unit="rows", ge=1)
    chunk_bytes: Size = option(0, help="Fewer rows per chunk where rows are wide; 0: chunk_rows alone.", unit="size")
    key: dict[str, str] = option(
        {},
        help="Chunk key column per table; an index must begin with it. Default: the first column of the primary key; "
        "where it has few values, another one of it with an index, or its first columns together.",
        example={"shop.orders": "id"},
    )
    filter: dict[str, str] = option(
        {},
        help="Condition per table that captured rows meet, in the snapshot and in the log: comparisons of columns with "
        "literals, AND, OR, NOT, IN, BETWEEN, LIKE, IS NULL. A change that crosses it becomes an insert or a delete.",
        example={"shop.orders": "id > 10"},
    )
    rows_per_second: int = option(
        0,
        help="At most so many rows of chunks per second are read in the whole job, to spare the source; 0: as many as "
        "possible. All connections share this rate.",
        unit="rows",
        ge=0,
    )
    connections: int = option(
        0,
        help="Chunks are read over at most so many connections at once, each by a separate reader; 0: readers.max "
        "times readers.fetchers, or a single one with rows_per_second. Following the log takes up to three more, and "
        "planning takes one.",
        ge=0,
    )
    visible_within: Duration = option(
        timedelta(seconds=60),
        help="MySQL without GTIDs only: how long after its entry in the binlog a transaction becomes visible to "
        "queries at the latest. A time above every semi-synchronous timeout is safe. Without the PROCESS privilege the "
        "first chunk waits for that long.",
        unit="duration",
    )

    @property
    def chunk_readers_max(self) -> int:
        """Return the number of readers that may have a connection for chunks; 0: no limit."""
        return self.connections or (1 if self.rows_per_second else 0)

    @property
    def rows_per_second_each(self) -> float:
        """Return the rate limit of one connection in rows per second; 0: none."""
        return self.rows_per_second / max(1, self.chunk_readers_max)

    @property
    def visible_within_s(self) -> float:
        return self.visible_within.total_seconds()


class TypesOptions(Options):
    """The options to read values of certain types. A table keeps the options with which it was first read."""

    invalid_dates: Literal["null", "park", "text"] = option(
        "null",
        help="The treatment of zero, partial and impossible dates (0000-00-00, 2024-00-10). null: NULL, and a figure "
        "counts them. park: the table is parked. text: all DATE, DATETIME and TIMESTAMP columns become text as the "
        "server prints it.",
    )
    invalid_text: Literal["replace", "park"] = option(
        "replace",
        help="The treatment of bytes that are no characters of their set: U+FFFD in their place, and a figure counts "
        "them. park: the table is parked.",
    )
    tinyint1: Literal["integer", "boolean"] = option(
        "integer", help="TINYINT(1), alias BOOLEAN. As boolean, a value other than 0 and 1 parks its table."
    )
    geometry: Literal["wkb", "geojson"] = option(
        "wkb", help="wkb: the server's bytes, SRID (4, little-endian) and WKB. geojson: GeoJSON text."
    )

    def options(self) -> TypeOptions:
        """Return the options of the type mapping."""
        return TypeOptions(self.invalid_dates, self.invalid_text, self.tinyint1, self.geometry)


class MySqlSourceConfig(SelectedTablesConfig):
    """``[source] type = "mysql"``: a MySQL or MariaDB server."""

    type: Literal["mysql"] = option("mysql", help="MySQL or MariaDB.")
    host: str = option("127.0.0.1", help="Name or address of the server.", min_length=1)
    port: int = option(3306, help="TCP port of the server.", ge=1, le=65535)
    user: str = option(help="Account with the privileges that `raycdc check` lists.", example="cdc", min_length=1)
    password: Secret = option(Secret(""), help="Its password, by reference.", example="${env:MYSQL_PASSWORD}")
    server_id: ServerIds = option(
        ServerIdRange(5400, 5499), help="Replica ids to use; no other replica may use them.", example="5400-5499"
    )
    tables: tuple[TablePattern, ...] = option(
        help="Tables to capture: names or regular expressions that match DATABASE.TABLE as a whole.",
        example=["shop.orders"],
        min_length=1,
    )
    exclude: tuple[TablePattern, ...] = option((), help="Tables to leave out, written as in `tables`.")
    columns: dict[str, tuple[str, ...]] = option(
        {},
        help="Columns to capture, per table; its primary key is among them. Columns added later are left out.",
        example={"shop.orders": ["id", "status"]},
    )
    tls: TlsOptions = option(TlsOptions(), help="Encryption.", example={"mode": "verify-identity", "ca": "ca.pem"})
    startup: MySqlStartupOptions = option(MySqlStartupOptions(), help="Where to begin.", example={"mode": "initial"})
    types: TypesOptions = option(
        TypesOptions(), help="Types that can be read in more than one way.", example={"invalid_dates": "text"}
    )
    snapshot: MySqlSnapshotOptions = option(MySqlSnapshotOptions(), help="Chunks of the snapshot.")
    on_cascade: Literal["park", "accept"] = option(
        "park",
        help="The treatment of a captured table whose rows a foreign key changes by cascade without the server logging "
        "it (MySQL before 9.7, MariaDB). park: the table is parked. accept: the target may keep rows that are gone.",
    )
    heartbeat: Duration = option(
        timedelta(seconds=30), help="How often an idle log connection proves that it is alive.", unit="duration"
    )

    @model_validator(mode="after")
    def _options_of_tables(self) -> Self:
        options = {
            "snapshot.key": list(self.snapshot.key),
            "snapshot.filter": list(self.snapshot.filter),
            "columns": list(self.columns),
        }
        require_selected(self, options, noun="table")
        return self

    @property
    def bounded(self) -> bool:
        return self.startup.bounded

    def selector(self) -> TableSelector:
        """Return the selector of the captured tables."""
        return TableSelector(self.tables, self.exclude)

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def readers_max(self) -> int:
        """Return the limit of readers, because a reader without a connection for chunks would have no work.

        The log's reader can have such a connection, too.
        """
        return self.snapshot.chunk_readers_max

    @property
    def why_read_once(self) -> str:
        ids = parse_server_id(self.server_id)  # Parsed again, because the section may not be validated yet.
        if ids.first != ids.last:
            return ""
        return (
            f"its log is read twice at a time for that, which needs two numbers of source.server_id, and that is {ids} "
            'alone; give it a range such as "5400-5499".'
        )

    def chunk_keys(self) -> dict[TableId, str]:
        return {TableId.parse(name): column for name, column in self.snapshot.key.items() if name.count(".")}

    def settings(self) -> MySqlSettings:
        """Return the address and account of connections."""
        return MySqlSettings(
            host=self.host,
            port=self.port,
            user=self.user,
            password=self.password.reveal(),
            tls_mode=self.tls.mode,
            tls_ca=self.tls.ca,
            allow_public_key_retrieval=self.tls.allow_public_key_retrieval,
        )


PLUGIN = Plugin(
    name="mysql",
    summary="MySQL 5.7+ and MariaDB 10.4+: lock-free snapshot, then the binlog",
    config=MySqlSourceConfig,
    factory="raycdc.connectors.mysql.source:MySqlSource",
    init="raycdc.connectors.mysql.init:MySqlInitQuestions",
    statements="raycdc.connectors.mysql.ddl.catalogue:events_of_statement",
    positions="raycdc.connectors.mysql.binlog.positions.position:position_text",
)
