"""The first question to a cluster, with an error after seconds if nobody can answer, or a broker cannot be believed.

librdkafka keeps trying for as long as a question may take, whether a broker is slow, a port is closed, a certificate is
another one, or the password is wrong; of the last two it tells whoever polls the client.
"""

from __future__ import annotations

import socket
from typing import Any

from confluent_kafka import KafkaError, KafkaException

from raycdc.certificate_faults import TlsServer, endpoint, first_fault
from raycdc.clients.kafka import Admin

#: Seconds to wait for an answer before the ports are tried.
FIRST_TRY_S = 5.0
#: Of these, the first second is enough where a broker refuses us, or we refuse its certificate.
_REFUSAL_S = 1.0
_CONNECT_S = 2.0
_PORT = 9092


def list_topics(admin: Admin, bootstrap_servers: str, *, timeout_s: float) -> Any:
    """The cluster's metadata, of all topics. `KafkaException` after `timeout_s`, or sooner where no port is open, or
    the only answer is a refusal: of a certificate (`_SSL`), or of the account (`_AUTHENTICATION`). One of an account
    that was let in before, whose password may be another one by now, is waited for, and is `retriable` then.
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
    """The error of brokers none of which could be asked because of TLS or of the account, with its cure."""
    servers = bootstrap_servers.split(",")
    told = admin.refusals()
    if len(told) < len({server.strip() for server in servers}):
        return None
    error = told[-1]
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
    """False where `server` (``host``, ``host:port``, ``protocol://host:port``) refuses connections, or is no host."""
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
