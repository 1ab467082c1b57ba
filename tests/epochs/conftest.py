"""What the stories of the epoch loop leave to those that follow in the same process: nothing."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from raycdc.sinks.jdbc import mysql, postgres
from tests.epochs.sink_world import open_topics


@pytest.fixture(autouse=True)
def _closed_topics() -> Iterator[None]:
    """Sinks for topics are closed after each test."""
    yield
    while open_topics:
        open_topics.pop().close()


@pytest.fixture
def brief_waits(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sessions wait for a lock for a second. Those of earlier tests, which wait for a minute, are closed first."""
    for module in ("postgres", "mysql"):
        monkeypatch.setattr(f"raycdc.sinks.jdbc.{module}.LOCK_TIMEOUT_S", 1)
    session = [
        "SET SESSION innodb_lock_wait_timeout = 1, lock_wait_timeout = 1" if "lock_wait_timeout" in text else text
        for text in mysql._SESSION
    ]
    monkeypatch.setattr(mysql, "_SESSION", tuple(session))
    close_idle_sessions()
    yield
    close_idle_sessions()


def close_idle_sessions() -> None:
    for process, key in list(postgres._idle):
        if process == os.getpid():
            for connection in postgres.drain_connections(key):
                connection.close()
