"""A store for the tests of sinks that write to one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from raycdc.testing.servers import MotoServer, StoreProxy


@pytest.fixture(scope="module")
def proxy(moto: MotoServer) -> Iterator[StoreProxy]:
    with StoreProxy(moto) as started:
        yield started
