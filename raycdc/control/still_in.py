"""Whoever follows a stream of a door is asked for again and again, because no request comes that would be.

The token may be read by a command that takes half a minute. Nobody's stream waits for that: one reading at a time goes
on beside all of them, and each asks for what was read last.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass

from starlette.requests import Request

from raycdc.control.calls import TooManyCallsError, in_thread
from raycdc.control.door_token import DoorToken
from raycdc.control.page.sessions import Session, Sessions

#: While anybody follows, the token is read again so long after it was read last.
READ_EVERY_S = 5.0
#: Where a request that was let in finds its `StillIn`.
STILL_IN = "raycdc.still_in"


class TokenWatch:
    """The token of a door, and the `sessions` of its page if it has one, for streams. For the door's loop."""

    def __init__(self, token: DoorToken, sessions: Sessions | None) -> None:
        self._token = token
        self._sessions = sessions
        self._reading: asyncio.Task[None] | None = None
        self._read_s = time.monotonic()

    def __repr__(self) -> str:
        return f"TokenWatch({self._token!r})"

    def lets_in(self, known: str, session: Session | None) -> bool:
        """Whether the session, or without one whoever came with the token `known`, is still let in, as far as is known
        now. Does not block.
        """
        is_read = self._reading is not None and not self._reading.done()
        if self._token.changes and not is_read and time.monotonic() - self._read_s >= READ_EVERY_S:
            self._reading = asyncio.get_running_loop().create_task(self._read())
        if session is None or self._sessions is None:
            return known == self._token.last
        return self._sessions.goes_on(session)

    async def _read(self) -> None:
        # As many calls as may be are under way: the next one who asks tries again, later.
        with suppress(TooManyCallsError):
            token = await in_thread(self._token.now)
            if self._sessions is not None:
                self._sessions.have_token(token)
        self._read_s = time.monotonic()


@dataclass(frozen=True, slots=True)
class StillIn:
    """Says at each call whether whoever sent a request is still let in: by `session`, which is used by that, or by the
    token that was `known` then.
    """

    watch: TokenWatch
    known: str
    session: Session | None

    def __call__(self) -> bool:
        return self.watch.lets_in(self.known, self.session)


def still_in_of(request: Request) -> StillIn:
    """That of a request which was let in."""
    still_in = request.scope[STILL_IN]
    assert isinstance(still_in, StillIn)
    return still_in
