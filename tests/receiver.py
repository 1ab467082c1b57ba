"""A server over HTTP that takes what is posted to it, for tests of whoever posts."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

#: Takes the path, the headers by their names in small letters, and the body; gives the status and headers to answer.
Take = Callable[[str, dict[str, str], bytes], tuple[int, Mapping[str, str]]]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, *_: object) -> None:
        """A client that hung up meanwhile."""


@contextmanager
def receiving(take: Take, tls: ssl.SSLContext | None = None) -> Iterator[str]:
    """The URL of a free port of this machine, at which each POST is given to `take`, in a thread of its own."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            status, headers = take(self.path, {name.lower(): value for name, value in self.headers.items()}, body)
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name of the overridden one
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"{'http' if tls is None else 'https'}://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
