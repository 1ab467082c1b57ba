"""A cluster that a lasting consumer hears nothing good of: it does not answer, or refuses the account.

Brokers that are away are waited for as long as it takes: librdkafka connects again by itself. An account that is
refused gets its password as it is now, again and again, because whoever changes one changes it at two places; after the
patience that everything has, the reading ends.
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException

from raycdc.clients.kafka import REFUSED_ACCOUNT, let_in, may_pass, renew_account
from raycdc.connectors.kafka.client import client_properties
from raycdc.connectors.kafka.plugin import KafkaSourceConfig
from raycdc.errors import SourceError
from raycdc.waiting import stages
from raycdc.waiting.patience import Policy

#: How often a cluster that was away is asked whether it answers again, and how long the fetches wait for that.
AGAIN_EVERY_S = 5.0
ASKED_S = 0.5
#: Librdkafka tells of refusals that are the same every half a minute, so one that is older than this is over.
REFUSAL_LASTS_S = 60.0


class Refusals:
    """Brokers refuse an account: since when, as long as nothing is answered in between. Who is away does not refuse,
    and a row of refusals ends where none came for longer than one may last.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._first_s: float | None = None
        self._last_s = 0.0
        self._text = ""

    def came(self, text: str, now_s: float) -> None:
        """A broker refused the account, in these words."""
        if self._first_s is None or now_s - self._last_s > self._patience_s + REFUSAL_LASTS_S:
            self._first_s = now_s
        self._last_s, self._text = now_s, text

    def over(self) -> None:
        """A broker answered."""
        self._first_s = None

    @property
    def under_way(self) -> bool:
        """Whether brokers have refused the account, and none has answered since."""
        return self._first_s is not None

    def too_long(self, now_s: float) -> str:
        """The words of the last refusal where they have lasted for too long, and still do; else nothing."""
        if self._first_s is None or now_s - self._last_s > REFUSAL_LASTS_S:
            return ""
        return self._text if now_s - self._first_s >= self._patience_s else ""


class ClusterTrouble:
    """See the module's docstring. Used by the thread that fetches alone; `watch` comes first."""

    def __init__(self, config: KafkaSourceConfig, patience: Policy) -> None:
        self._where = config.bootstrap_servers
        self._properties = client_properties(config)
        self._patience = patience
        self._refusals = Refusals(patience.patience_s)
        self._consumer: Consumer | None = None
        #: When it is looked next whether the cluster answers again; None while nobody knows of a trouble.
        self._look_s: float | None = None
        #: Whether the account is to have its password as it is now, with which librdkafka connects again.
        self._renews = False

    def __repr__(self) -> str:
        return f"ClusterTrouble(next look {self._look_s}, refused={self._refusals.under_way})"

    def watch(self, consumer: Consumer) -> None:
        """The consumer whose troubles these are; it tells them to `heard`."""
        self._consumer = consumer

    def heard(self, error: KafkaError) -> None:
        """Librdkafka calls it within a fetch."""
        if error.code() in REFUSED_ACCOUNT:
            self.refused(error)
        elif error.code() == KafkaError._ALL_BROKERS_DOWN:
            self._begins(f"does not answer: {error.str()}")

    def refused(self, error: KafkaError) -> None:
        """A broker refused the account."""
        self._renews = True
        self._refusals.came(error.str(), time.monotonic())
        self._begins(f"refuses the account: {error.str()}")

    def see_to(self, topic: str | None, *, answered: bool) -> None:
        """Say when it is over: a topic without new messages would say nothing by itself. `SourceError` where the
        account was refused for too long.
        """
        if self._renews:
            self._renews = False
            self._renew()
        if self._look_s is None or (not answered and time.monotonic() < self._look_s):
            return
        if not answered:
            assert self._consumer is not None
            try:
                self._consumer.list_topics(topic, timeout=ASKED_S)
            except KafkaException:
                if text := self._refusals.too_long(time.monotonic()):
                    raise self._too_long(text) from None
                if self._refusals.under_way:
                    # Librdkafka tells of the same refusal half a minute later.
                    self._renew()
                self._look_s = time.monotonic() + AGAIN_EVERY_S
                return
        self._look_s = None
        self._refusals.over()
        let_in(self._properties)
        stages.over()

    def _begins(self, words: str) -> None:
        if self._look_s is None:
            self._look_s = time.monotonic() + AGAIN_EVERY_S
        stages.trouble(f"Kafka at {self._where} {words}")

    def _renew(self) -> None:
        assert self._consumer is not None
        renew_account(self._consumer, self._properties)

    def _too_long(self, text: str) -> SourceError:
        user = self._properties.get("sasl.username", "")
        read = "was read again at each try" if may_pass(self._properties) else "is read at the start alone"
        return SourceError(
            f"Kafka at {self._where} has refused the user {user!r} for {self._patience.patience_s / 60:.0f} minutes: "
            f"{text}. Its password (sasl.password of source.properties) {read}. Put the right one there, or give it to "
            "the user at the brokers, and start again; nothing is lost."
        )
