"""``raycdc verify`` in a test's own process: its exit code and its lines."""

from __future__ import annotations

import contextlib
import io
import json
import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

from raycdc.cli import main
from raycdc.clients.mysql import query
from raycdc.errors import ExitCode
from raycdc.sandbox.background import again_and_again
from tests.support.jobs import Job
from tests.support.sessions import session


def verified(job: Job, *words: str) -> tuple[int, dict[str, dict[str, Any]]]:
    """The exit code, and the lines by the tables' names."""
    out, errors = io.StringIO(), io.StringIO()
    environment = {"RAYCDC_TEST_PASSWORD": getattr(job.server, "cdc_user", "")}
    with patch.dict(os.environ, environment), contextlib.redirect_stdout(out), contextlib.redirect_stderr(errors):
        code = main(["verify", str(job.configuration()), "--json", *words])
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    assert lines, errors.getvalue()
    return code, {line["table"].partition(".")[2]: line for line in lines}


def counts(line: dict[str, Any]) -> dict[str, int]:
    """The keys by what is known of them, but for kinds without any."""
    names = ("missing", "extra", "changed", "kept_changing", "behind")
    return {name: line[name] for name in names if line[name]}


def require_verified(job: Job, *, rows: int = 0) -> None:
    """An `AssertionError` unless all targets hold what their sources hold, `rows` rows in each."""
    code, lines = verified(job)
    assert code == ExitCode.DONE, lines
    for line in lines.values():
        assert (line["verdict"], line["notes"]) == ("equal", []), line
        assert line["source_rows"] == line["target_rows"] >= rows


@contextlib.contextmanager
def written_to(job: Job, statements: Callable[[], Sequence[str]], *, pause_s: float = 0.0) -> Iterator[None]:
    """Statements at the source of `job`, again and again while the block runs, as `statements` makes them."""
    with session(job.server, "root") as connection:
        query(connection, f"USE `{job.database}`")

        def step() -> None:
            for statement in statements():
                query(connection, statement)

        with again_and_again(step, pause_s=pause_s):
            yield
