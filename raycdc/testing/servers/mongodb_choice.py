"""The server of MongoDB's protocol that tests run on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from raycdc.testing.servers.mongodb import ExternalMongoDb, MongoDb, MongoDbServer
from raycdc.testing.servers.secantusdb import SecantusDb

#: Names a real replica set to run the tests on.
URI_VARIABLE = "RAYCDC_TEST_MONGODB_URI"
#: In place of a URI: somebody else's server, started for the tests.
SECOND_OPINION = "secantusdb"


@contextmanager
def mongodb_for_tests(version: str = "7.0") -> Iterator[MongoDb]:
    """The replica set of ``RAYCDC_TEST_MONGODB_URI``, else a private one of `version`; `SECOND_OPINION` starts that."""
    uri = os.environ.get(URI_VARIABLE)
    if uri == SECOND_OPINION:
        with SecantusDb() as second:
            yield second
        return
    if uri:
        yield ExternalMongoDb(uri)
        return
    with MongoDbServer(version=version) as server:
        yield server
