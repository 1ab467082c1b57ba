"""Makes the stored states of this folder: ``python -m tests.states.make FOLDER`` writes one archive for each source.

They are what a version of raycdc wrote that is not this one any more, so they are made once, when a format is about to
be touched, and kept. Every later version must read them (`tests/unit/test_stored_states.py`). Spools, leases and
processes' numbers are left out: no rows are in them.
"""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from raycdc.cli.tables import change_table
from raycdc.config import config_from_dict
from raycdc.errors import SchemaError
from raycdc.pipeline import Pipeline
from raycdc.sandbox.servers import DatabaseServer, KafkaServer, MariaDbServer, MongoDbServer, MySqlServer
from tests.support.simulation import Settings, Simulation, TableKind, Visibility

#: What of a state folder is not kept.
LEFT_OUT = ("spool", "lease")
CHUNKS = {"chunk_rows": 100}


def archive(state: Path, target: Path) -> None:
    """The state's folder, the same bytes for the same state."""
    with gzip.GzipFile(target, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for path in sorted(p for p in state.rglob("*") if p.is_file()):
            if path.relative_to(state).parts[0] in LEFT_OUT:
                continue
            member = tarfile.TarInfo(path.relative_to(state).as_posix())
            member.size = path.stat().st_size
            with path.open("rb") as file:
                tar.addfile(member, file)


def config_of(folder: Path, source: Mapping[str, Any], **pipeline: Any) -> dict[str, Any]:
    return {
        "pipeline": {"name": "kept", "state": str(folder / "state"), "epoch_interval": "200ms", **pipeline},
        "source": dict(source),
        "readers": {"max": 1},
        "sink": {"type": "jsonl", "path": str(folder / "lake")},
    }


def catch_up(config: Mapping[str, Any]) -> None:
    with suppress(SchemaError):  # Parked tables are told so.
        Pipeline.from_config(config_from_dict(config)).run(until="caught-up", local=True)


def die_in_the_snapshot(folder: Path, config: Mapping[str, Any], epoch: int) -> None:
    """Run until a manifest is written, and be killed there."""
    program = (
        "import json, sys; from raycdc.config import config_from_dict; from raycdc.pipeline import Pipeline; "
        "Pipeline.from_config(config_from_dict(json.load(open(sys.argv[1])))).run(until='caught-up', local=True)"
    )
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    places = {"RAYCDC_FAILPOINTS": f"after_manifest=kill@{epoch}", "RAYCDC_FAILPOINT_DIR": str(folder)}
    end = subprocess.run(
        [sys.executable, "-c", program, str(folder / "config.json")], env={**os.environ, **places}, check=False
    )
    assert end.returncode == -9, "it was to be killed"


def caught_up_with(server: DatabaseServer, database: str, folder: Path, names: Sequence[str]) -> Mapping[str, Any]:
    """The configuration of a pipeline that has caught up with the tables `names` of `database`, of two rows each."""
    os.environ["RAYCDC_TEST_PASSWORD"] = server.cdc_user
    source = {
        "type": "mysql", "port": server.port, "user": "cdc", "password": "${env:RAYCDC_TEST_PASSWORD}",
        "tables": [rf"{database}\..*"], "snapshot": CHUNKS,
    }  # fmt: skip
    config = config_of(folder, source)
    for name in names:
        server.execute(
            f"CREATE TABLE {name} (id INT PRIMARY KEY, name VARCHAR(20))",
            f"INSERT INTO {name} VALUES (1, 'a'), (2, 'ö')",
            database=database,
        )
    catch_up(config)
    return config


def of_server(server: DatabaseServer, folder: Path) -> Path:
    """Tables that are live, read again, parked and in snapshot, and a prepared transaction."""
    with server.fresh_database("kept") as database:
        config = caught_up_with(server, database, folder, ("live", "again", "unfit", "away"))
        change_table(folder / "state", f"{database}.again", "resnapshot")
        server.execute(
            "SET SESSION binlog_format = STATEMENT", "UPDATE unfit SET name = 'x'", "SET SESSION binlog_format = ROW",
            "DROP TABLE away", "ALTER TABLE live ADD COLUMN qty INT DEFAULT 3", "INSERT INTO live VALUES (3, 'c', 4)",
            "XA START 'kept'", "INSERT INTO live VALUES (9, 'prepared', 1)", "XA END 'kept'", "XA PREPARE 'kept'",
            database=database,
        )  # fmt: skip
        catch_up(config)
        rows = ", ".join(f"({n}, 'row {n}')" for n in range(2000))
        server.execute(
            "CREATE TABLE large (id INT PRIMARY KEY, name VARCHAR(20))", f"INSERT INTO large VALUES {rows}",
            database=database,
        )  # fmt: skip
        change_table(folder / "state", f"{database}.live", "resnapshot")
        die_in_the_snapshot(folder, {**config, "pipeline": {**config["pipeline"], "epoch_bytes_max": "64KiB"}}, 3)
        server.execute("XA COMMIT 'kept'", database=database)
    return folder / "state"


def of_paused_tables(server: DatabaseServer, folder: Path) -> Path:
    """Tables that are live, paused, and going on from where they were left, with an epoch of what happened since."""
    with server.fresh_database("kept") as database:
        names = ("live", "paused", "resuming")
        config = caught_up_with(server, database, folder, names)
        for name in names[1:]:
            change_table(folder / "state", f"{database}.{name}", "pause")
        catch_up(config)
        for name in names:
            rows = ", ".join(f"({n}, 'row {n}', NULL)" for n in range(10, 500))
            server.execute(
                f"ALTER TABLE {name} ADD COLUMN qty INT DEFAULT 3", f"INSERT INTO {name} VALUES {rows}",
                f"UPDATE {name} SET qty = 4", f"UPDATE {name} SET qty = 5",
                database=database,
            )  # fmt: skip
        catch_up(config)
        change_table(folder / "state", f"{database}.resuming", "resume")
        die_in_the_snapshot(folder, {**config, "pipeline": {**config["pipeline"], "epoch_bytes_max": "64KiB"}}, 2)
    return folder / "state"


def of_temporary_tables(server: DatabaseServer, folder: Path) -> Path:
    """A table whose name a temporary table hides from a session that is still there."""
    with server.fresh_database("kept") as database, server.connect(database=database) as session:
        config = caught_up_with(server, database, folder, ("live",))
        with session.cursor() as cursor:
            cursor.execute("SET SESSION binlog_format = STATEMENT")
            cursor.execute("CREATE TEMPORARY TABLE live (id INT)")
            cursor.execute("TRUNCATE TABLE live")
        server.execute("INSERT INTO live VALUES (3, 'c')", database=database)
        catch_up(config)
    return folder / "state"


def of_described_targets(server: DatabaseServer, folder: Path) -> Path:
    """Targets whose columns a record describes, one with a default that it was given."""
    with server.fresh_database("kept") as database:
        config = caught_up_with(server, database, folder, ("live", "altered"))
        server.execute("ALTER TABLE altered DROP COLUMN name, ADD COLUMN qty INT DEFAULT 3", database=database)
        catch_up(config)
    return folder / "state"


def of_topics(server: KafkaServer, folder: Path) -> Path:
    """Two partitions of one topic, with a schema that a statement changed."""
    from confluent_kafka import Producer

    server.create_topic("kept", partitions=2)
    producer = Producer({"bootstrap.servers": server.bootstrap_servers})
    for n in range(20):
        row = {"id": n, "name": f"row {n}", **({"qty": n} if n > 10 else {})}
        message = {"database": "shop", "table": "orders", "type": "insert", "ts": 1_700_000_000 + n, "data": row}
        message["primary_key_columns"] = ["id"]
        producer.produce("kept", json.dumps(message).encode(), key=str(n).encode(), partition=n % 2)
    producer.flush()
    source = {
        "type": "kafka", "bootstrap_servers": server.bootstrap_servers, "topics": ["kept"],
        "format": {"type": "maxwell-json"},
    }  # fmt: skip
    catch_up(config_of(folder, source))
    return folder / "state"


def of_collections(server: MongoDbServer, folder: Path) -> Path:
    """A collection that is followed, one that was renamed away, and one in snapshot."""
    with server.fresh_database() as database, server.client() as client:
        shop = client[database]
        shop.live.insert_many([{"_id": n, "name": f"row {n}"} for n in range(5)])
        shop.away.insert_one({"_id": 1})
        source = {
            "type": "mongodb",
            "uri": server.uri,
            "collections": [rf"{database}\..*"],
            "snapshot": {"chunk_size": "1MiB"},
        }
        config = config_of(folder, source)
        catch_up(config)
        shop.away.rename("elsewhere")
        shop.live.update_one({"_id": 1}, {"$set": {"name": "changed"}})
        catch_up(config)
        shop.large.insert_many([{"_id": n, "name": f"row {n}" * 200} for n in range(4000)])
        die_in_the_snapshot(folder, {**config, "pipeline": {**config["pipeline"], "epoch_bytes_max": "64KiB"}}, 3)
    return folder / "state"


def simulated(target: Path, *, seeds: int = 40, pauses: float = 0.0) -> None:
    """Split and enumerator states of simulated jobs, in which tables are in every state that there is; with `pauses`
    they are also paused, and go on.
    """
    found: dict[str, dict[str, Any]] = {}
    documents: dict[str, Any] = {}
    for seed in range(seeds):
        as_of = seed % 2 == 1
        kinds = (TableKind.AS_OF, TableKind.PLAIN) if as_of else (TableKind.PLAIN, TableKind.MOVING, TableKind.KEYLESS)
        chosen = Settings(Visibility.SNAPSHOT, kinds, 700, 0.02, 0.006, 2, 0.0 if as_of else 0.3)
        chosen = replace(chosen if as_of else replace(chosen, unfollowed=0.4), pauses=pauses)
        simulation = Simulation(seed, settings=chosen)
        simulation.run()
        documents |= simulation.state.documents
        for manifest in (*simulation.state.manifests.values(), *simulation.state.dropped.values()):
            told = manifest.to_json()
            kept = {name: told[name] for name in ("to_splits", "enumerator")}
            shape = json.dumps(_shape(kept), sort_keys=True)
            found.setdefault(shape, kept)
    text = json.dumps({"documents": documents, "states": list(found.values())}, ensure_ascii=False)
    target.write_bytes(gzip.compress(text.encode(), mtime=0))


def _shape(value: Any) -> Any:
    """The value without its numbers: states of one shape say the same."""
    if isinstance(value, dict):
        return {name: _shape(inner) for name, inner in value.items() if name not in ("position", "document")}
    if isinstance(value, list):
        return [_shape(inner) for inner in value[:2]]
    return value if isinstance(value, bool | str | type(None)) else 0


def main(folder: Path) -> None:
    work = folder / "work"
    simulated(folder / "simulated.json.gz")
    simulated(folder / "simulated_pauses.json.gz", seeds=20, pauses=0.01)
    with MariaDbServer() as mariadb:
        archive(of_server(mariadb, work / "mariadb"), folder / "mariadb.tar.gz")
        archive(of_paused_tables(mariadb, work / "mariadb_paused"), folder / "mariadb_paused.tar.gz")
        archive(of_temporary_tables(mariadb, work / "mariadb_temporary"), folder / "mariadb_temporary.tar.gz")
        archive(of_described_targets(mariadb, work / "mariadb_described"), folder / "mariadb_described.tar.gz")
    with MySqlServer(version="8.0") as mysql:
        archive(of_server(mysql, work / "mysql80"), folder / "mysql80_marked.tar.gz")
    with MongoDbServer() as mongodb:
        archive(of_collections(mongodb, work / "mongodb"), folder / "mongodb.tar.gz")
    with KafkaServer() as kafka:
        archive(of_topics(kafka, work / "kafka"), folder / "kafka.tar.gz")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
