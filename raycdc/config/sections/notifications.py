"""``[[notify]]``: receivers of notifications about a run, over HTTP or by a command (`raycdc.observe.notify`)."""

from __future__ import annotations

import base64
import binascii
from datetime import timedelta
from enum import StrEnum
from hashlib import sha256
from typing import Literal, Self

from pydantic import field_validator, model_validator

from raycdc.config.fields import Duration, FilePath, Options, Secret, option
from raycdc.config.tls import is_plain_elsewhere, server_of, split_url
from raycdc.core.secrets import Renewed, newest

#: The prefix of a signing key, and the allowed number of its bytes, which follow in base64 (Standard Webhooks 1.0.0,
#: "Signature scheme"): 192 to 512 bits.
KEY_PREFIX = "whsec_"
KEY_BYTES = range(24, 65)


class NotificationKind(StrEnum):
    """The kinds of notifications."""

    SNAPSHOT_DONE = "snapshot_done"
    SNAPSHOTS_DONE = "snapshots_done"
    SCHEMA_CHANGED = "schema_changed"
    TABLE_PARKED = "table_parked"
    ROWS_LEFT_OUT = "rows_left_out"
    RETENTION_AT_RISK = "retention_at_risk"
    RECOVERED = "recovered"
    ENDED_WITH_ERROR = "ended_with_error"


class NotifyOptions(Options):
    """One receiver of notifications. A receiver never delays rows, and never ends a run."""

    type: Literal["webhook", "command"] = option(
        help="webhook: a POST of the message to url. command: a program of this machine, which reads the message.",
        example="webhook",
    )
    on: tuple[NotificationKind, ...] = option((), help="The events to notify of; empty: all.", example=["table_parked"])
    url: Secret = option(
        Secret(""),
        help="For a webhook: the URL that the message is posted to. It is never shown, because many URLs contain a "
        "token.",
        example="${env:WEBHOOK_URL}",
    )
    secret: Secret = option(
        Secret(""),
        help="For a webhook: the key that messages are signed with (Standard Webhooks): whsec_ and the base64 of "
        "24 to 64 bytes. Without it, messages are not signed.",
        example="${env:WEBHOOK_SECRET}",
    )
    ca: FilePath | None = option(
        None,
        help="For a webhook: a file with the certificate authorities to trust instead of the system's.",
        example="ca.pem",
    )
    allow_http: bool = option(
        default=False,
        help="For a webhook: allow plain HTTP to another machine, where others can read the message.",
    )
    command: tuple[str, ...] = option(
        (),
        help="For a command: the program and its arguments, which are run without a shell.",
        example=["/usr/local/bin/page", "--team", "data"],
    )
    timeout: Duration = option(
        timedelta(seconds=10),
        help="The timeout of one attempt. After it, a request is abandoned and a command is killed.",
        unit="duration",
    )
    retry_for: Duration = option(
        timedelta(minutes=15),
        help="How long a message is retried, with pauses of 1 to 60 seconds, before it is dropped with a warning.",
        unit="duration",
    )
    end_wait: Duration = option(
        timedelta(seconds=5),
        help="The longest time that the end of a run waits for undelivered messages. Messages left after that are "
        "dropped with a warning.",
        unit="duration",
    )

    @property
    def receiver(self) -> str:
        """Return a name of the receiver that shows no token: scheme and host, or the program."""
        if self.type == "command":
            return f"the command {self.command[0]}"
        return server_of(self.url.reveal())

    @property
    def digest(self) -> str:
        """Return the identity of the receiver: a digest of its whole address, which may be secret."""
        return sha256("\0".join((self.type, self.url.reveal(), *self.command)).encode()).hexdigest()[:16]

    @property
    def key(self) -> bytes:
        """Return the bytes of `secret`; empty if messages are not signed."""
        return base64.b64decode(self.secret.reveal().removeprefix(KEY_PREFIX))

    @property
    def may_change(self) -> bool:
        """Return True if the address or the key may change while a run goes on."""
        return any(isinstance(secret.reveal(), Renewed) for secret in (self.url, self.secret))

    def now(self) -> Self:
        """Return the options with the present `url` and `secret`.

        Raises `ValueError` for invalid ones; its text may show them.
        """
        if not self.may_change:
            return self
        given = {name: getattr(self, name) for name in self.model_fields_set}
        given |= {name: Secret(newest(given[name].reveal())) for name in ("url", "secret") if name in given}
        return type(self)(**given)

    @field_validator("secret")
    @classmethod
    def _check_secret(cls, secret: Secret) -> Secret:
        if not secret:
            return secret
        text = secret.reveal()
        try:
            length = len(base64.b64decode(text.removeprefix(KEY_PREFIX), validate=True))
        except (binascii.Error, ValueError):
            length = 0
        if not text.startswith(KEY_PREFIX) or length not in KEY_BYTES:
            raise ValueError(
                f"must be {KEY_PREFIX} and the base64 of {KEY_BYTES[0]} to {KEY_BYTES[-1]} bytes; make one with: "
                f"echo {KEY_PREFIX}$(openssl rand -base64 32)"
            )
        return secret

    @field_validator("command")
    @classmethod
    def _check_command(cls, command: tuple[str, ...]) -> tuple[str, ...]:
        if command and not command[0].strip():
            raise ValueError("must begin with a program")
        return command

    @model_validator(mode="after")
    def _of_its_type(self) -> Self:
        given = self.model_fields_set - {"type", "on", "timeout", "retry_for", "end_wait"}
        own = {"command"} if self.type == "command" else {"url", "secret", "ca", "allow_http"}
        if others := sorted(given - own):
            raise ValueError(f'{", ".join(others)}: not of type = "{self.type}"; leave out')
        if self.type == "command" and not self.command:
            raise ValueError('command is required for type = "command", e.g. command = ["/usr/local/bin/page"]')
        if self.type == "webhook":
            self._check_url()
        return self

    def _check_url(self) -> None:
        """Check the URL. No message shows it, because it may hold a token."""
        text = self.url.reveal()
        if not text:
            raise ValueError('url is required for type = "webhook", e.g. url = "${env:WEBHOOK_URL}"')
        parts, host = split_url(text)
        if not _can_be_asked(host):
            raise ValueError("url must be one such as https://HOST/PATH, in ASCII")
        if parts.scheme not in ("https", "http"):
            raise ValueError("url must begin with https://")
        if parts.username is not None or parts.password is not None:
            raise ValueError("url must have no name and password before its host, which nothing here sends")
        if is_plain_elsewhere(text) and not self.allow_http:
            raise ValueError(
                "url is plain HTTP to another machine, where others can read messages; use https, or set "
                "allow_http = true"
            )


def _can_be_asked(host: str) -> bool:
    """Return True if `host` consists of valid DNS names (RFC 1035, 2.3.4), or is an address."""
    return all(0 < len(name) < 64 for name in host.removesuffix(".").split("."))
