"""What tests with a shared Spark session leave to the tests that come after them in the same process: nothing."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="module")
def _sockets_of_pyspark() -> Iterator[None]:
    """Sockets of pyspark are closed only when they are garbage: here, and not in a test that allows no warnings."""
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        gc.collect()
