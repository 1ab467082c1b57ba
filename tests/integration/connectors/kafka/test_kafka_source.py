"""The Kafka source on a real broker: where it starts and ends, what it finds later, and what it refuses."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.connectors.kafka.reading.messages import Fetched, LogEnd, PartitionStart
from raycdc.connectors.kafka.reading.partition_reader import KafkaPartitionReader
from raycdc.errors import DataError, LogLostError, SchemaError, SourceError, SourceUnavailableError
from raycdc.pipeline import Pipeline
from raycdc.sandbox.compare import read_delta
from raycdc.sandbox.servers import KafkaServer
from raycdc.sandbox.servers.private import free_port
from raycdc.sinks.delta.plugin import DeltaSinkConfig
from raycdc.source.reader.split_reader import SplitsAddition, SplitsPause, SplitsRemoval
from tests.support.product_feed import COLUMNS

pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]

Rows = list[dict[str, Any]]


def message(number: int, *, table: str = "product", **fields: Any) -> bytes:
    row = {"id": number, "name": f"n{number}", "weight": number / 2, **fields}
    body = {"database": "shop", "table": table, "type": "insert", "ts": 1_700_000_000, "data": row}
    return json.dumps({**body, "primary_key_columns": ["id"]}).encode()


def produce(kafka: KafkaServer, topic: str, numbers: Sequence[int], *, partitions: int = 1, **options: Any) -> None:
    """Messages of rows `numbers`, each to the partition that its number says."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    for number in numbers:
        producer.produce(topic, message(number), str(number).encode(), partition=number % partitions, **options)
    assert producer.flush(20) == 0


def transaction(kafka: KafkaServer, topic: str, numbers: Sequence[int], *, commit: bool) -> None:
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": f"t-{topic}"})
    producer.init_transactions(20)
    producer.begin_transaction()
    for number in numbers:
        producer.produce(topic, message(number), partition=0)
    producer.flush(20)
    (producer.commit_transaction if commit else producer.abort_transaction)(20)


def pipeline(kafka: KafkaServer, state: Path, **options: Any) -> Pipeline:
    settings = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "format": {"type": "maxwell-json", "columns": COLUMNS},
        "discovery_interval": "200ms",
        **options,
    }
    return Pipeline(name="k", state=state, source=KafkaSourceConfig(**settings), epoch_interval="100ms")


def epochs(made: Pipeline, until: str | None) -> Generator[Rows, None, None]:
    """Rows epoch by epoch, each acknowledged when the next is asked for."""
    for epoch in made.epochs(until=until):
        yield [
            {**row, "_table": str(table)}
            for table in epoch.tables
            for batch in epoch.batches(table)
            for row in batch.to_pylist()
        ]
        epoch.ack()


def read(kafka: KafkaServer, state: Path, *, until: str | None = "caught-up", **options: Any) -> list[int]:
    """Ids of the rows that a run brings, in no particular order between partitions."""
    return [row["id"] for rows in epochs(pipeline(kafka, state, **options), until) for row in rows]


def read_until(made: Pipeline, enough: Callable[[Rows], bool]) -> Rows:
    """Rows of a run without an end, until there are `enough`."""
    found: Rows = []
    with closing(epochs(made, None)) as sealed:
        for rows in sealed:
            found += rows
            if enough(found):
                break
    return found


def test_a_run_reads_what_is_there_and_the_next_one_what_came_since(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic(partitions=3) as topic:
        produce(kafka, topic, range(20), partitions=3)
        found = [row for rows in epochs(pipeline(kafka, tmp_path, topics=[topic]), "caught-up") for row in rows]
        assert sorted(row["id"] for row in found) == list(range(20))
        assert {row["_pos"] for row in found} == {f"{topic}:{n % 3}:{n // 3}:0" for n in range(20)}
        assert read(kafka, tmp_path, topics=[topic]) == []
        produce(kafka, topic, range(20, 25), partitions=3)
        assert sorted(read(kafka, tmp_path, topics=[topic])) == list(range(20, 25))


def test_a_bounded_topic_ends_behind_its_markers_and_aborted_messages_are_not_seen(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    with kafka.fresh_topic() as topic:
        transaction(kafka, topic, [1, 2], commit=True)
        transaction(kafka, topic, [3, 4], commit=False)
        transaction(kafka, topic, [5], commit=True)
        transaction(kafka, topic, [6], commit=False)
        assert read(kafka, tmp_path / "a", topics=[topic], stop="latest", until=None) == [1, 2, 5]
        assert read(kafka, tmp_path / "b", topics=[topic], isolation="read_uncommitted") == [1, 2, 3, 4, 5, 6]


def test_the_start_is_a_time_the_groups_offsets_given_ones_or_the_end(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        produce(kafka, topic, range(4), timestamp=1_000)
        produce(kafka, topic, range(4, 8), timestamp=9_000)
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": f"g-{topic}"})
        consumer.commit(offsets=[TopicPartition(topic, 0, 6)], asynchronous=False)
        consumer.close()
        late = {"mode": "timestamp", "timestamp_ms": 5_000}
        given = {"mode": "offsets", "offsets": {f"{topic}:0": 7}}
        until_five = {"mode": "timestamp", "timestamp_ms": 5_000}
        found = [
            read(kafka, tmp_path / "1", topics=[topic], startup=late),
            read(kafka, tmp_path / "2", topics=[topic], startup="group-offsets", group_id=f"g-{topic}"),
            read(kafka, tmp_path / "3", topics=[topic], startup=given),
            read(kafka, tmp_path / "4", topics=[topic], startup="latest"),
            read(kafka, tmp_path / "5", topics=[topic], stop=until_five, until=None),
        ]
        assert found == [[4, 5, 6, 7], [6, 7], [7], [], [0, 1, 2, 3]]


def test_topics_and_partitions_that_come_later_are_read_from_their_beginning(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    with kafka.fresh_topic() as topic:
        produce(kafka, topic, [1])
        found: Rows = []
        with closing(epochs(pipeline(kafka, tmp_path, topic_pattern=f"{topic}.*"), None)) as sealed:
            while not found:
                found += next(sealed)
            other = kafka.create_topic(f"{topic}.more")
            produce(kafka, other, [2, 4])
            kafka.add_partitions(topic, 2)
            produce(kafka, topic, [3], partitions=2)
            while len(found) < 4:
                found += next(sealed)
        assert sorted(row["id"] for row in found) == [1, 2, 3, 4]


def test_compacted_topics_have_gaps_that_nobody_waits_for(kafka: KafkaServer, tmp_path: Path) -> None:
    settings = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
    with kafka.fresh_topic(config=settings) as topic:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for number in range(30):
            producer.produce(topic, message(number % 3), str(number % 3).encode())
            producer.flush(20)
        assert set(read(kafka, tmp_path, topics=[topic], stop="latest", until=None)) == {0, 1, 2}


def test_an_offset_that_is_gone_is_refused_or_passed_over_as_told(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        produce(kafka, topic, range(3))
        assert len(read(kafka, tmp_path / "known", topics=[topic])) == 3
        produce(kafka, topic, range(3, 9))
        admin = kafka.admin()
        gone = TopicPartition(topic, 0, 6)
        admin.delete_records([gone])[gone].result(120)
        given = {"mode": "offsets", "offsets": {f"{topic}:0": 2}}
        with pytest.raises(LogLostError, match=rf"{topic}:0@3 is not in the topic any more"):
            read(kafka, tmp_path / "known", topics=[topic])
        # No snapshot can be taken of a topic: the refusal stays, whatever is to happen to a lost log.
        source = pipeline(kafka, tmp_path / "known", topics=[topic]).config.source
        again = Pipeline(name="k", state=tmp_path / "known", source=source, on_log_lost="resnapshot")
        with pytest.raises(LogLostError, match=rf"{topic}:0@3 is not in the topic any more"):
            list(again.epochs(until="caught-up"))
        with pytest.raises(LogLostError, match=rf"{topic}:0@2 .*on_out_of_range"):
            read(kafka, tmp_path / "given", topics=[topic], startup=given)
        told = read(kafka, tmp_path / "told", topics=[topic], startup=given, on_out_of_range="earliest")
        assert told == [6, 7, 8]
        assert read(kafka, tmp_path / "known", topics=[topic], on_out_of_range="earliest") == [6, 7, 8]


def test_a_start_beyond_the_end_is_refused_or_set_as_told(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        produce(kafka, topic, range(3))
        beyond: dict[str, Any] = {"topics": [topic], "startup": {"mode": "offsets", "offsets": {f"{topic}:0": 9}}}
        with pytest.raises(LogLostError, match=rf"{topic}:0@9 is not in the topic: it holds 0 to 3"):
            read(kafka, tmp_path / "refused", **beyond)
        assert read(kafka, tmp_path / "earliest", on_out_of_range="earliest", **beyond) == [0, 1, 2]
        assert read(kafka, tmp_path / "latest", on_out_of_range="latest", **beyond) == []
        produce(kafka, topic, [3])
        assert read(kafka, tmp_path / "latest", on_out_of_range="latest", **beyond) == [3]


def test_a_pause_holds_while_partitions_are_added_and_is_over_for_one_that_comes_back(kafka: KafkaServer) -> None:
    read_: dict[str, list[int]] = {}
    ends: dict[str, int] = {}

    def read_on(reader: KafkaPartitionReader, enough: Callable[[], bool]) -> None:
        while not enough():
            fetch = reader.fetch()
            for part in fetch.records if fetch is not None else ():
                match part.batch:
                    case LogEnd(offset):
                        ends[part.split_id] = offset
                    case Fetched(batch=batch) if batch is not None:
                        read_.setdefault(part.split_id, []).extend(batch.offsets.tolist())

    with kafka.fresh_topic(partitions=3) as topic:
        first, second, third = (f"{topic}:{number}" for number in range(3))
        produce(kafka, topic, range(30), partitions=3)
        settings: dict[str, Any] = {
            "bootstrap_servers": kafka.bootstrap_servers,
            "topics": [topic],
            "format": "maxwell-json",
        }
        with closing(KafkaPartitionReader(KafkaSourceConfig(**settings))) as reader:
            reader.handle_splits_changes(SplitsAddition((PartitionStart(topic, 0, 0),)))
            read_on(reader, lambda: len(read_.get(first, ())) == 10)
            reader.handle_splits_changes(SplitsPause(paused=(first,)))
            read_on(reader, lambda: True)
            produce(kafka, topic, range(30, 60), partitions=3)
            reader.handle_splits_changes(SplitsAddition((PartitionStart(topic, 1, 0),)))
            reader.handle_splits_changes(SplitsAddition((PartitionStart(topic, 2, 0),)))
            # The paused one's end is known, too, and nobody waited for the answer.
            read_on(reader, lambda: len(read_.get(second, ())) == len(read_.get(third, ())) == ends.get(first) == 20)
            assert read_[first] == list(range(10))
            reader.handle_splits_changes(SplitsPause(paused=(second,)))
            reader.handle_splits_changes(SplitsPause(resumed=(first,)))
            read_on(reader, lambda: len(read_[first]) == 20)
            reader.handle_splits_changes(SplitsPause(paused=(first,)))
            reader.handle_splits_changes(SplitsRemoval((first,)))
            reader.handle_splits_changes(SplitsAddition((PartitionStart(topic, 0, 5),)))
            reader.handle_splits_changes(SplitsPause(resumed=(second,)))
            produce(kafka, topic, range(60, 63), partitions=3)
            read_on(reader, lambda: len(read_[first]) == 36 and len(read_[second]) == len(read_[third]) == 21)
        assert read_ == {first: [*range(20), *range(5, 21)], second: list(range(21)), third: list(range(21))}


def test_a_partition_that_lost_its_end_while_it_is_read_goes_on_as_told(kafka: KafkaServer) -> None:
    with kafka.fresh_topic() as topic:
        produce(kafka, topic, range(3))
        settings: dict[str, Any] = {
            "bootstrap_servers": kafka.bootstrap_servers,
            "topics": [topic],
            "format": "maxwell-json",
        }
        reader = KafkaPartitionReader(KafkaSourceConfig(on_out_of_range="earliest", **settings))
        with closing(reader):
            reader.handle_splits_changes(SplitsAddition((PartitionStart(topic, 0, 9),)))
            parts: list[Fetched] = []
            while not any(part.next_offset == 3 for part in parts):
                fetch = reader.fetch()
                records = fetch.records if fetch is not None else ()
                parts += [part.batch for part in records if isinstance(part.batch, Fetched)]
        assert [(part.reset, part.next_offset) for part in parts] == [(True, 0), (False, 3)]
        with closing(KafkaPartitionReader(KafkaSourceConfig(**settings))) as refusing:
            refusing.handle_splits_changes(SplitsAddition((PartitionStart(topic, 0, 9),)))
            fetches = iter(refusing.fetch, object())
            with pytest.raises(LogLostError, match=rf"{topic}:0@9 .* it holds 0 to 3"):
                deque(fetches, maxlen=0)


def test_tls_and_sasl_settings_are_passed_on(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        produce(kafka, topic, [1])
        secure = dict(kafka.secure_properties)
        where = secure.pop("bootstrap.servers")
        assert read(kafka, tmp_path, topics=[topic], bootstrap_servers=where, properties=secure) == [1]
        shown = repr(pipeline(kafka, tmp_path, topics=[topic], properties=secure).config.source)
        assert "SASL_SSL" not in shown


def test_changes_of_a_key_in_two_partitions_are_refused_or_ordered_by_a_column(
    kafka: KafkaServer, tmp_path: Path
) -> None:
    def produce_versions(*rows: tuple[int, int, int]) -> None:
        """Partition, id and version."""
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for partition, number, version in rows:
            producer.produce(topic, message(number, version=version), partition=partition)
        assert producer.flush(20) == 0

    with kafka.fresh_topic(partitions=2) as topic:
        settings: dict[str, Any] = {"topics": [topic], "format": "maxwell-json"}
        source = pipeline(kafka, tmp_path / "ordered", order_by="version", **settings).config.source
        sink = DeltaSinkConfig(type="delta", path=str(tmp_path / "lake"))
        made = Pipeline(name="k", state=tmp_path / "ordered", source=source, sink=sink, epoch_interval="100ms")

        def held() -> list[tuple[int, int]]:
            made.run(until="caught-up", local=True)
            rows = read_delta(tmp_path / "lake" / "shop" / "product").to_pylist()
            return sorted((row["id"], row["version"]) for row in rows)

        produce_versions((0, 1, 3), (1, 1, 2), (1, 2, 1))
        assert held() == [(1, 3), (2, 1)]
        produce_versions((1, 1, 2), (0, 2, 7))
        assert held() == [(1, 3), (2, 7)]
        produce_versions((1, 1, 4), (1, 2, 6))
        assert held() == [(1, 4), (2, 7)]
        with pytest.raises(DataError, match=r"shop.product lie in two partitions.*order_by"):
            read(kafka, tmp_path / "refused", **settings)


def test_statements_in_a_topic_reach_the_target(kafka: KafkaServer, tmp_path: Path) -> None:
    def canal(kind: str, *rows: dict[str, str], sql: str = "") -> None:
        types = {"id": "bigint", "name": "varchar(20)", "qty": "int"}
        body = {"database": "shop", "table": "p", "type": kind, "es": 1, "ts": 1, "isDdl": bool(sql), "sql": sql}
        known = {name: types[name] for name in rows[0]} if rows else None
        text = json.dumps({**body, "data": rows or None, "old": None, "mysqlType": known, "pkNames": ["id"]})
        producer.produce(topic, text.encode())

    with kafka.fresh_topic() as topic:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        format_ = {"type": "canal-json", "on_error": "dead-letter"}
        settings: dict[str, Any] = {"topics": [topic], "format": format_}
        source = pipeline(kafka, tmp_path / "state", **settings).config.source
        sink = DeltaSinkConfig(type="delta", path=str(tmp_path / "lake"))
        made = Pipeline(name="k", state=tmp_path / "state", source=source, sink=sink, epoch_interval="100ms")

        def held() -> list[dict[str, Any]]:
            assert producer.flush(20) == 0
            made.run(until="caught-up", local=True)
            rows = read_delta(tmp_path / "lake" / "shop" / "p").to_pylist()
            return sorted(rows, key=lambda row: int(row["id"]))

        canal("CREATE", sql="CREATE TABLE p (id BIGINT PRIMARY KEY, name VARCHAR(20))")
        assert held() == []
        canal("INSERT", {"id": "1", "name": "a"}, {"id": "2", "name": "b"})
        canal("ALTER", sql="ALTER TABLE shop.p ADD COLUMN qty INT NOT NULL DEFAULT 5")
        canal("INSERT", {"id": "3", "name": "c", "qty": "7"})
        assert [row["qty"] for row in held()] == [5, 5, 7]
        canal("TRUNCATE", sql="TRUNCATE TABLE p")
        canal("INSERT", {"id": "4", "name": "d", "qty": "1"})
        assert held() == [{"id": 4, "name": "d", "qty": 1}]
        producer.produce(topic, b"{broken")
        canal("ERASE", sql="DROP TABLE p, raycdc.dead_letters")
        assert held() == []
        # The statement is no word about the table that raycdc itself writes.
        assert read_delta(tmp_path / "lake" / "raycdc" / "dead_letters").num_rows == 1
        canal("TRUNCATE", sql="TRUNCATE TABLE raycdc.dead_letters")
        assert held() == []
        assert read_delta(tmp_path / "lake" / "raycdc" / "dead_letters").num_rows == 1
        canal("RENAME", sql="RENAME TABLE shop.x TO shop.p")
        with pytest.raises(SchemaError, match=r"RENAME TABLE shop\.x TO shop\.p"):
            held()


def test_messages_without_a_table_and_dead_letters_reach_a_lake(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        for text in (b'{"id": 1}', b"{broken", b'{"ID": 2, "extra": {"a": [1]}}'):
            producer.produce(topic, text, b"k")
        assert producer.flush(20) == 0
        section = {"type": "json", "columns": "id BIGINT, PRIMARY KEY (id)", "on_error": "dead-letter"}
        source = pipeline(kafka, tmp_path / "state", topics=[topic], format=section).config.source
        sink = DeltaSinkConfig(type="delta", path=str(tmp_path / "lake"))
        made = Pipeline(name="k", state=tmp_path / "state", source=source, sink=sink, epoch_interval="100ms")
        made.run(until="caught-up", local=True)
        rows = read_delta(tmp_path / "lake" / "topics" / topic).to_pylist()
        assert sorted(row["id"] for row in rows) == [1, 2]
        (letter,) = read_delta(tmp_path / "lake" / "raycdc" / "dead_letters").to_pylist()
        assert (letter["topic"], letter["offset"], letter["key"], letter["value"]) == (topic, 1, b"k", b"{broken")
        assert "corrupt message" in letter["reason"]


def test_what_is_not_there_is_named(kafka: KafkaServer, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match='Topic "nowhere" does not exist'):
        read(kafka, tmp_path, topics=["nowhere"])
    with pytest.raises(SourceUnavailableError, match="Is the broker running"):
        read(kafka, tmp_path, topics=["m"], bootstrap_servers=f"127.0.0.1:{free_port()}")


def test_tables_and_fields_that_appear_in_any_partition_grow_one_schema(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic(partitions=2) as topic:
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
        producer.produce(topic, message(1), partition=0)
        producer.produce(topic, message(2, note="x"), partition=1)
        producer.produce(topic, message(3, table="orders"), partition=0)
        producer.produce(topic, message(4, note=None, weight="heavy"), partition=1)
        assert producer.flush(20) == 0
        made = pipeline(kafka, tmp_path, topics=[topic], format="maxwell-json")
        found = [row for rows in epochs(made, "caught-up") for row in rows]
        shown = sorted((row["_table"], row["id"], row.get("note")) for row in found)
        assert shown == [
            ("shop.orders", 3, None),
            ("shop.product", 1, None),
            ("shop.product", 2, "x"),
            ("shop.product", 4, None),
        ]


def test_the_group_shows_how_far_the_sink_is(kafka: KafkaServer, tmp_path: Path) -> None:
    with kafka.fresh_topic() as topic:
        produce(kafka, topic, range(5))
        made = pipeline(kafka, tmp_path, topics=[topic], group_id=f"g-{topic}")
        produce_more = iter([5, 6])

        def committed(rows: Rows) -> bool:
            more = next(produce_more, None)
            if more is not None:
                produce(kafka, topic, [more])
            return len(rows) >= 7

        read_until(made, committed)
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, "group.id": f"g-{topic}"})
        (answer,) = consumer.committed([TopicPartition(topic, 0)], timeout=120)
        consumer.close()
        assert answer.offset >= 5
