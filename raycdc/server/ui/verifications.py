"""Comparisons that are started in the web UI: ``raycdc verify`` of one table, in its own process, one at a time.

They change nothing.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Literal, TypedDict

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from raycdc.core.terminal_text import printable_text
from raycdc.server.blocking import HEADERS, TooManyCallsError, error, in_thread, is_name, json_body, threaded

#: The number of remembered comparisons.
KEPT = 20
#: The number of characters that are kept of the command's error output. The last ones are kept.
TEXT_MAX = 2000
BODY_MAX = 4096


class _Line(TypedDict):
    """The part of a line of the command (`raycdc.verify.results.TableJson`) that is shown."""

    target: str
    verdict: str
    reason: str
    source_rows: int
    target_rows: int
    missing: int
    extra: int
    changed: int
    behind: int
    kept_changing: int


@dataclass(frozen=True, slots=True)
class Verification:
    """The comparison of a table. `results` has a line for each of its targets; `text` is the reason of a failure."""

    id: str
    table: str
    state: Literal["running", "done", "failed"] = "running"
    results: tuple[_Line, ...] = ()
    text: str = ""


class Verifications:
    """The comparisons of one run. Thread-safe. `words` are the command and its arguments, without the table."""

    def __init__(self, words: Sequence[str]) -> None:
        self._words = tuple(words)
        self._lock = threading.Lock()
        self._known: deque[Verification] = deque(maxlen=KEPT)
        self._process: subprocess.Popen[str] | None = None
        self._closed = False

    def __repr__(self) -> str:
        return f"Verifications({len(self._known)})"

    @classmethod
    def of(cls, config: Path) -> Verifications:
        """Return an instance that runs the command line of this installation."""
        return cls((sys.executable, "-m", "raycdc.cli", "verify", str(config), "--json"))

    def begin(self, table: str) -> Verification | None:
        """Begin to compare the table; return None while another table is compared."""
        with self._lock:
            if self._closed or self._process is not None:
                return None
            # A name after `--` is not parsed as an option.
            process = subprocess.Popen(
                [*self._words, "--", table],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                errors="replace",
                start_new_session=True,
            )
            self._process = process
            begun = Verification(secrets.token_hex(8), table)
            self._known.append(begun)
        threading.Thread(target=self._wait, args=(begun, process), name="verification", daemon=True).start()
        return begun

    def _wait(self, begun: Verification, process: subprocess.Popen[str]) -> None:
        # The comparison reads much data, and the run has priority.
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, process.pid, 10)
        out, err = process.communicate()
        results = tuple(_lines(out))
        ended = replace(
            begun,
            state="done" if results else "failed",
            results=results,
            text="" if results else printable_text(err[-TEXT_MAX:].strip()) or f"Exit code {process.returncode}.",
        )
        with self._lock:
            self._process = None
            self._known = deque((ended if each.id == begun.id else each for each in self._known), maxlen=KEPT)

    def known(self, verification: str) -> Verification | None:
        """Return the comparison with this id; None if it is unknown or was dropped."""
        with self._lock:
            return next((each for each in self._known if each.id == verification), None)

    def close(self) -> None:
        """End the running comparison."""
        with self._lock:
            self._closed = True
            if self._process is not None:
                self._process.terminate()

    def routes(self) -> list[Route]:
        """Return the routes.

        ``POST /v1/verifications`` with ``{"table": …}`` begins a comparison, ``GET /v1/verifications/ID`` returns its
        state.
        """
        return [
            Route("/v1/verifications", self._begin, methods=["POST"]),
            Route("/v1/verifications/{id}", threaded(self._state)),
        ]

    async def _begin(self, request: Request) -> Response:
        asked = await json_body(request, what="A verification", bytes_max=BODY_MAX)
        if isinstance(asked, Response):
            return asked
        table = asked.get("table") if isinstance(asked, dict) else None
        if not isinstance(table, str) or not table or not is_name(table):
            return error(400, 'A verification is {"table": "DB.TABLE"}.')
        try:
            begun = await in_thread(lambda: self.begin(table))
        except TooManyCallsError as busy:
            return error(503, str(busy))
        if begun is None:
            return error(409, "Another table is being compared: try again when that is done.")
        return JSONResponse(asdict(begun), 202, headers=HEADERS)

    def _state(self, request: Request) -> Response:
        found = self.known(request.path_params["id"])
        if found is None:
            return error(404, "There is no verification with that id, or many came after it.")
        return JSONResponse(asdict(found), headers=HEADERS)


def _lines(out: str) -> list[_Line]:
    """Return the results that the command has printed."""
    found = []
    for line in out.splitlines():
        with suppress(ValueError, KeyError, TypeError):
            said = json.loads(line)
            found.append(
                _Line(
                    target=str(said["target"]),
                    verdict=str(said["verdict"]),
                    reason=str(said["reason"] or ""),
                    source_rows=int(said["source_rows"]),
                    target_rows=int(said["target_rows"]),
                    missing=int(said["missing"]),
                    extra=int(said["extra"]),
                    changed=int(said["changed"]),
                    behind=int(said["behind"]),
                    kept_changing=int(said["kept_changing"]),
                )
            )
    return found
