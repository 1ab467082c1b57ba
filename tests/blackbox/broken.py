"""Configurations and surroundings that are broken, each with the exit code and a word of the message that names why.

A case changes keys of a whole configuration, or what is around it (`prepare`), or both.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from raycdc.sandbox.servers import DatabaseServer
from tests.blackbox.command import Pipeline

#: Sections of a configuration that works, by key; ``{host}`` and the like are the server's.
WORKING: Mapping[str, Mapping[str, str]] = {
    "pipeline": {"name": '"broken"', "state": '"state"'},
    "source": {
        "type": '"mysql"',
        "host": '"{host}"',
        "port": "{port}",
        "user": '"cdc"',
        "password": '"${env:SOURCE_PASSWORD}"',
        "tables": '["{database}.good"]',
    },
    "sink": {"type": '"delta"', "path": '"lake"'},
}

#: Exit codes of the manual's page *Errors*.
CONFIG, SOURCE, DATA, SINK, STATE = 2, 3, 4, 5, 6


@dataclass(frozen=True, slots=True)
class CasePlace:
    """Where a case is played: its folder, and a database on the server."""

    folder: Path
    server: DatabaseServer
    database: str

    def sql(self, *statements: str) -> None:
        self.server.execute(*statements, database=self.database)


@dataclass(frozen=True, slots=True)
class Broken:
    """A case: `change` replaces keys (``section.key``, None removes one), `toml` the whole text."""

    name: str
    code: int
    word: str
    change: Mapping[str, str | None] = field(default_factory=dict)
    toml: str | None = None
    prepare: Callable[[CasePlace], None] = lambda world: None
    #: What brings the server back to what other tests expect.
    restore: Callable[[CasePlace], None] = lambda world: None
    environment: Mapping[str, str] = field(default_factory=dict)
    #: The configuration that works has run before, and left a state and a target.
    again: bool = False

    def text(self, world: CasePlace) -> str:
        """The configuration."""
        if self.toml is not None:
            return self.toml
        sections = {name: dict(keys) for name, keys in WORKING.items()}
        for place, value in self.change.items():
            section, key = place.split(".", 1)
            keys = sections.setdefault(section, {})
            if value is None:
                keys.pop(key, None)
            else:
                keys[key] = value
        parts = [
            f"{f'[[{name[1:]}]]' if name.startswith('+') else f'[{name}]'}\n"
            + "\n".join(f"{key} = {value}" for key, value in keys.items())
            for name, keys in sections.items()
        ]
        text = "\n\n".join(parts) + "\n"
        words = {"host": world.server.host, "port": str(world.server.port), "database": world.database}
        for word, text_of in words.items():
            text = text.replace(f"{{{word}}}", text_of)
        return text


def _file(name: str, content: str = "here\n") -> Callable[[CasePlace], None]:
    """A file where a folder is wanted."""

    def prepare(world: CasePlace) -> None:
        (world.folder / name).write_text(content)

    return prepare


def _table(*statements: str) -> Callable[[CasePlace], None]:
    return lambda world: world.sql(*statements)


def _user(name: str, *grants: str) -> Callable[[CasePlace], None]:
    create = f"CREATE USER IF NOT EXISTS {name}@'%' IDENTIFIED BY 'cdc'"
    return lambda world: world.sql(create, *(f"GRANT {grant} TO {name}@'%'" for grant in grants))


def _drop_user(name: str) -> Callable[[CasePlace], None]:
    return lambda world: world.sql(f"DROP USER IF EXISTS {name}@'%'")


def _shadow(module: str) -> Callable[[CasePlace], None]:
    """A module that is not installed, as Python says it."""

    def prepare(world: CasePlace) -> None:
        folder = world.folder / "shadow" / module
        folder.mkdir(parents=True)
        text = f"No module named {module!r}"
        (folder / "__init__.py").write_text(f"raise ModuleNotFoundError({text!r}, name={module!r})\n")

    return prepare


def _no_target(world: CasePlace) -> None:
    shutil.rmtree(world.folder / "lake")


def _no_state(world: CasePlace) -> None:
    shutil.rmtree(world.folder / "state")


def _older_state(world: CasePlace) -> None:
    """The state as it was before the rows that the target has."""
    copy = world.folder / "copy"
    shutil.copytree(world.folder / "state", copy)
    world.sql("INSERT INTO good VALUES (2, 2)")
    Pipeline(world.folder, Broken("", 0, "").text(world)).run().expect(0)
    shutil.rmtree(world.folder / "state")
    copy.rename(world.folder / "state")


DEEP = "x = " + "[" * 3000 + "]" * 3000
POSTGRES_NOWHERE = {
    "sink.type": '"jdbc"',
    "sink.path": None,
    "sink.url": '"jdbc:postgresql://127.0.0.1:1/lake"',
    "sink.user": '"postgres"',
}

CONFIGURATIONS: tuple[Broken, ...] = (
    Broken("empty", CONFIG, "pipeline", toml=""),
    Broken("not TOML", CONFIG, "job.toml", toml="[pipeline\nname = 1\n"),
    Broken("nested 3,000 deep", CONFIG, "job.toml", toml=DEEP + "\n"),
    Broken("unknown key", CONFIG, 'did you mean "tables"', {"source.tabels": '["a.b"]', "source.tables": None}),
    Broken("unknown section", CONFIG, "snik", {"snik.type": '"delta"'}),
    Broken("no name", CONFIG, "pipeline.name", {"pipeline.name": None}),
    Broken("a name with a slash", CONFIG, "pipeline.name", {"pipeline.name": '"a/b"'}),
    Broken("text for a number", CONFIG, "source.port", {"source.port": '"many"'}),
    Broken("a port that is none", CONFIG, "source.port", {"source.port": "123456"}),
    Broken("unknown sink", CONFIG, "detla", {"sink.type": '"detla"'}),
    Broken("unknown source", CONFIG, "mysq", {"source.type": '"mysq"'}),
    Broken("no sink", CONFIG, "sink", {"sink.type": None}),
    Broken("variable not set", CONFIG, "NOT_SET_AT_ALL", {"source.password": '"${env:NOT_SET_AT_ALL}"'}),
    Broken("secret file missing", CONFIG, "nowhere.txt", {"source.password": '"${file:nowhere.txt}"'}),
    Broken("duration without a unit", CONFIG, "epoch_interval", {"pipeline.epoch_interval": '"2 fortnights"'}),
    Broken("size that is none", CONFIG, "epoch_bytes_max", {"pipeline.epoch_bytes_max": '"much"'}),
    Broken("unknown behaviour", CONFIG, "schema_change", {"pipeline.schema_change": '"evolv"'}),
    Broken("regular expression", CONFIG, "tables", {"source.tables": "['shop\\.(a']"}),
    Broken("no tables", CONFIG, "tables", {"source.tables": "[]"}),
    Broken("readers", CONFIG, "readers", {"readers.min": "5", "readers.max": "2"}),
    Broken("offset without a file", CONFIG, "startup", {"source.startup": '{ mode = "offset" }'}),
    Broken("mask without a method", CONFIG, "mask", {"+mask.columns": "'a.b.c'"}),
    Broken("mask of an unknown method", CONFIG, "method", {"+mask.columns": "'a.b.c'", "+mask.method": '"rot13"'}),
    Broken("route without a group", CONFIG, "route", {"+route.table": "'{database}.good'", "+route.to": '"a.$3"'}),
    Broken("files that update rows", CONFIG, "write", {"sink.type": '"jsonl"', "sink.write": '"upsert"'}),
    Broken("another database's URL", CONFIG, "url", {**POSTGRES_NOWHERE, "sink.url": '"jdbc:oracle:thin:@h:1"'}),
    Broken("NUL in the state's path", CONFIG, "state", {"pipeline.state": '"a\\u0000b"'}),
    Broken("a lake's URL", CONFIG, "s3a", {"sink.path": '"s3a://lake/shop"'}),
    Broken("a file's URL", CONFIG, "file:", {"sink.path": '"file:///tmp/x"'}),
    Broken("a state's URL", CONFIG, "s3:", {"pipeline.state": '"s3://b/state"'}),
    Broken(
        "key that is no column",
        CONFIG,
        "nothing",
        {"source.snapshot": '{ key = { "{database}.good" = "nothing" } }'},
    ),
    Broken(
        "filter of no column",
        CONFIG,
        "nothing",
        {"source.snapshot": '{ filter = { "{database}.good" = "nothing > 1" } }'},
    ),
    Broken("columns without the key", CONFIG, "id", {"source.columns": '{ "{database}.good" = ["a"] }'}),
)

SURROUNDINGS: tuple[Broken, ...] = (
    Broken("closed port", SOURCE, "127.0.0.1:1", {"source.port": "1"}),
    Broken("unknown host", SOURCE, "no-such-host", {"source.host": '"no-such-host.invalid"'}),
    Broken("wrong password", SOURCE, "cdc", environment={"SOURCE_PASSWORD": "wrong"}),
    Broken(
        "no privilege to read the log",
        SOURCE,
        "REPLICATION",
        {"source.user": '"poor"'},
        prepare=_user("poor", "SELECT ON *.*"),
        restore=_drop_user("poor"),
    ),
    Broken(
        "no privilege to read the table",
        SOURCE,
        "good",
        {"source.user": '"blind"'},
        prepare=_user("blind", "REPLICATION SLAVE, REPLICATION CLIENT ON *.*"),
        restore=_drop_user("blind"),
    ),
    Broken(
        "rows logged as statements",
        SOURCE,
        "binlog_format",
        prepare=_table("SET GLOBAL binlog_format = 'STATEMENT'"),
        restore=_table("SET GLOBAL binlog_format = 'ROW'"),
    ),
    Broken(
        "images of rows not full",
        SOURCE,
        "binlog_row_image",
        prepare=_table("SET GLOBAL binlog_row_image = 'MINIMAL'"),
        restore=_table("SET GLOBAL binlog_row_image = 'FULL'"),
    ),
    Broken("certificate that is not there", CONFIG, "ca.pem", {"source.tls": '{ mode = "verify-ca", ca = "ca.pem" }'}),
    Broken("misspelt table", SOURCE, "goood", {"source.tables": '["{database}.goood"]'}),
    Broken(
        "table without a key",
        DATA,
        "key",
        {"source.tables": '["{database}.keyless"]'},
        prepare=_table("CREATE TABLE keyless (a INT)"),
    ),
    Broken(
        "column with a name of ours",
        DATA,
        "_op",
        {"source.tables": '["{database}.ours"]'},
        prepare=_table("CREATE TABLE ours (id INT PRIMARY KEY, _op INT)"),
    ),
    Broken(
        "cascade that is not logged",
        DATA,
        "on_cascade",
        {"source.tables": '["{database}.child"]'},
        prepare=_table(
            "CREATE TABLE parent (id INT PRIMARY KEY)",
            "CREATE TABLE child (id INT PRIMARY KEY, p INT, FOREIGN KEY (p) REFERENCES parent (id) ON DELETE CASCADE)",
        ),
    ),
    Broken("lake that is a file", SINK, "lake", prepare=_file("lake")),
    Broken(
        "lake below a file",
        SINK,
        "lake",
        {"sink.path": '"file/lake"'},
        prepare=_file("file"),
    ),
    Broken(
        "lake where nothing can be written",
        SINK,
        "/proc",
        {"sink.path": '"/proc/lake"'},
    ),
    Broken(
        "lines below a file",
        SINK,
        "file",
        {"sink.type": '"jsonl"', "sink.path": '"file/lines"'},
        prepare=_file("file"),
    ),
    Broken("state that is a file", STATE, "state", prepare=_file("state")),
    Broken("state below a file", STATE, "file", {"pipeline.state": '"file/state"'}, prepare=_file("file")),
    Broken("state where nothing can be written", STATE, "/proc", {"pipeline.state": '"/proc/state"'}),
    Broken("database of the sink away", SINK, "127.0.0.1:1", POSTGRES_NOWHERE),
    Broken(
        "extra not installed",
        CONFIG,
        "raycdc[mongodb]",
        {"sink.type": '"mongodb"', "sink.path": None, "sink.uri": '"mongodb://127.0.0.1:1/?replicaSet=r"'},
        prepare=_shadow("pymongo"),
        environment={"PYTHONPATH": "shadow"},
    ),
    Broken(
        "unknown property of librdkafka",
        CONFIG,
        "no.such.property",
        {
            "sink.type": '"kafka"',
            "sink.path": None,
            "sink.bootstrap_servers": '"127.0.0.1:1"',
            "sink.format": json.dumps("debezium-json"),
            "sink.properties": '{ "no.such.property" = "1" }',
        },
    ),
)

#: What was fine when the state was made.
CHANGES: tuple[Broken, ...] = (
    Broken("upserts become a changelog", CONFIG, "sink.write", {"sink.write": '"changelog"'}, again=True),
    Broken("another lake", SINK, "good", {"sink.path": '"other"'}, again=True),
    Broken("another kind of sink", CONFIG, "sink.type", {"sink.type": '"jsonl"'}, again=True),
    Broken(
        "another pipeline on the state",
        STATE,
        "broken",
        {"pipeline.name": '"other"'},
        again=True,
    ),
    Broken("target that somebody deleted", SINK, "good", prepare=_no_target, again=True),
    Broken("state that somebody deleted", DATA, "on_existing", prepare=_no_state, again=True),
    Broken(
        "state from an older copy",
        SINK,
        "older",
        prepare=_older_state,
        again=True,
    ),
    Broken(
        "misspelt table beside a good one",
        SOURCE,
        "goood",
        {"source.tables": '["{database}.good", "{database}.goood"]'},
        again=True,
    ),
)

EVERY: tuple[Broken, ...] = (*CONFIGURATIONS, *SURROUNDINGS, *CHANGES)
