"""Makes the connection URL of a PostgreSQL server for libpq, with the parameters for TLS and passwords. Does not
connect.

(PostgreSQL's manual, "Connection URIs" and "Parameter Key Words".)
"""

from __future__ import annotations

from typing import Protocol
from urllib.parse import quote as percent

from raycdc.config.tls import TlsMode, is_loopback
from raycdc.core.certificate_faults import Opening, TlsServer, certificate_fault
from raycdc.core.secrets import newest

_SSL_MODES = {
    TlsMode.DISABLED: "disable",
    TlsMode.REQUIRED: "require",
    TlsMode.VERIFY_CA: "verify-ca",
    TlsMode.VERIFY_IDENTITY: "verify-full",
}


class PostgresAccount(Protocol):
    """The address of a server, and the account."""

    @property
    def host(self) -> str: ...
    @property
    def port(self) -> int: ...
    @property
    def database(self) -> str: ...
    @property
    def user(self) -> str: ...
    @property
    def password(self) -> str: ...
    @property
    def tls_mode(self) -> TlsMode: ...
    @property
    def tls_ca(self) -> str | None: ...


def connection_url(account: PostgresAccount, *, application_name: str, options: str) -> str:
    """Return the URL, including the password. `options` are those of the session (``-c name=value``)."""
    parameters = {
        "sslmode": _SSL_MODES[account.tls_mode.resolved(account.host)],
        "connect_timeout": "10",
        "application_name": application_name,
        "options": options,
    }
    if account.tls_mode.resolved(account.host) in (TlsMode.VERIFY_CA, TlsMode.VERIFY_IDENTITY):
        parameters["sslrootcert"] = account.tls_ca or "system"
    elif sends_no_password_as_it_is(account):
        # An attacker between client and server could request the password.
        parameters["require_auth"] = "!password"
    user = f"{percent(account.user, safe='')}:{percent(newest(account.password), safe='')}"
    host = f"[{account.host}]" if ":" in account.host else account.host
    text = "&".join(f"{key}={percent(value, safe='')}" for key, value in parameters.items())
    return f"postgresql://{user}@{host}:{account.port}/{percent(account.database, safe='')}?{text}"


def certificate_words(account: PostgresAccount, text: str, *, section: str) -> str:
    """Return the problem of the server's certificate and its remedy, if `text` is libpq's refusal of a certificate;
    else empty.

    Asks the server once more. `section` is the section of the configuration with the server's address.
    """
    mode = account.tls_mode.resolved(account.host)
    if ("SSL error" not in text and "certificate" not in text) or mode in (TlsMode.DISABLED, TlsMode.REQUIRED):
        return ""
    return certificate_fault(
        TlsServer(
            account.host,
            account.port,
            ca_key=f"{section}.tls.ca",
            host_key=f"{section}.url",
            ca=account.tls_ca,
            checks_name=mode is TlsMode.VERIFY_IDENTITY,
            opening=Opening.POSTGRESQL,
        )
    )


def sends_no_password_as_it_is(account: PostgresAccount) -> bool:
    """Return True if the password is never sent in plain text, even if the server requests that.

    Others could read it.
    """
    return account.tls_mode.resolved(account.host) is TlsMode.DISABLED and not is_loopback(account.host)


def quote(*parts: str) -> str:
    """Return an SQL identifier, each part in double quotes, joined by dots."""
    return ".".join('"' + part.replace('"', '""') + '"' for part in parts)
