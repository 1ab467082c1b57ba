"""A table is parked for what is its own alone: a bug, a dead JVM and a whole broker's trouble are no table's."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import requests
from confluent_kafka import KafkaError, KafkaException
from deltalake.exceptions import CommitFailedError
from py4j.protocol import Py4JError, Py4JNetworkError
from pyiceberg.exceptions import (
    BadRequestError,
    CommitStateUnknownException,
    ForbiddenError,
    ServiceUnavailableError,
    UnauthorizedError,
    ValidationError,
)
from pymongo.errors import OperationFailure
from pyspark.errors import AnalysisException, IllegalArgumentException, ParseException, PythonException
from sqlalchemy.exc import OperationalError

from raycdc.errors import (
    ColumnsRefusedError,
    NameRefusedError,
    RaycdcError,
    SinkError,
    SinkUnavailableError,
    TargetModifiedError,
    ValueRefusedError,
)
from raycdc.model import TableId
from raycdc.plugins import PluginGroup, load_plugin
from raycdc.sinks.delta import spark_merge
from raycdc.sinks.iceberg.refusals import is_the_catalogs
from raycdc.sinks.jdbc.refusals import (
    advised,
    mysql_refusal,
    of_table,
    postgres_refusal,
    without_quoted,
    without_value,
)
from raycdc.sinks.kafka.sink import Topics
from raycdc.sinks.mongodb.server import _refusal as mongodb_refusal
from raycdc.spark.derive import _is_a_values

ORDERS = TableId("shop", "orders")
TARGET: Any = SimpleNamespace(
    path=Path("/lake/shop/orders"), name=ORDERS, location="The Delta table /lake/shop/orders", refresh=lambda: True
)


class Spark:
    """A session on which each statement raises `error`."""

    def __init__(self, error: Exception) -> None:
        self.conf: dict[str, str] = {}
        self._error = error

    def newSession(self) -> Any:
        return SimpleNamespace(sql=self._sql, conf=SimpleNamespace(set=self.conf.__setitem__))

    def _sql(self, _: str) -> Any:
        raise self._error


BUGS = (TypeError("a column too many"), KeyError("id"), AssertionError(), ParseException("[PARSE_SYNTAX_ERROR] at 'x'"))


@pytest.mark.parametrize("bug", BUGS, ids=repr)
def test_a_bug_on_the_way_to_spark_stays_one(bug: Exception) -> None:
    spark = Spark(bug)
    with pytest.raises(type(bug)):
        spark_merge.set_options(spark, TARGET, {"delta.x": "1"})
    with pytest.raises(type(bug)):
        spark_merge.optimize(spark, TARGET, (), target_bytes=1)


@pytest.mark.parametrize(
    ("cause", "said"),
    [
        (AnalysisException("[DELTA_UNKNOWN_CONFIGURATION] delta.x"), ColumnsRefusedError),
        (IllegalArgumentException("[DELTA_ILLEGAL] delta.x"), ColumnsRefusedError),
        (Py4JError("io.delta.exceptions.ConcurrentAppendException: x"), TargetModifiedError),
        (Py4JNetworkError("Answer from Java side is empty"), SinkError),
        (Py4JError("java.io.IOException: No space left on device"), SinkError),
        (ConnectionRefusedError(111, "Connection refused"), SinkError),
    ],
)
def test_what_spark_says_of_a_property_is_the_columns_only_where_it_is_the_tables(
    cause: Exception, said: type[SinkError]
) -> None:
    with pytest.raises(SinkError, match=r"cannot have the properties delta\.x") as caught:
        spark_merge.set_options(Spark(cause), TARGET, {"delta.x": "1"})
    assert type(caught.value) is said


def test_another_writer_wins_over_optimising() -> None:
    rival = Py4JError("org.apache.spark.SparkException: [DELTA_CONCURRENT_DELETE_READ] x")
    with pytest.raises(CommitFailedError):
        spark_merge.optimize(Spark(rival), TARGET, (), target_bytes=1)


def test_a_property_may_have_a_quote() -> None:
    assert spark_merge._literal("it's \\ it") == "'it\\'s \\\\ it'"


@pytest.mark.parametrize(
    ("cause", "a_values"),
    [
        (PythonException("Traceback … ValueError: month must be in 1..12"), True),
        (Py4JNetworkError("Answer from Java side is empty"), False),
        (PythonException('File "x/raycdc/spark/derive.py", line 1, in _joined\nAssertionError: another order'), False),
        (PythonException("org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)"), False),
        (PythonException("java.lang.OutOfMemoryError: Java heap space"), False),
        (PythonException("java.io.IOException: No space left on device"), False),
    ],
)
def test_a_job_that_failed_is_a_values_fault_only_where_an_expression_or_a_function_failed(
    cause: Exception, a_values: bool
) -> None:
    assert _is_a_values(cause) is a_values


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (KafkaError.TOPIC_EXCEPTION, NameRefusedError),
        (KafkaError.POLICY_VIOLATION, TargetModifiedError),
        (KafkaError.INVALID_REPLICATION_FACTOR, SinkError),
        (KafkaError._TIMED_OUT, SinkUnavailableError),
        (KafkaError._ALL_BROKERS_DOWN, SinkUnavailableError),
        (KafkaError.CLUSTER_AUTHORIZATION_FAILED, SinkError),
    ],
)
def test_a_topic_that_cannot_be_made_is_its_tables_fault_only_where_the_broker_says_so(
    code: int, said: type[SinkError]
) -> None:
    plugin = load_plugin(PluginGroup.SINKS, "kafka")
    section = {"bootstrap_servers": "127.0.0.1:1", "topic": "{db}.{table}", "format": {"type": "maxwell-json"}}
    topics = Topics(plugin.config(type="kafka", **section), {"bootstrap.servers": "127.0.0.1:1"})

    def fail(_: float) -> None:
        raise KafkaException(KafkaError(code))

    admin: Any = topics._admin
    admin.create_topics = lambda new: {new[0].topic: SimpleNamespace(result=fail)}
    with pytest.raises(SinkError, match=r"Topic shop\.orders at 127\.0\.0\.1:1") as caught:
        topics.create("shop.orders", 1)
    assert type(caught.value) is said
    with pytest.raises(SinkError) as caught:
        topics.create("ddl", 1, is_tables=False)
    assert type(caught.value) is (SinkUnavailableError if said is SinkUnavailableError else SinkError)


@pytest.mark.parametrize(
    ("cause", "catalogs"),
    [
        (requests.ConnectionError("refused"), True),
        (requests.Timeout("read"), True),
        (ServiceUnavailableError("503"), True),
        (UnauthorizedError("401"), True),
        (CommitStateUnknownException("500"), True),
        (OperationalError("SELECT 1", None, Exception("database is locked")), True),
        (ForbiddenError("403: shop.orders"), False),
        (BadRequestError("400: no such snapshot"), False),
        (ValidationError("snapshot"), False),
        (FileNotFoundError("metadata.json"), False),
    ],
    ids=repr,
)
def test_a_catalog_that_is_away_is_the_sinks(cause: Exception, catalogs: bool) -> None:
    assert is_the_catalogs(cause) is catalogs


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (postgres_refusal("42601"), SinkError),
        (postgres_refusal("42P02"), SinkError),
        (postgres_refusal("42703"), TargetModifiedError),
        (postgres_refusal("22001"), ValueRefusedError),
        (postgres_refusal("08006"), SinkUnavailableError),
        (mysql_refusal(1064), SinkError),
        (mysql_refusal(1264), ValueRefusedError),
    ],
)
def test_a_statement_that_is_none_is_a_bug_of_ours(refusal: type[RaycdcError], said: type[RaycdcError]) -> None:
    assert refusal is said


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (13, TargetModifiedError),  # not authorized on shop to execute command
        (73, NameRefusedError),  # Invalid namespace specified
        (13297, NameRefusedError),  # db already exists with different case
        (121, ValueRefusedError),  # Document failed validation
        (18, SinkError),  # Authentication failed
        (8000, SinkError),
    ],
)
def test_errors_of_mongodb_by_what_they_concern(code: int, error: type[SinkError]) -> None:
    assert mongodb_refusal(OperationFailure("words", code)) is error


def test_an_error_that_is_not_listed_parks_the_table_of_its_statement() -> None:
    target = TableId("shop", "t")
    written = advised(mysql_refusal(1449), "no such definer", code=1449, statement="INSERT INTO `shop`.`t` …")
    assert isinstance(of_table(written, target, exists=lambda: True), TargetModifiedError)
    for error in (
        advised(mysql_refusal(1064), "syntax", code=1064, statement="INSERT INTO `shop`.`t` …"),
        advised(mysql_refusal(1449), "no such definer", code=1449, statement="UPDATE `home`.`raycdc_commit` …"),
        advised(mysql_refusal(1449), "no such definer", code=1449),
        advised(mysql_refusal(1213), "deadlock", code=1213, statement="INSERT INTO `shop`.`t` …"),
        SinkError("It has 2 rows instead of 3."),
    ):
        assert of_table(error, target, exists=lambda: True) is None


def test_a_missing_table_is_another_one_if_the_target_exists() -> None:
    target = TableId("shop", "t")
    error = advised(mysql_refusal(1146), "Table 'shop.audit' doesn't exist", code=1146, statement="INSERT …")
    assert isinstance(of_table(error, target, exists=lambda: True), TargetModifiedError)
    assert of_table(error, target, exists=lambda: False) is None
    stage = advised(mysql_refusal(1146), "Table 'home.raycdc_stage_1' doesn't exist", code=1146, statement="INSERT …")
    assert of_table(stage, target, exists=lambda: True) is None


@pytest.mark.parametrize("code", [1030, 1037, 1114, 1206, 1412, 1615, 1792])
def test_a_full_disk_or_memory_of_mysql_is_waited_for(code: int) -> None:
    assert mysql_refusal(code) is SinkUnavailableError


def test_a_message_of_a_trigger_is_not_shown() -> None:
    assert "4711" not in without_quoted("ZX001", "4711")
    assert "4711" not in without_quoted("38000", "4711")
    assert without_quoted("55000", "no replica identity") == "no replica identity"
    assert "4711" not in without_value("4711", 31001)
    assert "4711" not in without_value("Table has no partition for value 4711", 1526)
    assert without_value("Table has no partition for value from column_list", 1526).endswith("from column_list")
