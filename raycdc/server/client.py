"""Finds the running pipeline of a state, and sends requests to it. Does not import the libraries of the server."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from urllib.parse import urlsplit

from raycdc.config.tls import is_loopback
from raycdc.errors import StateError
from raycdc.observe.status.model import Status
from raycdc.state.drivers.heartbeat import RENEW_S, DriverWatch, Vacancy
from raycdc.state.drivers.holder import VERSION, ControlEndpoint, Holder
from raycdc.state.store import CheckpointStore

#: A control API that does not answer for this long counts as absent.
ANSWERS_S = 10.0
#: A run publishes the address of its control API with the first heartbeat after its libraries are loaded.
OPENS_WITHIN_S = RENEW_S + 3.0
#: The path exists only if the run has a web UI.
LINKS = "/v1/links"


@dataclass(frozen=True, slots=True)
class NoRun:
    """The result if no run can be reached, with the reason `why`.

    If `runs` is True, the pipeline is running, but its control API is not open yet.
    """

    why: str
    runs: bool = False


def find(
    store: CheckpointStore,
    token: str = "",
    *,
    timeout_s: float = OPENS_WITHIN_S,
    wait: Callable[[str], None] | None = None,
) -> ControlClient | NoRun:
    """Return the client of the driver that has the state, or the reason why there is none.

    `token` is ``control.token``, if set. A run opens its API some seconds after its start. This function waits for
    that, and calls `wait` with the reason. Raises `StateError` with a remedy if this process cannot use the API.
    """
    deadline = time.monotonic() + timeout_s
    reported = False
    while True:
        _, holder = store.generations.newest_holder()
        if holder is None:
            return NoRun("it was never run")
        if holder.ended:
            return NoRun(f"{holder}, which ran it last, has ended")
        watch = DriverWatch(store.generations, store.lock.holder, lock=store.lock.identity)
        if isinstance(found := watch.poll(), Vacancy):
            return NoRun(found.why)
        if holder.endpoint is not None:
            return _client(store, holder, holder.endpoint, token)
        if time.monotonic() > deadline:
            return NoRun(
                f"{holder}, which has the state, has not opened its control API yet (it may be starting)", runs=True
            )
        if wait is not None and not reported:
            reported = True
            wait(f"waiting for {holder} to open its control API")
        time.sleep(0.2)


def page_link(url: str, code: str) -> str:
    """Return the link to the web UI with a login code.

    Browsers do not send the part after ``#``, so no server's log has it.
    """
    return f"{url}/#login={code}"


def _client(store: CheckpointStore, holder: Holder, endpoint: ControlEndpoint, token: str) -> ControlClient:
    if endpoint.version > VERSION:
        raise StateError(
            f"{holder} runs a newer raycdc, whose control API (version {endpoint.version}) this one does not know. Use "
            "that one."
        )
    if endpoint.problem:
        raise StateError(f"{holder} runs the pipeline and cannot be asked: {endpoint.problem}")
    host = urlsplit(endpoint.url).hostname or ""
    if is_loopback(host) and not holder.is_here:
        raise StateError(
            f"{holder} runs the pipeline, and its control API ({endpoint.url}) is open to its own machine only. Ask "
            "there, or set control.host to an address that other machines reach, and start the run again."
        )
    return ControlClient(endpoint.url, token or _token(store, holder, endpoint), str(holder))


def _token(store: CheckpointStore, holder: Holder, endpoint: ControlEndpoint) -> str:
    path = endpoint.token_path(store.path / "private")
    try:
        return path.read_text(encoding="utf-8")
    except PermissionError as cause:
        raise StateError(
            f"{path}, the token of {holder}, cannot be read by this user: ask as the user who runs the pipeline, or "
            "set control.token."
        ) from cause
    except OSError as cause:
        raise StateError(
            f"{path}, the token of {holder}, is not here. Ask on the machine that runs the pipeline, or set "
            "control.token (from a variable of the environment) for both and start the run again."
        ) from cause


class ControlClient:
    """The client of one running pipeline.

    Its methods raise `StateError` for missing or invalid answers; `who` describes the run.
    """

    def __init__(self, url: str, token: str, who: str) -> None:
        self._url = urlsplit(url)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._who = who

    def __repr__(self) -> str:
        return f"ControlClient({self._url.geturl()!r}, {self._who!r})"

    def status(self) -> Status:
        return Status.from_json(self._ask("/v1/status"))

    def page_link(self, *, reads_only: bool) -> str:
        """Return a link that logs one browser in, within ten minutes.

        Also raises `StateError` if the run has no web UI.
        """
        code = json.loads(self._ask(LINKS, json.dumps({"read_only": reads_only})))["code"]
        return page_link(self._url.geturl(), code)

    def _ask(self, path: str, body: str | None = None) -> bytes:
        connection = http.client.HTTPConnection(self._url.hostname or "", self._url.port or 80, timeout=ANSWERS_S)
        try:
            with closing(connection):
                headers = self._headers if body is None else self._headers | {"Content-Type": "application/json"}
                connection.request("GET" if body is None else "POST", path, body, headers)
                answer = connection.getresponse()
                said = answer.read()
        except (OSError, http.client.HTTPException) as cause:
            slow = " The run may be waiting for its control.token, if that is a command's or plug-in's answer."
            raise StateError(
                f"{self._who} runs the pipeline, and its control API at {self._url.geturl()} does not answer "
                f"({cause}). If it is on another machine, a firewall may be between; if it has just ended, try again."
                + (slow if isinstance(cause, TimeoutError) else "")
            ) from cause
        if answer.status < 300:
            return said
        raise self._refused(path, answer.status, said)

    def _refused(self, path: str, code: int, said: bytes) -> StateError:
        if code == 401:
            return StateError(
                f"{self._who} refuses the token that is in the state: the run may have just been restarted. "
                "Try again; if control.token is set, it must be the same as that of the run."
            )
        if (path, code) == (LINKS, 404):
            return StateError(
                f'{self._who} runs the pipeline without a web UI: it was started with control.ui = "off". Set it to '
                '"on" or "read-only" and start the run again; raycdc status shows the run without one.'
            )
        try:
            text = str(json.loads(said)["text"])
        except (ValueError, KeyError, TypeError):
            text = said[:200].decode(errors="replace")
        return StateError(f"{self._who} answers with {code}: {text}")
