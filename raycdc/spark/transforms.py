"""Resolves the expressions of transforms by Spark's analyzer, on the driver. No data is read and no job is started.

Each item of a projection is analyzed by itself on an empty DataFrame with the table's columns, so that an error can
name its position. An expression must return one value per row, of a type that sinks support. It must be deterministic:
the before-image of a change must equal the after-image of the previous change of the row, and the two are computed in
different epochs.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import Any

from raycdc.errors import ConfigError, SchemaError
from raycdc.model import LogicalType, TableId, TableSchema, TypeKind
from raycdc.model.column_names import spark_fold
from raycdc.model.evolution.apply import find_column
from raycdc.model.rules.transform import Expression, Star, Transform, Transforms
from raycdc.sinks import jvm_end
from raycdc.transform import PlainResolver, ResolvedColumn, ResolvedTransform, Uses, finished
from raycdc.transform.resolved import META_LOGICAL, is_plain, plain_column, star_columns

#: Expressions that Spark calls deterministic, although their value is constant only within a query.
_OF_THE_MOMENT = frozenset(
    {"CurrentTimestamp", "Now", "CurrentDate", "LocalTimestamp", "CurrentTime", "CurrentUser", "CurrentDatabase",
     "CurrentCatalog", "CurrentTimeZone", "CurDateExpressionBuilder", "CurrentBatchTimestamp"}
)  # fmt: skip

_TYPES = {
    "BOOLEAN": TypeKind.BOOLEAN,
    "TINYINT": TypeKind.INT8,
    "SMALLINT": TypeKind.INT16,
    "INT": TypeKind.INT32,
    "BIGINT": TypeKind.INT64,
    "FLOAT": TypeKind.FLOAT32,
    "DOUBLE": TypeKind.FLOAT64,
    "STRING": TypeKind.STRING,
    "BINARY": TypeKind.BINARY,
    "DATE": TypeKind.DATE,
}


@dataclass(frozen=True, slots=True)
class _Analyzed:
    """An analyzed expression: its name, its type, and the columns that it uses.

    `column` is set if it is only a column.
    """

    name: str
    type: str
    nullable: bool
    uses: frozenset[str]
    column: str = ""


class TransformSession:
    """Returns the present session, in which the functions that transforms name are registered; callable from any
    thread.

    After a JVM has ended, `session` returns a new session, and may block until it is up.
    """

    def __init__(self, session: Callable[[], Any], transforms: Transforms) -> None:
        """Register the functions. Raises `ConfigError` for a function that cannot be used."""
        self._session, self._transforms = session, transforms
        self._lock = Lock()
        self._knows: Any = None
        self()

    def __call__(self) -> Any:
        with self._lock:
            session = self._session()
            if session is not self._knows:
                with _asking(session):
                    _register(session, self._transforms)
                self._knows = session
            return session


class SparkResolver:
    """A `TransformResolver` on the Spark session that `session` returns; used by one thread at a time."""

    def __init__(self, session: TransformSession) -> None:
        self._session = session
        self._plain = PlainResolver()

    def resolve(self, table: TableId, transform: Transform, schema: TableSchema, key_path: str) -> ResolvedTransform:
        """Resolve the transform, as `TransformResolver.resolve` says.

        Raises `SparkLostError` if the session's JVM is gone; the caller may then call it again.
        """
        if is_plain(transform):
            return self._plain.resolve(table, transform, schema, key_path)
        session = self._session()
        with _asking(session):
            return self._analyzed(session, table, transform, schema, key_path)

    def _analyzed(
        self, session: Any, table: TableId, transform: Transform, schema: TableSchema, key_path: str
    ) -> ResolvedTransform:
        where = f"{key_path}: {table}"
        empty = _empty(session, schema)
        columns: list[ResolvedColumn] = []
        used: set[str] = set()
        for item in transform.items:
            if isinstance(item, Star):
                columns += star_columns(where, item, schema)
                used |= {spark_fold(name) for name in item.left_out}
            elif isinstance(item, Expression):
                at = f"{where}: projection, character"
                analyzed = _analyze(empty, item.sql, at, item.at)
                used |= analyzed.uses
                columns.append(_column(analyzed, item.sql, f"{at} {item.at + 1}", schema))
            else:
                columns.append(plain_column(where, item, schema))
                used.add(spark_fold(columns[-1].stored))
        in_filter: frozenset[str] = frozenset()
        if transform.filter:
            analyzed = _analyze(empty, transform.filter, f"{where}: filter, character", 0)
            if analyzed.type != "BOOLEAN":
                raise SchemaError(f"{where}: filter: it is {analyzed.type}, not true or false.")
            in_filter = analyzed.uses
        uses = Uses(
            frozenset((used | in_filter) - META_LOGICAL.keys() - {""}),
            frozenset(used & META_LOGICAL.keys()),
            in_filter & META_LOGICAL.keys(),
        )
        return finished(table, transform, schema, columns, uses=uses, key_path=key_path)


@contextmanager
def _asking(session: Any) -> Iterator[None]:
    """Raise `SparkLostError` if the block, which uses `session`, fails because its JVM is gone."""
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        yield
    except (Py4JError, PySparkException, SchemaError, ConnectionError, EOFError) as cause:
        if (lost := jvm_end.lost(session, cause)) is not None:
            raise lost from cause
        raise


def _empty(session: Any, schema: TableSchema) -> Any:
    """Return a DataFrame without rows that has the columns of the table and of `META_COLUMNS`."""
    from pyspark.sql.types import StructType

    return session.createDataFrame([], StructType.fromDDL(expression_ddl(schema)))


def _register(spark: Any, transforms: Transforms) -> None:
    """Register the functions that `transforms` name in a form that executors on other machines can load."""
    from pyspark.cloudpickle import register_pickle_by_value

    known: dict[str, str] = {}
    for index, transform in enumerate(transforms.all):
        for name, path in transform.udfs:
            key_path = f"transform[{index}].udf.{name}"
            if known.setdefault(spark_fold(name), path) != path:
                raise ConfigError(f"{key_path}: another transform calls {known[spark_fold(name)]} so. Rename one.")
            function = load_function(path, key_path)
            if not str(spark.sparkContext.master).startswith("local"):
                # Executors on other machines do not have the module.
                register_pickle_by_value(sys.modules[path.partition(":")[0]])  # type: ignore[no-untyped-call]
            spark.udf.register(name, function)


def expression_ddl(schema: TableSchema) -> str:
    """Return the SQL column list of the columns that expressions may name: the table's, and the metadata columns."""
    meta = ", ".join(f"`{name}` {kind.spark()}" for name, kind in META_LOGICAL.items())
    return f"{schema.spark_ddl()}, {meta}"


def load_function(path: str, key_path: str) -> Any:
    """Return the user-defined function at ``package.module:name``.

    Raises `ConfigError` if it cannot be imported, or is no deterministic function that Spark can call.
    """
    module, _, name = path.partition(":")
    try:
        with _working_folder_last():
            function = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError) as cause:
        raise ConfigError(f'{key_path}: "{path}" cannot be imported: {cause}') from cause
    if not hasattr(function, "returnType") or not hasattr(function, "evalType"):
        raise ConfigError(
            f'{key_path}: "{path}" does not say what it returns. Make it with pyspark.sql.functions.udf or pandas_udf: '
            '@udf(returnType="string", useArrow=True)'
        )
    if not getattr(function, "deterministic", True):
        raise ConfigError(f'{key_path}: "{path}" is not deterministic: before-images would not equal after-images.')
    return function


@contextmanager
def _working_folder_last() -> Iterator[None]:
    """Make modules of the working folder importable during the block. Installed packages have priority."""
    here = os.getcwd()  # noqa: PTH109 - a text, as in sys.path
    sys.path.append(here)
    try:
        yield
    finally:
        sys.path.remove(here)


def _column(analyzed: _Analyzed, sql: str, at: str, schema: TableSchema) -> ResolvedColumn:
    if spark_fold(analyzed.column) in META_LOGICAL:
        stored = spark_fold(analyzed.column)
        return ResolvedColumn(analyzed.name, META_LOGICAL[stored], stored=stored)
    if (index := find_column(schema, analyzed.column)) is not None:
        column = schema.columns[index]
        return ResolvedColumn(analyzed.name, column.type, column.nullable, stored=column.name)
    if not _has_name(sql, analyzed.name):
        raise SchemaError(f"{at}: {sql!r} needs a name: {sql} AS …")
    return ResolvedColumn(analyzed.name, _logical(analyzed.type, at, analyzed.name), analyzed.nullable, sql=sql)


def _has_name(sql: str, name: str) -> bool:
    """Return True if the user gave the column the name `name`, instead of Spark making it from the expression."""
    written, made = spark_fold(sql), spark_fold(name)
    return written.rstrip("`").endswith(made.replace("`", "``")) and written != made


def _logical(sql_type: str, at: str, name: str) -> LogicalType:
    if sql_type in _TYPES:
        return LogicalType(_TYPES[sql_type])
    if sql_type.startswith("DECIMAL("):
        precision, scale = sql_type[8:-1].split(",")
        return LogicalType(TypeKind.DECIMAL, precision=int(precision), scale=int(scale))
    if sql_type == "TIMESTAMP":
        return LogicalType(TypeKind.TIMESTAMP, fsp=6)
    if sql_type == "TIMESTAMP_NTZ":
        return LogicalType(TypeKind.DATETIME, fsp=6)
    hint = "CAST(NULL AS …) says which type it has" if sql_type == "VOID" else "make a text of it, such as with to_json"
    raise SchemaError(f"{at}: column {name!r} is {sql_type}, which no sink has; {hint}.")


def _analyze(empty: Any, sql: str, at: str, offset: int) -> _Analyzed:
    """Analyze `sql`, which is one expression.

    Raises a `SchemaError` that begins with `at` and the character's number if it cannot be used.
    """
    plan = _plan(empty, sql, at, offset)
    here = f"{at} {offset + 1}"
    if plan.getClass().getSimpleName() != "Project" or plan.child().getClass().getSimpleName() == "Project":
        raise SchemaError(f"{here}: {sql!r} takes more than the values of one row, such as a sum over rows.")
    if plan.child().getClass().getSimpleName() not in ("LogicalRDD", "LocalRelation"):
        raise SchemaError(f"{here}: {sql!r} makes more than one row of a row.")
    if plan.projectList().size() != 1:
        raise SchemaError(f"{here}: {sql!r} makes several columns. Only * by itself may.")
    expression = plan.projectList().apply(0)
    kinds = list(_kinds(expression))
    if invalid := [kind for kind in kinds if "Subquery" in kind or kind in ("ListQuery", "Exists")]:
        raise SchemaError(f"{here}: {sql!r} asks other tables ({invalid[0]}), which change by themselves.")
    moment = [kind for kind in kinds if kind in _OF_THE_MOMENT]
    if moment or not expression.deterministic():
        what = moment[0] if moment else "a random or counting function"
        raise SchemaError(
            f"{here}: {sql!r} has another value each time it is computed ({what}), so a before-image would not equal "
            "the after-image before it. Leave it out."
        )
    inner = expression.child() if kinds[0] == "Alias" else expression
    column = inner.name() if inner.getClass().getSimpleName() == "AttributeReference" else ""
    references = expression.references().toSeq()
    names = frozenset(spark_fold(references.apply(i).name()) for i in range(references.size()))
    if not column and _holds_star(sql):
        raise SchemaError(
            f"{here}: {sql!r} takes all columns, and would be another value when one is added. Name them."
        )
    return _Analyzed(expression.name(), inner.dataType().sql(), bool(expression.nullable()), names, column)


def _plan(empty: Any, sql: str, at: str, offset: int) -> Any:
    from pyspark.errors import PySparkException

    try:
        with quiet_errors():
            return empty.selectExpr(sql)._jdf.queryExecution().analyzed()
    except PySparkException as cause:
        raise SchemaError(f"{at} {offset + _sql_offset(cause, sql) + 1}: {_message(cause)}") from cause


@contextmanager
def quiet_errors() -> Iterator[None]:
    """Suppress pyspark's log of expression errors with Java tracebacks during the block, because raycdc reports the
    errors.
    """
    from pyspark.logger import PySparkLogger

    # The logger must be created by pyspark's class, because one made by `logging.getLogger` does not accept its
    # messages.
    logger = PySparkLogger.getLogger("SQLQueryContextLogger")
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


def _sql_offset(error: Any, sql: str) -> int:
    """Return the position of the error in `sql`, from 0."""
    contexts = error.getQueryContext() or []
    for context in contexts:
        if context.fragment():
            return int(context.startIndex())
    if where := re.search(r"\(line (\d+), pos (\d+)\)", str(error)):
        lines = sql.splitlines(keepends=True)[: int(where[1]) - 1]
        return sum(map(len, lines)) + int(where[2])
    return 0


def _message(error: Any) -> str:
    """Return the first sentence or two of Spark's message, without its error codes and plan."""
    parameters = error.getMessageParameters() or {}
    if (error.getCondition() or "").startswith("UNRESOLVED_COLUMN"):
        near = parameters.get("proposal", "").replace("`", "")
        return f"there is no column {parameters.get('objectName', '?').strip('`')!r}" + (
            f"; near: {near}." if near else "."
        )
    text = str(error).strip().split(" SQLSTATE")[0].split("\n")[0]
    return re.sub(r"^\[[A-Z_0-9.]+\] ", "", text)


def _kinds(expression: Any) -> Iterator[str]:
    """Yield the class names of the expression's nodes, the outermost first."""
    yield expression.getClass().getSimpleName()
    children = expression.children()
    for index in range(children.size()):
        yield from _kinds(children.apply(index))


def _holds_star(sql: str) -> bool:
    """Return True if ``*`` in the expression stands for columns, and is not a multiplication."""
    texts = r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"|`(?:[^`]|``)*`"
    bare = re.sub(texts, "x", sql)
    return re.search(r"[(,.]\s*\*", bare) is not None
