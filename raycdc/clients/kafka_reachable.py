"""The first question to a cluster, with an error after seconds if nobody can answer.

librdkafka keeps trying for as long as a question may take, whether a broker is slow or a port is closed.
"""

from __future__ import annotations

import socket
from typing import Any

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

#: Seconds to wait for an answer before the ports are tried.
FIRST_TRY_S = 5.0
_CONNECT_S = 2.0
_PORT = 9092


def list_topics(admin: AdminClient, bootstrap_servers: str, *, timeout_s: float) -> Any:
    """The cluster's metadata, of all topics. `KafkaException` after `timeout_s`, or sooner where no port is open."""
    try:
        return admin.list_topics(timeout=FIRST_TRY_S)
    except KafkaException:
        if not any(may_answer(server.strip()) for server in bootstrap_servers.split(",")):
            raise
    return admin.list_topics(timeout=timeout_s - FIRST_TRY_S)


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
