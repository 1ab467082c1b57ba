"""Tables of a PostgreSQL, MySQL or MariaDB server, either equal to the source tables or holding their changelogs.

Stage tasks load rows into staging tables of the target database: snapshot rows unchanged, and log rows compacted to the
last row of each key. The commit of a table is one transaction. It locks the table's row in ``raycdc_commit``. It checks
that the target does not hold the epoch yet, and that no newer driver has taken over. It moves the staged rows to the
target by a few set-based statements. Finally it writes epoch, step, generation and positions into the locked row. Rows
and record are therefore always consistent. A suspended driver that wakes up finds a newer generation in the row and
stops.

| write | snapshot rows | log rows |
|---|---|---|
| changelog | append | append |
| upsert, table created or emptied by this pipeline | append | merge |
| … of several source tables, or with another key | merge, if no key is taken | the same |
| upsert, ``on_existing = "merge"`` | merge | merge |

*Restored servers*: if the server fails over to an older copy or is restored while the driver runs, committed epochs are
lost. The sink remembers each target's newest vector, and commits nothing to a target that holds an older one.

*Crashes*: until the transaction ends, nothing of the epoch is in the target; the next commit of the target drops unused
staging tables. On PostgreSQL, DDL is part of the transaction. On MySQL, it is one statement that leaves a mark on the
table, by which the next attempt sees that the statement was carried out (`mysql`).

Tables commit one by one: an epoch is atomic per table, not across tables. `check_sink` checks the account's permissions
for ``raycdc check``, and creates nothing.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import ClassVar, Literal

import pyarrow as pa

from raycdc.config.checks import CheckResult, readable_on_the_way
from raycdc.config.tls import TlsMode
from raycdc.core.secrets import as_private
from raycdc.errors import ColumnsRefusedError, ConfigError, SinkError, TableRefusedError
from raycdc.model import META_COLUMNS, Column, TableId
from raycdc.model.column_names import mysql_fold
from raycdc.model.rules.names import LIMITS
from raycdc.sinks.api import CHANGELOG, UPSERT, SinkContext, TargetShape
from raycdc.sinks.api import TableCommit as Work
from raycdc.sinks.changes import check_key, check_unmerged, fitted_to
from raycdc.sinks.jdbc.database import DatabaseSession, open_database
from raycdc.sinks.jdbc.plugin import Address, JdbcSinkConfig
from raycdc.sinks.jdbc.refusals import of_table
from raycdc.sinks.jdbc.target import JdbcSteps, StagedJdbc, stage_prefix, target_key
from raycdc.sinks.jdbc.tasks import LoadStagingTable
from raycdc.sinks.jdbc.types import demanded, mysql_key_bytes, mysql_types, postgres_type
from raycdc.sinks.record import TargetRecord
from raycdc.sinks.rows import DELETED, target_columns
from raycdc.sinks.source_tables import CLAIMED, MergedTarget
from raycdc.sinks.steps import ExactlyOnceSink, StageBatch
from raycdc.sinks.targets import quoted
from raycdc.sinks.task_inputs import TASK_BYTES_MAX, Input, split, task_inputs
from raycdc.state.files.folder import private_file


def check_sink(config: JdbcSinkConfig, targets: Sequence[TableId] = ()) -> list[CheckResult]:
    """Return all findings. `targets` are the tables that the pipeline will write. If an account of MySQL has privileges
    on single tables, its privileges are not checked, because they may be enough.
    """
    address = config.address()
    way = readable_on_the_way(
        str(address),
        [address.host],
        encrypted=address.tls_mode.resolved(address.host) is not TlsMode.DISABLED,
        fix='Set sink.tls.mode, to "verify-identity" where you can, and sink.tls.ca.',
    )
    return [*_account(address, targets), *way]


def _account(address: Address, targets: Sequence[TableId]) -> list[CheckResult]:
    """Check that the account can connect, and may create everything that is needed."""
    try:
        database = open_database(address)
        with database.session() as session:
            lacking = session.lacking(sorted({target.db for target in targets}))
        database.close()
    except SinkError as cause:
        return [CheckResult("sink", str(cause), "Correct sink.url, sink.user, sink.password and sink.tls.")]
    connected = CheckResult("sink", f"Connected to {address}.", ok=True)
    if lacking:
        text = f"{address.user} may not create what the sink needs in {address}."
        return [connected, CheckResult("sink privileges", text, " ".join(lacking))]
    if lacking is None:
        return [connected]
    return [connected, CheckResult("sink privileges", f"{address.user} may create what the sink needs.", ok=True)]


def _exists(session: DatabaseSession, target: TableId) -> bool:
    """Return True if the table `target` exists, after a rollback."""
    session.rollback()
    return session.tables.there(target) is not None


class JdbcSink(ExactlyOnceSink[JdbcSteps]):
    """The database sink; see the module's docstring."""

    kind: ClassVar[str] = "jdbc"
    writes: ClassVar[tuple[str, ...]] = (UPSERT, CHANGELOG)
    #: Rows of several source tables may go to one target, because a key that comes from two of them is found and
    #: refused.
    merges_sources: ClassVar[bool] = True

    def __init__(self, config: JdbcSinkConfig) -> None:
        super().__init__()
        self._config = config
        self._address = config.address()
        #: The file from which tasks read the password, readable only by this user.
        self._password_file: Path | None = None
        self._written = ""
        #: For each target, True if snapshot rows may be appended. Staging reads this mapping while another thread may
        #: be committing.
        self._appendable: dict[TableId, bool] = {}
        #: True once the commit table exists, which `open` creates.
        self._prepared = True

    def __repr__(self) -> str:
        return f"JdbcSink({self._address})"

    def open(self, context: SinkContext) -> None:
        self._connect(context)
        self._database.prepare()
        if self._address.password:
            self._written = as_private(self._address.password)
            self._password_file = private_file(Path(context.private or tempfile.gettempdir()), self._written)

    def inspect(self, context: SinkContext) -> None:
        self._connect(context)
        with self._database.session() as session:
            self._prepared = session.is_prepared()

    def _connect(self, context: SinkContext) -> None:
        super().inspect(context)
        try:
            self._database = open_database(self._address)
        except SinkError as cause:
            raise ConfigError(f"sink.url: {cause}") from cause

    def check(self, targets: Sequence[TableId], *, pipeline: str) -> list[CheckResult]:
        return check_sink(self._config, targets)

    def statement(self, target: TargetShape) -> str:
        is_postgres = self._address.kind == "postgresql"
        quote = '"' if is_postgres else "`"
        if is_postgres:
            types = {column.name: postgres_type(column.type) for column in target.columns}
        else:
            types = mysql_types(target.name, target.columns, target.key)
        demands = demanded(target.columns, target.key) if target.key else ()
        parts = [
            f"{quoted(name, quote)} {kind}{' NOT NULL' if name in demands else ''}" for name, kind in types.items()
        ]
        if target.key:
            parts.append(f"PRIMARY KEY ({', '.join(quoted(name, quote) for name in target.key)})")
        name = f"{quoted(target.name.db, quote)}.{quoted(target.name.table, quote)}"
        return f"CREATE TABLE {name} ({', '.join(parts)})"

    def unfit(self, targets: Sequence[TableId]) -> Mapping[TableId, TableRefusedError]:
        refused: dict[TableId, TableRefusedError] = {}
        if not self._prepared:
            return refused
        with self._database.session() as session:
            for target in targets:
                try:
                    JdbcSteps(target, session, self._database, self._context, writes=False, prepared=True).inspect()
                except TableRefusedError as error:
                    refused[target] = error
                    session.rollback()
        return refused

    @contextmanager
    def opened(self, target: TableId, *, writes: bool) -> Iterator[JdbcSteps]:
        with self._database.session() as session:
            try:
                yield JdbcSteps(
                    target,
                    session,
                    self._database,
                    self._context,
                    writes=writes,
                    prepared=self._prepared,
                )
                if writes:
                    session.commit()
            except SinkError as error:
                parks = of_table(error, target, exists=partial(_exists, session, target))
                if parks is None:
                    raise
                raise parks from error

    def check_work(self, work: Work) -> None:
        names = [mysql_fold(column.name) for column in work.schema.columns]
        if self._upsert:
            check_key(work)
        ours = [DELETED, *([CLAIMED] if work.merged else [])] if self._upsert else sorted(META_COLUMNS)
        if taken := [name for name in ours if name in names]:
            raise ColumnsRefusedError(f"{work.target}: column {taken[0]} has a name that raycdc needs. Rename it.")
        columns = target_columns(work.schema, changelog=not self._upsert)
        key = target_key(work, self._context)
        self._database.check_columns(work.target, columns, key)
        self._check_size(work, columns, key)
        if self._upsert:
            check_unmerged(work, self._context.on_existing)
        self._appendable.pop(work.target, None)

    def _check_size(self, work: Work, columns: Sequence[Column], key: Sequence[str]) -> None:
        """Raise `ColumnsRefusedError` if the target or its staging table exceeds the server's limits.

        The staging table has additional columns. A target that just fits could therefore be created and get snapshot
        rows, but no changes could be staged for it.
        """
        marks = 1 + bool(work.merged) if self._upsert else 0
        is_postgres = self._address.kind == "postgresql"
        keyed = () if is_postgres else [mysql_key_bytes(c.type) for c in columns if c.name in key]
        if why := LIMITS[self._address.kind].exceeded(len(columns) + marks, len(key), sum(keyed)):
            with_marks = f", {marks} of raycdc's own among them" if marks and "columns there" in why else ""
            raise ColumnsRefusedError(
                f"{work.target} {why}{with_marks}. Leave some out with a [[transform]], or the table (source.exclude)."
            )

    def prepare(self, work: Work, batch: StageBatch) -> StagedJdbc:
        held = self._record(work.target)
        if held is not None:
            work = fitted_to(work, self._context, {column.name for column in held.columns})
        staged = StagedJdbc()
        may_append = self._upsert and not work.merged and self._may_append(work.target)
        appended, merged = split(work.segments, upsert=self._upsert, may_append=may_append)
        for inputs in task_inputs(appended, parallelism=self._context.parallelism, task_bytes_max=TASK_BYTES_MAX):
            task = self._task(work, inputs, "append" if self._upsert else "changelog")
            batch.add(task, staged.append.append)
        for inputs in merged:
            batch.add(self._task(work, inputs, "merge"), staged.merge.append)
        return staged

    def unrepresentable(self, work: Work, rows: pa.RecordBatch) -> pa.Array:
        return self._database.unrepresentable(rows, work.schema.columns, target_key(work, self._context))

    def after_commit(self, work: Work, staged: StagedJdbc) -> None:
        prefix = stage_prefix(work.target, self._context.app_id)
        self._database.drop_stages(prefix, up_to=f"{prefix}{work.epoch:010d}")

    def close(self) -> None:
        if self._password_file is not None:
            self._password_file.unlink(missing_ok=True)
        self._database.close()

    def _may_append(self, target: TableId) -> bool:
        if target not in self._appendable:
            held = self._record(target)
            self._appendable[target] = held is not None and held.created
        return self._appendable[target]

    def _task(self, work: Work, inputs: list[Input], mode: Literal["append", "changelog", "merge"]) -> LoadStagingTable:
        return LoadStagingTable(
            self._context.table_input(work, inputs),
            target=str(work.target),
            prefix=f"{stage_prefix(work.target, self._context.app_id)}{work.epoch:010d}_",
            address=self._address.for_tasks(self._secret_file()),
            mode=mode,
            merged=MergedTarget.of(work) if mode == "merge" else None,
        )

    def _secret_file(self) -> str:
        """Return the file with the present password, because tasks on other machines cannot resolve a reference to
        it.
        """
        if (file := self._password_file) is None:
            return ""
        password = as_private(self._address.password)
        if password != self._written:
            private_file(file.parent, password).replace(file)
            self._written = password
        return str(file)

    def blocked(self, target: TableId, *, wholly: bool = False) -> str:
        with self._database.session() as session:
            return session.holders(self._context.app_id, target, wholly=wholly)

    def _record(self, target: TableId) -> TargetRecord | None:
        with self._database.session() as session:
            return session.held(self._context.app_id, target)
