"""``[control]``: the control API of a running pipeline (`raycdc.server`).

``[metrics]``: the address for Prometheus and health probes (`raycdc.server.scraping`). ``[logging]``: a file with the
lines of a run, in addition to the terminal (`raycdc.observe.events.log_file`). ``[traces]``: the collector of a trace
for each epoch, in OpenTelemetry's format (`raycdc.observe.tracing`).
"""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from ipaddress import ip_address
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, field_validator, model_validator

from raycdc.config.fields import Duration, FilePath, Options, Secret, option
from raycdc.config.tls import is_loopback, is_plain_elsewhere, server_of, split_url

#: The minimum length of a token; a shorter one can be guessed.
TOKEN_LENGTH_MIN = 16


def check_token(token: Secret) -> Secret:
    """Return `token` if it is valid for the control API; empty for none. Raises ValueError for an invalid one."""
    if token and len(token.reveal()) < TOKEN_LENGTH_MIN:
        raise ValueError(f"needs at least {TOKEN_LENGTH_MIN} characters")
    if token and not token.reveal().isascii():
        raise ValueError("has characters beyond ASCII, which a header of HTTP cannot have")
    return token


#: The token that HTTP clients must send; empty for none.
Token = Annotated[Secret, AfterValidator(check_token)]


class UiAccess(StrEnum):
    """The rights of browsers after login."""

    ON = "on"
    READ_ONLY = "read-only"
    OFF = "off"


class ControlOptions(Options):
    """The address of the HTTP API of a running pipeline, and its access rules."""

    enabled: bool = option(
        default=True,
        help="Serve the control API of a running pipeline (raycdc status, raycdc tables, HTTP). Without it, "
        "commands only see the state.",
    )
    host: str = option(
        "127.0.0.1",
        help="The address to listen at. Other machines can reach the API only at a network address, over plain "
        "HTTP: put a proxy with TLS before it, or use a network that you trust.",
        example="127.0.0.1",
    )
    port: int = option(
        0, help="The TCP port. 0 takes a free one; commands find it by the state.", example=8087, ge=0, le=65535
    )
    token: Token = option(
        Secret(""),
        help="The token that a request needs (Authorization: Bearer …). Without one, each run makes its own, in a "
        "file of the state's folder that only its user can read. The same token on all machines gives "
        f"commands elsewhere access. At least {TOKEN_LENGTH_MIN} characters.",
        example="${env:CONTROL_TOKEN}",
    )
    hosts: tuple[str, ...] = option(
        (),
        help="Additional host names in requests, such as the name of a proxy or a service, with the port if that "
        "is neither control.port nor the default of the scheme. If control.host stands for all addresses, "
        "other machines are given the first name.",
        example=["cdc.example.org"],
    )

    ui: UiAccess = option(
        UiAccess.ON,
        help="The web UI of the run, at the same address (raycdc ui prints a link to it): on, read-only (without "
        "buttons), or off. It costs nothing while no browser has it open.",
        example="read-only",
    )

    @property
    def is_loopback(self) -> bool:
        """Return True if only this machine can reach the API."""
        return is_loopback(self.host)

    @field_validator("host")
    @classmethod
    def _check_host(cls, host: str) -> str:
        if host == "localhost":
            return "127.0.0.1"
        try:
            return str(ip_address(host))
        except ValueError:
            raise ValueError(f'must be an IP address such as "127.0.0.1" or "0.0.0.0", got "{host}"') from None


class MetricsOptions(Options):
    """The address for scrapers and probes; it is separate from that of `[control]`, and read-only."""

    address: str = option(
        "",
        help="HOST:PORT at which GET /metrics, /healthz and /readyz answer, such as 127.0.0.1:9464, 0.0.0.0:9464 "
        "or [::1]:9464. Empty: they are not served.",
        example="127.0.0.1:9464",
    )
    tables_max: int = option(
        200,
        help="The maximum number of tables with metrics of their own, parked tables first. Each table adds one "
        "time series per metric.",
        example=200,
        ge=0,
    )
    token: Token = option(
        Secret(""),
        help="A token that requests for /metrics need (Authorization: Bearer …); health probes need none. At least "
        f"{TOKEN_LENGTH_MIN} characters.",
        example="${env:METRICS_TOKEN}",
    )

    @property
    def host_and_port(self) -> tuple[str, int]:
        """Return host and port of `address`, which is not empty."""
        host, _, port = self.address.rpartition(":")
        return host.strip("[]"), int(port)

    @property
    def is_loopback(self) -> bool:
        """Return True if only this machine can reach the address."""
        return is_loopback(self.host_and_port[0])

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


class LogLevel(StrEnum):
    """The amount of log output, from much to little."""

    DEBUG = "debug"
    INFO = "info"
    WARNING = "warning"
    ERROR = "error"


class LoggingOptions(Options):
    """The log file of a run. Output on the terminal and of `run --json` is independent of it."""

    file: FilePath = option(
        "",
        help="A file that lines are appended to, which only its user can read. It is opened again if it was moved "
        "or replaced (logrotate). Empty: none.",
        example="/var/log/raycdc/shop.log",
    )
    format: Literal["json", "text"] = option(
        "json", help="json: the lines of run --json (raycdc docs lines). text: time, level, event, KEY=VALUE."
    )
    level: LogLevel = option(
        LogLevel.INFO,
        help="The minimum level of lines. info: one line for each event of the run. debug: also progress twice a "
        "second, steps, and messages of libraries at their level INFO.",
    )


#: The path of a collector for traces (OTLP 1.x, "OTLP/HTTP Request").
PATH = "/v1/traces"
#: A name of a header (RFC 9110, 5.6.2).
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: Headers about the content and its encoding, which only the exporter sets.
_OF_REQUESTS = frozenset({"content-encoding", "content-length", "content-type", "host", "transfer-encoding"})


class TracesOptions(Options):
    """A collector of traces, which gets one of each epoch over OTLP/HTTP.

    It never delays or ends a run; pip install 'raycdc[otel]'.
    """

    endpoint: str = option(
        "",
        help=f"The collector's URL; {PATH} is appended unless the URL ends with it. Empty: nothing is sent.",
        example="http://127.0.0.1:4318",
    )
    headers: dict[str, Secret] = option(
        {},
        help="Headers of each request, such as a token. References in them are read again for each request, so "
        "that a token can be changed during a run (raycdc docs security).",
        repr=False,
    )
    ca: FilePath | None = option(
        None, help="A file with the certificate authorities to trust instead of the system's.", example="ca.pem"
    )
    allow_http: bool = option(
        default=False,
        help="Allow plain HTTP to another machine, where others can read the headers.",
    )
    sample_ratio: float = option(
        1.0,
        help="The share of epochs that are sent. Epochs with an error or a parked table are always sent.",
        example=0.1,
        ge=0.0,
        le=1.0,
    )
    timeout: Duration = option(
        timedelta(seconds=10),
        help="How long a request is tried, including retries while the collector is unreachable or busy.",
        unit="duration",
    )
    end_wait: Duration = option(
        timedelta(seconds=5),
        help="The longest time that the end of a run waits for unsent traces. Traces left after that are dropped "
        "with a warning.",
        unit="duration",
    )

    @property
    def url(self) -> str:
        """Return the URL to which traces are posted."""
        return self.endpoint if self.endpoint.endswith(PATH) else f"{self.endpoint.rstrip('/')}{PATH}"

    @property
    def receiver(self) -> str:
        """Return a name of the collector: scheme and host."""
        return server_of(self.endpoint)

    @field_validator("endpoint")
    @classmethod
    def _check_endpoint(cls, endpoint: str) -> str:
        if not endpoint:
            return endpoint
        parts, host = split_url(endpoint)
        if not host:
            raise ValueError("must be a URL such as http://HOST:4318, in ASCII")
        if parts.scheme not in ("http", "https"):
            raise ValueError("must begin with http:// or https:// (OTLP over gRPC is not spoken here)")
        if parts.username is not None or parts.password is not None:
            raise ValueError("must have no name and password before its host; give a header instead")
        if parts.query or parts.fragment:
            raise ValueError("must end with its path")
        return endpoint

    @field_validator("headers")
    @classmethod
    def _check_headers(cls, headers: dict[str, Secret]) -> dict[str, Secret]:
        for name, value in headers.items():
            if not _NAME.fullmatch(name):
                raise ValueError(f"{name!r:.60} is no name of a header")
            if name.lower() in _OF_REQUESTS:
                raise ValueError(f"{name} is set by whoever sends; leave it out")
            text = value.reveal()
            if not (text.isascii() and text.isprintable()) or text != text.strip():
                raise ValueError(f"{name}: a header is printable ASCII without spaces around it")
        return headers

    @model_validator(mode="after")
    def _of_a_collector(self) -> Self:
        if not self.endpoint:
            if given := sorted(self.model_fields_set - {"endpoint"}):
                raise ValueError(f'{", ".join(given)}: nothing is sent without endpoint = "http://HOST:4318"')
            return self
        if self.headers and is_plain_elsewhere(self.endpoint) and not self.allow_http:
            raise ValueError(
                "headers would go over plain HTTP to another machine, where others can read them; use https, or set "
                "allow_http = true"
            )
        return self
