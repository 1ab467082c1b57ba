"""Topics whose messages have what masks hide: no file of the state, and nothing that is said of them, shows it."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import KafkaServer
from tests.leaks import nothing_shows
from tests.support.forked_commands import completed
from tests.support.jobs import TopicJob, catch_up

pytestmark = pytest.mark.server

MASKS = r"""
[[mask]]
columns = 'shop\.p\.(NOTE|Added)'
method = "mask"
length = 3

[[mask]]
columns = 'shop\.p\.count'
method = "hash"
key = "${env:RAYCDC_TEST_PASSWORD}"

[[mask]]
columns = 'shop\.p\.start'
method = "truncate"
length = 2

[[mask]]
columns = 'shop\.p\.gone'
method = "drop"

[[mask]]
columns = 'shop\.(number\.secret|key\.id)'
method = "truncate"
length = 2
"""
SECRETS: list[str | int] = ["planted-secret", 748_596_111]


@dataclass(slots=True)
class Topics(TopicJob):
    """Its messages name their columns themselves."""

    on_error: str = "fail"

    def source_section(self) -> str:
        return f"""
type = "kafka"
bootstrap_servers = "{self.server.host}:{self.server.port}"
topics = ["{self.topic}"]
format = {{ type = "maxwell-json", on_error = "{self.on_error}" }}
changelog = "full"
"""

    def say(self, *words: str) -> str:
        """What a command says of the pipeline."""
        environment = {**os.environ, "RAYCDC_TEST_PASSWORD": "key"}
        told = (*words, str(self.configuration()))
        done = completed(told, environment=environment, folder=self.folder)
        assert "Traceback" not in done.stderr
        return done.stdout + done.stderr


def message(number: int, kind: str = "insert", **more: Any) -> bytes:
    row = {"id": number, "note": "planted-secret", "count": 748_596_111, "start": "st-planted-secret",
           "gone": "planted-secret", "shown": f"row {number}", **more}  # fmt: skip
    told = {"database": "shop", "table": "p", "type": kind, "ts": 1_700_000_000, "primary_key_columns": ["id"]}
    return json.dumps({**told, "data": row}).encode()


def statement(text: str) -> bytes:
    return json.dumps({"database": "shop", "table": "p", "type": "table-alter", "ts": 1, "sql": text}).encode()


def produce(kafka: KafkaServer, topic: str, *messages: bytes) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for value in messages:
        producer.produce(topic, value, b"planted-secret")
    assert producer.flush(20) == 0


def test_no_file_and_no_word_shows_what_masks_hide_in_messages(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        produce(kafka, topic, *map(message, range(1, 6)), message(9)[:-20], message(9, "planted-secret"))
        job = Topics(tmp_path, kafka, "shop", ("p",), local=True, topic=topic, write="changelog", sections=MASKS)  # type: ignore[arg-type]
        said = [job.say("check"), job.say("plan")]
        assert all(f"{topic}/0@5: corrupt message: it ends in the middle" in text for text in said)
        ended = job.run()
        assert ended.wait() == 4, ended.story()
        assert f"{topic}/0@5: corrupt message" in ended.story()
        nothing_shows(job, SECRETS, said=said, kinds=("configured", "changelog"))
        job.on_error = "dead-letter"
        said.append(job.say("check"))
        killed = job.start("--until", "caught-up", failpoints="before_commit=kill@2")
        assert killed.wait() == -9, killed.story()
        nothing_shows(job, SECRETS, said=said, kinds=("manifests", "segments", "schemas", "documents taken over"))
        catch_up(job)
        old = {"shown": "row 1", "note": "planted-secret"}
        changed = {**json.loads(message(1, "update", shown="changed")), "old": old}
        produce(kafka, topic, json.dumps(changed).encode(), message(2, "delete"))
        killed = job.start("--until", "caught-up", failpoints="after_known=kill@1")
        assert killed.wait() == -9, killed.story()
        nothing_shows(job, SECRETS, said=said, kinds=("known rows", "exact changes"))
        default = "VARCHAR(30) NOT NULL DEFAULT 'planted-secret'"
        added = statement(f"ALTER TABLE p ADD COLUMN added {default}, ADD COLUMN other INT DEFAULT 5")
        # The first one is of before it, and late.
        produce(kafka, topic, added, message(6), message(7, added="planted-secret", other=6))
        catch_up(job)
        nothing_shows(job, SECRETS, said=said, kinds=("commits", "known rows"))
        letters = read_delta(job.lake / "raycdc" / "dead_letters").to_pylist()
        assert [(letter["offset"], letter["key"], letter["value"]) for letter in letters] == [
            (5, None, None),
            (6, None, None),
        ]
        rows = {row["id"]: row for row in read_delta(job.lake / "shop" / "p").to_pylist() if row["_op"] in ("+I", "+U")}
        assert {(row["note"], row["start"], len(row["count"])) for row in rows.values()} == {("***", "st", 64)}
        assert rows[7]["added"] == "***"
        assert not any("gone" in row for row in rows.values())
        # Tables that masks cannot hide wait, and the others go on.
        for name, row in (("number", {"id": 1, "secret": 748_596_111}), ("key", {"id": "planted-secret"})):
            told = {"database": "shop", "table": name, "type": "insert", "ts": 1, "primary_key_columns": ["id"]}
            produce(kafka, topic, json.dumps({**told, "data": row}).encode())
        produce(kafka, topic, message(8, added="planted-secret", other=6))
        parked = job.run()
        assert parked.wait() == 4, parked.story()
        assert all(
            why in parked.story() for why in ('method = "truncate" is for texts', "shop.key.id belongs to the key")
        )
        assert 8 in read_delta(job.lake / "shop" / "p").column("id").to_pylist()
        nothing_shows(job, SECRETS, said=said)
        # What cannot be followed is told without its values.
        produce(kafka, topic, statement(f"ALTER TABLE p CHANGE COLUMN note remark {default}"))
        refused = job.run()
        assert refused.wait() == 4, refused.story()
        assert "rows that exist have their value in 'note'" in refused.story()
        nothing_shows(job, SECRETS, said=[*said, job.say("check"), job.say("plan"), job.say("tables", "list")])
