"""A thread that serves an ASGI application beside a run. What goes wrong with it is told, and never ends the run."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from raycdc.startup_checks import CONNECTIONS_MAX

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp


class HttpThread:
    """Begins with `open`; `close` may come at any time.

    `prepare` is called in the thread, `after_s` seconds later, and returns what is served on which socket; libraries
    are loaded there, too. `failed` hears of whatever went wrong.
    """

    def __init__(
        self,
        name: str,
        prepare: Callable[[], tuple[socket.socket, ASGIApp]],
        failed: Callable[[Exception], None],
        *,
        after_s: float = 0.0,
    ) -> None:
        self._prepare = prepare
        self._failed = failed
        self._after_s = after_s
        self._closed = threading.Event()
        self._server: uvicorn.Server | None = None
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def __repr__(self) -> str:
        return f"HttpThread({self._thread.name!r}, open={self._server is not None})"

    def open(self) -> None:
        """Begin; returns at once."""
        self._thread.start()

    def close(self) -> None:
        """End, within a few seconds. Harmless where it was never opened."""
        self._closed.set()
        if self._server is not None:
            self._server.should_exit = True
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        if self._closed.wait(self._after_s):
            return
        try:
            self._serve()
        except Exception as cause:  # noqa: BLE001 - the run goes on, whatever a library has met
            self._failed(cause)

    def _serve(self) -> None:
        import asyncio

        import uvicorn

        listening, application = self._prepare()
        with listening:
            config = uvicorn.Config(
                application,
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                limit_concurrency=CONNECTIONS_MAX,
                timeout_graceful_shutdown=1,
            )
            self._server = uvicorn.Server(config)
            if not self._closed.is_set():
                asyncio.run(self._server.serve(sockets=[listening]))
