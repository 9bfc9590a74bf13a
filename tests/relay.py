"""A relay between a client and a server that loses what it is told to lose."""

from __future__ import annotations

import http.client
import socket
import threading
from collections import Counter
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self
from urllib.parse import urlsplit

TIMEOUT_S = 60.0


class Relay:
    """Passes requests on. `lose_*` count down: so many of the next requests for a path are lost."""

    def __init__(self, url: str, port: int = 0) -> None:
        self.upstream = url
        self.requests: Counter[str] = Counter()
        self.connections = 0
        self._losing: dict[tuple[str, str], int] = {}
        self._guard = threading.Lock()  # guards all of the above
        self._open: set[socket.socket] = set()
        self._server = _Server(("127.0.0.1", port), self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def lose_requests(self, path_end: str, count: int = 1) -> None:
        """The server never sees them; the client cannot tell."""
        self._losing["request", path_end] = count

    def lose_answers(self, path_end: str, count: int = 1) -> None:
        """The server carries them out; the client is not told."""
        self._losing["answer", path_end] = count

    def answer_instead(self, path_end: str, count: int = 1) -> None:
        """As a proxy does that cannot reach the server."""
        self._losing["instead", path_end] = count

    def loses(self, what: str, path: str) -> bool:
        with self._guard:
            for (kind, path_end), left in self._losing.items():
                if kind == what and left and path.partition("?")[0].endswith(path_end):
                    self._losing[kind, path_end] -= 1
                    return True
        return False

    def note(self, path: str) -> None:
        with self._guard:
            self.requests[path.partition("?")[0].rpartition("/")[2]] += 1

    def connected(self, connection: socket.socket) -> None:
        with self._guard:
            self.connections += 1
            self._open.add(connection)

    def disconnect_all(self) -> None:
        """Close every connection, as a server does that is started again."""
        with self._guard:
            for connection in self._open:
                try:
                    connection.shutdown(socket.SHUT_RDWR)
                except OSError:
                    continue
            self._open.clear()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Nobody listens here any more."""
        if self._thread.is_alive():
            self._server.shutdown()
            self._thread.join()
            self.disconnect_all()
            self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, address: tuple[str, int], relay: Relay) -> None:
        self.relay = relay
        super().__init__(address, _Handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.relay.connected(self.connection)

    def handle(self) -> None:
        try:
            super().handle()
        except OSError:
            self.close_connection = True

    def _pass_on(self) -> None:
        relay = self.server.relay
        size = self.headers["content-length"]
        body = self.rfile.read(int(size)) if size else None
        relay.note(self.path)
        if relay.loses("request", self.path):
            self.close_connection = True
            return
        if relay.loses("instead", self.path):
            self._answer(502, b"<h1>Bad Gateway</h1>", {})
            return
        parts = urlsplit(relay.upstream)
        upstream = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        try:
            upstream.request(self.command, self.path, body, dict(self.headers))
            answer = upstream.getresponse()
            text = answer.read()
        finally:
            upstream.close()
        if relay.loses("answer", self.path):
            self.close_connection = True
            return
        self._answer(answer.status, text, dict(answer.getheaders()))

    def _answer(self, status: int, text: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            if name.lower() == "retry-after":
                self.send_header(name, value)
        if status != 204:
            self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    # The names are http.server's.
    do_GET = do_POST = do_PUT = do_DELETE = _pass_on  # noqa: N815

    def log_message(self, *_: Any) -> None:
        """Tests say what they saw."""
