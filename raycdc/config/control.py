"""``[control]``: the door at which a running pipeline can be asked and told (`raycdc.control`)."""

from __future__ import annotations

from enum import StrEnum
from ipaddress import ip_address
from typing import Annotated

from pydantic import AfterValidator, field_validator

from raycdc.config.fields import Options, Secret, option
from raycdc.config.tls import is_loopback

#: A shorter one can be guessed.
TOKEN_LENGTH_MIN = 16


def check_token(token: Secret) -> Secret:
    """`token`, if it can be one of a door; empty for none. ValueError says what is wrong."""
    if token and len(token.reveal()) < TOKEN_LENGTH_MIN:
        raise ValueError(f"needs at least {TOKEN_LENGTH_MIN} characters")
    if token and not token.reveal().isascii():
        raise ValueError("has characters beyond ASCII, which a header of HTTP cannot have")
    return token


#: A token that whoever asks over HTTP shows; empty for none.
Token = Annotated[Secret, AfterValidator(check_token)]


class PageAccess(StrEnum):
    """What browsers may do that were let in."""

    ON = "on"
    READ_ONLY = "read-only"
    OFF = "off"


class ControlOptions(Options):
    """Where the HTTP API of a running pipeline listens, and who may use it."""

    enabled: bool = option(
        default=True,
        help="Whether a running pipeline can be asked and told (raycdc status, raycdc tables, HTTP). Without it the "
        "state alone answers.",
    )
    host: str = option(
        "127.0.0.1",
        help="The address that it listens at. Others than this machine reach it only at an address of the network, "
        "over plain HTTP: put a proxy with TLS before it, or keep it to a network that you trust.",
        example="127.0.0.1",
    )
    port: int = option(
        0, help="Its TCP port; 0 takes a free one, which is found by the state.", example=8087, ge=0, le=65535
    )
    token: Token = option(
        Secret(""),
        help="The token that a request needs (Authorization: Bearer …). Without one each run makes its own, in a "
        "file of the state's folder that its user alone can read; the same token on all machines lets commands "
        "elsewhere in. "
        f"At least {TOKEN_LENGTH_MIN} characters.",
        example="${env:CONTROL_TOKEN}",
    )
    hosts: tuple[str, ...] = option(
        (),
        help="Further names that requests may call it by, such as the one of a proxy or a service, with its port where "
        "that is not control.port or the scheme's own. The first is told to others where control.host stands for all "
        "addresses.",
        example=["cdc.example.org"],
    )

    page: PageAccess = option(
        PageAccess.ON,
        help="The page of the run for browsers, at the same address (raycdc page prints a link to it): on, read-only, "
        "which has no buttons, or off. It costs nothing while nobody looks.",
        example="read-only",
    )

    @property
    def is_loopback(self) -> bool:
        """Whether this machine alone reaches it."""
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
