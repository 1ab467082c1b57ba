"""Creates librdkafka's clients for source and sink, and turns its refusals into errors for the user.

No other module creates them. Properties are passed to librdkafka unchanged. Only librdkafka knows their valid names and
values, and reports invalid ones when a client is created. `tests/unit/test_tidy.py` finds clients that are created
elsewhere.

The first request to a cluster fails after seconds if no broker can answer, or if a broker's certificate is refused.

librdkafka itself would retry until the timeout of a request, for any reason: a slow broker, a closed port, an invalid
certificate, or a wrong password. It reports the last two only when the client is polled.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from raycdc.clients.logins import LOGINS, READ_AGAIN
from raycdc.config.checks import CheckResult, readable_on_the_way
from raycdc.core.certificate_faults import TlsServer, endpoint, first_fault
from raycdc.core.secrets import Renewed, newest
from raycdc.errors import ConfigError

T = TypeVar("T")
Properties = Mapping[str, str | int | float]

#: The pause between connections of a lasting client. librdkafka connects by itself, without notice. With its own pause
#: of 100 ms, it would connect nineteen times a second to a broker that accepts and closes connections. librdkafka waits
#: for half of the pause between any two new connections of a client, including the first ones. With 1,000 ms a client
#: therefore connects at most twice a second, and its first answer takes up to half a second longer (all measured with
#: 2.16). A connection that ended after more than ten seconds is opened again immediately. Clients for one query or one
#: transaction keep librdkafka's own pause: they end soon, and a longer pause would delay each commit.
_RECONNECTS: Properties = {"reconnect.backoff.ms": 1000, "reconnect.backoff.max.ms": 10_000}


#: The codes of errors that mean that no broker answered.
_NO_ANSWER = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})
#: The codes of errors that mean that the broker refuses the account: it is unknown, or its password differs.
REFUSED_ACCOUNT = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})


#: Seconds between two polls for refusals during the wait for an answer.
_HEARS_EVERY_S = 1.0


class Admin(AdminClient):
    """A client for queries, which remembers librdkafka's errors about unreachable brokers.

    librdkafka reports errors only when the client is polled, and `hear` polls it. Without polls, a long-lived client
    would keep its first password.
    """

    def __init__(self, properties: Properties, *, section: str) -> None:
        self.properties = properties
        #: The properties of the configuration.
        self.section = section
        self._refusals: dict[str, KafkaError] = {}
        #: The last refusal of an account that had been accepted before, if no request was answered since.
        self._passing: KafkaError | None = None
        # The annotation of the library lacks callbacks.
        super().__init__({**renewed(properties), "error_cb": self._heard})  # type: ignore[dict-item]

    def hear(self) -> None:
        """Process librdkafka's reports. If an account is refused, set its present password."""
        self.poll(0)
        if self._passing is not None:
            renew_account(self, self.properties)

    def was_answered(self) -> None:
        """Note that a request was answered, so the account was accepted."""
        self._passing = None
        login_accepted(self.properties)

    def refusals(self) -> list[KafkaError]:
        """Return the last refusal (of TLS, or of the account) of each broker that was reported since the client was
        created.
        """
        self.hear()
        return list(self._refusals.values())

    def instead_of(self, error: KafkaError) -> KafkaError:
        """Return the reason of a request's `error`, which may be a refusal that librdkafka reports separately."""
        self.hear()
        return error if self._passing is None else refused_account(self.properties, self._passing)

    def _heard(self, error: KafkaError) -> None:
        if error.code() in REFUSED_ACCOUNT and may_pass(self.properties):
            self._passing = error
        elif error.code() == KafkaError._SSL or error.code() in REFUSED_ACCOUNT:
            self._refusals[error.str().partition(": ")[0]] = error


def admin_client(properties: Properties, *, section: str) -> Admin:
    """Return a client for queries.

    Raises `ConfigError` at ``{section}.properties`` for properties that librdkafka refuses.
    """
    return _made(lambda: Admin(properties, section=section), section)


def consumer_client(
    properties: Properties,
    *,
    section: str,
    lasting: bool = False,
    on_error: Callable[[KafkaError], None] | None = None,
) -> Consumer:
    """Return a consumer whose log goes to librdkafka's logger.

    Raises the errors of `admin_client`. A `lasting` consumer connects less often to unreachable brokers. `on_error` is
    called for problems of the whole cluster, on the thread that fetches.
    """
    heard = {} if on_error is None else {"error_cb": on_error}
    spaced = _spaced(properties) if lasting else dict(properties)
    return _made(lambda: Consumer({**renewed(spaced), **heard}, logger=None), section)


def producer_client(
    properties: Properties, *, section: str, on_error: Callable[[KafkaError], None] | None = None
) -> Producer:
    """Return a producer whose log goes to librdkafka's logger.

    Raises the errors of `admin_client`. `on_error` is called for problems of the whole cluster, on the thread that
    polls the producer.
    """
    heard = {} if on_error is None else {"error_cb": on_error}
    return _made(lambda: Producer({**renewed(properties), **heard}, logger=None), section)


def renewed(properties: Properties) -> dict[str, str | int | float]:
    """Return `properties` with the present values of their references (`raycdc.core.secrets`)."""
    return {name: newest(value) if isinstance(value, str) else value for name, value in properties.items()}


def login_accepted(properties: Properties) -> None:
    """Note that a cluster has accepted the account of `properties`."""
    LOGINS.accepted(*_account(properties))


def may_pass(properties: Properties) -> bool:
    """Return True if a refusal of the account may be temporary; see `raycdc.clients.logins`."""
    return LOGINS.may_change(*_account(properties), _text(properties.get("sasl.password", "")))


def refused_account(properties: Properties, error: KafkaError) -> KafkaError:
    """Return the error of a refused account, for people. It is `retriable` if the password may be changing."""
    user = properties.get("sasl.username", "")
    passes = may_pass(properties)
    text = f"The broker refuses the user {user!r}: {error.str()}{f'. {READ_AGAIN}' if passes else ''}"
    return KafkaError(error.code(), text, retriable=passes)


def renew_account(client: Consumer | Producer | AdminClient, properties: Properties) -> bool:
    """Set the present password for new connections of `client`.

    Return True if the password may change; otherwise do nothing and return False. librdkafka reconnects by itself. Must
    not be called within a callback of the client: confluent-kafka (2.16) would lose its state, and the next callback of
    the same call would end the process.
    """
    if not isinstance(properties.get("sasl.password"), Renewed):
        return False
    now = renewed(properties)
    client.set_sasl_credentials(str(now.get("sasl.username", "")), str(now["sasl.password"]))
    return True


def messages_in_the_open(bootstrap_servers: str, properties: Properties, *, section: str) -> list[CheckResult]:
    """Return a warning if messages travel unencrypted to brokers beyond this machine; else an empty text."""
    protocol = str(properties.get("security.protocol", "plaintext")).lower()
    servers = [server.strip().rpartition("://")[2] for server in bootstrap_servers.split(",")]
    return readable_on_the_way(
        bootstrap_servers,
        [(server.rpartition(":")[0] or server).strip("[]") for server in servers],
        encrypted=not protocol.endswith("plaintext"),
        fix=f'Set {section}.properties: security.protocol = "ssl" or "sasl_ssl", and ssl.ca.location.',
    )


def answer_of(asked: Future[T], timeout_s: float, admin: Admin | None = None) -> T:
    """Wait for the answer to a query of an admin client.

    Raises `KafkaException` if there is no answer in time, even if librdkafka's own timeout would come a moment later.
    During the wait, the `admin` of a lasting client processes refusals.
    """
    until_s = time.monotonic() + timeout_s
    while True:
        left_s = until_s - time.monotonic()
        try:
            answer = asked.result(left_s if admin is None else min(left_s, _HEARS_EVERY_S))
        except TimeoutError as cause:
            if time.monotonic() >= until_s:
                late = KafkaError(KafkaError._TIMED_OUT, f"no answer within {timeout_s:g} s")
                raise KafkaException(late if admin is None else admin.instead_of(late)) from cause
            assert admin is not None
            admin.hear()
        except KafkaException as cause:
            error = cause.args[0]
            if admin is None or not (error.retriable() or error.code() in _NO_ANSWER):
                raise
            raise KafkaException(admin.instead_of(error)) from cause
        else:
            if admin is not None:
                admin.was_answered()
            return answer


def _text(value: str | float) -> str:
    """Return `value` as a text; a `Renewed` stays one."""
    return value if isinstance(value, str) else str(value)


def _account(properties: Properties) -> tuple[str, str]:
    """Return the brokers and the user, by which logins are remembered."""
    return str(properties.get("bootstrap.servers", "")), str(properties.get("sasl.username", ""))


def _spaced(properties: Properties) -> dict[str, str | int | float]:
    """Return `properties` with longer pauses between connections, if they set none."""
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


#: Seconds to wait for an answer before the ports are checked.
FIRST_TRY_S = 5.0
#: A refusal by TLS or of the account comes within a second, so it can be reported before `FIRST_TRY_S`.
_REFUSAL_S = 1.0
_CONNECT_S = 2.0
_PORT = 9092


def list_topics(admin: Admin, bootstrap_servers: str, *, timeout_s: float) -> Any:
    """Return the cluster's metadata, of all topics.

    Raises `KafkaException` after `timeout_s`. It is raised earlier if no port is open, or if the only answers are
    refusals of a certificate (`_SSL`) or of the account (`_AUTHENTICATION`). If the account was accepted before, its
    password may have changed. The function then waits for `timeout_s`, and the error is `retriable`.
    """
    for seconds in (_REFUSAL_S, FIRST_TRY_S - _REFUSAL_S):
        try:
            return _asked(admin, seconds)
        except KafkaException:
            if (refusal := _refusal(admin, bootstrap_servers)) is not None:
                raise KafkaException(refusal) from None
    if not any(may_answer(server.strip()) for server in bootstrap_servers.split(",")):
        raise KafkaException(KafkaError(KafkaError._TRANSPORT, "no port is open"))
    try:
        return _asked(admin, timeout_s - FIRST_TRY_S)
    except KafkaException as cause:
        raise KafkaException(admin.instead_of(cause.args[0])) from cause


def _asked(admin: Admin, timeout_s: float) -> Any:
    found = admin.list_topics(timeout=timeout_s)
    admin.was_answered()
    return found


def _refusal(admin: Admin, bootstrap_servers: str) -> KafkaError | None:
    """Return the error of brokers that could not be asked because of TLS or the account, with its remedy."""
    servers = bootstrap_servers.split(",")
    reported = admin.refusals()
    if len(reported) < len({server.strip() for server in servers}):
        return None
    error = reported[-1]
    if error.code() != KafkaError._SSL:
        user = admin.properties.get("sasl.username", "")
        return KafkaError(
            error.code(),
            f"The broker refuses the user {user!r}: {error.str()}. Correct sasl.username, sasl.password and "
            f"sasl.mechanism in {admin.section}.properties.",
        )
    where = f"{admin.section}.properties"
    checks = str(admin.properties.get("ssl.endpoint.identification.algorithm", "https")).lower() != "none"
    ca = admin.properties.get("ssl.ca.location")
    asked = (
        TlsServer(
            *endpoint(server, _PORT),
            ca_key=f'{where}."ssl.ca.location"',
            host_key=f"{admin.section}.bootstrap_servers",
            ca=None if ca is None else str(ca),
            checks_name=checks,
        )
        for server in servers
    )
    fault = "" if "ssl.ca.pem" in admin.properties else first_fault(asked)
    return KafkaError(error.code(), f"No TLS connection to {fault or error.str()}")


def may_answer(server: str) -> bool:
    """Return False if `server` (``host``, ``host:port``, ``protocol://host:port``) refuses connections, or
    is no host.
    """
    host, _, port = server.rpartition("://")[2].rpartition(":")
    if not host or host.endswith(":") or (":" in host and not host.startswith("[")):
        host, port = server.rpartition("://")[2], str(_PORT)
    try:
        with socket.create_connection((host.strip("[]"), int(port)), _CONNECT_S):
            return True
    except (ConnectionRefusedError, socket.gaierror):
        return False
    except (OSError, ValueError):
        return True
