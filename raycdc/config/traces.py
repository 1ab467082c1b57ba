"""``[traces]``: where a run sends a trace of each epoch, as OpenTelemetry has them (`raycdc.tracing`)."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Self

from pydantic import field_validator, model_validator

from raycdc.config.fields import Duration, FilePath, Options, Secret, option
from raycdc.config.http_url import is_plain_elsewhere, server_of, split_url

#: What a collector has behind its address, for traces (OTLP 1.x, "OTLP/HTTP Request").
PATH = "/v1/traces"
#: A name of a header (RFC 9110, 5.6.2).
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
#: Headers that say what is sent, and how: they are the exporter's.
_OF_REQUESTS = frozenset({"content-encoding", "content-length", "content-type", "host", "transfer-encoding"})


class TracesOptions(Options):
    """A collector of traces, which gets one of each epoch over OTLP/HTTP. It never holds up a run, and no run ends for
    it; pip install 'raycdc[otel]'.
    """

    endpoint: str = option(
        "",
        help=f"The collector's URL; {PATH} is added to it where it does not end so. Empty: nothing is sent.",
        example="http://127.0.0.1:4318",
    )
    headers: dict[str, Secret] = option(
        {},
        help="Headers of each request, such as a token. They are read again for each one, so that a token can be "
        "changed while a run lasts (raycdc explain security).",
        repr=False,
    )
    ca: FilePath | None = option(
        None, help="A file with the certificate authorities to trust instead of the system's.", example="ca.pem"
    )
    allow_http: bool = option(
        default=False,
        help="Whether headers may go over plain HTTP to another machine, where others can read them.",
    )
    sample_ratio: float = option(
        1.0,
        help="The part of the epochs that is sent. Epochs with an error or a parked table are always sent.",
        example=0.1,
        ge=0.0,
        le=1.0,
    )
    timeout: Duration = option(
        timedelta(seconds=10),
        help="How long the collector may take to answer.",
        unit="duration",
    )
    end_wait: Duration = option(
        timedelta(seconds=5),
        help="How long the end of a run waits for traces on their way at most. Others are dropped with a warning.",
        unit="duration",
    )

    @property
    def url(self) -> str:
        """Where traces are posted."""
        return self.endpoint if self.endpoint.endswith(PATH) else f"{self.endpoint.rstrip('/')}{PATH}"

    @property
    def place(self) -> str:
        """The collector in words: scheme and host."""
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
