"""Tables whose rows are gone when their server starts, which it says by a statement of its own."""

from __future__ import annotations

from pathlib import Path

import pytest

from raycdc.sandbox.servers import MySqlServer
from tests.integration.small_shop import Shop

# A server of its own is started twice; `test_log_split_reader` shows what is decided.
pytestmark = [pytest.mark.server, pytest.mark.long(suite="stories")]


def test_a_table_in_memory_is_empty_after_its_server_was_started_again_and_goes_on(tmp_path: Path) -> None:
    with MySqlServer(version="8.0") as server, server.fresh_database("shop") as database:
        shop = Shop(server, database, tmp_path)
        shop.execute("CREATE TABLE m (id INT PRIMARY KEY, v INT) ENGINE = MEMORY", "INSERT INTO m VALUES (1, 1)")
        assert shop.run("a", "m") == []
        assert shop.rows("m") == [(1, 1)]
        server.stop()
        server.start()
        shop.execute("INSERT INTO a VALUES (3, 3)", "INSERT INTO m VALUES (2, 2)")
        assert shop.run("a", "m") == []
        assert (shop.rows("a"), shop.rows("m")) == ([(1, 1), (2, 2), (3, 3)], [(2, 2)])
        assert shop.phases() == {"a": "stream", "m": "stream"}
