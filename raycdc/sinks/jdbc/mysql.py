"""MySQL and MariaDB as a target: multi-row INSERTs into staging tables, then set-based statements in one transaction.

Rows become text column by column (`mysql_text`) and go as statements of a few megabytes in strict mode: the one way
that every server permits (LOAD DATA LOCAL needs ``local_infile`` and turns wrong values into warnings).

DDL commits by itself here, so the lock on the record alone would fence nothing. A session takes a named lock of the
target (``GET_LOCK``) before it looks at the record, and runs its DDL on the same connection: the lock outlives the
commit inside, and goes with the connection, not before a statement under way has ended. Two drivers never alter one
target at once, and a driver without its connection can alter nothing. Before the statement the record says what it will
have made of the table, and the statement leaves ``raycdc IDENTITY:TARGET:EPOCH`` as the table's comment: whoever finds
both knows that it was carried out, although the driver died. Things that rows need (the default of a new column) are in
the transaction of the record, which is written only over an older one.

*Galera*: the named lock is one node's. Rows and record stay exact whatever node drivers write to, because the record's
row is certified; DDL is fenced only among drivers that reach the same node, so give ``sink.url`` one node, or a proxy
that writes to one. Where ``pxc_strict_mode`` forbids ``GET_LOCK`` the sink stops with the server's words.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any, ClassVar

import pyarrow as pa
import pymysql

from raycdc.clients.mysql import MySqlSettings, close_quietly, connect, quote_name
from raycdc.errors import (
    ColumnsRefusedError,
    FencedError,
    NameRefusedError,
    RaycdcError,
    SinkError,
    TargetTakenError,
    TargetTouchedError,
    ValueRefusedError,
)
from raycdc.model import Column, TableId, TypeKind
from raycdc.model.names import NAMES
from raycdc.sinks.columns import Plan
from raycdc.sinks.jdbc.adopt import check_mysql
from raycdc.sinks.jdbc.database import COMMIT_TABLE, STAGE_PREFIX, StagedTable
from raycdc.sinks.jdbc.mysql_grants import NEEDED, missing, roles
from raycdc.sinks.jdbc.mysql_text import ends_in_space, value_lists, widest
from raycdc.sinks.jdbc.plugin import Address
from raycdc.sinks.jdbc.refusals import mysql_refusal, without_value
from raycdc.sinks.jdbc.types import mysql_type
from raycdc.sinks.origins import CLAIMED
from raycdc.sinks.record import PLACE, Held
from raycdc.sinks.rows import DELETED
from raycdc.sinks.targets import check_names

#: Size of a statement with rows: large enough that parsing one row more is all it costs, far below any server's limit.
STATEMENT_BYTES = 2 << 20

#: Collations that tell apart all texts, trailing spaces included, best first; servers have one of them or none.
_EXACT = ("utf8mb4_0900_bin", "utf8mb4_nopad_bin")

_MARK = "raycdc "

#: How long to wait for another session that has a target's lock: a driver that was replaced may be in its last commit.
_LOCK_TIMEOUT_S = 60

_SESSION = (
    "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_BACKSLASH_ESCAPES,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO'",
    f"SET SESSION innodb_lock_wait_timeout = {_LOCK_TIMEOUT_S}, lock_wait_timeout = {_LOCK_TIMEOUT_S}",
    "SET SESSION character_set_results = utf8mb4",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
)


class MySqlDatabase:
    """See the module's docstring and `database.Database`."""

    kind: ClassVar[str] = "MySQL"
    ignores_case: ClassVar[bool] = True

    def __init__(self, address: Address) -> None:
        self._address = address

    def __repr__(self) -> str:
        return f"MySqlDatabase({self._address})"

    def prepare(self) -> None:
        name = "VARCHAR(255) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL"
        with self.session() as session:
            session.run(f"CREATE DATABASE IF NOT EXISTS {quote_name(self._address.database)}")
            session.run(
                f"CREATE TABLE IF NOT EXISTS {session.record} (`app_id` {name}, `target` {name}, "
                "`epoch` BIGINT NOT NULL, `step` BIGINT NOT NULL, `generation` BIGINT NOT NULL, "
                "`created` BOOLEAN NOT NULL, `columns` LONGTEXT CHARACTER SET utf8mb4 NOT NULL, "
                "`key` LONGTEXT CHARACTER SET utf8mb4 NOT NULL, `positions` LONGTEXT CHARACTER SET utf8mb4 NOT NULL, "
                "`committed_at` DATETIME(6) NOT NULL, PRIMARY KEY (`app_id`, `target`)) ENGINE=InnoDB"
            )

    @contextmanager
    def session(self) -> Iterator[MySqlSession]:
        connection = self._connect()
        try:
            yield MySqlSession(connection, self)
        finally:
            close_quietly(connection)

    def close(self) -> None:
        """No connection is kept."""

    def check_columns(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> None:
        check_names(NAMES["mysql"], target, [column.name for column in columns])
        for column in columns:
            try:
                mysql_type(column.type, key=column.name in key)
            except ValueError as cause:
                raise ColumnsRefusedError(f"{target}: column {column.name} {cause}") from cause
        if (target.db, target.table) == (self._address.database, COMMIT_TABLE):
            raise NameRefusedError(f"{target} is a name that raycdc needs in the target. Exclude the table.")

    def retyped(self, old: Column, new: Column, *, key: bool) -> bool:
        return mysql_type(old.type, key=key) != mysql_type(new.type, key=key)

    def load(
        self,
        name: str,
        columns: Sequence[Column],
        key: Sequence[str],
        batches: Iterable[pa.RecordBatch],
        *,
        flags: Sequence[str],
    ) -> int:
        with self.session() as session:
            collation = session.collation()
            parts = [session.definition(column, key, collation) for column in columns]
            parts += [f"{quote_name(flag)} BOOLEAN NOT NULL" for flag in flags]
            table = quote_name(self._address.database, name)
            session.run(f"CREATE TABLE {table} ({', '.join(parts)}) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4")
            ((packet_bytes,),) = session.rows("SELECT @@max_allowed_packet")
            count = 0
            for batch in batches:
                if collation not in _EXACT and ends_in_space([batch.column(k) for k in key]):
                    raise ValueRefusedError(
                        f"A key of {', '.join(key)} ends in a space, which {self._address} takes for the key without "
                        "it. Use MySQL 8.0.17 or newer, or MariaDB."
                    )
                names = ", ".join(map(quote_name, batch.schema.names))
                start = f"INSERT INTO {table} ({names}) VALUES ".encode()
                # The server counts the command's own byte, too.
                values_bytes = packet_bytes - len(start) - 1
                for values in value_lists(batch, bytes_max=min(STATEMENT_BYTES, values_bytes)):
                    if len(values) > values_bytes:
                        column, size = widest(batch, bytes_max=values_bytes)
                        raise ValueRefusedError(
                            f"A row has {size} bytes in column {column}, and as a statement {len(values)} in all; "
                            f"{self._address} takes {packet_bytes}. Raise max_allowed_packet there."
                        )
                    session.run(start + values)
                count += batch.num_rows
            session.commit()
        return count

    def drop_stages(self, prefix: str, *, up_to: str) -> None:
        # A task may be writing to one; it is removed by the next commit.
        with suppress(SinkError), self.session() as session:
            session.run("SET SESSION lock_wait_timeout = 1")
            names = session.rows(
                "SELECT TABLE_NAME FROM information_schema.TABLES "
                "WHERE TABLE_SCHEMA = %s AND LEFT(TABLE_NAME, %s) = %s",
                self._address.database,
                len(prefix),
                prefix,
            )
            for (name,) in names:
                if name[: len(up_to)] <= up_to:
                    session.run(f"DROP TABLE {quote_name(self._address.database, name)}")

    @property
    def address(self) -> Address:
        """Where it is."""
        return self._address

    def _connect(self) -> Any:
        a = self._address
        settings = MySqlSettings(a.host, a.port, a.user, a.password, a.tls_mode, a.tls_ca)
        try:
            connection = connect(settings)
        except RaycdcError as cause:
            raise SinkError(f"{a}: {str(cause).replace('source.', 'sink.')}") from cause
        try:
            with connection.cursor() as cursor:
                for statement in _SESSION:
                    cursor.execute(statement)
                # Deleting by a join needs one; it is not there before `prepare`.
                with suppress(pymysql.err.OperationalError):
                    cursor.execute(f"USE {quote_name(a.database)}")
            connection.autocommit(value=False)
        except pymysql.Error as cause:
            close_quietly(connection)
            raise SinkError(f"{a}: {cause.args[-1]}") from cause
        return connection


class MySqlSession:
    """See `database.Session`."""

    transactional_ddl: ClassVar[bool] = False

    def __init__(self, connection: Any, database: MySqlDatabase) -> None:
        self._connection = connection
        self._database = database
        self._home = database.address.database
        self.record = quote_name(self._home, COMMIT_TABLE)

    # -- statements

    def run(self, statement: str | bytes, *arguments: Any) -> None:
        """Execute one statement. `SinkError` with the server's words."""
        self.rows(statement, *arguments)

    def rows(self, statement: str | bytes, *arguments: Any) -> list[tuple[Any, ...]]:
        """Execute one statement and fetch what it finds."""
        return self._execute(statement, arguments)[0]

    def _execute(self, statement: str | bytes, arguments: Sequence[Any]) -> tuple[list[tuple[Any, ...]], int]:
        """The rows of a statement, and how many it found or changed."""
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, arguments or None)
                return list(cursor.fetchall()), cursor.rowcount
        except pymysql.Error as cause:
            refusal = mysql_refusal(cause.args[0])
            raise refusal(
                f"{self._database.address}: {without_value(str(cause.args[-1]))} (error {cause.args[0]})"
            ) from cause

    def lacking(self, databases: Sequence[str]) -> list[str] | None:
        ((user,),) = self.rows("SELECT CURRENT_USER()")
        account = "@".join(f"'{part}'" for part in str(user).rsplit("@", 1))
        grants = [str(row[0]) for row in self.rows("SHOW GRANTS FOR CURRENT_USER()")]
        for role in roles(grants):
            # MySQL tells what a role gives when it is named beside the account, MariaDB of the role itself.
            for question in (f"SHOW GRANTS FOR {account} USING {role}", f"SHOW GRANTS FOR {role}"):
                with suppress(SinkError):
                    grants += [str(row[0]) for row in self.rows(question)]
        wanted = {name: missing(grants, name) for name in dict.fromkeys([self._home, *databases])}
        if any(lacks is None for lacks in wanted.values()):
            return None
        return [
            f"GRANT {', '.join(NEEDED)} ON {quote_name(name)}.* TO {account};"
            for name, lacks in wanted.items()
            if lacks
        ]

    def commit(self) -> None:
        self.run("COMMIT")

    # -- the record

    def is_prepared(self) -> bool:
        return self.exists(TableId(self._home, COMMIT_TABLE))

    def held(self, app_id: str, target: TableId, *, lock: bool = False) -> Held | None:
        if lock:
            self._lock(app_id, target)
        select = (
            f"SELECT {', '.join(f'`{name}`' for name in Held.NAMES)} FROM {self.record} "
            "WHERE `app_id` = %s AND `target` = %s"
        )
        found = self.rows(f"{select}{' FOR UPDATE' if lock else ''}", app_id, str(target))
        if lock and not found:
            # A row that is not there cannot be locked: whoever comes second waits here for the first.
            self.run(
                f"INSERT INTO {self.record} (`app_id`, `target`, {', '.join(f'`{name}`' for name in Held.NAMES)}, "
                "`positions`, `committed_at`) VALUES (%s, %s, %s, %s, %s, %s, %s, %s, '{}', UTC_TIMESTAMP(6)) "
                "ON DUPLICATE KEY UPDATE `app_id` = VALUES(`app_id`)",
                app_id,
                str(target),
                *PLACE,
            )
            found = self.rows(f"{select} FOR UPDATE", app_id, str(target))
        held = Held.from_row(found[0]) if found else None
        return held.known(self.marker(target)) if held is not None and held.intent is not None else held

    def _lock(self, app_id: str, target: TableId) -> None:
        """Nobody else has the target's lock while this connection lives."""
        name = f"raycdc:{hashlib.sha256(f'{app_id} {target}'.encode()).hexdigest()[:40]}"
        if self.rows("SELECT GET_LOCK(%s, %s)", name, _LOCK_TIMEOUT_S) != [(1,)]:
            raise SinkError(
                f"{target}: another session in {self._database.address} has had the lock {name} for more than "
                f"{_LOCK_TIMEOUT_S} seconds: a driver that was replaced is still at work, or a statement of it waits "
                "for a reader of the table. Look at SHOW PROCESSLIST, end it, and start again."
            )

    def hold(self, app_id: str, target: TableId, held: Held, positions: Mapping[str, Any]) -> None:
        sets = ", ".join(f"`{name}` = %s" for name in (*Held.NAMES, "positions"))
        vector = held.vector
        _, written = self._execute(
            f"UPDATE {self.record} SET {sets}, `committed_at` = UTC_TIMESTAMP(6) WHERE `app_id` = %s AND `target` = %s "
            "AND `generation` <= %s AND (`epoch` < %s OR (`epoch` = %s AND `step` <= %s))",
            (
                *(*held.row(), json.dumps(dict(positions)), app_id, str(target)),
                *(vector.generation, vector.epoch, vector.epoch, vector.step),
            ),
        )
        if written != 1:
            raise FencedError(f"The record of {target} was written by a newer driver.")

    def owners(self, target: TableId) -> dict[str, bool]:
        found = self.rows(f"SELECT `app_id`, `created` FROM {self.record} WHERE `target` = %s", str(target))
        return {str(app_id): bool(created) for app_id, created in found}

    def forget_others(self, app_id: str, target: TableId) -> None:
        self.run(f"DELETE FROM {self.record} WHERE `target` = %s AND `app_id` <> %s", str(target), app_id)

    # -- the target

    def exists(self, target: TableId) -> bool:
        return self._comment(target) is not None

    def folded(self, app_id: str, target: TableId) -> str | None:
        if self.rows("SELECT @@lower_case_table_names") == [(0,)]:
            return None
        found = self.rows(
            f"SELECT `target` FROM {self.record} "
            "WHERE `app_id` = %s AND `target` <> %s AND LOWER(`target`) = LOWER(%s)",
            app_id,
            str(target),
            str(target),
        )
        return str(found[0][0]) if found else None

    def marker(self, target: TableId) -> str | None:
        comment = self._comment(target) or ""
        return comment.removeprefix(_MARK) if comment.startswith(_MARK) else None

    def is_empty(self, target: TableId) -> bool:
        return not self.rows(f"SELECT 1 FROM {_name(target)} LIMIT 1")

    def create(
        self, target: TableId, columns: Sequence[Column], key: Sequence[str], marker: str, *, replace: bool
    ) -> None:
        collation = self.collation()
        parts = [self.definition(column, key, collation) for column in columns]
        if key:
            parts.append(f"PRIMARY KEY ({', '.join(map(quote_name, key))})")
        # Beside each other: two targets of a database may be replaced at once.
        beside = hashlib.sha256(str(target).encode()).hexdigest()[:16]
        made = quote_name(target.db, f"{STAGE_PREFIX}new_{beside}") if replace else _name(target)
        statement = (
            f"CREATE TABLE {made} ({', '.join(parts)}) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COMMENT='{_MARK}{marker}'"
        )
        if not replace:
            self.run(f"CREATE DATABASE IF NOT EXISTS {quote_name(target.db)}")
            self.run(statement)
            return
        old = quote_name(target.db, f"{STAGE_PREFIX}old_{beside}")
        self.run(f"DROP TABLE IF EXISTS {made}, {old}")
        self.run(statement)
        self.run(f"RENAME TABLE {_name(target)} TO {old}, {made} TO {_name(target)}")
        self.run(f"DROP TABLE {old}")

    def adopt(self, target: TableId, columns: Sequence[Column], key: Sequence[str]) -> None:
        types = self._types(target)
        missing = []
        for column in columns:
            wanted, have = mysql_type(column.type, key=column.name in key), types.get(column.name)
            if have is None:
                missing.append(f"ADD COLUMN {self.definition(column, key, self.collation())}")
            elif have != wanted:
                raise TargetTakenError(
                    f"{target}: column {column.name} is {have} in the table that exists in {self._database.address}, "
                    f"and its values need {wanted}. Change its type, or choose another target."
                )
        check_mysql(
            self.rows, target, columns, key, exact=(self.collation(), *_EXACT), where=str(self._database.address)
        )
        if missing:
            self.run(f"ALTER TABLE {_name(target)} {', '.join(missing)}")

    def alter(self, target: TableId, present: Sequence[Column], plan: Plan, key: Sequence[str], marker: str) -> None:
        if plan.emptied:
            self.empty(target)
        if self.marker(target) != marker:
            clauses = self._clauses(target, present, plan, key)
            clauses.append(f"COMMENT = '{_MARK}{marker}'")
            self.run(f"ALTER TABLE {_name(target)} {', '.join(clauses)}")
        for column in plan.filled:
            default, value = str(column.default), "%s"
            if column.type.kind is TypeKind.BINARY:
                default, value = default.encode().hex(), "UNHEX(%s)"
            elif mysql_type(column.type, key=False) == "tinyint(1)":
                default = {"true": "1", "false": "0"}.get(default.lower(), default)
            same = "".join(f", {quote_name(name)} = {quote_name(name)}" for name in key)
            self.run(f"UPDATE {_name(target)} SET {quote_name(column.name)} = {value}{same}", default)

    def _clauses(self, target: TableId, present: Sequence[Column], plan: Plan, key: Sequence[str]) -> list[str]:
        """The one ALTER that carries the plan out on a table that has the columns of its record."""
        there = self._types(target).keys()
        if missing := [c.name for c in present if c.name not in there]:
            raise TargetTouchedError(
                f"{target} in {self._database.address} lacks column {missing[0]}, which its record names: somebody "
                "altered the table. Drop it and take a new snapshot of its source table."
            )
        collation = self.collation()
        before = {column.name: column for column in present}
        kept = {p.origin: p.column for p in plan.columns if p.origin is not None}
        clauses = [f"DROP COLUMN {quote_name(name)}" for name in before if name not in kept]
        for old, column in kept.items():
            retyped = self._database.retyped(before[old], column, key=column.name in key)
            # Columns of a key have types of their own and take no NULL.
            if old != column.name or retyped or plan.rekeyed:
                clauses.append(f"CHANGE COLUMN {quote_name(old)} {self.definition(column, key, collation)}")
        for column in (p.column for p in plan.columns if p.origin is None):
            if column.name in there and column.name not in before:
                clauses.append(f"DROP COLUMN {quote_name(column.name)}")
            clauses.append(f"ADD COLUMN {self.definition(column, key, collation)}")
        if plan.rekeyed:
            clauses += ["DROP PRIMARY KEY", f"ADD PRIMARY KEY ({', '.join(map(quote_name, key))})"]
        return clauses

    def empty(self, target: TableId) -> None:
        self.run(f"DELETE FROM {_name(target)}")

    def definition(self, column: Column, key: Sequence[str], collation: str) -> str:
        """The column as a CREATE or ALTER statement has it."""
        kind = mysql_type(column.type, key=column.name in key)
        text = f" CHARACTER SET utf8mb4 COLLATE {collation}" if kind.startswith(("varchar", "longtext")) else ""
        # Without NULL and a default, older servers' TIMESTAMP is the time of the row's last update
        # (explicit_defaults_for_timestamp).
        moment = " DEFAULT '2000-01-01 00:00:00'" if kind.startswith("timestamp") else ""
        return f"{quote_name(column.name)} {kind}{text}{f' NOT NULL{moment}' if column.name in key else ' NULL'}"

    def collation(self) -> str:
        """The server's best collation for telling texts apart."""
        found = self.rows(
            "SELECT COLLATION_NAME FROM information_schema.COLLATIONS WHERE COLLATION_NAME IN (%s, %s)", *_EXACT
        )
        return str(found[0][0]) if found else "utf8mb4_bin"

    def _comment(self, target: TableId) -> str | None:
        found = self.rows(
            "SELECT TABLE_COMMENT FROM information_schema.TABLES "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s AND TABLE_TYPE = 'BASE TABLE'",
            target.db,
            target.table,
        )
        return str(found[0][0]) if found else None

    def _types(self, target: TableId) -> dict[str, str]:
        """Column types as `mysql_type` spells them, without the display width that older servers add."""
        found = self.rows(
            "SELECT COLUMN_NAME, COLUMN_TYPE FROM information_schema.COLUMNS "
            "WHERE TABLE_SCHEMA = %s AND TABLE_NAME = %s",
            target.db,
            target.table,
        )
        return {
            name: kind if kind == "tinyint(1)" else re.sub(r"^((?:tiny|small|big)?int)\(\d+\)", r"\1", kind)
            for name, kind in found
        }

    # -- rows

    def staged_rows(self, name: str) -> int:
        count: int = self.rows(f"SELECT COUNT(*) FROM {quote_name(self._home, name)}")[0][0]
        return count

    def append(self, target: TableId, columns: Sequence[Column], name: str) -> None:
        names = ", ".join(quote_name(column.name) for column in columns)
        self.run(f"INSERT INTO {_name(target)} ({names}) SELECT {names} FROM {quote_name(self._home, name)}")

    def taken(self, target: TableId, key: Sequence[str], name: str) -> dict[str, Any] | None:
        match = " AND ".join(f"t.{quote_name(column)} = s.{quote_name(column)}" for column in key)
        names = ", ".join(f"t.{quote_name(column)}" for column in key)
        found = self.rows(
            f"SELECT {names} FROM {_name(target)} t JOIN {quote_name(self._home, name)} s ON {match} "
            f"WHERE s.{quote_name(CLAIMED)} LIMIT 1"
        )
        return dict(zip(key, found[0], strict=True)) if found else None

    def merge(
        self, target: TableId, columns: Sequence[Column], key: Sequence[str], gone: Sequence[str], staged: StagedTable
    ) -> None:
        table, stage = _name(target), quote_name(self._home, staged.name)
        names = ", ".join(quote_name(column.name) for column in columns)
        if staged.deleted:
            match = " AND ".join(f"t.{quote_name(name)} = s.{quote_name(name)}" for name in key)
            self.run(f"DELETE t FROM {table} t JOIN {stage} s ON {match} WHERE s.{quote_name(DELETED)}")
        # The key too: a TIMESTAMP in it could be one that the server sets where nobody does.
        sets = [f"{quote_name(c.name)} = VALUES({quote_name(c.name)})" for c in columns]
        sets += [f"{quote_name(name)} = NULL" for name in gone]
        self.run(
            f"INSERT INTO {table} ({names}) SELECT {names} FROM {stage} WHERE NOT {quote_name(DELETED)} "
            f"ON DUPLICATE KEY UPDATE {', '.join(sets)}"
        )


def _name(target: TableId) -> str:
    return quote_name(target.db, target.table)
