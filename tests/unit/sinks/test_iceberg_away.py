"""Which errors of an Iceberg catalog say that it is away, so that the same is asked again."""

from __future__ import annotations

import sqlite3
from typing import Any

import pymysql
import pytest
from botocore.exceptions import ClientError, EndpointConnectionError, ReadTimeoutError
from botocore.exceptions import SSLError as AmazonsSSLError
from pyiceberg.exceptions import (
    BadRequestError,
    CommitFailedException,
    CommitStateUnknownException,
    RESTError,
    ServerError,
    TooManyRequestsError,
)
from requests.exceptions import ChunkedEncodingError, ConnectTimeout, InvalidURL, SSLError
from requests.exceptions import ConnectionError as NoAnswer
from sqlalchemy.exc import DBAPIError, OperationalError

from raycdc.config import Secret
from raycdc.sinks.iceberg.catalog import where_is
from raycdc.sinks.iceberg.plugin import IcebergCatalogOptions
from raycdc.sinks.iceberg.refusals import is_unreachable


class PostgresError(Exception):
    """As psycopg's."""

    def __init__(self, text: str, sqlstate: str | None = None) -> None:
        super().__init__(text)
        self.sqlstate = sqlstate


def of_sql(cause: Exception) -> OperationalError:
    return OperationalError("", None, cause)


def of_glue(code: str, status: int = 400) -> ClientError:
    answer: Any = {"Error": {"Code": code, "Message": ""}, "ResponseMetadata": {"HTTPStatusCode": status}}
    return ClientError(answer, "UpdateTable")


@pytest.mark.parametrize(
    "error",
    [
        NoAnswer("refused"),
        ConnectTimeout(),
        ChunkedEncodingError(),
        SSLError("[SSL: UNEXPECTED_EOF_WHILE_READING] EOF occurred in violation of protocol"),
        ServerError("500"),
        CommitStateUnknownException("504"),
        TooManyRequestsError("429"),
        DBAPIError("", None, Exception(), connection_invalidated=True),
        of_sql(PostgresError("terminating connection", "57P01")),
        of_sql(PostgresError('connection to server at "h", port 5432 failed: Connection refused')),
        of_sql(PostgresError("connection failed: FATAL:  the database system is starting up")),
        of_sql(pymysql.err.OperationalError(2003, "Can't connect to MySQL server")),
        of_sql(pymysql.err.OperationalError(2013, "Lost connection to MySQL server during query")),
        of_sql(sqlite3.OperationalError("database is locked")),
        of_glue("ThrottlingException"),
        of_glue("InternalServiceException", 500),
        of_glue("OperationTimeoutException"),
        of_glue("SomethingNew", 503),
        EndpointConnectionError(endpoint_url="https://glue"),
        ReadTimeoutError(endpoint_url="https://glue"),
    ],
    ids=repr,
)
def test_who_gives_no_answer_or_none_for_now_is_away(error: Exception) -> None:
    assert is_unreachable(error)


@pytest.mark.parametrize(
    "error",
    [
        SSLError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed"),
        AmazonsSSLError(endpoint_url="https://glue", error="certificate verify failed"),
        InvalidURL(),
        RESTError("422"),
        BadRequestError("400"),
        CommitFailedException("409"),
        of_sql(PostgresError("connection failed: FATAL:  password authentication failed", None)),
        of_sql(PostgresError("permission denied for table", "42501")),
        of_sql(pymysql.err.OperationalError(1045, "Access denied")),
        of_sql(sqlite3.OperationalError("unable to open database file")),
        of_glue("InvalidInputException"),
        ValueError("connection refused"),
    ],
    ids=repr,
)
def test_who_answers_is_not_away(error: Exception) -> None:
    assert not is_unreachable(error)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"type": "rest", "uri": Secret("https://u:secret@catalog:8181/path")}, "rest catalog … at catalog:8181"),
        ({"type": "rest", "uri": Secret("https://catalog/path")}, "rest catalog … at catalog"),
        ({"type": "sql", "uri": Secret("sqlite:////lake.db"), "warehouse": "./lake"}, "sql catalog …"),
        ({"type": "sql", "uri": Secret("postgresql://u:secret@db:x/c"), "warehouse": "./lake"}, "sql catalog …"),
        ({"type": "glue", "properties": {"glue.endpoint": "http://127.0.0.1:1"}}, "glue catalog … at 127.0.0.1:1"),
    ],
)
def test_a_catalog_is_named_without_its_login(options: dict[str, Any], said: str) -> None:
    assert where_is(IcebergCatalogOptions(**options)) == said.replace("…", "of the Iceberg sink")
