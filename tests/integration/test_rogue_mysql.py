"""Nobody gets the password: not a server that asks for it without TLS, not a man in the middle who takes TLS away."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pymysql
import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from raycdc.cli import main
from raycdc.clients.mysql import MySqlSettings, connect
from raycdc.config.tls import TlsMode
from raycdc.errors import ExitCode, SourceError
from raycdc.sandbox.servers import MariaDbServer, MySqlNewestServer
from raycdc.sinks.jdbc.mysql import MySqlDatabase
from raycdc.sinks.jdbc.plugin import Address
from tests.integration.rogue_mysql import rogue, tls_stripper
from tests.support.sessions import session

PASSWORD = "Tell-n0body"
VERIFYING = [TlsMode.REQUIRED, TlsMode.VERIFY_CA, TlsMode.VERIFY_IDENTITY]

CONFIG = """
[pipeline]
name = "wary"
[source]
type = "mysql"
host = "{host}"
port = {port}
user = "cdc"
password = "${{env:WARY_PASSWORD}}"
tables = ["shop.orders"]
tls = {{ mode = "{mode}" }}
[sink]
type = "jsonl"
path = "out"
"""


@pytest.mark.parametrize("by_switch", [False, True], ids=["at once", "by a switch"])
@pytest.mark.parametrize("plugin", ["mysql_clear_password", "dialog", "mysql_old_password"])
def test_a_server_that_asks_for_the_password_in_the_open_does_not_get_it(plugin: str, by_switch: bool) -> None:
    for host in ("127.0.0.1", "0.0.0.0"):
        with rogue(plugin, by_switch=by_switch) as server, pytest.raises(SourceError) as error:
            connect(MySqlSettings(host, server.port, "cdc", PASSWORD, TlsMode.DISABLED, read_timeout_s=10))
        assert f"{host}:{server.port}" in str(error.value)
        assert PASSWORD.encode() not in server.received
        assert PASSWORD not in str(error.value)
        if by_switch:
            assert "was not sent. Set source.tls.mode" in str(error.value)


def test_check_tells_that_the_password_was_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WARY_PASSWORD", PASSWORD)
    with rogue("mysql_clear_password") as server:
        (tmp_path / "wary.toml").write_text(CONFIG.format(host="127.0.0.1", port=server.port, mode="auto"))
        assert main(["check", str(tmp_path / "wary.toml")]) == ExitCode.SOURCE
    shown = capsys.readouterr()
    assert "the password was not sent" in " ".join((shown.out + shown.err).split())
    assert PASSWORD.encode() not in server.received


@pytest.mark.parametrize("plugin", ["sha256_password", "caching_sha2_password"])
@pytest.mark.parametrize("by_switch", [False, True], ids=["at once", "by a switch"])
def test_a_key_that_the_server_sends_is_used_on_this_machine_or_by_permission_alone(
    plugin: str, by_switch: bool
) -> None:
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    for host, permitted, read in [("0.0.0.0", False, False), ("0.0.0.0", True, True), ("127.0.0.1", False, True)]:
        settings = MySqlSettings(host, 0, "cdc", PASSWORD, TlsMode.DISABLED, allow_public_key_retrieval=permitted)
        with rogue(plugin, by_switch=by_switch, public_key=public) as server, pytest.raises(SourceError) as error:
            connect(replace(settings, port=server.port, read_timeout_s=10))
        assert (_decrypted(key, bytes(server.received[-256:])) is not None) is read
        assert ("tls.allow_public_key_retrieval = true" in str(error.value)) is not read


@pytest.mark.parametrize("mode", VERIFYING)
def test_a_server_without_tls_hears_nothing_of_a_client_that_asks_for_it(mode: TlsMode) -> None:
    refused = pytest.raises(SourceError, match="No TLS connection")
    with rogue("mysql_clear_password", by_switch=False) as server, refused:
        connect(MySqlSettings("127.0.0.1", server.port, "cdc", PASSWORD, mode, read_timeout_s=10))
    assert not server.received


@pytest.mark.server
@pytest.mark.parametrize("mode", VERIFYING)
def test_a_man_in_the_middle_who_takes_tls_away_hears_nothing(mariadb: MariaDbServer, mode: TlsMode) -> None:
    ca = str(mariadb.ca_path)
    with session(mariadb, tls_mode=mode, tls_ca=ca):
        pass
    with tls_stripper(mariadb.port) as proxy:
        with pytest.raises(SourceError, match="No TLS connection"):
            connect(MySqlSettings("127.0.0.1", proxy.port, "cdc", "cdc", mode, ca))
        sink = MySqlDatabase(Address("mysql", "127.0.0.1", proxy.port, "d", "cdc", "cdc", mode, ca))
        with pytest.raises(Exception, match=r"No TLS connection.*sink\.tls"), sink.session():
            pass
    assert not proxy.received


@pytest.mark.server
@pytest.mark.parametrize("mode", VERIFYING)
def test_a_client_library_that_goes_on_in_the_open_is_stopped(
    mariadb: MariaDbServer, mode: TlsMode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Older pymysql did, and so could another that takes its place."""
    opened = []

    def in_the_open(**arguments: object) -> object:
        arguments.pop("ssl")
        opened.append(real(**arguments, ssl_disabled=True))
        return opened[0]

    real = pymysql.connect
    monkeypatch.setattr(pymysql, "connect", in_the_open)
    with pytest.raises(SourceError, match="the server offers no TLS"):
        connect(MySqlSettings("127.0.0.1", mariadb.port, "cdc", "cdc", mode, str(mariadb.ca_path)))
    assert not opened[0].open


@pytest.mark.server
def test_a_password_that_the_server_has_in_its_cache_needs_no_key(mysql_newest: MySqlNewestServer) -> None:
    user = f"cached{os.getpid()}"
    mysql_newest.execute(f"CREATE USER {user}@'%' IDENTIFIED WITH caching_sha2_password BY '{user}'")
    there = MySqlSettings("0.0.0.0", mysql_newest.port, user, user, TlsMode.DISABLED)
    with pytest.raises(SourceError, match="allow_public_key_retrieval"):
        connect(there)
    with session(mysql_newest, user, tls_mode=TlsMode.REQUIRED):
        pass
    connect(there).close()


def _decrypted(key: rsa.RSAPrivateKey, text: bytes) -> bytes | None:
    """What the rogue reads with its own key, or None."""
    way = padding.OAEP(padding.MGF1(hashes.SHA1()), hashes.SHA1(), None)
    try:
        return key.decrypt(text, way)
    except ValueError:
        return None
