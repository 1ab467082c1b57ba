"""Damage planted in each file of a state: the run recovers or refuses by name, and the target is never a wrong one.

The state is one of a pipeline that was killed with a sealed epoch that no sink has, and a request beside it: so it has
a file of each kind. It is played from a copy for each kind of file and damage.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from raycdc.sandbox.servers import DatabaseServer
from tests.blackbox.command import Pipeline
from tests.blackbox.compare import Held, differences, print_table
from tests.blackbox.targets import DeltaTarget

pytestmark = [pytest.mark.server, pytest.mark.long(suite="blackbox")]

TABLES = ("a", "b")

#: Every kind of file that a state has, and which of them is damaged. A file of no kind fails the suite.
KINDS: Mapping[str, tuple[str, int]] = {
    "identity": ("meta.json", 0),
    "generation": ("gen", 0),
    "claim of a generation": ("generations/*.json", -1),
    "lease": ("lease", 0),
    "documents that a driver took over": ("generations/*.documents.json", 0),
    "requests": ("documents/requests.json.*", 0),
    "newest manifest": ("epochs/*.json", -1),
    "manifest before it": ("epochs/*.json", -2),
    "newest record": ("commits/*.json", -1),
    "record before it": ("commits/*.json", -2),
    "schema": ("schemas/*.json", 0),
    "another schema": ("schemas/*.json", -1),
    "segment": ("spool/*.arrow", 0),
    "another segment": ("spool/*.arrow", -1),
}


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0x04
    path.write_bytes(bytes(content))


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def deleted(path: Path) -> None:
    path.unlink()


def made_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def made_newer(path: Path) -> None:
    """As a later raycdc might write it: another version, and a checksum that is right."""
    content = json.loads(path.read_text())
    content.pop("sha")
    content["version"] = 999
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    content["sha"] = hashlib.sha256(canonical.encode()).hexdigest()
    path.write_text(json.dumps(content))


DAMAGES: tuple[Callable[[Path], None], ...] = (truncated, flipped, emptied, deleted, made_a_folder, made_newer)


@dataclass(frozen=True, slots=True)
class Ruin:
    """A pipeline that was killed, and the copy of its folder as it was then."""

    pipeline: Pipeline
    copy: Path
    server: DatabaseServer
    database: str

    def restore(self) -> None:
        shutil.rmtree(self.pipeline.folder)
        shutil.copytree(self.copy, self.pipeline.folder)

    def held(self, table: str) -> Held:
        held, _ = DeltaTarget(self.pipeline.folder / "lake").read(self.database, table, ("id",))
        assert held is not None
        return held

    def wrong(self, table: str) -> list[str]:
        """How a target differs from the source as it is now."""
        with self.server.connect() as connection:
            source = print_table(connection, self.database, table)
        assert source is not None
        return differences(source, self.held(table))


@pytest.fixture(scope="module", params=["mariadb", "mysql80"])
def ruin(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ruin]:
    server: DatabaseServer = request.getfixturevalue(request.param)
    folder = tmp_path_factory.mktemp("damage")
    with server.fresh_database("dm") as database:
        for table in TABLES:
            server.execute(
                f"CREATE TABLE {table} (id INT PRIMARY KEY, {table}v VARCHAR(20))",
                f"INSERT INTO {table} VALUES (1, 'one'), (2, 'two')",
                database=database,
            )
        pipeline = Pipeline(folder / "job", _configuration(server, database))
        pipeline.run().expect(0)
        server.execute("UPDATE a SET av = 'new' WHERE id = 2", database=database)
        pipeline.run().expect(0)
        server.execute(
            "INSERT INTO a VALUES (3, 'three')",
            "UPDATE b SET bv = 'new'",
            "DELETE FROM a WHERE id = 1",
            database=database,
        )
        killing = {"RAYCDC_FAILPOINTS": "after_manifest=kill", "RAYCDC_FAILPOINT_DIR": str(folder)}
        killed = Pipeline(folder / "job", pipeline.toml, killing).run()
        assert killed.code == -9, killed.story()
        pipeline.tables("resnapshot", f"{database}.b").expect(0)
        shutil.copytree(folder / "job", folder / "copy")
        yield Ruin(pipeline, folder / "copy", server, database)


def test_every_file_of_the_state_is_of_a_kind_that_is_damaged_here(ruin: Ruin) -> None:
    state = ruin.copy / "state"
    known = {path for pattern, _ in KINDS.values() for path in state.glob(pattern)}
    assert {path for path in state.rglob("*") if path.is_file()} - known == set()


@pytest.mark.parametrize("damage", DAMAGES, ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_damage_is_named_or_recovered_from(kind: str, damage: Callable[[Path], None], ruin: Ruin) -> None:
    ruin.restore()
    pattern, which = KINDS[kind]
    path = sorted(ruin.pipeline.state.glob(pattern))[which]
    if damage is made_newer and not path.read_bytes().startswith(b"{"):
        pytest.skip("not JSON: it has no version")
    before = {table: ruin.held(table) for table in TABLES}
    damage(path)
    outcome = ruin.pipeline.run()
    assert "Traceback" not in outcome.said, outcome.story()
    if outcome.code == 0:
        assert [ruin.wrong(table) for table in TABLES] == [[], []], outcome.story()
        return
    assert outcome.code == 6, outcome.story()
    assert path.name in outcome.err or str(path.parent) in outcome.err, outcome.story()
    for table in TABLES:
        assert ruin.held(table) == before[table] or ruin.wrong(table) == [], outcome.story()


def test_a_second_run_on_one_state_is_refused(ruin: Ruin) -> None:
    ruin.restore()
    second: list[int] = []

    def start_another() -> None:
        outcome = ruin.pipeline.run()
        second.append(outcome.code)
        assert "Traceback" not in outcome.said

    ruin.pipeline.live(until=lambda event: event["event"] == "progress", meanwhile=start_another)
    assert second == [6]


def _configuration(server: DatabaseServer, database: str) -> str:
    return f"""
[pipeline]
name = "damaged"
state = "state"

[source]
type = "mysql"
host = "{server.host}"
port = {server.port}
user = "cdc"
password = "${{env:SOURCE_PASSWORD}}"
tables = ["{database}.a", "{database}.b"]

[sink]
type = "delta"
path = "lake"
"""
