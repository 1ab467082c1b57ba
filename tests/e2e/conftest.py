"""What the tests of the whole command share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.ray_cluster import one_node


@pytest.fixture(scope="session")
def ray() -> Iterator[str]:
    """A section of a configuration that joins a Ray which is up: for jobs that prove nothing about its start or end.

    The jobs that start their own are those of `test_run`, `test_demo`, `test_masked_state` and the kill tests.
    """
    with one_node() as address:
        yield f'[ray]\naddress = "{address}"\n'
