"""Whether anybody could answer at a broker's address."""

from __future__ import annotations

import socket

import pytest

from raycdc.clients.kafka import may_answer


@pytest.mark.parametrize("form", ["127.0.0.1:{}", "PLAINTEXT://127.0.0.1:{}", "localhost:{}"])
def test_an_open_port_may_answer_and_a_closed_one_does_not(form: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert may_answer(form.format(port))
    assert not may_answer(form.format(port))


def test_a_name_that_is_no_host_does_not_answer_and_what_cannot_be_known_may() -> None:
    assert not may_answer("nobody.invalid:9092")
    assert may_answer("127.0.0.1:many")


def test_addresses_of_version_6_are_understood() -> None:
    try:
        server = socket.create_server(("::1", 0), family=socket.AF_INET6)
    except OSError:
        pytest.skip("no IPv6 here")
    with server:
        port = server.getsockname()[1]
        assert may_answer(f"[::1]:{port}")
    assert not may_answer(f"[::1]:{port}")
