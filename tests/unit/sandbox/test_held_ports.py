"""A port that a test has chosen is there when its run wants it."""

from __future__ import annotations

import socket

from raycdc.sandbox.servers.private import held_port


def test_a_held_port_is_given_to_nobody_but_who_asks_for_its_number() -> None:
    with held_port() as port:
        for _ in range(2):  # One run after another.
            with socket.create_server(("127.0.0.1", port)) as server, socket.create_connection(("127.0.0.1", port)):
                connection, _ = server.accept()
                connection.close()
        with socket.socket() as other, socket.socket() as reuses:
            reuses.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            for one in (other, reuses):
                one.bind(("127.0.0.1", 0))
                assert one.getsockname()[1] != port
