"""Another password for a MongoDB client that is there: its streams and cursors go on, and it logs in anew by itself.

The driver has no word for that; its pools ask the client's settings at each login. (pymongo 4, `PoolOptions`.)
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from pymongo import MongoClient
from pymongo.errors import PyMongoError

#: Of `PoolOptions`, as Python writes a private name of it.
_ACCOUNT = "_PoolOptions__credentials"


def renew_account(client: MongoClient[Any], uri: str) -> None:
    """Let new connections of `client` log in as the connection string `uri` says; nothing where that is none."""
    with suppress(PyMongoError, ValueError, AttributeError):
        fresh: MongoClient[Any] = MongoClient(uri, connect=False)
        setattr(client.options.pool_options, _ACCOUNT, fresh.options.pool_options._credentials)
        fresh.close()
