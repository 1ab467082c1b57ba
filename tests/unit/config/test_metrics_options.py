"""Where figures for Prometheus are: an address with a port."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from raycdc.config import MetricsOptions, Secret


@pytest.mark.parametrize(
    ("address", "place", "loopback"),
    [
        ("127.0.0.1:9464", ("127.0.0.1", 9464), True),
        ("localhost:9464", ("127.0.0.1", 9464), True),
        ("[::1]:9464", ("::1", 9464), True),
        ("0.0.0.0:1", ("0.0.0.0", 1), False),
    ],
)
def test_an_address_is_host_and_port(address: str, place: tuple[str, int], *, loopback: bool) -> None:
    options = MetricsOptions(address=address)
    assert (options.host_and_port, options.is_loopback) == (place, loopback)


@pytest.mark.parametrize(
    "address", ["9464", ":9464", "host:9464", "127.0.0.1", "127.0.0.1:0", "::1:9464", "[127.0.0.1]:1"]
)
def test_another_one_is_refused(address: str) -> None:
    with pytest.raises(ValidationError, match="must be HOST:PORT"):
        MetricsOptions(address=address)


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(ValidationError, match="at least 16 characters"):
        MetricsOptions(address="127.0.0.1:1", token=Secret("short"))
