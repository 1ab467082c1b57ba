"""``[metrics]``: where Prometheus finds the figures of a run, and probes its health (`raycdc.control.metrics`)."""

from __future__ import annotations

from ipaddress import ip_address

from pydantic import field_validator

from raycdc.config.control import TOKEN_LENGTH_MIN, Token
from raycdc.config.fields import Options, Secret, option
from raycdc.config.tls import is_loopback


class MetricsOptions(Options):
    """The door for scrapers and probes; it is beside the one that `[control]` is about, and only tells."""

    address: str = option(
        "",
        help="HOST:PORT at which GET /metrics, /healthz and /readyz answer, such as 127.0.0.1:9464, 0.0.0.0:9464 or "
        "[::1]:9464. Empty: nowhere.",
        example="127.0.0.1:9464",
    )
    tables_max: int = option(
        200,
        help="Of at most so many tables there are figures of their own, those first that are parked: each is a time "
        "series for each figure.",
        example=200,
        ge=0,
    )
    token: Token = option(
        Secret(""),
        help="A token that /metrics then needs (Authorization: Bearer …); probes of health need none. "
        f"At least {TOKEN_LENGTH_MIN} characters.",
        example="${env:METRICS_TOKEN}",
    )

    @property
    def place(self) -> tuple[str, int]:
        """Host and port of `address`, which is not empty."""
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def is_loopback(self) -> bool:
        """Whether this machine alone reaches it."""
        return is_loopback(self.place[0])

    @field_validator("address")
    @classmethod
    def _check_address(cls, address: str) -> str:
        if not address:
            return address
        host, _, port = address.rpartition(":")
        host = "127.0.0.1" if host == "localhost" else host
        wrong = ValueError(f'must be HOST:PORT such as "127.0.0.1:9464", with an IP address, got "{address}"')
        try:
            number = ip_address(host.removeprefix("[").removesuffix("]"))
        except ValueError:
            raise wrong from None
        if not port.isdecimal() or not 1 <= int(port) <= 65535 or (number.version == 6) != host.startswith("["):
            raise wrong
        return f"{host}:{int(port)}"
