"""The paths of the web UI, in addition to those of the API.

| request | answer | for |
|---|---|---|
| ``GET /``, ``GET /page/FILE`` | the page and the files that it loads, equal for everybody | everybody |
| ``POST /page/login`` with ``{"code": …}`` | logs a browser in, by a link's code or the token | everybody |
| ``POST /page/logout`` | ends the session | a session |
| ``GET /v1/updates`` | `raycdc.server.ui.feed.UiSnapshot`, every second, as server-sent events: ``update``, and a \
last ``end`` when the authorization is lost, or ``reconnect`` for a browser after an hour; ``?contains=``, \
``phase=``, ``sort=``, ``descending=1``, ``offset=`` and ``limit=`` choose the tables, ``table=`` one in detail | \
the token, or a session |
| ``GET /v1/schema?table=…`` | the columns of a table (`Schemas`) | the token, or a session |
| ``POST /v1/verifications`` | compares a table (`raycdc.server.ui.verifications`) | the token, or a session that may \
act |
| ``POST /v1/links`` | the code of a new link; with ``{"read_only": true}`` the link's session may not act | the token |
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from raycdc.errors import RaycdcError
from raycdc.model import LogicalType, TableId
from raycdc.observe.status.table_order import Sorting, TableQuery
from raycdc.server.authorization import SESSION_GOOD_FOR_S, BrowserSession, BrowserSessions, authorization_of
from raycdc.server.blocking import HEADERS, error, json_body, number_of, threaded
from raycdc.server.ui.feed import Feed, UiPermissions
from raycdc.server.ui.verifications import Verifications
from raycdc.source.snapshot.log.stream_state import stream_of
from raycdc.source.tables.table_life import Dropped, Unknown
from raycdc.state.store import CheckpointStore


@dataclass(frozen=True, slots=True)
class ColumnReport:
    """A column of a table."""

    name: str
    type: str
    nullable: bool


@dataclass(frozen=True, slots=True)
class SchemaReport:
    """A table's schema. `version` is the schema's unique name in the state."""

    table: str
    version: str
    columns: tuple[ColumnReport, ...]
    primary_key: tuple[str, ...]


class Schemas:
    """The schemas of a state. Reading one takes as long as reading the newest manifest."""

    def __init__(self, store: CheckpointStore) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"Schemas({str(self._store.location)!r})"

    def of(self, name: str) -> SchemaReport | None:
        """Return the schema of the table with this name; None if the state has none.

        Raises `StateError` if the state cannot be read.
        """
        manifest = self._store.last_manifest()
        if manifest is None:
            return None
        stream = stream_of(manifest)
        if stream is None:
            try:
                known = manifest.tables.get(TableId.parse(name))
            except ValueError:
                return None
            version = None if known is None else known.schema
        else:
            state = stream.named(name)
            version = None if isinstance(state, Unknown | Dropped) else state.schema
        if version is None:
            return None
        schema = self._store.schema(version)
        columns = tuple(
            ColumnReport(column.name, _type_text(column.type), column.nullable) for column in schema.columns
        )
        return SchemaReport(name, version, columns, tuple(schema.primary_key))

    def routes(self) -> list[Route]:
        """Return the route ``GET /v1/schema?table=…``."""
        return [Route("/v1/schema", threaded(self._answer))]

    def _answer(self, request: Request) -> Response:
        try:
            found = self.of(request.query_params.get("table", ""))
        except RaycdcError as failed:
            return error(503, str(failed))
        if found is None:
            return error(404, "The state has no schema of a table that is called so.")
        return JSONResponse(asdict(found), headers=HEADERS)


def _type_text(column: LogicalType) -> str:
    """Return ``decimal(10, 2)``, with the source's own type name if it differs."""
    text = f"{column.kind}({column.precision}, {column.scale})" if column.precision else str(column.kind)
    return f"{text} ({column.native})" if column.native and column.native.lower() != text else text


STATIC = Path(__file__).parent / "static"
_TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
#: The page's security policy. Scripts and styles come only from files of this server. Text never becomes markup
#: (Trusted Types). The page cannot be framed, and sends requests only to this server.
CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
PAGE_HEADERS = HEADERS | {
    "Content-Security-Policy": CONTENT_SECURITY_POLICY,
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=(), payment=(), usb=()",
}
#: The maximum size of a request with a code or a token, in bytes.
LOGIN_MAX = 4096
LIMIT_MAX = 500
#: The key of a request's scope that holds its session.
SESSION = "raycdc.session"


class WebUi:
    """The request handlers of the web UI."""

    def __init__(
        self, sessions: BrowserSessions, feed: Feed, schemas: Schemas, verifications: Verifications | None = None
    ) -> None:
        """Create the handlers.

        Without `verifications` no table can be compared, because the run has no configuration file.
        """
        self._sessions = sessions
        self._feed = feed
        self._schemas = schemas
        self._verifications = verifications
        self._files = {path.name: path.read_bytes() for path in STATIC.iterdir() if path.suffix in _TYPES}

    def __repr__(self) -> str:
        return f"WebUi({self._sessions!r}, {self._feed!r})"

    @property
    def sessions(self) -> BrowserSessions:
        """Return the logged-in browsers."""
        return self._sessions

    def routes(self) -> list[Route]:
        return [
            Route("/", self._index),
            Route("/page/login", self._login, methods=["POST"]),
            Route("/page/logout", self._logout, methods=["POST"]),
            Route("/page/{name}", self._file),
            Route("/v1/updates", self._updates),
            Route("/v1/links", self._link, methods=["POST"]),
            *self._schemas.routes(),
            *(() if self._verifications is None else self._verifications.routes()),
        ]

    def close(self) -> None:
        """Stop a running comparison at the end of the run."""
        if self._verifications is not None:
            self._verifications.close()

    @staticmethod
    def is_open(request: Request) -> bool:
        """Return True if the request needs no login: the page's files, and the login itself."""
        path = request.url.path
        if request.method == "POST":
            return path == "/page/login"
        return path == "/" or path.startswith("/page/")

    async def _index(self, _: Request) -> Response:
        return self._answer("index.html")

    async def _file(self, request: Request) -> Response:
        name: str = request.path_params["name"]
        return self._answer(name) if name in self._files else error(404, "The page has no such file.")

    def _answer(self, name: str) -> Response:
        media_type = f"{_TYPES[Path(name).suffix]}; charset=utf-8"
        return Response(self._files[name], headers=PAGE_HEADERS | {"Content-Type": media_type})

    async def _login(self, request: Request) -> Response:
        asked = await json_body(request, what="A login", bytes_max=LOGIN_MAX)
        if isinstance(asked, Response):
            return asked
        given = asked.get("code") if isinstance(asked, dict) else None
        # The Origin shows if a proxy speaks TLS to the browser.
        secure = request.headers.get("origin", "").startswith("https:")
        session = self._sessions.authorize(given, secure=secure) if isinstance(given, str) else None
        if session is None:
            return error(401, "The code or token is not valid. A link works once, within ten minutes.")
        document = {"key": session.key, "read_only": session.reads_only}
        answer = JSONResponse(document, headers=HEADERS)
        self._set_cookie(answer, session)
        return answer

    def _set_cookie(self, answer: Response, session: BrowserSession) -> None:
        """Set the session's cookie, which expires when an unused session does."""
        answer.set_cookie(
            self._sessions.cookie,
            session.secret,
            max_age=int(SESSION_GOOD_FOR_S),
            httponly=True,
            samesite="strict",
            secure=session.secure,
        )

    async def _logout(self, request: Request) -> Response:
        if (session := session_of(request)) is not None:
            self._sessions.end(session)
        answer = JSONResponse({}, headers=HEADERS)
        answer.delete_cookie(self._sessions.cookie, httponly=True, samesite="strict")
        return answer

    async def _updates(self, request: Request) -> Response:
        if self._feed.full:
            return error(503, "Too many pages of this run are open; close one of them.")
        session = session_of(request)
        may = UiPermissions(act=session is None or not session.reads_only, verify=self._verifications is not None)
        updates = self._feed.follow(_wanted(request), may, authorization_of(request), is_browser=session is not None)
        headers = HEADERS | {"X-Accel-Buffering": "no"}
        answer = StreamingResponse(updates, media_type="text/event-stream", headers=headers)
        if session is not None:
            # An open page stays logged in, so the cookie must not expire before the session.
            self._set_cookie(answer, session)
        return answer

    async def _link(self, request: Request) -> Response:
        if session_of(request) is not None:
            return error(403, "Only the token can make links: run raycdc ui.")
        asked = await json_body(request, what="A link", bytes_max=LOGIN_MAX)
        if isinstance(asked, Response):
            return asked
        reads_only = isinstance(asked, dict) and asked.get("read_only") is True
        return JSONResponse({"code": self._sessions.new_code(reads_only=reads_only)}, headers=HEADERS)


def session_of(request: Request) -> BrowserSession | None:
    """Return the session that authorized the request; None if the token did."""
    session = request.scope.get(SESSION)
    return session if isinstance(session, BrowserSession) else None


def _wanted(request: Request) -> TableQuery:
    """Return the table query of the request. Missing or invalid parameters have the defaults of `TableQuery`."""
    asked, usual = request.query_params, TableQuery()
    sort, offset, limit = asked.get("sort", ""), number_of(asked.get("offset", "")), number_of(asked.get("limit", ""))
    return TableQuery(
        contains=asked.get("contains", "")[:200],
        phase=asked.get("phase", "")[:50],
        sort=Sorting(sort) if sort in tuple(Sorting) else usual.sort,
        descending=asked.get("descending", "") == "1",
        offset=usual.offset if offset is None else offset,
        limit=max(1, min(LIMIT_MAX, usual.limit if limit is None else limit)),
        table=asked.get("table", ""),
    )
