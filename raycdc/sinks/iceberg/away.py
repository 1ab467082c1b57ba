"""When a catalog is away for a moment, so that the same may succeed later: by the errors of the libraries asking it."""

from __future__ import annotations

import requests
from pyiceberg.exceptions import (
    CommitStateUnknownException,
    ServerError,
    ServiceUnavailableError,
    TooManyRequestsError,
)
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError

#: The server's errors (5xx), a limit of requests, and an outcome that nobody heard: the record is looked at again.
_OF_REST = (ServerError, ServiceUnavailableError, TooManyRequestsError, CommitStateUnknownException)
#: botocore's errors of connections, by their names because it is loaded for Glue alone.
_OF_BOTO = frozenset(
    {"ConnectTimeoutError", "ConnectionClosedError", "ConnectionError", "EndpointConnectionError", "ReadTimeoutError"}
)


def is_away(error: BaseException | None) -> bool:
    """Whether `error`, or what led to it, is of a server that does not answer, has no time, or lost its answer."""
    while error is not None:
        if isinstance(error, (*_OF_REST, requests.ConnectionError, requests.Timeout)):
            return True
        if isinstance(error, OperationalError | InterfaceError):
            return True
        if isinstance(error, DBAPIError) and error.connection_invalidated:
            return True
        if type(error).__module__.startswith("botocore.") and type(error).__name__ in _OF_BOTO:
            return True
        error = error.__cause__
    return False
