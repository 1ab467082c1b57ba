"""The page of a run in a real browser: what it shows is what ``raycdc status`` says, its buttons act, and whoever was
not let in sees nothing. Pictures of it are left in build/page.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raycdc.errors import ExitCode
from raycdc.observe.events import Lags, RunProgress, Started, TableFigures
from raycdc.observe.status import RunProcess, StatusKeeper
from raycdc.observe.status.documents import StatusDocuments
from raycdc.observe.status.history import History
from raycdc.observe.status.table_order import Sorting, TableQuery
from raycdc.sandbox.servers import MariaDbServer
from raycdc.sandbox.servers.private import wait_until
from raycdc.server.ui.feed import Feed, UiPermissions
from tests.browser import ENTER, ESCAPE, TAB, TIMEOUT_S, Browser, a_browser
from tests.support.forked_commands import completed

pytestmark = [pytest.mark.server, pytest.mark.long(suite="page")]

PICTURES = Path(__file__).parents[2] / "build" / "page"
#: Names that would be markup, were they not text. No folder can be called like the first, so that table is parked.
SCRIPT, IMAGE = "<script>alert(1)</script>", '<img src=x onerror="alert(1)">'
CONFIG = """
pipeline = {{ name = "shop", state = "state", epoch_interval = "300ms" }}

[source]
type = "mysql"
host = "127.0.0.1"
port = {port}
user = "root"
password = "root"
tables = ["{database}.*"]

[sink]
type = "delta"
path = "lake"
"""


class Watched:
    """A pipeline, and the browser that looks at it."""

    def __init__(self, folder: Path, server: MariaDbServer, database: str, browser: Browser) -> None:
        self.folder, self.server, self.database, self.browser = folder, server, database, browser

    def raycdc(self, *words: str) -> subprocess.CompletedProcess[str]:
        return completed(words, environment=os.environ, folder=self.folder)

    def status(self) -> Any:
        said = self.raycdc("status", "pipeline.toml", "--json")
        assert said.returncode == 0, said.stderr
        return json.loads(said.stdout)

    def link(self, *words: str) -> str:
        said = self.raycdc("ui", "pipeline.toml", *words)
        assert said.returncode == 0, said.stderr
        return said.stdout.strip()

    def let_in(self, *words: str) -> None:
        """The browser sees the tables."""
        self.browser.open("about:blank")
        self.browser.open(self.link(*words))
        self.browser.awaits("document.querySelectorAll('#table-list tbody tr').length === 3")
        self.browser.complaints()

    def phase(self, table: str) -> str:
        return str(next(each["phase"] for each in self.status()["tables"] if each["table"] == self.name(table)))

    def name(self, table: str) -> str:
        return f"{self.database}.{table}"

    def shown(self) -> dict[str, list[str]]:
        """The cells of each table on the page, by its name."""
        rows = self.browser.look(
            "[...document.querySelectorAll('#table-list tbody tr')].map((row) => "
            "[row.querySelector('button').textContent, ...[...row.cells].slice(1).map((cell) => cell.textContent)])"
        )
        return {row[0]: row[1:] for row in rows}


@pytest.fixture(scope="module")
def watched(mariadb: MariaDbServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    folder = tmp_path_factory.mktemp("page")
    with mariadb.fresh_database() as database, a_browser(folder) as browser:
        for table in ("orders", IMAGE, SCRIPT):
            mariadb.execute(
                f"CREATE TABLE `{table}` (id INT PRIMARY KEY, v VARCHAR(20))",
                f"INSERT INTO `{table}` SELECT seq, seq FROM seq_1_to_2000",
                database=database,
            )
        (folder / "pipeline.toml").write_text(CONFIG.format(port=mariadb.port, database=database))
        command = [sys.executable, "-m", "raycdc.cli", "run", "pipeline.toml", "--local", "--ui"]
        with (folder / "run.log").open("w") as log:
            run = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
        world = Watched(folder, mariadb, database, browser)
        try:

            def committed() -> bool:
                assert run.poll() is None, (folder / "run.log").read_text()
                if not list((folder / "state" / "commits").glob("*.json")):
                    return False
                tables = world.status()["tables"]
                phases = sorted(table["phase"] for table in tables)
                return phases == ["parked", "stream", "stream"] and all(
                    table["last_commit"] for table in tables if table["phase"] == "stream"
                )

            wait_until(committed, timeout_s=600, what="the tables are committed")
            yield world
        finally:
            run.send_signal(signal.SIGTERM)
            run.wait(timeout=600)
    log_text = (folder / "run.log").read_text()
    assert "Web UI: http://127.0.0.1:" in log_text
    # A log has the address, and nothing that lets anybody in.
    assert "#login=" not in log_text


def test_who_was_not_let_in_sees_nothing(watched: Watched) -> None:
    browser, address = watched.browser, watched.link().partition("#")[0]
    asked = "performance.getEntriesByType('resource').map((each) => each.name).filter((name) => name.includes('/v1/'))"
    for start in (address, f"{address}#login={'x' * 32}"):
        browser.open("about:blank")
        browser.open(start)
        browser.awaits("!document.getElementById('sign-in').hidden")
        assert browser.look("document.getElementById('view').checkVisibility()") is False
        assert watched.database not in browser.look("document.documentElement.outerHTML")
        assert browser.look(asked) == []
    browser.awaits("document.getElementById('login-error').textContent.includes('is not valid')")
    # The code is out of the address, and so of the browser's history.
    assert browser.look("location.href") == address
    browser.look("(document.getElementById('code').value = 'not-the-token', document.forms.login.requestSubmit())")
    browser.awaits("document.getElementById('login-error').textContent.includes('is not valid')")
    browser.picture(PICTURES / "sign-in.png")
    # A link works once.
    link = watched.link()
    browser.open("about:blank")
    browser.open(link)
    browser.awaits("document.querySelectorAll('#table-list tbody tr').length === 3")
    browser.click("Sign out")
    browser.awaits("!document.getElementById('sign-in').hidden")
    browser.open("about:blank")
    browser.open(link)
    browser.awaits("document.getElementById('login-error').textContent.includes('is not valid')")


def test_the_page_shows_what_the_status_says(watched: Watched) -> None:
    watched.let_in()
    browser = watched.browser

    def equal() -> bool:
        said, shown = watched.status(), watched.shown()
        for table in said["tables"]:
            phase, _, rows, *_ = shown[table["table"]]
            if (phase, rows) != (table["phase"], f"{table['rows']:,}"):
                return False
        commit = browser.look("document.getElementById('figure-commit').textContent")
        return (
            len(said["tables"]) == len(shown) == 3
            and f"epoch {said['job']['last_commit']['epoch']}" in commit
            and browser.look("document.getElementById('pipeline').textContent") == said["pipeline"]
        )

    wait_until(equal, timeout_s=TIMEOUT_S, what="the page and raycdc status --json say the same")
    parked = next(table for table in watched.status()["tables"] if table["parked"])
    assert parked["parked"]["reason"] in browser.look("document.getElementById('attention').innerText")
    assert browser.look("document.querySelectorAll('.bar').length") > 0
    assert browser.complaints() == []


def test_charts_go_by_the_clock_of_the_run(watched: Watched) -> None:
    watched.let_in()
    browser, drawn = watched.browser, "document.querySelectorAll('#chart-list path{}').length > 0"
    browser.awaits(drawn.format(".curve"))
    # The browser's own is two hours ahead.
    browser.look("void (Date.now = ((clock) => () => clock() + 7200000)(Date.now))")
    browser.look("void document.querySelectorAll('#chart-list path').forEach((each) => each.classList.add('before'))")
    browser.awaits(f"!({drawn.format('.before')})")
    assert browser.look(drawn.format(".curve")) is True


def test_names_of_tables_are_text_whatever_is_in_them(watched: Watched) -> None:
    watched.let_in()
    browser = watched.browser
    assert {watched.name("orders"), watched.name(SCRIPT), watched.name(IMAGE)} == set(watched.shown())
    assert browser.look("[document.scripts.length, document.images.length]") == [1, 0]
    browser.look("(document.getElementById('contains').value = '<SCRIPT', document.forms.filter.requestSubmit())")
    browser.awaits("document.querySelectorAll('#table-list tbody tr').length === 1")
    browser.click(watched.name(SCRIPT), within="#table-list")
    browser.awaits("document.getElementById('table-dialog').open")
    assert browser.look("document.getElementById('table-dialog-title').textContent") == watched.name(SCRIPT)
    assert browser.look("[document.scripts.length, document.images.length]") == [1, 0]
    browser.type(ESCAPE)
    # Nothing makes markup of a text in this page, and no script runs that is not one of its files.
    refused = (
        "(() => { try { document.body.innerHTML = '<p>'; return 'made'; } catch (error) { return error.name; } })()"
    )
    assert browser.look(refused) == "TypeError"
    inline = (
        "(() => { const made = document.createElement('script');"
        " try { made.text = 'window.ran = 1'; document.head.append(made); } catch { made.remove(); }"
        " return window.ran; })()"
    )
    assert browser.look(inline) is None


def test_changes_of_schemas_and_columns_are_shown(watched: Watched) -> None:
    watched.let_in()
    browser, name = watched.browser, watched.name("orders")
    assert "No schema has changed" in browser.look("document.getElementById('change-list').textContent")
    watched.server.execute(
        "ALTER TABLE orders ADD COLUMN price DECIMAL(10, 2)",
        "INSERT INTO orders VALUES (4000, 'new', 1.5)",
        database=watched.database,
    )
    browser.awaits("document.getElementById('change-list').textContent.includes('price')")
    browser.click(name, within="#change-list")
    browser.awaits("document.getElementById('table-dialog').open")
    browser.look("document.querySelector('.columns summary').click()")
    browser.awaits("document.querySelectorAll('.columns tr').length === 3")
    rows = browser.look("[...document.querySelectorAll('.columns tr')].map((row) => row.innerText.split('\\t')[0])")
    assert rows == ["id", "v", "price"]


def test_buttons_act_as_the_command_line_does(watched: Watched) -> None:
    watched.let_in()
    browser, name = watched.browser, watched.name("orders")
    browser.click(name, within="#table-list")
    browser.click("Pause", within="#table-dialog")
    # Nothing happens before it is confirmed.
    browser.awaits("document.querySelector('.confirm p').textContent.includes('is not followed until it is resumed')")
    browser.click("Cancel", within="#table-dialog")
    # They stand in a line.
    tops = "[...document.querySelectorAll('.acting > .actions button')].map((each) => each.offsetTop)"
    assert len(set(browser.look(tops))) == 1
    assert watched.phase("orders") == "stream"
    browser.click("Pause", within="#table-dialog")
    browser.click(f"Pause {name}", within="#table-dialog")
    browser.awaits("document.querySelector('.answer.good')?.textContent.includes('is paused')")
    assert watched.phase("orders") == "paused"
    browser.awaits("document.querySelector('#table-dialog .pill').textContent === 'paused'")
    watched.server.execute("INSERT INTO orders VALUES (5000, 'meanwhile', 2)", database=watched.database)
    browser.picture(PICTURES / "paused.png")
    browser.click("Resume", within="#table-dialog")
    browser.click(f"Resume {name}", within="#table-dialog")
    browser.awaits("document.querySelector('.answer.good')?.textContent.includes('goes on')")
    browser.awaits("document.querySelector('#table-dialog .pill').textContent === 'stream'")
    browser.click("Resnapshot", within="#table-dialog")
    browser.click(f"Resnapshot {name}", within="#table-dialog")
    browser.awaits("document.querySelector('.answer.good')?.textContent.includes('is read again')")
    browser.awaits("document.querySelector('#table-dialog .pill').textContent === 'stream'")
    browser.click("Verify", within="#table-dialog")
    browser.click(f"Verify {name}", within="#table-dialog")
    browser.awaits("document.querySelector('.answer.good')?.textContent.includes('equal')")
    assert "2,002 rows of the source, 2,002 of the target" in browser.look(
        "document.querySelector('.answer').textContent"
    )
    done = [
        json.loads(line)
        for line in watched.raycdc("tables", "commands", "pipeline.toml", "--json").stdout.split("\n")
        if line
    ]
    assert [(each["action"], each["state"]) for each in done] == [
        ("pause", "done"), ("resume", "done"), ("resnapshot", "done"),
    ]  # fmt: skip
    assert watched.raycdc("verify", "pipeline.toml", name).returncode == ExitCode.DONE


def test_who_may_look_alone_has_no_buttons_and_acts_by_no_other_way(watched: Watched) -> None:
    watched.let_in("--read-only")
    browser, name = watched.browser, watched.name(IMAGE)
    assert browser.look("document.getElementById('read-only').checkVisibility()") is True
    browser.click(name, within="#table-list")
    browser.awaits("document.getElementById('table-dialog').open")
    assert browser.look("document.querySelector('.acting').checkVisibility()") is False
    asked = (
        "(() => { const ask = new XMLHttpRequest(); ask.open('POST', '/v1/commands', false);"
        "ask.setRequestHeader('Content-Type', 'application/json');"
        "ask.setRequestHeader('X-Raycdc-Key', localStorage.getItem('raycdc-key'));"
        "ask.send(JSON.stringify({ action: 'pause', table: arguments[0] })); return ask.status; })"
    )
    assert browser.look(f"{asked}.call(null, arguments[0])", name) == 403
    assert watched.phase(IMAGE) == "stream"


def test_whoever_leaves_in_one_window_is_out_in_all_of_them_and_is_told_what_to_do(watched: Watched) -> None:
    watched.let_in()
    browser = watched.browser
    browser.click(watched.name("orders"), within="#table-list")
    browser.awaits("document.getElementById('table-dialog').open")
    # As the other window does it; this one only looks.
    browser.look(
        "void fetch('/page/logout', { method: 'POST', body: '{}', headers: { 'Content-Type': 'application/json', "
        "'X-Raycdc-Key': localStorage.getItem('raycdc-key') } })"
    )
    browser.awaits("!document.getElementById('sign-in').hidden")
    assert browser.look("document.getElementById('view').checkVisibility()") is False
    assert browser.look("document.getElementById('table-dialog').open") is False
    text = browser.look("document.getElementById('login-error').textContent")
    assert "not signed in any more" in text
    assert "The command above prints a new link." in text
    browser.picture(PICTURES / "left.png")


def test_it_can_be_used_by_keyboard_and_heard(watched: Watched) -> None:
    watched.let_in()
    browser = watched.browser
    name = watched.name("orders")
    browser.look("document.getElementById('contains').focus()")
    for _ in range(60):
        browser.type(TAB)
        if browser.look("document.activeElement.textContent") == name:
            break
    assert browser.look("document.activeElement.textContent") == name
    assert browser.look("getComputedStyle(document.activeElement).outlineStyle") != "none"
    browser.type(ENTER)
    browser.awaits("document.getElementById('table-dialog').open")
    assert browser.look("document.getElementById('table-dialog').contains(document.activeElement)") is True
    browser.type(ESCAPE)
    browser.awaits("!document.getElementById('table-dialog').open")
    assert browser.look("document.activeElement.textContent") == name
    unnamed = (
        "[...document.querySelectorAll('button, input, select, a, svg[role=img], nav, section, progress')]"
        ".filter((each) => each.checkVisibility() && !(each.getAttribute('aria-label') || each.textContent.trim()"
        " || each.getAttribute('aria-labelledby') || document.querySelector(`label[for='${each.id}']`)))"
        ".map((each) => each.outerHTML)"
    )
    assert browser.look(unnamed) == []
    assert browser.look("document.querySelectorAll('main:not([hidden])').length") == 1
    # What is read aloud is what changed as a whole.
    assert browser.look("document.getElementById('announcement').textContent") == "shop: running, 1 parked"


#: The least contrast of a text with what is behind it, in the page's own colours.
CONTRAST = """
(() => {
  const channel = (value) => (value <= 0.03928 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4);
  const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const parts = (colour) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => parts(colour).slice(0, 3)
    .reduce((sum, part, n) => sum + [0.2126, 0.7152, 0.0722][n] * channel(part / 255), 0);
  const found = [];
  for (const each of document.querySelectorAll("#view *")) {
    const text = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!text || !each.checkVisibility() || each.closest(":disabled, .hidden, svg")) continue;
    let behind = each;
    while (behind && parts(getComputedStyle(behind).backgroundColor)[3] < 255) behind = behind.parentElement;
    const ground = getComputedStyle(behind ?? document.body).backgroundColor;
    const [a, b] = [light(getComputedStyle(each).color), light(ground)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${ratio.toFixed(2)}: ${each.outerHTML.slice(0, 120)}`);
  }
  return found;
})()
"""


@pytest.mark.parametrize(("colours", "phone"), [("light", False), ("dark", False), ("light", True), ("dark", True)])
def test_it_can_be_read_light_and_dark_and_on_a_phone(watched: Watched, colours: str, *, phone: bool) -> None:
    browser = watched.browser
    browser.show_as(colours=colours, phone=phone)
    try:
        watched.let_in()
        browser.awaits("document.querySelectorAll('.bar').length > 0")
        assert browser.look("document.documentElement.dataset.colours") == colours
        assert browser.look(CONTRAST.strip()) == []
        # Nothing is wider than the window.
        assert browser.look("document.documentElement.scrollWidth <= innerWidth") is True
        browser.picture(PICTURES / f"{colours}{'-phone' if phone else ''}.png")
        assert browser.complaints() == []
    finally:
        browser.show_as()


def test_a_look_at_a_hundred_thousand_tables_is_small_and_takes_little() -> None:
    keeper = StatusKeeper(RunProcess.here("many", "delta lake", local=True))
    tables = tuple(TableFigures(f"db.t{n:06}", "stream", rows=n) for n in range(100_000))
    keeper.listen(Started(1, 1, (1,)))
    keeper.listen(RunProgress(tables, Lags(), ()))
    feed = Feed(StatusDocuments(keeper, lambda table: (table,)), History(keeper))
    for sort in Sorting:
        look = feed.snapshot(
            TableQuery(sort=sort, descending=True, limit=50, offset=99_950), UiPermissions(act=True, verify=True)
        )
        assert (look.matching, look.offset, len(look.status.tables)) == (100_000, 99_950, 50)
        assert len(look.to_json()) < 200_000
