"""Helpers for requests: calls that may block, each in its own thread, and common parts of requests and answers.

The threads are daemons, unlike those of Starlette's own pool. So a run's process can end even if a request still waits.
"""

from __future__ import annotations

import asyncio
import hmac
import json
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar
from weakref import WeakKeyDictionary

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

#: The headers of every answer: it is not cached, its type is not guessed, and it cannot be embedded in pages or run
#: scripts.
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


def error(code: int, text: str) -> Response:
    """Return an answer with the status `code` and the reason `text`."""
    return JSONResponse({"text": text}, code, headers=HEADERS)


async def json_body(request: Request, *, what: str, bytes_max: int) -> object | Response:
    """Return the request's body, parsed as JSON; otherwise the answer that refuses it. `what` describes the body."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/json":
        return error(415, f"{what} is JSON (Content-Type: application/json).")
    body = bytearray()
    async for part in request.stream():
        body += part
        if len(body) > bytes_max:
            return error(413, f"{what} has at most {bytes_max} bytes.")
    try:
        found: object = json.loads(bytes(body))
    except ValueError as wrong:
        return error(400, f"{what} is JSON: {wrong}")
    except RecursionError:
        return error(400, f"{what} is JSON, which is not nested so deeply.")
    return found


def is_name(text: str) -> bool:
    """Return True if the text can be a name: it has no NUL, and none of the lone surrogates that JSON allows."""
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text)


def number_of(text: str) -> int | None:
    """Return the number in a query parameter, of which at most nine digits are used; None for any other text."""
    return int(text[:9]) if text[:9].isdecimal() else None


def has_token(request: Request, token: str) -> bool:
    """Return True if the request's ``Authorization`` is the bearer `token`.

    The time of the comparison does not depend on the position of a difference.
    """
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    known = hmac.compare_digest(given.strip().encode(), token.encode())
    return scheme.lower() == "bearer" and known


def wants_token(refused: Response) -> Response:
    """Return `refused`, an answer with the code 401, with the header that names the required scheme."""
    refused.headers["WWW-Authenticate"] = "Bearer"
    return refused


#: The limit of concurrent calls of a server.
CALLS_MAX = 40
#: The semaphore of each event loop. Hanging calls in one server therefore do not reduce the calls of another server.
_FREE: WeakKeyDictionary[asyncio.AbstractEventLoop, threading.BoundedSemaphore] = WeakKeyDictionary()

Answer = TypeVar("Answer")


class TooManyCallsError(Exception):
    """Raised if `CALLS_MAX` calls are running already; most of them probably wait for a system that does not answer."""

    def __init__(self) -> None:
        super().__init__(f"{CALLS_MAX} requests are being answered already; try again later.")


async def in_thread(call: Callable[[], Answer]) -> Answer:
    """Return the result of `call`, or raise its error. If the caller is cancelled, the call continues and its result is
    dropped.

    Raises `TooManyCallsError` immediately if too many calls are running.
    """
    loop = asyncio.get_running_loop()
    free = _FREE.setdefault(loop, threading.BoundedSemaphore(CALLS_MAX))
    answer: asyncio.Future[Answer] = loop.create_future()

    def resolve(result: Answer | None, failed: BaseException | None) -> None:
        if answer.done():
            return  # The caller was cancelled.
        if failed is not None:
            answer.set_exception(failed)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: Answer | None = None
        failed: BaseException | None = None
        try:
            result = call()
        except BaseException as cause:  # noqa: BLE001 - raised again in the waiting task
            failed = cause
        finally:
            free.release()
        # If the loop is closed by now, no task waits for the result.
        with suppress(RuntimeError):
            loop.call_soon_threadsafe(resolve, result, failed)

    if not free.acquire(blocking=False):
        raise TooManyCallsError
    try:
        threading.Thread(target=run, name="request", daemon=True).start()
    except BaseException:
        free.release()
        raise
    return await answer


def threaded(endpoint: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    """Return a handler for the server's event loop that runs `endpoint`, which may block, in a thread."""

    async def answered(request: Request) -> Response:
        try:
            return await in_thread(lambda: endpoint(request))
        except TooManyCallsError as busy:
            return error(503, str(busy))

    return answered
