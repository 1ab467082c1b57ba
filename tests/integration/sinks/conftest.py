"""A store for the tests of sinks that write to one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raycdc.sandbox.servers import MotoServer
from tests.support.servers.store_proxy import StoreProxy


@pytest.fixture(scope="module")
def proxy(moto: MotoServer) -> Iterator[StoreProxy]:
    with StoreProxy(moto) as started:
        yield started
