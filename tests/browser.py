"""A headless Chromium, driven by its own driver over W3C WebDriver: as much of the protocol as tests of pages need.

A package for it would be larger than these requests.
"""

from __future__ import annotations

import base64
import http.client
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from raycdc.sandbox.servers.private import wait_until

#: A machine that does much else takes its time.
TIMEOUT_S = 300
ENTER, ESCAPE, TAB = "\ue007", "\ue00c", "\ue004"


class Browser:
    """One window. `look` runs JavaScript in the page and returns what it returns."""

    def __init__(self, port: int, folder: Path) -> None:
        self._port = port
        arguments = [
            "--headless=new",
            # Chromium's sandbox is not for root, which tests may be.
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--hide-scrollbars",
            "--window-size=1360,900",
            f"--user-data-dir={folder}",
        ]
        wanted = {"goog:chromeOptions": {"args": arguments}, "goog:loggingPrefs": {"browser": "ALL"}}
        made = self._ask("POST", "/session", {"capabilities": {"alwaysMatch": wanted}})
        self._session = f"/session/{made['sessionId']}"

    def _ask(self, method: str, path: str, body: object = None) -> Any:
        with closing(http.client.HTTPConnection("127.0.0.1", self._port, timeout=TIMEOUT_S)) as connection:
            sent = None if body is None else json.dumps(body)
            connection.request(method, path, sent, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            said = json.loads(answer.read())["value"]
        assert answer.status == 200, f"{path}: {said['error']}: {said['message']}"
        return said

    def close(self) -> None:
        self._ask("DELETE", self._session)

    def open(self, address: str) -> None:
        self._ask("POST", f"{self._session}/url", {"url": address})

    def look(self, script: str, *arguments: object) -> Any:
        """What `return script` returns; `arguments` are its own."""
        body = {"script": f"return {script}", "args": [*arguments]}
        return self._ask("POST", f"{self._session}/execute/sync", body)

    def awaits(self, script: str, *arguments: object) -> None:
        """Wait until the page says so."""
        try:
            wait_until(lambda: bool(self.look(script, *arguments)), timeout_s=TIMEOUT_S, what=script)
        except Exception as late:
            raise AssertionError(f"{late}\nThe page shows:\n{self.look('document.body.innerText')}") from late

    def click(self, words: str, *, within: str = "body") -> None:
        """Click what is to be clicked that is called so: the first that is shown."""
        button = (
            "[...document.querySelector(arguments[0]).querySelectorAll('button, a')]"
            ".find((each) => each.textContent.trim() === arguments[1] && each.checkVisibility())"
        )
        self.awaits(f"Boolean({button} && !{button}.disabled)", within, words)
        self.look(f"{button}.click()", within, words)

    def type(self, text: str) -> None:
        """Press these keys where the focus is."""
        keys = [{"type": kind, "value": key} for key in text for kind in ("keyDown", "keyUp")]
        actions = {"actions": [{"type": "key", "id": "keys", "actions": keys}]}
        self._ask("POST", f"{self._session}/actions", actions)

    def tell(self, command: str, **parameters: object) -> Any:
        """A command of Chromium's own protocol."""
        return self._ask("POST", f"{self._session}/goog/cdp/execute", {"cmd": command, "params": parameters})

    def show_as(self, *, colours: str = "light", phone: bool = False) -> None:
        """As a system with these colours shows it, or a phone."""
        self.tell("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
        width, height = (390, 844) if phone else (1360, 900)
        self.tell("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=phone)

    def picture(self, file: Path) -> None:
        """The whole page as a PNG."""
        width, height = self.look("[innerWidth, document.documentElement.scrollHeight]")
        clip = {"x": 0, "y": 0, "width": width, "height": height, "scale": 1}
        shot = self.tell("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)["data"]
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(base64.b64decode(shot))

    def complaints(self) -> list[str]:
        """What the console has, since it was asked last."""
        return [entry["message"] for entry in self._ask("POST", f"{self._session}/se/log", {"type": "browser"})]


@contextmanager
def a_browser(folder: Path) -> Iterator[Browser]:
    """One with a profile of its own in `folder`. Skips where there is no Chromium or no driver of it."""
    driver = shutil.which("chromedriver") or pytest.skip("there is no chromedriver")
    log = folder / "chromedriver.log"
    with log.open("w") as out:
        process = subprocess.Popen([driver, "--port=0"], stdout=out, stderr=out)
    try:
        port = ""

        def up() -> bool:
            nonlocal port
            assert process.poll() is None, log.read_text()
            found = re.search(r"started successfully on port (\d+)", log.read_text())
            port = found[1] if found else ""
            return bool(port)

        wait_until(up, timeout_s=TIMEOUT_S, what="the browser's driver is up")
        with closing(Browser(int(port), folder / "profile")) as browser:
            yield browser
    finally:
        process.terminate()
        process.wait(timeout=TIMEOUT_S)
