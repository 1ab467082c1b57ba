"""What README and manual tell people to type is typed here, line by line, in the order of the pages, on a real server.

The configuration is README's own, with the server's port. Between some commands happens what the pages say happens: a
state is lost before it is brought back, a key in the file follows a state that was moved.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest
from deltalake import DeltaTable

from raycdc.sandbox.servers import MariaDbServer
from tests.manual_commands import ELSEWHERE, ENDLESS, PLAYED, ROOT, shown_commands
from tests.support.forked_commands import ForkedCommand, completed, ended, nursery

pytestmark = pytest.mark.server

#: A command that has not done its work by then does not do it any more.
_ENDS_WITHIN_S = 900.0


@dataclass(frozen=True, slots=True)
class Stage:
    """The folder in which commands are typed, beside a server with a shop."""

    server: MariaDbServer
    folder: Path
    #: Whether commands are typed into a shell as they stand; else each is forked, and one without an end has no Ray.
    literally: bool

    @property
    def configuration(self) -> Path:
        return self.folder / "shop.toml"

    @property
    def environment(self) -> Mapping[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return {**os.environ, "MYSQL_PASSWORD": "secret", "PATH": path, "RAY_ADDRESS": "127.0.0.1:1"}

    def type(self, command: str) -> tuple[int, str]:
        """The exit code of a command that ends, and what it said."""
        words = shlex.split(command)
        if self.literally or words[0] != "raycdc":
            typed = ["bash", "-c", command]
            done = subprocess.run(  # noqa: PLW1510 - the code is what is asked for
                typed, cwd=self.folder, env=self.environment, text=True, capture_output=True, timeout=_ENDS_WITHIN_S
            )
        else:
            done = completed(self._forked(words), environment=self.environment, folder=self.folder)
        return done.returncode, done.stdout + done.stderr

    def type_and_stop(self, command: str, written: Callable[[], bool]) -> tuple[int, str]:
        """The same of one without an end, which gets a Ctrl-C when it has `written` what it was to write."""
        words = shlex.split(command)
        with tempfile.TemporaryFile() as errors:
            if self.literally:
                typed = ["bash", "-c", f"exec {command}"]
                started: Started = subprocess.Popen(
                    typed,
                    cwd=self.folder,
                    env=self.environment,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    start_new_session=True,
                )
            else:
                started = nursery().start(
                    self._forked(words), environment=self.environment, folder=self.folder, stderr=errors
                )
            deadline = time.monotonic() + _ENDS_WITHIN_S
            while not written() and time.monotonic() < deadline:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    started.wait(0.1)
                    break
            started.send_signal(signal.SIGINT)
            code, said, complaints = ended(started, errors, timeout_s=_ENDS_WITHIN_S, kill=started.kill)
        return code, said + complaints

    def _forked(self, words: list[str]) -> list[str]:
        """The arguments of a command, and of a run those for one without Ray."""
        if words[1] != "run" or "--local" in words:
            return words[1:]
        return [*("never" if word == "always" else word for word in words[1:]), "--local"]

    def has(self, order: int) -> bool:
        """Whether the lake holds that order."""
        place = self.folder / "lake" / "shop" / "orders"
        return (
            DeltaTable.is_deltatable(str(place))
            and order in DeltaTable(str(place)).to_pyarrow_table()["id"].to_pylist()
        )


Started = subprocess.Popen[bytes] | ForkedCommand


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.long(suite="docs"))], ids=["forked", "literally"])
def stage(request: pytest.FixtureRequest, mariadb: MariaDbServer, tmp_path: Path) -> Iterator[Stage]:
    """A shop, an account as the manual makes one, and README's first configuration."""
    account = "DROP USER IF EXISTS manual@'%'"
    mariadb.execute("DROP DATABASE IF EXISTS shop", account, "CREATE DATABASE shop")
    mariadb.execute(*(shown.command.replace("cdc@", "manual@") for shown in shown_commands("sql")))
    mariadb.execute(
        "CREATE TABLE orders (id INT PRIMARY KEY, created DATE, status VARCHAR(9), total DECIMAL(10, 2))",
        "INSERT INTO orders VALUES (1, '2023-05-01', 'open', 9.5), (2, '2026-05-01', 'paid', 1)",
        "CREATE TABLE item_1 (id INT PRIMARY KEY, name TEXT)",
        "INSERT INTO item_1 VALUES (1, 'tea')",
        database="shop",
    )
    stage = Stage(mariadb, tmp_path, request.param)
    first = re.findall(r"^```toml\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[0]
    written = first.replace('host = "127.0.0.1"', f'host = "{mariadb.host}"\nport = {mariadb.port}')
    stage.configuration.write_text(written.replace('user = "cdc"', 'user = "manual"'))
    yield stage
    mariadb.execute("DROP DATABASE shop", account)


def test_every_command_of_the_readme_and_the_manual_does_what_it_says(stage: Stage) -> None:
    lost = stage.folder / "state" / "shop"
    orders = 100
    for shown in shown_commands():
        command = shown.command
        if command in ELSEWHERE:
            continue
        if command.startswith("cp -a"):
            shutil.rmtree(lost)
        if command in ENDLESS:
            orders += 1
            stage.server.execute(f"INSERT INTO orders VALUES ({orders}, '2026-01-01', 'new', 2)", database="shop")
            code, said = stage.type_and_stop(command, lambda order=orders: stage.has(order))  # type: ignore[misc]
            assert (code, stage.has(orders)) == (130, True), f"{shown.page}: {command}\n{said}"
        else:
            code, said = stage.type(command)
            assert code == PLAYED[command], f"{shown.page}: {command}\n{said}"
        if command.startswith("raycdc state move"):
            text = stage.configuration.read_text()
            stage.configuration.write_text(text.replace("[source]", 'state = "other/shop"\n\n[source]', 1))


@pytest.mark.long(suite="docs")
@pytest.mark.parametrize("stage", [False], indirect=True, ids=["forked"])
def test_restoring_is_as_the_manual_says_where_the_target_went_on(stage: Stage) -> None:
    def run(expected: int) -> str:
        code, said = stage.type("raycdc run shop.toml --until caught-up")
        assert code == expected, said
        return said

    run(0)
    assert stage.type("raycdc state backup shop.toml backup/shop-1126")[0] == 0
    stage.server.execute("INSERT INTO orders VALUES (3, '2026-01-01', 'new', 2)", database="shop")
    run(0)
    shutil.rmtree(stage.folder / "state" / "shop")
    assert stage.type("cp -a backup/shop-1126 state/shop")[0] == 0
    run(5)
    assert stage.has(3)
    # The last row of the page's table: no copy fits.
    text = stage.configuration.read_text()
    anew = 'state = "new/shop"\non_existing = "replace"\n\n[source]'
    stage.configuration.write_text(text.replace("[source]", anew, 1))
    run(0)
    assert stage.type("raycdc verify shop.toml")[0] == 0
    # And the target alone is lost.
    shutil.rmtree(stage.folder / "lake")
    run(5)
    for table in ("orders", "item_1"):
        assert stage.type(f"raycdc tables resnapshot shop.toml shop.{table}")[0] == 0
    run(0)
    assert stage.type("raycdc verify shop.toml")[0] == 0


@pytest.mark.long(suite="docs")
@pytest.mark.parametrize("stage", [True], indirect=True, ids=["literally"])
def test_python_of_the_readme_prints_every_batch(stage: Stage) -> None:
    program = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(), re.MULTILINE | re.DOTALL)[0]
    (stage.folder / "loop.py").write_text(program)
    code, said = stage.type("python loop.py")
    assert code == 0, said
    assert {"shop.orders 2", "shop.item_1 1"} <= set(said.splitlines())
