"""Proves before each seal that a topic is still the topic whose messages were read. Fetching uses names only.

If a topic is deleted and created again, reading would continue at the same offset without notice. A reader therefore
queries the topics' ids *after* it has read the messages to seal, and seals only if the ids are unchanged. An unchanged
id shows that all messages fetched before are from that topic, because ids are never used again. If the cluster does not
answer within `IDENTITY_TIMEOUT_S`, the epoch is sealed without this proof, and the ids are queried again at the next
seal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, Protocol

from confluent_kafka import KafkaException, TopicCollection

from raycdc.clients.kafka import Admin, admin_client
from raycdc.connectors.kafka.cluster.client import DROPPED_CODES, TIMEOUT_S, client_properties
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.errors import LogLostError

#: The longest time a seal waits for the answer. A reader that is silent for 10 s counts as lost.
IDENTITY_TIMEOUT_S = 3.0

#: The cluster's answers: each topic's id, empty if there is no such topic, None if the cluster did not answer.
Answers = Mapping[str, str | None]


class Questions(Protocol):
    """The queries for the topics' ids. The methods do not block."""

    def ask(self, topics: Collection[str]) -> None: ...

    def answers(self) -> Answers | None:
        """Return the answers to the last query; None while an answer is missing."""

    def close(self) -> None: ...


class TopicQuestions:
    """The queries to a real cluster. Its own threads wait for the answers and call `notify` for each."""

    def __init__(self, config: KafkaSourceConfig, notify: Callable[[], None]) -> None:
        self._config = config
        self._notify = notify
        self._admin: Admin | None = None
        self._asked: dict[str, Any] = {}

    def ask(self, topics: Collection[str]) -> None:
        if self._admin is None:
            self._admin = admin_client(client_properties(self._config), section="source")
        # Handle pending errors first, so that a changed password is used. Otherwise the account would be refused for
        # ever.
        self._admin.hear()
        names = TopicCollection(sorted(topics))
        self._asked = dict(self._admin.describe_topics(names, request_timeout=TIMEOUT_S))
        for future in self._asked.values():
            future.add_done_callback(lambda _: self._notify())

    def answers(self) -> Answers | None:
        if not all(future.done() for future in self._asked.values()):
            return None
        return {topic: self._id_of(future) for topic, future in self._asked.items()}

    def close(self) -> None:
        self._admin = None

    @staticmethod
    def _id_of(future: Any) -> str | None:
        error = future.exception()
        if error is None:
            return str(future.result().topic_id)
        dropped = isinstance(error, KafkaException) and error.args[0].code() in DROPPED_CODES
        return "" if dropped else None


class Identities:
    """The decision whether an epoch may be sealed; see the module's docstring. Owned by the reader's thread."""

    def __init__(self, questions: Questions, *, where: str, now_s: Callable[[], float]) -> None:
        self._questions = questions
        self._where = where
        self._now_s = now_s
        self._read: dict[str, str] = {}
        self._asked_s: float | None = None
        #: The number of times the cluster did not answer in time.
        self.unanswered = 0

    def read(self, topic: str, identity: str) -> None:
        """Note that messages of a topic were read, whose id was `identity` when the partition was found."""
        self._read[topic] = identity
        self._asked_s = None  # Earlier answers prove nothing about these messages.

    def proven(self) -> bool:
        """Return True if the read messages may be sealed, False while the cluster's answer is awaited.

        Raises `LogLostError` if a topic was deleted or created again.
        """
        if not self._read:
            return True
        if self._asked_s is None:
            self._questions.ask(self._read)
            self._asked_s = self._now_s()
        answers = self._questions.answers()
        late = self._now_s() >= self._asked_s + IDENTITY_TIMEOUT_S
        if answers is None and not late:
            return False
        self._asked_s = None
        for topic, identity in dict(self._read).items():
            answer = answers.get(topic) if answers is not None else None
            if answer is None:
                self.unanswered += 1
                continue
            if answer != identity:
                raise self._lost(topic, answer)
            del self._read[topic]
        return True

    def close(self) -> None:
        self._questions.close()

    def _lost(self, topic: str, found: str) -> LogLostError:
        what = "deleted and created again" if found else "deleted"
        return LogLostError(
            f"Topic {topic} at {self._where} was {what} while it was read: the last messages may be of another topic, "
            f"and are not sealed. Take it out of source.topics, or start another pipeline for the new topic."
        )
