"""What the stories of the epoch loop leave to those that follow in the same process: nothing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.epochs.sink_world import open_topics


@pytest.fixture(autouse=True)
def _closed_topics() -> Iterator[None]:
    """Sinks for topics are closed after each test."""
    yield
    while open_topics:
        open_topics.pop().close()
