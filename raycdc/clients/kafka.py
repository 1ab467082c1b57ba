"""The one place where librdkafka's clients are made, for source and sink; its refusals become errors for the user.

Properties go to librdkafka as they are, so only it knows their names, values and files; it says so when a client is
made. `tests/unit/test_tidy.py` finds a client that is made elsewhere.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from raycdc.errors import ConfigError
from raycdc.references import Renewed, newest
from raycdc.source.checks import CheckResult, readable_on_the_way

T = TypeVar("T")
Properties = Mapping[str, str | int | float]

#: Of a client that lasts. librdkafka connects by itself, tells nobody before, and with its own 100 ms tries a broker
#: that accepts and closes nineteen times a second. It pauses for half of this time between any two new connections of a
#: client, the first ones too: with 1,000 ms a client tries twice a second at most, and its first answer takes up to
#: half a second longer (all measured, 2.16). A connection that ended after over ten seconds is opened anew at once.
#: Clients for one question or one transaction keep librdkafka's time: each commit would pay, and they end soon.
_RECONNECTS: Properties = {"reconnect.backoff.ms": 1000, "reconnect.backoff.max.ms": 10_000}


#: The broker does not know the account, or its password is another one.
REFUSED_ACCOUNT = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})


class Admin(AdminClient):
    """A client for questions, which keeps what librdkafka tells of brokers that it could not talk to."""

    def __init__(self, properties: Properties, *, section: str) -> None:
        self.properties = properties
        #: Of the configuration.
        self.section = section
        #: Set by who asked. An account that is refused later may have another password now.
        self.was_let_in = False
        self._refusals: dict[str, KafkaError] = {}
        # Its annotation knows no callbacks.
        super().__init__({**renewed(properties), "error_cb": self._heard})  # type: ignore[dict-item]

    def refusals(self) -> list[KafkaError]:
        """For each broker that was told of since the client was made its last refusal: of TLS, or of the account."""
        self.poll(0)
        return list(self._refusals.values())

    def _heard(self, error: KafkaError) -> None:
        if error.code() in REFUSED_ACCOUNT and renew_account(self, self.properties) and self.was_let_in:
            return
        if error.code() == KafkaError._SSL or error.code() in REFUSED_ACCOUNT:
            self._refusals[error.str().partition(": ")[0]] = error


def admin_client(properties: Properties, *, section: str) -> Admin:
    """A client for questions. `ConfigError` at ``{section}.properties`` for what librdkafka refuses."""
    return _made(lambda: Admin(properties, section=section), section)


def consumer_client(
    properties: Properties,
    *,
    section: str,
    lasting: bool = False,
    on_error: Callable[[KafkaError], None] | None = None,
) -> Consumer:
    """A consumer, whose log goes to librdkafka's own. Errors as of `admin_client`. One that is `lasting` spares brokers
    that are away. `on_error` hears of troubles of the whole cluster, on the thread that fetches.
    """
    heard = {} if on_error is None else {"error_cb": on_error}
    paced = _spaced(properties) if lasting else dict(properties)
    return _made(lambda: Consumer({**renewed(paced), **heard}, logger=None), section)


def producer_client(properties: Properties, *, section: str) -> Producer:
    """A producer, whose log goes to librdkafka's own. Errors as of `admin_client`."""
    return _made(lambda: Producer(renewed(properties), logger=None), section)


def renewed(properties: Properties) -> dict[str, str | int | float]:
    """`properties` as their references give them now (`raycdc.references`)."""
    return {name: newest(value) if isinstance(value, str) else value for name, value in properties.items()}


def renew_account(client: Consumer | AdminClient, properties: Properties) -> bool:
    """Let new connections of `client` log in with the password as it is now, if that may change; librdkafka connects
    again by itself. Whether it may.
    """
    if not isinstance(properties.get("sasl.password"), Renewed):
        return False
    now = renewed(properties)
    client.set_sasl_credentials(str(now.get("sasl.username", "")), str(now["sasl.password"]))
    return True


def messages_in_the_open(bootstrap_servers: str, properties: Properties, *, section: str) -> list[CheckResult]:
    """A warning where messages travel unencrypted to brokers beyond this machine."""
    protocol = str(properties.get("security.protocol", "plaintext")).lower()
    servers = [server.strip().rpartition("://")[2] for server in bootstrap_servers.split(",")]
    return readable_on_the_way(
        bootstrap_servers,
        [(server.rpartition(":")[0] or server).strip("[]") for server in servers],
        encrypted=not protocol.endswith("plaintext"),
        fix=f'Set {section}.properties: security.protocol = "ssl" or "sasl_ssl", and ssl.ca.location.',
    )


def answer_of(asked: Future[T], timeout_s: float) -> T:
    """The answer to a question of an admin client. `KafkaException` where there is none in time, too: librdkafka's own
    end of a question may come a moment later than ours.
    """
    try:
        return asked.result(timeout_s)
    except TimeoutError as cause:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"no answer within {timeout_s:g} s")) from cause


def _spaced(properties: Properties) -> dict[str, str | int | float]:
    """`properties` with our pauses between connections, where they have none."""
    theirs = any(name in properties for name in _RECONNECTS)
    return {**({} if theirs else _RECONNECTS), **properties}


def _made(make: Callable[[], T], section: str) -> T:
    try:
        return make()
    except KafkaException as cause:
        raise ConfigError(
            f"{section}.properties: librdkafka refuses them: {cause.args[0].str().strip()}. Correct the property; "
            "librdkafka's CONFIGURATION.md has their names and values."
        ) from cause
