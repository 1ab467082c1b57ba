"""Calls of requests that may block, each in a thread of its own.

A run's process ends when the run has ended, whatever a request still waits for: these threads are daemons, which those
of Starlette's own pool are not. Nobody waits for one whose door closes.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TypeVar
from weakref import WeakKeyDictionary

from starlette.requests import Request
from starlette.responses import Response

from raycdc.control.requests import error

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

    def settle(result: Answer | None, failed: BaseException | None) -> None:
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
            loop.call_soon_threadsafe(settle, result, failed)

    if not free.acquire(blocking=False):
        raise TooManyCallsError
    try:
        threading.Thread(target=run, name="request", daemon=True).start()
    except BaseException:
        free.release()
        raise
    return await answer


def beside(endpoint: Callable[[Request], Response]) -> Callable[[Request], Awaitable[Response]]:
    """`endpoint`, which may block, for the door's loop."""

    async def answered(request: Request) -> Response:
        try:
            return await in_thread(lambda: endpoint(request))
        except TooManyCallsError as busy:
            return error(503, str(busy))

    return answered
