"""The manual's tables of what others do to a target, a line each: noticed before a row is lost, or harmless.

`test_topic_conformance` and `test_server_conformance` play what each sink is held to; `test_jdbc_others`,
`test_mongodb_others` and `test_kafka_others` have the longer stories, and
`tests.epochs.test_away_targets` has servers that are away or slow.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from pymongo.database import Database

from raycdc.config import Secret
from raycdc.errors import SinkError, StateError
from raycdc.sandbox.servers import PostgresServer
from raycdc.segments import run_in_process
from raycdc.sinks.api import SinkContext
from raycdc.sinks.jdbc.plugin import JdbcSinkConfig
from raycdc.sinks.jdbc.sink import JdbcSink
from tests.integration.sinks.others_story import OthersStory

pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]

#: A value that fits into few types.
LARGE = 100_000

#: (done to the target, by which the next commit or start refuses it; empty: it is harmless).
BOTH = [
    (("DROP TABLE shop.t",), r"shop\.t"),
    (("ALTER TABLE shop.t DROP COLUMN b",), r"\bb\b"),
    (("ALTER TABLE shop.t RENAME COLUMN b TO theirs",), r"\bb\b"),
    (("ALTER TABLE shop.t DROP COLUMN b, ADD COLUMN b bigint GENERATED ALWAYS AS (a + 1) STORED",), "computes"),
    (("ALTER TABLE shop.t ADD CONSTRAINT theirs CHECK (a < 1000)",), "theirs"),
    (("ALTER TABLE shop.t ADD CONSTRAINT theirs CHECK (a < 1000000)",), ""),
    (("UPDATE shop.t SET a = 9", "DELETE FROM shop.t WHERE id = 2"), ""),
    (("CREATE INDEX theirs ON shop.t (a)", "CREATE VIEW shop.seen AS SELECT id FROM shop.t"), ""),
]
DONE = {
    "postgres-upsert": [
        *BOTH,
        (("ALTER SCHEMA shop RENAME TO elsewhere",), r"shop\.t"),
        (("ALTER TABLE shop.t RENAME TO other",), r"shop\.t"),
        (("ALTER TABLE shop.t ALTER a TYPE smallint",), "smallint|out of range"),
        (("ALTER TABLE shop.t ALTER a TYPE numeric(30,0)",), ""),
        (("ALTER TABLE shop.t SET UNLOGGED",), "is UNLOGGED"),
        (("COMMENT ON TABLE shop.t IS 'theirs'",), ""),
        (("VACUUM FULL shop.t",), ""),
    ],
    "mysql-upsert": [
        *BOTH,
        (("DROP DATABASE shop",), r"shop\.t"),
        (("RENAME TABLE shop.t TO shop.other",), r"shop\.t"),
        (("ALTER TABLE shop.t MODIFY a smallint",), "Out of range"),
        (("ALTER TABLE shop.t MODIFY a decimal(30,0)",), ""),
        (("ALTER TABLE shop.t COMMENT = 'theirs'",), r"shop\.t holds nothing of this pipeline"),
        (("OPTIMIZE TABLE shop.t",), ""),
    ],
}


@pytest.mark.parametrize(
    ("kind", "statements", "refusal"),
    [
        pytest.param(kind, statements, refusal, id=f"{kind.partition('-')[0]}: {statements[0]}")
        for kind, cells in DONE.items()
        for statements, refusal in cells
    ],
)
def test_what_others_do_to_a_table(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, statements: tuple[str, ...], refusal: str
) -> None:
    story = OthersStory(request, kind, tmp_path)
    story.seal((1, 1, 1), (2, 2, 2))
    story.run()
    assert story.world.server is not None
    for statement in statements:
        story.world.server.execute(statement)
    story.seal((1, LARGE, 1), (2, LARGE, 2), (3, 3, 3))
    if refusal:
        with pytest.raises((SinkError, StateError), match=refusal):
            story.run()
        return
    story.run()
    story.world.check()


def test_a_privilege_that_is_taken_away(
    postgres: PostgresServer, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    story = OthersStory(request, "postgres-upsert", tmp_path)
    story.seal((1, 1, 1))
    story.run()
    postgres.execute("CREATE ROLE loader LOGIN PASSWORD 'loader'")
    try:
        postgres.execute(
            "GRANT CREATE ON DATABASE postgres TO loader",
            "GRANT ALL ON SCHEMA public, shop, raycdc_stage TO loader",
            "GRANT ALL ON ALL TABLES IN SCHEMA public, shop, raycdc_stage TO loader",
            "REVOKE UPDATE ON shop.t FROM loader",
        )
        story.seal((1, 2, 2))
        sink = JdbcSink(JdbcSinkConfig(url=f"jdbc:{postgres.url()}", user="loader", password=Secret("loader")))
        sink.open(SinkContext(story.world.store.app_id, "upsert", run_in_process))
        with pytest.raises(SinkError, match="permission denied for table t"):
            story.world.restart(sink=sink)
    finally:
        postgres.execute("DROP OWNED BY loader CASCADE", "DROP ROLE loader")


def test_a_user_who_may_make_no_record_is_told_which_grant_is_missing(postgres: PostgresServer) -> None:
    postgres.execute("CREATE ROLE maker LOGIN PASSWORD 'maker'", "DROP TABLE IF EXISTS raycdc_commit")
    try:
        postgres.execute("GRANT CREATE ON DATABASE postgres TO maker")
        sink = JdbcSink(JdbcSinkConfig(url=f"jdbc:{postgres.url()}", user="maker", password=Secret("maker")))
        with pytest.raises(
            SinkError,
            match=r'schema public\. Who owns it may permit that: GRANT USAGE, CREATE ON SCHEMA public TO "maker";',
        ):
            sink.open(SinkContext("any", "upsert", run_in_process))
    finally:
        postgres.execute("DROP OWNED BY maker CASCADE", "DROP ROLE maker")


COLLECTION: list[tuple[str, Callable[[Database[Any]], object], str]] = [
    ("dropped", lambda shop: shop.drop_collection("t"), r"shop\.t"),
    ("made anew", lambda shop: (shop.drop_collection("t"), shop.create_collection("t")), r"shop\.t"),
    ("renamed", lambda shop: shop["t"].rename("other"), r"shop\.t"),
    ("the database dropped", lambda shop: shop.client.drop_database("shop"), r"shop\.t"),
    (
        "a validator",
        lambda shop: shop.command({"collMod": "t", "validator": {"a": {"$lt": LARGE}}}),
        "failed validation",
    ),
    ("a validator that fits", lambda shop: shop.command({"collMod": "t", "validator": {"a": {"$gt": 0}}}), ""),
    ("an index", lambda shop: shop["t"].create_index("a"), ""),
    ("a document changed", lambda shop: shop["t"].update_one({"_id": 1}, {"$set": {"a": 9}}), ""),
    ("a document deleted", lambda shop: shop["t"].delete_one({"_id": 2}), ""),
]


@pytest.mark.parametrize(("done", "refusal"), [pytest.param(*cell[1:], id=cell[0]) for cell in COLLECTION])
def test_what_others_do_to_a_collection(
    request: pytest.FixtureRequest, tmp_path: Path, done: Callable[[Database[Any]], object], refusal: str
) -> None:
    story = OthersStory(request, "mongodb-upsert", tmp_path)
    story.seal((1, 1, 1), (2, 2, 2))
    story.run()
    assert story.world.mongodb is not None
    with story.world.mongodb.client() as client:
        done(client["shop"])
    story.seal((1, LARGE, 1), (2, LARGE, 2), (3, 3, 3))
    if refusal:
        with pytest.raises((SinkError, StateError), match=refusal):
            story.run()
        return
    story.run()
    story.world.check()


def delete(servers: AdminClient, topic: str) -> None:
    (done,) = servers.delete_topics([topic]).values()
    done.result(120)


def forget(servers: AdminClient, _: str) -> None:
    """All records of commits go, as by ``kafka-consumer-groups --delete``."""
    found = servers.list_consumer_groups().result(120).valid
    groups = [group.group_id for group in found if group.group_id.startswith("raycdc:")]
    for done in servers.delete_consumer_groups(groups).values():
        done.result(120)


@pytest.mark.parametrize("done", [delete, forget])
def test_what_others_do_to_a_topic(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    done: Callable[[AdminClient, str], None],
) -> None:
    story = OthersStory(request, "kafka", tmp_path)
    story.seal((1, 1, 1), (2, 2, 2))
    story.run()
    assert story.world.kafka is not None
    done(AdminClient({"bootstrap.servers": story.world.kafka.bootstrap_servers}), story.world.topic(story.table))
    story.seal(*((number, LARGE, number) for number in range(1, 40)))
    with pytest.raises((SinkError, StateError), match=r"shop\.t"):
        story.run()


def test_messages_of_others_are_harmless_once_the_topic_is_the_pipelines(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    story = OthersStory(request, "kafka", tmp_path)
    story.seal((1, 1, 1))
    story.run()
    assert story.world.kafka is not None
    producer = Producer({"bootstrap.servers": story.world.kafka.bootstrap_servers})
    producer.produce(story.world.topic(story.table), b"")
    assert producer.flush(20) == 0
    story.seal((2, 2, 2))
    story.run()
    story.world.check()
