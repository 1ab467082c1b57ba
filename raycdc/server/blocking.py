"""Calls of requests that may block, each in a thread of its own.

A run's process ends when the run has ended, whatever a request still waits for: these threads are daemons, which those
of Starlette's own pool are not. Nobody waits for one whose door closes.

What both doors of a run ask of a request and put into an answer.
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

#: Of every answer: nobody keeps it, or takes it for something else; no other page shows it, and none has it run.
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
}


def error(code: int, text: str) -> Response:
    """An answer that says why there is no other."""
    return JSONResponse({"text": text}, code, headers=HEADERS)


async def json_body(request: Request, *, what: str, bytes_max: int) -> object | Response:
    """What the body of a request says in JSON, which is `what`; else the answer that refuses it."""
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
    """Whether something may be called so: JSON can name halves of characters, and nothing has a NUL in its name."""
    return not any(character == "\0" or "\ud800" <= character <= "\udfff" for character in text)


def number_of(text: str) -> int | None:
    """The number that a query asks for, of which nine digits are enough; None for anything else."""
    return int(text[:9]) if text[:9].isdecimal() else None


def has_token(request: Request, token: str) -> bool:
    """Whether the request's ``Authorization`` is `token` as a bearer's; it takes as long for one that nearly is."""
    scheme, _, given = request.headers.get("authorization", "").partition(" ")
    known = hmac.compare_digest(given.strip().encode(), token.encode())
    return scheme.lower() == "bearer" and known


def wants_token(refused: Response) -> Response:
    """`refused`, an answer with the code 401, saying what is wanted."""
    refused.headers["WWW-Authenticate"] = "Bearer"
    return refused


#: So many of a door may be under way at once.
CALLS_MAX = 40
#: How many more may begin, by the loop of each door: what hangs at one takes no place of another one's.
_FREE: WeakKeyDictionary[asyncio.AbstractEventLoop, threading.BoundedSemaphore] = WeakKeyDictionary()

Answer = TypeVar("Answer")


class TooManyCallsError(Exception):
    """As many calls are under way as may be; most of them wait for something that does not answer."""

    def __init__(self) -> None:
        super().__init__(f"{CALLS_MAX} requests are being answered already; try again later.")


async def in_thread(call: Callable[[], Answer]) -> Answer:
    """What `call` returns or raises. Whoever is cancelled waits no longer; the call goes on, and nobody hears of it.
    `TooManyCallsError` at once where too many are under way.
    """
    loop = asyncio.get_running_loop()
    free = _FREE.setdefault(loop, threading.BoundedSemaphore(CALLS_MAX))
    answer: asyncio.Future[Answer] = loop.create_future()

    def resolve(result: Answer | None, failed: BaseException | None) -> None:
        if answer.done():
            return  # It was cancelled.
        if failed is not None:
            answer.set_exception(failed)
        else:
            answer.set_result(result)  # type: ignore[arg-type]

    def run() -> None:
        result: Answer | None = None
        failed: BaseException | None = None
        try:
            result = call()
        except BaseException as cause:  # noqa: BLE001 - raised where it is waited for
            failed = cause
        finally:
            free.release()
        # The loop may be closed by now, and then nobody waits.
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
    """`endpoint`, which may block, for the door's loop."""

    async def answered(request: Request) -> Response:
        try:
            return await in_thread(lambda: endpoint(request))
        except TooManyCallsError as busy:
            return error(503, str(busy))

    return answered
