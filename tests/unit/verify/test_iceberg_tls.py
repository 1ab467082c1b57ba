"""`verify` believes the same authorities of a REST catalog as the sink."""

from __future__ import annotations

import http.server
import threading
from pathlib import Path

import pytest

from raycdc.model import TableId
from raycdc.sandbox.servers.certificates import write_certificates
from raycdc.storage.settings import StorageSettings
from raycdc.verify.targets.api import NotComparedError
from raycdc.verify.targets.iceberg import Warehouse
from tests.support.servers.gate import tls_in_front


class EmptyCatalog(http.server.BaseHTTPRequestHandler):
    """A REST catalog that has no table."""

    def do_GET(self) -> None:
        found = self.path.startswith("/v1/config")
        text = b'{"defaults": {}, "overrides": {}}' if found else b'{"error": {"message": "", "type": "", "code": 404}}'
        self.send_response(200 if found else 404)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        """Nothing."""


def test_a_catalog_with_an_authority_of_its_own_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(variable, raising=False)
    write_certificates(tmp_path)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), EmptyCatalog) as catalog:
        threading.Thread(target=catalog.serve_forever, daemon=True).start()
        try:
            with tls_in_front(tmp_path, catalog.server_port) as front:
                uri, properties = f"https://127.0.0.1:{front.port}", {"ssl.cabundle": str(tmp_path / "ca.pem")}
                warehouse = Warehouse("rest", "raycdc", "", uri, properties, StorageSettings())
                with pytest.raises(NotComparedError, match=r"there is no Iceberg table shop\.orders"):
                    warehouse.table(TableId("shop", "orders"))
        finally:
            catalog.shutdown()
