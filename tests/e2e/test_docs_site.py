"""The manual's site, as ``make docs`` leaves it in build/site: nothing in it comes from elsewhere, and every link leads
somewhere. In a browser that was opened on a folder, without a network, its search finds pages.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

import pytest

pytestmark = [pytest.mark.long(suite="docs")]

SITE = Path(__file__).resolve().parents[2] / "build" / "site"
#: All but the one that a server shows for what it does not have.
PAGES = sorted(path for path in SITE.rglob("*.html") if path.name != "404.html")


class Page(HTMLParser):
    """What a page loads, where its links lead, and which places it has."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.links: list[str] = []
        self.places: set[str] = {"__skip"}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """See `HTMLParser`."""
        has = dict(attrs)
        self.places.update(filter(None, (has.get("id"), has.get("name"))))
        if tag == "a":
            self.links.append(has.get("href") or "")
        elif tag == "link" and has.get("rel") not in ("prev", "next", "canonical"):
            self.loads.append(has.get("href") or "")
        elif src := has.get("src"):
            self.loads.append(src)


@pytest.fixture(scope="module")
def pages() -> dict[Path, Page]:
    assert PAGES, "run make docs first"
    return {path: Page(path) for path in PAGES}


def test_nothing_is_loaded_from_elsewhere(pages: dict[Path, Page]) -> None:
    foreign = {src for page in pages.values() for src in page.loads if "//" in src.partition("?")[0]}
    assert foreign == set()
    styles = "".join(path.read_text(encoding="utf-8") for path in SITE.rglob("*.css"))
    assert re.findall(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", styles) == []


def test_every_link_leads_to_a_page_and_a_place(pages: dict[Path, Page]) -> None:
    lost = []
    for path, page in pages.items():
        for link in filter(lambda link: "://" not in link and not link.startswith("mailto:"), page.links):
            file, place = urldefrag(link)
            target = (path.parent / unquote(file)).resolve() if file else path
            target = target / "index.html" if target.is_dir() else target
            if not target.exists() or (place and target in pages and unquote(place) not in pages[target].places):
                lost.append(f"{path.name}: {link}")
    assert lost == []


@pytest.mark.parametrize(
    ("asked", "found"), [("binlog_row_image", "manual/mysql.html"), ("TargetDroppedError", "manual/errors.html")]
)
def test_the_search_finds_pages_without_a_network(tmp_path: Path, asked: str, found: str) -> None:
    browser = shutil.which("chromium") or pytest.skip("there is no chromium")
    command = [browser, "--headless", "--no-sandbox", "--disable-gpu", "--proxy-server=127.0.0.1:9"]
    command += [f"--user-data-dir={tmp_path}", "--virtual-time-budget=20000", "--dump-dom"]
    address = f"{SITE.as_uri()}/index.html?q={asked}"
    shown = subprocess.run([*command, address], capture_output=True, text=True, check=True).stdout
    assert found in shown.partition('class="md-search-result__list"')[2].partition("</ol>")[0]
