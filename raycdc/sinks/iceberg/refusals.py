"""Whom an error of a catalog concerns: our login, one table, or the catalog as a whole.

| answer | concerns |
|---|---|
| REST: 401 and 419, and a token that the OAuth server refuses; SQL: the database lets nobody in, or ended \
the session; Glue: a code of `_LOGIN` | the login |
| REST: 403; Glue: `_FORBIDDEN` | the table, unless the catalog lets us in no more (`raycdc.sinks.iceberg.reopened`) |
| REST: 400; Glue: `_TABLES` | the table |
| no answer, and any other one | the catalog |

A 403 says too little: to some servers, and to all that check signatures, it is also the answer to a token that has
expired. Glue's codes are those of AWS's "Common Errors" and of Glue's own page of each action; boto3 is not needed to
know them.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyiceberg.exceptions import (
    AuthorizationExpiredError,
    BadRequestError,
    ForbiddenError,
    OAuthError,
    RESTError,
    UnauthorizedError,
)
from requests import RequestException
from sqlalchemy.exc import IntegrityError, InterfaceError, OperationalError, SQLAlchemyError

from raycdc.sinks.library_errors import raised_in
from raycdc.stores.api import StoreError

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


def is_login(error: BaseException) -> bool:
    """Whether the catalog refuses who we say that we are, so that other keys would help."""
    if isinstance(error, UnauthorizedError | AuthorizationExpiredError | OAuthError):
        return True
    return isinstance(error, OperationalError | InterfaceError) or _code(error) in _LOGIN


def is_forbidden(error: BaseException) -> bool:
    """Whether the catalog says that we may not do this to this table."""
    return isinstance(error, ForbiddenError) or _code(error) in _FORBIDDEN


def is_the_catalogs(error: Exception) -> bool:
    """Whether the catalog is away, or refuses us as a whole, so that no single table is concerned. Where a server lets
    us not change a table, or has something against the change itself, that table is.
    """
    if isinstance(error, RESTError):
        return not isinstance(error, BadRequestError | ForbiddenError)
    if _is_amazons(error):
        return _code(error) not in _FORBIDDEN | _TABLES
    return isinstance(error, RequestException) or (
        isinstance(error, SQLAlchemyError) and not isinstance(error, IntegrityError)
    )


def is_the_tables(error: Exception) -> bool:
    """Whether it is about the table or its catalog and no bug of ours."""
    known = type(error).__module__.startswith(("pyiceberg.", "requests."))
    if known or _is_amazons(error) or isinstance(error, OSError | SQLAlchemyError | StoreError):
        return True
    # Arrow reads the files of a table, which somebody may have damaged; its computing is our own.
    libraries = ("pyiceberg", "pyarrow.parquet", "pyarrow.dataset")
    return isinstance(error, pa.ArrowException | ValueError) and raised_in(error, *libraries)


def _is_amazons(error: BaseException) -> bool:
    """Whether it is one of the library by which Glue is asked; a class is made for each of Glue's own codes."""
    return type(error).__module__.startswith("botocore.")


def _code(error: BaseException) -> str:
    """What an answer of Amazon's calls itself; empty where it is none."""
    response: Any = getattr(error, "response", None) if _is_amazons(error) else None
    return str(response.get("Error", {}).get("Code", "")) if isinstance(response, dict) else ""
