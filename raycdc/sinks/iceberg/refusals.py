"""Decides what an error of a catalog concerns: our login, one table, or the catalog as a whole.

| answer | concerns |
|---|---|
| REST: 401 and 419, and a token that the OAuth server refuses | the login |
| SQL: the database refuses the login; Glue: a code of `_LOGIN` | the login |
| REST: 403; Glue: `_FORBIDDEN` | the table, unless a new login fails (`raycdc.sinks.iceberg.catalog`) |
| REST: 400; Glue: `_TABLES` | the table |
| no answer, or an incomplete one | the catalog, which is unreachable |
| REST: 429 and all from 500 on; Glue: the same, and `_LATER` | the catalog, which is unreachable |
| SQL: an unreachable database, an ended session, or a lock | the catalog, which is unreachable |
| any other answer | the catalog |

A 403 is ambiguous: some servers, and all that check signatures, also return it for an expired token. Glue's codes are
from AWS's page "Common Errors" and from the page of each action of Glue. They are compared as texts, so boto3 need not
be imported.

*An unreachable catalog may have carried out a request*, or may still carry it out after a retry began. A retry
therefore reads the table first, and deletes no file that the first attempt named.
"""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from types import FrameType
from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    CommitStateUnknownException,
    ForbiddenError,
    OAuthError,
    RESTError,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
    UnauthorizedError,
)
from requests import RequestException
from requests.exceptions import ChunkedEncodingError, SSLError, Timeout
from requests.exceptions import ConnectionError as NoAnswer
from sqlalchemy.exc import DBAPIError, IntegrityError, InterfaceError, OperationalError, SQLAlchemyError

from raycdc.sinks.lakes.unreachable import raised_in
from raycdc.storage.api import StoreError

_LOGIN = frozenset(
    {
        "AuthFailure",
        "ExpiredToken",
        "ExpiredTokenException",
        "IncompleteSignature",
        "IncompleteSignatureException",
        "InvalidAccessKeyId",
        "InvalidClientTokenId",
        "InvalidSignatureException",
        "MissingAuthenticationToken",
        "MissingAuthenticationTokenException",
        "RequestExpired",
        "SignatureDoesNotMatch",
        "UnrecognizedClientException",
    }
)
_FORBIDDEN = frozenset({"AccessDenied", "AccessDeniedException"})
_TABLES = frozenset({"EntityNotFoundException", "InvalidInputException", "ValidationException"})
#: Codes of Glue after which a retry may succeed.
_LATER = frozenset(
    {
        "InternalFailure",
        "InternalServiceException",
        "OperationTimeoutException",
        "RequestLimitExceeded",
        "ServiceUnavailable",
        "Throttling",
        "ThrottlingException",
        "ThrottledException",
        "TooManyRequestsException",
    }
)
#: Errors of Amazon's library without an answer of the server.
_UNANSWERED = frozenset(
    {
        "ConnectTimeoutError",
        "ConnectionClosedError",
        "EndpointConnectionError",
        "HTTPClientError",
        "IncompleteReadError",
        "ProxyConnectionError",
        "ReadTimeoutError",
        "ResponseStreamingError",
    }
)
#: Classes of PostgreSQL's SQLSTATEs (its manual's appendix A): connections, deadlocks, lack of space, servers that shut
#: down.
_UNREACHABLE_STATES = ("08", "40", "53", "57", "58", "25006", "55P03")
#: Error numbers of MySQL and MariaDB: connections, locks, servers that shut down, start or are read-only.
_UNREACHABLE_NUMBERS = frozenset(
    {0, 1021, 1040, 1047, 1053, 1079, 1158, 1159, 1160, 1161, 1203, 1205, 1213, 1290, 1317, 1836, 1927}
    | {2002, 2003, 2006, 2013, 2055, 3169, 4031}
)
#: Messages of drivers about an unreachable server, and of PostgreSQL while it cannot accept connections.
_LOST = re.compile(
    r"connection (?:refused|reset|timed out|is closed|timeout)|no connection to the server|closed the connection|"
    r"could not (?:receive|send) data|could not translate host name|failed to resolve host|timeout expired|broken pipe|"
    r"no route to host|network is unreachable|no such file or directory\s+is the server running",
    re.IGNORECASE,
)
_NOT_NOW = re.compile(
    r"the database system is|too many (?:clients|connections)|connection slots|terminating connection"
)


def is_login(error: BaseException) -> bool:
    """Return True if the catalog refuses our login, so that other keys would help."""
    if isinstance(error, UnauthorizedError | AuthorizationExpiredError | OAuthError):
        return True
    return isinstance(error, OperationalError | InterfaceError) or _code(error) in _LOGIN


def is_forbidden(error: BaseException) -> bool:
    """Return True if the catalog forbids this operation on the table to our account."""
    return isinstance(error, ForbiddenError) or _code(error) in _FORBIDDEN


def is_unreachable(error: BaseException) -> bool:
    """Return True if the catalog does not answer or is temporarily unable to, so that a retry may succeed within
    minutes. It is unknown if the catalog carried out the request.
    """
    if isinstance(error, SSLError):
        return "EOF" in str(error)  # The other connection errors are about certificates, and a retry does not help.
    if isinstance(error, NoAnswer | Timeout | ChunkedEncodingError):
        return True
    if isinstance(error, ServiceUnavailableError | ServerError | CommitStateUnknownException | TooManyRequestsError):
        return True
    if isinstance(error, DBAPIError):
        return _is_lost(error)
    if _is_amazons(error):
        status = _status(error)
        return type(error).__name__ in _UNANSWERED or _code(error) in _LATER or status == 429 or status >= 500
    return False


def is_the_catalogs(error: Exception) -> bool:
    """Return True if the catalog is unreachable or refuses us, so that the error concerns no single table.

    Returns False if a server forbids or refuses a change of one table, because the error concerns that table.
    """
    if isinstance(error, RESTError):
        return not isinstance(error, BadRequestError | ForbiddenError)
    if _is_amazons(error):
        return _code(error) not in _FORBIDDEN | _TABLES
    return isinstance(error, RequestException) or (
        isinstance(error, SQLAlchemyError) and not isinstance(error, IntegrityError)
    )


def is_the_tables(error: Exception) -> bool:
    """Return True if the error concerns the table or its catalog and is no bug of raycdc."""
    known = type(error).__module__.startswith(("pyiceberg.", "requests."))
    if known or _is_amazons(error) or isinstance(error, OSError | SQLAlchemyError | StoreError):
        return True
    if read_file(error) is not None:
        return True
    # An error of Arrow's file readers is about the table's files, which may be damaged. Any other error of Arrow is a
    # bug of raycdc.
    libraries = ("pyiceberg", "pyarrow.parquet", "pyarrow.dataset")
    return isinstance(error, pa.ArrowException | ValueError) and raised_in(error, *libraries)


def read_file(error: BaseException) -> str | None:
    """Return the location of the metadata file that pyiceberg was reading when `error` was raised; None if it was
    reading none.

    For a damaged file, pyiceberg raises errors of many types, which depend on the damaged bytes.
    """
    found = None
    trace = error.__traceback__
    while trace is not None:
        frame = trace.tb_frame
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] == "raycdc":
            found = None  # What pyiceberg calls back is no reader of files.
        elif (read := _READERS.get((module, frame.f_code.co_name))) is not None:
            found = read(frame) or found
        trace = trace.tb_next
    return found


#: pyiceberg's functions that read a metadata file, each with a function that returns the file's location from the local
#: variables of its frame; None if the caller's variables have it.
_READERS: dict[tuple[str, str], Callable[[FrameType], str | None]] = {
    ("pyiceberg.manifest", "fetch_manifest_entry"): lambda frame: str(frame.f_locals["self"].manifest_path),
    ("pyiceberg.manifest", "read_manifest_list"): lambda frame: str(frame.f_locals["input_file"].location),
    ("pyiceberg.serializers", "table_metadata"): lambda frame: (
        str(frame.f_locals["input_file"].location) if "input_file" in frame.f_locals else None
    ),
}


def _is_amazons(error: BaseException) -> bool:
    """Return True if the error is from the Glue client, which has a class for each of Glue's codes."""
    return type(error).__module__.startswith("botocore.")


def _code(error: BaseException) -> str:
    """Return the code of an Amazon error; empty for any other error."""
    response: Any = getattr(error, "response", None) if _is_amazons(error) else None
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""


def _status(error: BaseException) -> int:
    """Return the HTTP status of an answer of Amazon; 0 if there is none."""
    response: Any = getattr(error, "response", None) if _is_amazons(error) else None
    return int(response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)) if isinstance(response, dict) else 0


def _is_lost(error: DBAPIError) -> bool:
    """Return True if a database is unreachable, or cannot answer now."""
    if error.connection_invalidated:
        return True
    cause: Any = error.orig
    state = getattr(cause, "sqlstate", None) or getattr(cause, "pgcode", None)
    if isinstance(state, str):
        return state.startswith(_UNREACHABLE_STATES)
    number = cause.args[0] if isinstance(cause, BaseException) and cause.args else None
    if isinstance(number, int):
        return number in _UNREACHABLE_NUMBERS
    if isinstance(cause, sqlite3.Error):
        return "is locked" in str(cause)
    text = str(cause)
    # The text says FATAL if the server answered.
    return bool(_NOT_NOW.search(text) if "FATAL:" in text else _LOST.search(text))
