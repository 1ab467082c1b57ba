"""A private Prometheus from Debian's package, which scrapes what it is told to and evaluates rules.

Nothing is installed: apt downloads the package, dpkg unpacks it into the cache.
"""

from __future__ import annotations

import http.client
import json
import shutil
import subprocess
from contextlib import closing
from pathlib import Path
from typing import ClassVar
from urllib.parse import quote

from raycdc.sandbox.cache import build_once
from raycdc.sandbox.servers.private import PrivateServer, ServerError

_START_TIMEOUT_S = 120.0
_TIMEOUT_S = 20.0


class PrometheusServer(PrivateServer):
    """``with PrometheusServer("127.0.0.1:9464", rules) as prometheus: prometheus.firing()``.

    `rules` are the text of a file of rules. It scrapes and evaluates each half second.
    """

    flavor: ClassVar[str] = "prometheus"
    taken: ClassVar[str] = "address already in use"

    def __init__(self, target: str = "", rules: str = "groups: []", *, port: int | None = None) -> None:
        super().__init__(port=port)
        self._target = target
        self._rules = rules

    def prepare(self) -> None:
        """Download it, once per machine. `ServerError` without apt."""
        _home()

    def _launch(self) -> None:
        (self.folder / "rules.yml").write_text(self._rules)
        targets = json.dumps([self._target] if self._target else [])
        (self.folder / "prometheus.yml").write_text(
            "global: { scrape_interval: 500ms, scrape_timeout: 400ms, evaluation_interval: 500ms }\n"
            "rule_files: [rules.yml]\n"
            f"scrape_configs: [{{ job_name: raycdc, static_configs: [{{ targets: {targets} }}] }}]\n"
        )
        command = [str(_home() / "usr/bin/prometheus"), f"--config.file={self.folder / 'prometheus.yml'}"]
        command += [f"--storage.tsdb.path={self.folder / 'data'}", f"--web.listen-address={self.host}:{self.port}"]
        # The page's files are in another place than the package's; nobody looks at it.
        command += [f"--web.console.templates={self.folder}", f"--web.console.libraries={self.folder}"]
        log = self.folder / "out.log"
        self._run(command, self._ready, name="Prometheus", logs=[log], timeout_s=_START_TIMEOUT_S)

    def _ready(self) -> bool:
        return self._listens() and self._get("/-/ready")[0] == 200

    def query(self, expression: str) -> list[float]:
        """Return the values of an instant vector."""
        code, text = self._get(f"/api/v1/query?query={quote(expression)}")
        if code != 200:
            raise ServerError(f"{self!r} answered {expression}: {code} {text}")
        return [float(found["value"][1]) for found in json.loads(text)["data"]["result"]]

    def firing(self) -> set[str]:
        """Return the names of the alerts that fire now."""
        code, text = self._get("/api/v1/alerts")
        if code != 200:
            raise ServerError(f"{self!r} tells no alerts: {code} {text}")
        alerts = json.loads(text)["data"]["alerts"]
        return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}

    def _get(self, path: str) -> tuple[int, str]:
        with closing(http.client.HTTPConnection(self.host, self.port, timeout=_TIMEOUT_S)) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()


def check_rules(path: Path) -> str:
    """Return the output of ``promtool check rules`` for a file. Raises `ServerError` if the file is refused."""
    return _promtool("check", "rules", str(path))


def try_rules(path: Path) -> str:
    """Return the output of ``promtool test rules`` for a file of tests. Raises `ServerError` if one fails."""
    return _promtool("test", "rules", str(path))


def _promtool(*arguments: str) -> str:
    command = [str(_home() / "usr/bin/promtool"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServerError(done.stdout + done.stderr)
    return done.stdout + done.stderr


def _home() -> Path:
    return build_once("prometheus", _install)


def _install(folder: Path) -> None:
    if shutil.which("apt-get") is None or shutil.which("dpkg") is None:
        raise ServerError("Prometheus comes from Debian's package, and there is no apt-get or dpkg here.")
    done = subprocess.run(
        ["apt-get", "-qq", "download", "prometheus"], capture_output=True, text=True, check=False, cwd=folder
    )
    packages = list(folder.glob("prometheus_*.deb"))
    if not packages:
        raise ServerError(f"apt downloads no package prometheus (apt-get update?): {done.stdout}{done.stderr}")
    subprocess.run(["dpkg", "-x", packages[0], folder], check=True, capture_output=True)
