"""Topics whose log is another one at the place where reading goes on: made again, or cut off and grown again."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest
from confluent_kafka import Producer, TopicPartition

from raycdc.connectors.kafka.cluster.identities import IDENTITY_TIMEOUT_S, Identities
from raycdc.errors import LogLostError
from raycdc.sandbox.servers import KafkaServer
from tests.integration.connectors.kafka.test_kafka_source import Rows, epochs, message, pipeline, produce, read

pytestmark = [pytest.mark.server, pytest.mark.timeout(1800)]


def log_of(kafka: KafkaServer, topic: str) -> Path:
    return kafka.folder / "data" / f"{topic}-0" / f"{0:020}.log"


def cut_off(kafka: KafkaServer, topic: str, size: int) -> None:
    """What remains of a partition when a broker leads that has `size` bytes of it: it starts from that log."""
    kafka.stop()
    log = log_of(kafka, topic)
    with log.open("r+b") as file:
        file.truncate(size)
    for file_of_it in log.parent.iterdir():
        if file_of_it.suffix in (".index", ".timeindex", ".snapshot"):
            file_of_it.unlink()
    (kafka.folder / "data" / ".kafka_cleanshutdown").unlink(missing_ok=True)
    kafka.start()


@pytest.mark.parametrize("discovery", ["off", "1h"])
def test_a_topic_that_is_made_again_while_it_is_read_is_refused_before_a_message_of_it_is_sealed(
    kafka: KafkaServer, tmp_path: Path, discovery: str
) -> None:
    with kafka.fresh_topic() as topic:
        produce(kafka, topic, range(3))
        found: Rows = []
        with closing(epochs(pipeline(kafka, tmp_path, topics=[topic], discovery_interval=discovery), None)) as sealed:
            while len(found) < 3:
                found += next(sealed)
            kafka.delete_topic(topic)
            kafka.create_topic(topic)
            produce(kafka, topic, range(10, 16))
            with pytest.raises(
                LogLostError, match=rf"Topic {topic} .* was deleted and created again while it was read"
            ):
                found += [row for rows in sealed for row in rows]
        assert [row["id"] for row in found] == [0, 1, 2]
        with pytest.raises(
            LogLostError, match=rf"Topic {topic} was deleted and created again: offset 3 of partition 0"
        ):
            read(kafka, tmp_path, topics=[topic], discovery_interval=discovery)


def test_a_log_that_was_cut_off_and_grew_again_is_refused_or_gone_on_with_as_told(tmp_path: Path) -> None:
    with KafkaServer() as kafka:
        topic = kafka.create_topic("t")
        produce(kafka, topic, range(4))
        size = log_of(kafka, topic).stat().st_size
        produce(kafka, topic, [4, 5])
        stopped = tmp_path / "stopped"
        assert read(kafka, stopped, topics=[topic]) == [0, 1, 2, 3, 4, 5]
        found: Rows = []
        with closing(epochs(pipeline(kafka, tmp_path / "running", topics=[topic]), None)) as sealed:
            while len(found) < 6:
                found += next(sealed)
            cut_off(kafka, topic, size)
            produce(kafka, topic, range(10, 16))
            with pytest.raises(LogLostError, match=rf"{topic}:0 has other messages before 6 than those that were read"):
                found += [row for rows in sealed for row in rows]
        assert [row["id"] for row in found] == [0, 1, 2, 3, 4, 5]
        with pytest.raises(LogLostError, match=rf"{topic}:0 has other messages before 6 .*source.on_out_of_range"):
            read(kafka, stopped, topics=[topic])
        assert read(kafka, stopped, topics=[topic], on_out_of_range="latest") == []
        produce(kafka, topic, [20])
        assert read(kafka, stopped, topics=[topic]) == [20]
        again = read(kafka, tmp_path / "running", topics=[topic], on_out_of_range="earliest")
        assert again == [0, 1, 2, 3, *range(10, 16), 20]


def test_markers_of_a_later_leader_and_messages_that_expired_are_no_lost_log(tmp_path: Path) -> None:
    with KafkaServer() as kafka:
        topic = kafka.create_topic("t")
        producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "t", "log_level": 0})
        producer.init_transactions(20)
        producer.begin_transaction()
        for number in (1, 2):
            producer.produce(topic, message(number), partition=0)
        producer.flush(20)
        kafka.stop()
        kafka.start()
        producer.commit_transaction(60)
        for state in ("expired", "kept"):
            assert read(kafka, tmp_path / state, topics=[topic]) == [1, 2]
        # The marker is of the leader's next epoch: of the one before the log has only two messages.
        assert read(kafka, tmp_path / "kept", topics=[topic]) == []
        produce(kafka, topic, [3])
        admin, gone = kafka.admin(), TopicPartition(topic, 0, 3)
        admin.delete_records([gone])[gone].result(120)
        # The place behind the last message is gone, and the one behind its marker is not.
        assert read(kafka, tmp_path / "expired", topics=[topic]) == [3]


class Questions:
    """A cluster that answers when it is told to."""

    def __init__(self) -> None:
        self.asked: list[list[str]] = []
        self.found: dict[str, str | None] | None = None

    def ask(self, topics: object) -> None:
        self.asked.append(sorted(topics))  # type: ignore[call-overload]

    def answers(self) -> dict[str, str | None] | None:
        return self.found

    def close(self) -> None: ...


def test_a_seal_waits_for_an_answer_to_what_was_asked_after_the_last_message_and_not_for_ever() -> None:
    now_s = [0.0]
    questions = Questions()
    identities = Identities(questions, where="here", now_s=lambda: now_s[0])
    assert identities.proven()
    identities.read("a", "1")
    assert not identities.proven()
    questions.found = {"a": "1"}
    identities.read("b", "2")
    questions.found = None
    assert not identities.proven()
    assert questions.asked == [["a"], ["a", "b"]]
    now_s[0] = IDENTITY_TIMEOUT_S
    # Nobody answers: sealed, and asked again at the next seal.
    assert (identities.proven(), identities.unanswered) == (True, 2)
    assert not identities.proven()
    questions.found = {"a": "1", "b": None}
    assert identities.proven()
    assert questions.asked == [["a"], ["a", "b"], ["a", "b"]]
    questions.found = {"b": ""}
    with pytest.raises(LogLostError, match="Topic b at here was deleted while it was read"):
        identities.proven()
