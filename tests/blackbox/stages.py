"""Where a play is given: a target of its own on a sink."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import assert_never

import pytest

from raycdc.sandbox.servers import PostgresServer
from tests.blackbox.story import Sink
from tests.blackbox.targets import DeltaTarget, JsonlTarget, PostgresTarget, Target


def target_of(request: pytest.FixtureRequest, sink: Sink, folder: Path, stack: ExitStack) -> Target:
    """An empty target, gone when `stack` ends or with `folder`."""
    match sink:
        case Sink.DELTA:
            return DeltaTarget(folder)
        case Sink.JSONL:
            return JsonlTarget(folder)
        case Sink.POSTGRES:
            server: PostgresServer = request.getfixturevalue("postgres")
            return PostgresTarget(server, stack.enter_context(server.fresh_database("bb")))
        case _:
            assert_never(sink)
