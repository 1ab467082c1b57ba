"""A gate in front of a server: connections pass through it, and the test shuts it, counts who knocks, and opens it.

A shared server seems to be away to one test alone, which neither stops nor starts it. Works for servers whose clients
go where they are told: MySQL, PostgreSQL, a MongoDB with ``directConnection=true``.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from enum import Enum, auto
from typing import Self

_CHUNK = 1 << 16


class Way(Enum):
    """The treatment of connections."""

    #: They reach the server.
    OPEN = auto()
    #: Those there are end, and new ones are counted and ended at once, as by a server that is restarting.
    SHUT = auto()
    #: Bytes wait, those of new connections, too: a server that stands still.
    STILL = auto()


class Gate:
    """See the module's docstring. ``with Gate(host, port) as gate:`` listens on `gate.port` of 127.0.0.1."""

    host = "127.0.0.1"

    def __init__(self, host: str, port: int, *, listens_on: int = 0, way: Way = Way.OPEN) -> None:
        """`listens_on` a port that nobody has, or any (0)."""
        self._server = (host, port)
        self._way = way
        self._changed = threading.Condition()
        self._sockets: set[socket.socket] = set()
        self._shut_s = time.monotonic()
        #: When somebody connected while the gate was not open, in monotonic seconds.
        self.knocks: list[float] = []
        self._listener = socket.create_server((self.host, listens_on))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._listen, name="gate", daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def set(self, way: Way) -> None:
        """From now on."""
        with self._changed:
            if self._way is Way.OPEN:
                self._shut_s = time.monotonic()
            self._way = way
            if way is Way.SHUT:
                self._end_all()
            self._changed.notify_all()

    @contextmanager
    def being(self, way: Way) -> Iterator[None]:
        """So within the block, and open after it."""
        self.set(way)
        try:
            yield
        finally:
            self.set(Way.OPEN)

    def wait_for_knocks(self, count: int, *, timeout_s: float = 120.0) -> None:
        """Return when so many have knocked."""
        with self._changed:
            if not self._changed.wait_for(lambda: len(self.knocks) >= count, timeout_s):
                raise AssertionError(f"only {len(self.knocks)} knocked within {timeout_s:g} s")

    def is_spared(self, pause_s: float) -> bool:
        """Whether since the gate was shut nobody knocked more often than every `pause_s`, but for one on its way then.

        Each knock is compared with that beginning: one that a busy machine notices late is no breach.
        """
        return all(at - self._shut_s >= (number - 1) * pause_s for number, at in enumerate(self.knocks))

    def close(self) -> None:
        self.set(Way.SHUT)
        self._listener.close()

    def _listen(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._changed:
                if self._way is not Way.OPEN:
                    self.knocks.append(time.monotonic())
                    self._changed.notify_all()
                if self._way is Way.SHUT:
                    client.close()
                    continue
                self._sockets.add(client)
            threading.Thread(target=self._pass, args=(client,), daemon=True).start()

    def _pass(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(self._server)
        except OSError:
            client.close()
            return
        with self._changed:
            self._sockets |= {client, server}
        for source, target in ((client, server), (server, client)):
            threading.Thread(target=self._pump, args=(source, target), daemon=True).start()

    def _pump(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(_CHUNK):
                self._wait_until(lambda: self._way is not Way.STILL)
                target.sendall(data)
        _end(source)
        _end(target)
        with self._changed:
            self._sockets -= {source, target}

    def _wait_until(self, holds: Callable[[], bool]) -> None:
        with self._changed:
            self._changed.wait_for(holds)

    def _end_all(self) -> None:
        for one in self._sockets:
            _end(one)
        self._sockets.clear()


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
    one.close()
