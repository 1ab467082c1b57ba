"""Authorization of requests: the token, sessions of browsers, and repeated checks of open streams.

A stream outlives the request that opened it, so its authorization is checked repeatedly. Reading the token may take
half a minute (a command). Streams do not wait for that: one reading at a time runs in the background, and each stream
uses the last result.

`ApiToken` is the present token. A token from a `file`, `command` or `plugin` can be changed without a restart.

`BrowserSessions` decides which browsers may see the page: those that logged in by a link, which works once, or by the
token. A link has its code after ``#``, which browsers do not send to servers, so no log of a server or proxy contains
it. The page sends the code in the body of a request. It gets a cookie and a key. Scripts cannot read the cookie
(``HttpOnly``), and requests from other sites do not have it (``SameSite=Strict``). The page keeps the key in the
storage of its origin, and sends it in a header. Every request needs both cookie and key. Browsers send a cookie to all
ports of a host, so a different server on this machine may receive the cookie, but it cannot read the storage with the
key. A foreign page cannot add the header, which prevents actions through a user's browser (CSRF).
"""

from __future__ import annotations

import asyncio
import hmac
import secrets
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from starlette.requests import Request

from raycdc.config import Secret
from raycdc.config.sections.observability import check_token
from raycdc.core.secrets import Renewed, newest
from raycdc.server.blocking import TooManyCallsError, in_thread


class ApiToken:
    """The present token.

    A token from a `file`, `command` or `plugin` can be changed without a restart. Thread-safe: `now` changes a single
    attribute.
    """

    def __init__(self, text: str) -> None:
        self._text = text
        self._known = str(text)

    def __repr__(self) -> str:
        return "ApiToken(***)"

    @property
    def changes(self) -> bool:
        """Return True if `now` reads the token again; a fixed token is only returned."""
        return isinstance(self._text, Renewed)

    @property
    def last(self) -> str:
        """Return the result of the last call of `now`. Does not block."""
        return self._known

    def now(self) -> str:
        """Return the present token; empty for none. May block (`raycdc.core.secrets.ANSWER_TIMEOUT_S`).

        An invalid text, such as a file that is just being written, leaves the previous token in force.
        """
        if not self.changes:
            return self._text
        text = newest(self._text)
        with suppress(ValueError):
            self._known = check_token(Secret(text)).reveal() or self._known
        return self._known


#: A link that was not used for this long is invalid.
CODE_GOOD_FOR_S = 600.0
#: A browser without a request or an open page for this long must log in again.
SESSION_GOOD_FOR_S = 12 * 3600.0
#: The number of remembered codes, and of sessions. The newest are remembered.
CODES_MAX = SESSIONS_MAX = 64
#: The header that the page sends in addition to its cookie.
KEY_HEADER = "X-Raycdc-Key"


@dataclass(frozen=True, slots=True)
class BrowserSession:
    """A logged-in browser.

    `secret` is its cookie; if `secure` is True, the browser sends it over TLS only. `key` is the key of the page. If
    `reads_only` is True, the browser may not give commands.
    """

    secret: str
    key: str
    reads_only: bool
    secure: bool = False


@dataclass(frozen=True, slots=True)
class _Code:
    text: str
    reads_only: bool
    until_s: float


class BrowserSessions:
    """The sessions of one run, kept in memory, so they end with the run.

    Thread-safe. If `reads_only` is True, no session may give commands.
    """

    def __init__(self, token: str, *, reads_only: bool, clock: Callable[[], float] = time.monotonic) -> None:
        self._token = token
        self._reads_only = reads_only
        self._clock = clock
        self._lock = threading.Lock()
        self._codes: list[_Code] = []
        self._sessions: dict[str, tuple[BrowserSession, float]] = {}
        #: Two runs on one host have different cookies.
        self.cookie = f"raycdc-{secrets.token_hex(4)}"

    def __repr__(self) -> str:
        return f"Sessions({len(self._sessions)})"

    def have_token(self, token: str) -> None:
        """Set the valid token. A token different from the previous one ends all sessions."""
        if _same(token, self._token):
            return
        with self._lock:
            self._token, self._codes, self._sessions = token, [], {}

    def new_code(self, *, reads_only: bool = False) -> str:
        """Return a new code that logs a browser in, once."""
        code = _Code(secrets.token_urlsafe(24), reads_only, self._clock() + CODE_GOOD_FOR_S)
        with self._lock:
            self._codes = [*self._codes, code][-CODES_MAX:]
        return code.text

    def authorize(self, given: str, *, secure: bool = False) -> BrowserSession | None:
        """Return a new session for the token, or for a code, which is then invalid; None for any other text."""
        reads_only = self._reads_only
        if not _same(given, self._token):
            code = self._used(given)
            if code is None:
                return None
            reads_only = reads_only or code.reads_only
        session = BrowserSession(secrets.token_urlsafe(32), secrets.token_urlsafe(32), reads_only, secure)
        with self._lock:
            self._sessions[session.secret] = (session, self._clock() + SESSION_GOOD_FOR_S)
            while len(self._sessions) > SESSIONS_MAX:
                self._sessions.pop(next(iter(self._sessions)))
        return session

    def _used(self, given: str) -> _Code | None:
        now_s = self._clock()
        with self._lock:
            self._codes = [code for code in self._codes if code.until_s > now_s]
            found = next((code for code in self._codes if _same(given, code.text)), None)
            self._codes = [code for code in self._codes if code is not found]
        return found

    def of(self, request: Request) -> BrowserSession | None:
        """Return the session whose cookie and key the request has, if the page itself sent the request; else None."""
        if request.headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return None
        secret, key = request.cookies.get(self.cookie, ""), request.headers.get(KEY_HEADER, "")
        with self._lock:
            session = self._used_now(secret)
        return session if session is not None and _same(key, session.key) else None

    def goes_on(self, session: BrowserSession) -> bool:
        """Return True if the browser is still logged in, and prolong its session."""
        with self._lock:
            return self._used_now(session.secret) is not None

    def _used_now(self, secret: str) -> BrowserSession | None:
        """Return the session with this cookie and prolong it; None if there is none. The caller holds the lock."""
        session, until_s = self._sessions.pop(secret, (None, 0.0))
        if session is None or until_s <= self._clock():
            return None
        # Sessions are in the order of their last use, so the first one is dropped if there are too many.
        self._sessions[secret] = (session, self._clock() + SESSION_GOOD_FOR_S)
        return session

    def end(self, session: BrowserSession) -> None:
        """Log the browser out."""
        with self._lock:
            self._sessions.pop(session.secret, None)


def _same(given: str, known: str) -> bool:
    """Return True if both are equal. The time of the comparison does not depend on the position of a difference."""
    # JSON allows lone surrogates, which UTF-8 cannot encode and no code contains.
    return hmac.compare_digest(given.encode(errors="surrogatepass"), known.encode())


#: While a stream is open, the token is read again when this many seconds have passed since the last reading.
READ_EVERY_S = 5.0
#: The key of a request's scope that holds its `Authorization`.
AUTHORIZATION = "raycdc.authorization"


class TokenWatch:
    """Checks the authorization of open streams: by the token, or by the `sessions` of the web UI.

    Used in the server's event loop only.
    """

    def __init__(self, token: ApiToken, sessions: BrowserSessions | None) -> None:
        self._token = token
        self._sessions = sessions
        self._reading: asyncio.Task[None] | None = None
        self._read_s = time.monotonic()

    def __repr__(self) -> str:
        return f"TokenWatch({self._token!r})"

    def is_authorized(self, known: str, session: BrowserSession | None) -> bool:
        """Return True if the session is still valid; without a session, if the token `known` was valid when it was last
        read.

        Does not block.
        """
        is_read = self._reading is not None and not self._reading.done()
        if self._token.changes and not is_read and time.monotonic() - self._read_s >= READ_EVERY_S:
            self._reading = asyncio.get_running_loop().create_task(self._read())
        if session is None or self._sessions is None:
            return known == self._token.last
        return self._sessions.goes_on(session)

    async def _read(self) -> None:
        # Too many calls are running: the next check tries again.
        with suppress(TooManyCallsError):
            token = await in_thread(self._token.now)
            if self._sessions is not None:
                self._sessions.have_token(token)
        self._read_s = time.monotonic()


@dataclass(frozen=True, slots=True)
class Authorization:
    """A callable that returns True if a request is still authorized.

    It checks and prolongs `session`. If there is no session, it checks the token `known`.
    """

    watch: TokenWatch
    known: str
    session: BrowserSession | None

    def __call__(self) -> bool:
        return self.watch.is_authorized(self.known, self.session)


def authorization_of(request: Request) -> Authorization:
    """Return the `Authorization` of an authorized request."""
    authorization = request.scope[AUTHORIZATION]
    assert isinstance(authorization, Authorization)
    return authorization
