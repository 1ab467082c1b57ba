"""The page's door: who is let in, who may act, and what a browser is told of it."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from starlette.types import Message

from raycdc.core.secrets import Renewed
from raycdc.driver.command_queue import CommandQueue
from raycdc.observe.events import Committed, Lags, RunEvent, RunProgress, SchemaChanged, Started, TableFigures, Warned
from raycdc.observe.status import RunProcess, StatusKeeper
from raycdc.observe.status.documents import StatusDocuments
from raycdc.observe.status.history import STEPS, History
from raycdc.sandbox.servers.private import wait_until
from raycdc.server import api as events
from raycdc.server import authorization
from raycdc.server import authorization as door_token
from raycdc.server.api import ApiBackend, EventHub, Guarding, application
from raycdc.server.authorization import (
    CODE_GOOD_FOR_S,
    SESSION_GOOD_FOR_S,
    SESSIONS_MAX,
    ApiToken,
    BrowserSession,
    BrowserSessions,
)
from raycdc.server.ui import feed as page_feed
from raycdc.server.ui.feed import Feed, UiPermissions
from raycdc.server.ui.routes import STATIC, Schemas, WebUi
from raycdc.server.ui.verifications import Verifications
from raycdc.state.store import CheckpointStore

HOST = "127.0.0.1:8087"
TOKEN = "a-token-of-the-test"
#: Of a browser whose page is the door's own.
OWN = {"origin": f"http://{HOST}", "sec-fetch-site": "same-origin"}
MAY = UiPermissions(act=False, verify=False)
PAUSE = {"action": "pause", "table": "shop.orders"}


@dataclass(frozen=True)
class Answer:
    code: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def document(self) -> Any:
        return json.loads(self.body)


@dataclass
class Door:
    """The door of a run whose clock the test turns, without a server before it."""

    path: Path
    reads_only: bool = False
    verifications: Verifications | None = None
    now_s: float = 1000.0
    token: str = TOKEN
    keeper: StatusKeeper = field(init=False)
    documents: StatusDocuments = field(init=False)
    history: History = field(init=False)

    def __post_init__(self) -> None:
        run = RunProcess.here("shop", "delta lake", local=True)
        self.keeper = StatusKeeper(run, clock=lambda: self.now_s, wall_ms=lambda: int(self.now_s * 1000))
        self.documents, self.history = StatusDocuments(self.keeper, lambda table: (table,)), History(self.keeper)
        self.sessions = BrowserSessions(self.token, reads_only=self.reads_only, clock=lambda: self.now_s)
        store = CheckpointStore(self.path / "state", pipeline="shop")
        self.desk, self.events = CommandQueue(store), EventHub()
        self.page = WebUi(self.sessions, Feed(self.documents, self.history), Schemas(store), self.verifications)
        answers = ApiBackend(self.documents.status, self.desk, self.events)
        self.application = application(answers, Guarding(ApiToken(self.token), frozenset({HOST})), self.page)

    def notify(self, *events: RunEvent) -> None:
        for event in events:
            self.keeper.listen(event)
            self.history.listen(event)

    def ask(self, path: str, sent: object = None, headers: Mapping[str, str] | None = None) -> Answer:
        """A GET, or a POST of what is `sent`; of a stream the first part."""
        path, _, query = path.partition("?")
        given = {"host": HOST, "content-type": "application/json"} | {**(headers or {})}
        scope = {
            "type": "http", "method": "GET" if sent is None else "POST", "path": path, "raw_path": path.encode(),
            "query_string": query.encode(), "root_path": "", "scheme": "http", "server": ("127.0.0.1", 8087),
            "headers": [(name.encode(), value.encode()) for name, value in given.items()],
        }  # fmt: skip
        body = sent if isinstance(sent, bytes) else b"" if sent is None else json.dumps(sent).encode()
        return asyncio.run(self._ask(scope, body))

    def stream(self, path: str, headers: Mapping[str, str], came: Callable[[int], None]) -> tuple[str, list[bytes]]:
        """The cookie and the parts of a stream that ends by itself; `came` hears the number of each."""
        scope = {
            "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "query_string": b"",
            "root_path": "", "scheme": "http", "server": ("127.0.0.1", 8087),
            "headers": [(name.encode(), value.encode()) for name, value in ({"host": HOST} | {**headers}).items()],
        }  # fmt: skip
        parts: list[bytes] = []
        told: dict[bytes, bytes] = {}

        async def receive() -> Message:
            await asyncio.Event().wait()
            raise AssertionError

        async def send(message: Message) -> None:
            told.update(message.get("headers", ()))
            if part := message.get("body"):
                parts.append(part)
                came(len(parts))

        asyncio.run(self.application(scope, receive, send))
        return told.get(b"set-cookie", b"").decode(), parts

    def headers_of(self, session: BrowserSession) -> Mapping[str, str]:
        """Those of the browser that has this session."""
        return OWN | {"cookie": f"{self.sessions.cookie}={session.secret}", "x-raycdc-key": session.key}

    async def _ask(self, scope: Any, body: bytes) -> Answer:
        messages: list[Message] = []
        has_part, was_read = asyncio.Event(), False

        async def receive() -> Message:
            nonlocal was_read
            if was_read:
                await has_part.wait()
                return {"type": "http.disconnect"}
            was_read = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: Message) -> None:
            messages.append(message)
            if message.get("body"):
                has_part.set()

        await self.application(scope, receive, send)
        told = {name.decode(): value.decode() for name, value in messages[0]["headers"]}
        parts = [message.get("body", b"") for message in messages[1:]]
        return Answer(
            messages[0]["status"], told, parts[0] if "event-stream" in told["content-type"] else b"".join(parts)
        )

    def log_in(self, code: str) -> Mapping[str, str]:
        """The headers of a browser that was let in."""
        answer = self.ask("/page/login", {"code": code}, OWN)
        assert answer.code == 200, answer.body
        cookie = answer.headers["set-cookie"].partition(";")[0]
        return OWN | {"cookie": cookie, "x-raycdc-key": answer.document["key"]}

    def snapshot(self, headers: Mapping[str, str], query: str = "") -> Any:
        answer = self.ask(f"/v1/updates?{query}", None, headers)
        assert answer.code == 200, answer.body
        return json.loads(answer.body.partition(b"data: ")[2])


@pytest.fixture
def door(tmp_path: Path) -> Door:
    return Door(tmp_path)


BEARER = {"authorization": f"Bearer {TOKEN}"}


def test_a_link_lets_one_browser_in_once(door: Door) -> None:
    code = door.ask("/v1/links", {}, BEARER).document["code"]
    browser = door.log_in(code)
    assert door.snapshot(browser)["status"]["pipeline"] == "shop"
    again = door.ask("/page/login", {"code": code}, OWN)
    assert (again.code, "set-cookie" in again.headers) == (401, False)
    late = door.sessions.new_code()
    door.now_s += CODE_GOOD_FOR_S
    assert door.ask("/page/login", {"code": late}, OWN).code == 401


def test_the_token_lets_a_browser_in_and_nothing_else_does(door: Door) -> None:
    assert door.snapshot(door.log_in(TOKEN))["may"] == {"act": True, "verify": False}
    wrong: list[object] = [TOKEN[:-1], "", None, 7, [TOKEN], "ä", {"code": TOKEN}]
    for given in wrong:
        assert door.ask("/page/login", {"code": given}, OWN).code == 401, given
    assert door.ask("/page/login", [TOKEN], OWN).code == 401
    assert door.ask("/page/login", {"code": TOKEN}, OWN | {"content-type": "text/plain"}).code == 415
    assert door.ask("/page/login", {"code": "x" * 5000}, OWN).code == 413


@pytest.mark.parametrize("code", ["\ud800", "\0", "é" * 100, {"a": 1}, ["x"], None, 7])
def test_a_code_that_is_no_text_of_anybody_lets_nobody_in(code: object, door: Door) -> None:
    assert door.ask("/page/login", {"code": code}, OWN).code == 401


@pytest.mark.parametrize("path", ["/page/login", "/v1/commands", "/v1/links"])
def test_a_body_that_is_nested_without_end_is_refused(path: str, door: Door) -> None:
    assert door.ask(path, b"[" * 4000, OWN | BEARER).code == 400


def test_a_command_about_a_name_that_no_table_can_have_is_refused(door: Door) -> None:
    for table in ("\ud800", "a\0b", "x" * 70_000):
        assert door.ask("/v1/commands", {"action": "pause", "table": table}, OWN | BEARER).code in (400, 413)
    assert door.desk.all() == []


def test_both_the_cookie_and_the_key_are_needed(door: Door) -> None:
    browser, other = door.log_in(TOKEN), door.log_in(TOKEN)
    assert door.snapshot(browser)
    for lacking in (
        {name: value for name, value in browser.items() if name != "cookie"},
        {name: value for name, value in browser.items() if name != "x-raycdc-key"},
        {**browser, "x-raycdc-key": other["x-raycdc-key"]},
        {**browser, "cookie": browser["cookie"][:-1]},
        {**browser, "sec-fetch-site": "same-site"},
        {**browser, "host": "evil.example"},
        {**browser, "origin": "http://evil.example"},
        {**browser, "origin": "null"},
    ):
        refused = door.ask("/v1/updates", None, lacking)
        assert refused.code in {401, 403, 421}
        assert b"shop" not in refused.body
    # What was refused has not ended the session.
    assert door.snapshot(browser)


def test_the_cookie_is_for_no_script_and_no_other_site(door: Door) -> None:
    answer = door.ask("/page/login", {"code": TOKEN}, OWN)
    kept = {part.strip().partition("=")[0].lower() for part in answer.headers["set-cookie"].split(";")}
    assert {"httponly", "samesite", "path", "max-age"} <= kept
    assert "samesite=strict" in answer.headers["set-cookie"].lower()
    assert "secure" not in kept
    # A proxy before the door speaks TLS.
    behind = door.ask("/page/login", {"code": TOKEN}, OWN | {"origin": f"https://{HOST}"})
    assert "secure" in {part.strip().lower() for part in behind.headers["set-cookie"].split(";")}
    # Another run of the same host has a cookie of its own.
    assert BrowserSessions(TOKEN, reads_only=False).cookie != door.sessions.cookie


def test_a_token_that_is_changed_counts_at_once_and_whoever_came_in_before_is_out(tmp_path: Path) -> None:
    (file := tmp_path / "token").write_text(TOKEN)
    door = Door(tmp_path, token=Renewed(TOKEN, f"${{file:{file}}}"))
    browser, link = door.log_in(TOKEN), door.sessions.new_code()
    assert door.ask("/v1/status", None, BEARER).code == 200
    # What can be no token, as a file that is just being written, changes nothing.
    for no_token in ("", "short", "not in ASCII: äöüäöüäöü"):
        file.write_text(no_token)
        assert door.ask("/v1/status", None, BEARER).code == 200
        assert door.snapshot(browser)
    file.write_text("the-token-of-today\n")
    for before in (BEARER, browser):
        assert door.ask("/v1/status", None, before).code == 401
    for given in (TOKEN, link):
        assert door.ask("/page/login", {"code": given}, OWN).code == 401
    assert door.ask("/v1/status", None, OWN | {"authorization": "Bearer the-token-of-today"}).code == 200
    assert door.snapshot(door.log_in("the-token-of-today"))
    assert "the-token" not in repr(ApiToken(TOKEN))


def test_what_a_foreign_page_sends_has_no_token_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def said(text: str) -> str:
        read.append(text)
        return str(text)

    monkeypatch.setattr(door_token, "newest", said)
    door = Door(tmp_path, token=Renewed(TOKEN, "${command:slow}"))
    assert door.ask("/v1/status", None, BEARER | {"host": "elsewhere.example.org"}).code == 421
    assert door.ask("/v1/status", None, BEARER | {"origin": "http://elsewhere.example.org"}).code == 403
    assert not read
    assert door.ask("/v1/status", None, BEARER).code == 200
    assert read == [TOKEN]


@pytest.mark.parametrize("by_token", [True, False], ids=["token", "session"])
@pytest.mark.parametrize("path", ["/v1/updates", "/v1/events"])
def test_a_stream_ends_when_the_token_has_become_another_one_and_never_waits_for_it(
    path: str, by_token: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_feed, "EVERY_S", 0.0)
    monkeypatch.setattr(events, "KEEPALIVE_S", 0.01)
    monkeypatch.setattr(authorization, "READ_EVERY_S", 0.0)
    goes_on, asked = threading.Event(), threading.Event()

    def said(_: str) -> str:
        """Of a command that hangs whenever it is asked again."""
        if not asked.is_set():
            asked.set()
            return TOKEN
        assert goes_on.wait(600)
        return "the-token-of-today"

    monkeypatch.setattr(door_token, "newest", said)
    door = Door(tmp_path, token=Renewed(TOKEN, "${command:slow}"))
    session = door.sessions.authorize(TOKEN)
    assert session is not None

    def came(count: int) -> None:
        if count == 5:
            goes_on.set()

    _, parts = door.stream(path, BEARER if by_token else door.headers_of(session), came)
    assert len(parts) >= 5
    assert path == "/v1/events" or parts[-1] == page_feed.ENDED
    assert not door.sessions.goes_on(session)


def test_a_session_ends_when_it_is_left_or_long_unused_or_many_others_came(door: Door) -> None:
    first, second = door.log_in(TOKEN), door.log_in(TOKEN)
    assert door.ask("/page/logout", {}, first).code == 200
    assert door.ask("/v1/status", None, first).code == 401
    door.now_s += SESSION_GOOD_FOR_S - 1
    assert door.ask("/v1/status", None, second).code == 200
    door.now_s += SESSION_GOOD_FOR_S - 1
    assert door.ask("/v1/status", None, second).code == 200
    for _ in range(SESSIONS_MAX):
        door.sessions.authorize(TOKEN)
    assert door.ask("/v1/status", None, second).code == 401


def test_whoever_looks_stays_let_in_and_a_look_ends_with_its_session(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_feed, "EVERY_S", 0.0)
    session = door.sessions.authorize(TOKEN)
    assert session is not None

    def looked_for_days(count: int) -> None:
        door.now_s += SESSION_GOOD_FOR_S - 1
        if count == 5:
            door.sessions.end(session)  # As another tab of the browser does that leaves.

    cookie, looks = door.stream("/v1/updates", door.headers_of(session), looked_for_days)
    assert [look.partition(b"\n")[0] for look in looks] == [b"event: update"] * 5 + [b"event: end"]
    # The cookie, too, is good for as long again.
    assert cookie.startswith(f"{door.sessions.cookie}={session.secret}; ")
    assert f"Max-Age={SESSION_GOOD_FOR_S:.0f}" in cookie


def test_a_look_ends_with_a_session_that_is_forgotten(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine slept for a day, or as many others came as are remembered."""
    monkeypatch.setattr(page_feed, "EVERY_S", 0.0)

    def slept(_: int) -> None:
        door.now_s += SESSION_GOOD_FOR_S

    def crowded(count: int) -> None:
        for _ in range(SESSIONS_MAX if count == 2 else 1):
            door.sessions.authorize(TOKEN)

    looks = {}
    for what in (slept, crowded):
        session = door.sessions.authorize(TOKEN)
        assert session is not None
        looks[what] = door.stream("/v1/updates", door.headers_of(session), what)[1]
        assert door.ask("/v1/status", None, door.headers_of(session)).code == 401
    assert [len(looks[slept]), looks[slept][-1]] == [2, page_feed.ENDED]
    assert [len(looks[crowded]), looks[crowded][-1]] == [3, page_feed.ENDED]


def test_a_look_is_followed_by_another_one_so_that_the_cookie_lives_on(
    door: Door, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(page_feed, "STREAM_S", 0.0)
    session = door.sessions.authorize(TOKEN, secure=True)
    assert session is not None
    cookie, looks = door.stream("/v1/updates", door.headers_of(session), lambda _: None)
    assert looks == [page_feed.RECONNECT]
    assert "; Secure" in cookie
    # Whoever has the token has no cookie, and looks without an end.
    answer = door.ask("/v1/updates", None, BEARER)
    assert "set-cookie" not in answer.headers
    assert answer.body.startswith(b"event: update\n")


def test_events_are_followed_for_as_long_as_the_session_lasts(door: Door) -> None:
    session = door.sessions.authorize(TOKEN)
    assert session is not None

    def told(count: int) -> None:
        if count == 3:
            door.sessions.end(session)
        door.events.notify(Warned("news"))

    _, lines = door.stream("/v1/events", door.headers_of(session), told)
    assert [line.partition(b"\n")[0] for line in lines] == [b": raycdc", b"event: warning", b"event: warning"]


def test_a_browser_acts_through_the_commands_of_the_command_line_and_from_its_own_page_alone(door: Door) -> None:
    browser = door.log_in(TOKEN)
    for wrong in (
        {name: value for name, value in browser.items() if name != "origin"},
        {name: value for name, value in browser.items() if name != "x-raycdc-key"},
        {**browser, "origin": "http://evil.example"},
        {**browser, "sec-fetch-site": "cross-site"},
        {**browser, "content-type": "text/plain"},
    ):
        assert door.ask("/v1/commands", PAUSE, wrong).code in {401, 403, 415}
    assert door.desk.waiting() == []
    assert door.ask("/v1/commands", PAUSE, browser).code == 202
    [command] = door.desk.waiting()
    assert command.to_json() == {"id": command.id, **PAUSE}


def test_who_may_look_alone_does_not_act(tmp_path: Path) -> None:
    door = Door(tmp_path)
    guest = door.log_in(door.ask("/v1/links", {"read_only": True}, BEARER).document["code"])
    assert door.snapshot(guest)["may"]["act"] is False
    assert door.ask("/v1/commands", PAUSE, guest).code == 403
    # Nor is a link to be had that lets somebody act.
    assert door.ask("/v1/links", {}, guest).code == 403
    assert door.ask("/v1/links", {}, door.log_in(TOKEN)).code == 403

    # control.ui = "read-only": for everybody, but the command line.
    strict = Door(tmp_path, reads_only=True)
    browser = strict.log_in(TOKEN)
    assert (strict.snapshot(browser)["may"]["act"], strict.ask("/v1/commands", PAUSE, browser).code) == (False, 403)
    assert strict.ask("/v1/commands", PAUSE, BEARER).code == 202
    assert strict.ask("/page/logout", {}, browser).code == 200


ECHO = """
import json, sys
line = dict(target=sys.argv[-1], verdict="equal", reason=" ".join(sys.argv[1:]), source_rows=3, target_rows=3)
print(json.dumps(line | dict.fromkeys(["missing", "extra", "changed", "behind", "kept_changing"], 0)))
"""


def test_verify_is_the_command_in_a_process_of_its_own_and_a_name_is_no_option(tmp_path: Path) -> None:
    door = Door(tmp_path, verifications=Verifications((sys.executable, "-c", ECHO)))
    browser = door.log_in(TOKEN)
    assert door.snapshot(browser)["may"] == {"act": True, "verify": True}
    guest = door.log_in(door.sessions.new_code(reads_only=True))
    assert door.ask("/v1/verifications", {"table": "shop.orders"}, guest).code == 403
    assert door.ask("/v1/verifications", {"table": ""}, browser).code == 400
    begun = door.ask("/v1/verifications", {"table": "--repair"}, browser)
    assert (begun.code, begun.document["state"], begun.document["table"]) == (202, "running", "--repair")
    ended: list[Any] = []

    def over() -> bool:
        ended[:] = [door.ask(f"/v1/verifications/{begun.document['id']}", None, browser).document]
        return bool(ended[0]["state"] != "running")

    wait_until(over, timeout_s=300, what="the table is compared")
    [result] = ended[0]["results"]
    assert (ended[0]["state"], result["verdict"], result["source_rows"]) == ("done", "equal", 3)
    assert (result["target"], result["reason"]) == ("--repair", "-- --repair")
    assert door.ask("/v1/verifications/0", None, browser).code == 404


def test_one_table_is_compared_at_a_time_and_none_when_the_run_ends(tmp_path: Path) -> None:
    script = "import sys, time\nprint('gone wrong', file=sys.stderr, flush=True)\nopen(sys.argv[-1] + '.up', 'w')\n"
    waits = Verifications((sys.executable, "-c", script + "time.sleep(3600)"))
    table = str(tmp_path / "table")
    begun = waits.begin(table)
    assert begun is not None
    assert waits.begin("shop.b") is None
    wait_until(lambda: Path(f"{table}.up").exists(), timeout_s=300, what="the command is up")
    waits.close()

    def failed() -> bool:
        found = waits.known(begun.id)
        return found is not None and found.state == "failed"

    wait_until(failed, timeout_s=300, what="the command is ended")
    known = waits.known(begun.id)
    assert known is not None
    assert known.text == "gone wrong"
    assert waits.begin("shop.c") is None


def test_the_page_is_the_same_for_everybody_and_loads_nothing_from_elsewhere(door: Door) -> None:
    for path in sorted(STATIC.iterdir()):
        answer = door.ask("/" if path.name == "index.html" else f"/page/{path.name}")
        assert (answer.code, answer.body) == (200, path.read_bytes())
        policy = dict(part.strip().split(" ", 1) for part in answer.headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert (answer.headers["x-frame-options"], answer.headers["cache-control"]) == ("DENY", "no-store")
        assert answer.headers["referrer-policy"] == "no-referrer"
        text = path.read_text()
        addresses = {found for found in re.findall(r"https?://[^\s\"'`)]+", text) if "w3.org" not in found}
        assert not addresses, f"{path.name} names {addresses}"
    markup = (STATIC / "index.html").read_text()
    assert not re.search(r"\son\w+=|style=|<style|<script(?![^>]*\ssrc=)", markup)
    loaded = set(re.findall(r'"/page/([\w-]+\.\w+)"', "\n".join(path.read_text() for path in STATIC.iterdir())))
    imported = {name for path in STATIC.glob("*.js") for name in re.findall(r'from "\./([\w.-]+)"', path.read_text())}
    assert loaded | imported <= {path.name for path in STATIC.iterdir()}
    for beyond in ("/page/..%2froutes.py", "/page/routes.py", "/page/../routes.py", "/page/"):
        assert door.ask(beyond).code in {404, 405}
    # Nobody frames what the API answers either.
    assert "frame-ancestors 'none'" in door.ask("/v1/status", None, BEARER).headers["content-security-policy"]
    assert door.ask("/", None, {"host": "evil.example"}).code == 421


def test_no_script_of_the_page_makes_markup_of_text() -> None:
    """Trusted Types refuse it in a browser that knows them; here for all."""
    for path in STATIC.glob("*.js"):
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", path.read_text()
        )


def figures(name: str, phase: str = "stream", **more: Any) -> TableFigures:
    return TableFigures(name, phase, **more)


def progress(*tables: TableFigures, behind_ms: int = 40) -> RunProgress:
    return RunProgress(tables, Lags(), (), behind_ms=behind_ms)


def test_a_look_has_the_tables_that_are_wanted_in_their_order(door: Door) -> None:
    tables = [figures(f"shop.t{n}", rows=n) for n in range(12)]
    tables += [figures("shop.Big", "snapshot", rows=99, chunks_done=1, chunks_total=4), figures("shop.x", "parked")]
    door.notify(Started(1, 1, (1,)), progress(*tables))
    browser = door.log_in(TOKEN)

    def names(query: str) -> list[str]:
        return [table["table"].removeprefix("shop.") for table in door.snapshot(browser, query)["status"]["tables"]]

    # What wants attention comes first.
    assert names("limit=3") == ["x", "Big", "t0"]
    assert names("sort=table&descending=1&limit=2") == ["x", "t9"]
    assert names("sort=rows&descending=1&limit=2") == ["Big", "t11"]
    assert names("sort=done")[0] == "Big"
    assert names("contains=BI") == ["Big"]
    assert names("phase=parked") == ["x"]
    assert names("contains=nothing") == []
    # One more is looked at closely, whatever is on the page.
    assert door.snapshot(browser, "limit=1&table=shop.t3")["table"]["rows"] == 3
    assert door.snapshot(browser, "table=shop.none")["table"] is None
    look = door.snapshot(browser, "sort=table&limit=5&offset=10")
    assert [look["matching"], look["offset"], len(look["status"]["tables"])] == [14, 10, 4]
    # Behind the last page there is the last one; what makes no sense is as if it were not said.
    assert door.snapshot(browser, "sort=table&limit=5&offset=999")["offset"] == 10
    assert len(names("sort=%00&limit=-1&offset=a")) == 14
    assert [table["table"] for table in door.snapshot(browser)["parked"]] == ["shop.x"]


def test_a_page_of_twenty_thousand_tables_is_what_the_status_says(door: Door) -> None:
    door.notify(Started(1, 1, (1,)), progress(*(figures(f"db.t{n:06}", rows=n % 1000) for n in range(20_000))))
    look = door.snapshot(BEARER, "sort=rows&descending=1&limit=50&offset=100")
    assert (look["matching"], look["status"]["tables"][0]["rows"]) == (20_000, 994)
    told = {table.table: table for table in door.documents.status().tables}
    for table in look["status"]["tables"]:
        assert (table["rows"], table["phase"]) == (told[table["table"]].rows, told[table["table"]].phase)


def test_history_is_bounded_and_a_look_has_what_is_new(door: Door) -> None:
    door.notify(Started(1, 1, (1,)))
    for second in range(4000):
        door.now_s += 1
        door.notify(progress(figures("shop.a", rows=second * 10), behind_ms=second))
        if second % 10 == 0:
            door.notify(Committed(second, {"shop.a": 100}, 100, staging_s=0.5, commit_s=0.25))
    feed = door.page._feed
    from raycdc.observe.status.table_order import TableQuery
    from raycdc.server.ui.feed import _Seen

    seen = _Seen()
    first = feed.snapshot(TableQuery(), MAY, seen)
    assert [series.step_seconds for series in first.series] == [step for step, _ in STEPS]
    assert [len(series.at_ms) for series in first.series] == [300, 360, 33]
    minutes = first.series[1]
    assert minutes.read_per_second[-1] == pytest.approx(10, abs=0.2)
    assert minutes.committed_per_second[-1] == pytest.approx(10, abs=0.5)
    # The longest of each step.
    assert minutes.lag_ms[-1] - minutes.lag_ms[-2] == 10  # type: ignore[operator]
    assert (len(first.epochs), first.epochs[-1].epoch, first.epochs[-1].largest) == (300, 3990, (("shop.a", 100),))
    assert sum(len(series.at_ms) for series in feed.snapshot(TableQuery(), MAY, seen).series) == 0
    door.now_s += 1
    door.notify(progress(figures("shop.a", rows=50_000)), Committed(4000, {}, 0, staging_s=0, commit_s=0))
    later = feed.snapshot(TableQuery(), MAY, seen)
    assert [len(series.at_ms) for series in later.series] == [1, 0, 0]
    assert [epoch.epoch for epoch in later.epochs] == [4000]
    door.notify(*(SchemaChanged("shop.a", "shop.a", number, ("column v added",)) for number in range(500)))
    changes = feed.snapshot(TableQuery(), MAY).changes
    assert (len(changes), changes[-1].epoch, changes[-1].changes) == (30, 499, ("column v added",))


def test_rows_committed_a_second_are_none_when_no_epoch_has_come_for_long(door: Door) -> None:
    for _ in range(10):
        door.now_s += 4
        door.notify(Committed(1, {"shop.a": 400}, 400, staging_s=0, commit_s=0))

    def rate() -> float | None:
        door.notify(progress(figures("shop.a")))
        door.now_s += 1
        door.notify(progress(figures("shop.a")))
        return door.history.series((0, 0, 0))[0].committed_per_second[-1]

    assert rate() == 100
    door.now_s += 6
    assert rate() == 100
    door.now_s += 6
    assert rate() == 0


def test_a_table_of_which_the_state_knows_nothing_has_no_columns(door: Door) -> None:
    assert door.ask("/v1/schema?table=shop.a", None, BEARER).code == 404
    assert door.ask("/v1/schema?table=shop.a").code == 401


def test_nothing_is_made_while_nobody_looks(door: Door) -> None:
    asked = 0

    def log_retention() -> None:
        nonlocal asked
        asked += 1

    keeper = StatusKeeper(RunProcess.here("shop", "delta lake", local=True))
    history = History(keeper)
    feed = Feed(StatusDocuments(keeper, lambda table: (table,), log_retention), history)
    for number in range(1000):
        history.listen(progress(figures("shop.a", rows=number)))
    assert asked == 0
    from raycdc.observe.status.table_order import TableQuery

    # Several who look at once have one status made.
    looks = [feed.snapshot(TableQuery(), MAY) for _ in range(5)]
    assert asked == 1
    assert len({look.status.at_ms for look in looks}) == 1


def test_what_no_name_or_number_is_like_is_answered(tmp_path: Path) -> None:
    door = Door(tmp_path, verifications=Verifications((sys.executable, "-c", "")))
    assert door.ask("/v1/verifications", {"table": "\ud800"}, BEARER).code == 400
    assert door.ask(f"/v1/status?limit={'1' * 5000}", None, BEARER).code == 200
