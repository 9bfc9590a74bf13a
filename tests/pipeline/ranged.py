"""Stores that do not do what they should: one that is told what goes wrong next, one with rules."""

from __future__ import annotations

import http.client
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self
from urllib.parse import urlsplit

TAG = '"a tag"'
SECRET = "a-secret-of-whoever-signed"
TIMEOUT_S = 60.0


class _Serving:
    """A server for as long as the block lasts."""

    handler: type[BaseHTTPRequestHandler]

    def __init__(self) -> None:
        self.connections = 0
        self._server = _Server(self)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, serving: _Serving) -> None:
        self.serving = serving
        super().__init__(("127.0.0.1", 0), serving.handler)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: _Server

    def setup(self) -> None:
        super().setup()
        self.server.serving.connections += 1

    def answer(
        self, status: int, body: bytes, headers: dict[str, str], *, is_broken: bool = False
    ) -> None:
        self.send_response_only(status)
        for name, value in {"Content-Length": str(len(body)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body[: len(body) // 2] if is_broken else body)
        if is_broken:
            self.close_connection = True

    def refuse(self, status: int) -> None:
        told = f"<Error><Code>NotToday</Code><Resource>{self.path}</Resource></Error>"
        self.answer(status, told.encode(), {})

    def log_message(self, *_: object) -> None:
        """Nobody reads it."""


class _OfRanges(_Handler):
    def do_GET(self) -> None:
        ranged = self.server.serving
        assert isinstance(ranged, Ranged)
        found = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers["Range"])
        assert found is not None
        begin, end = int(found[1]), int(found[2]) + 1
        ranged.asked.append((begin, end))
        fault = ranged.faults.pop(0) if ranged.faults else None
        if isinstance(fault, int):
            self.refuse(fault)
        elif self.headers["If-Match"] != TAG:
            self.refuse(412)
        elif fault == "whole":
            self.answer(200, ranged.data, {})
        else:
            total = len(ranged.data) + (fault == "longer")
            told = {"Content-Range": f"bytes {begin}-{end - 1}/{total}"}
            self.answer(206, ranged.data[begin:end], told, is_broken=fault == "broken")


class Ranged(_Serving):
    """Serves one object, under any path."""

    handler = _OfRanges

    def __init__(self, data: bytes) -> None:
        super().__init__()
        self.data = data
        #: The ranges that were asked for, in order.
        self.asked: list[tuple[int, int]] = []
        #: What becomes of the next requests: a status, or `broken`, `whole` or `longer`.
        self.faults: list[int | str] = []

    @property
    def url(self) -> str:
        return f"{self.endpoint}/object?signature={SECRET}"


class _Passing(_Handler):
    def _pass_on(self) -> None:
        choosy = self.server.serving
        assert isinstance(choosy, Choosy)
        size = self.headers["content-length"]
        body = self.rfile.read(int(size)) if size else None
        if "X-Amz-Signature" in self.path:
            self.refuse(403)
            return
        parts = urlsplit(choosy.upstream)
        upstream = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=TIMEOUT_S)
        try:
            upstream.request(self.command, self.path, body, dict(self.headers))
            answer = upstream.getresponse()
            text = answer.read()
        finally:
            upstream.close()
        kept = {"content-length", "content-range", "content-type", "etag", "last-modified"}
        told = {name: value for name, value in answer.getheaders() if name.lower() in kept}
        self.answer(answer.status, text, told)

    do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = _pass_on  # noqa: N815  # names of the library


class Choosy(_Serving):
    """Passes requests on, but none that is signed by its URL, as the rules of a bucket may say."""

    handler = _Passing

    def __init__(self, upstream: str) -> None:
        super().__init__()
        self.upstream = upstream
