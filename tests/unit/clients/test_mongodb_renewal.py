"""A password of MongoDB that is changed while the sink runs: the client that all threads share goes on with it."""

from __future__ import annotations

from pathlib import Path

import pytest
from pymongo.errors import OperationFailure

from raycdc.clients.logins import Logins
from raycdc.core.secrets import Renewed
from raycdc.errors import SinkUnavailableError
from raycdc.sinks.mongodb import server as module
from raycdc.sinks.mongodb.server import Server


def test_the_client_that_others_use_stays_and_has_the_new_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOGINS", Logins())
    (file := tmp_path / "password").write_text("first")
    address = "mongodb://cdc:{}@127.0.0.1:1/?connect=false"
    server = Server(Renewed(address.format("first"), address.format(f"${{file:{file}}}")), "raycdc")
    try:
        used_by_others = server.client
        with server.named("shop.orders"):
            pass
        file.write_text("second")
        with pytest.raises(SinkUnavailableError, match="the password is read again"), server.named("shop.orders"):
            raise OperationFailure("Authentication failed.", 18)
        assert server.client is used_by_others
        account = used_by_others.options.pool_options._credentials
        assert account is not None
        assert account.password == "second"
        used_by_others.start_session().end_session()
    finally:
        server.close()
