"""One HTTP/1.1 request and its answer, without sockets: bytes to send, bytes that came (ADR 0013).

What can go wrong on the way is of two kinds, because only one of them may be repeated blindly:
`NotSent`, the server cannot have carried the request out, and `NoAnswer`, it may have.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import httptools

if TYPE_CHECKING:
    from ebbmq.client.address import Address

#: What an answer may hold at most; a server that is EbbMQ's keeps far below.
ANSWER_BYTES_MAX: Final = 1 << 31
_FINAL: Final = 200


class NotSent(Exception):  # noqa: N818  # it says what happened
    """The server cannot have carried the request out."""

    def __init__(self, detail: str, *, hopeless: bool = False) -> None:
        super().__init__(detail)
        #: Trying again cannot help: a certificate that is not trusted, a name that is not known.
        self.hopeless = hopeless


class NoAnswer(Exception):  # noqa: N818  # it says what happened
    """The server may have carried the request out; nobody said so."""


def request_bytes(address: Address, method: str, path: str, body: bytes | None) -> bytes:
    """A request as it is sent; the path is quoted by whoever made it."""
    head = f"{method} {address.prefix}{path} HTTP/1.1\r\n{address.headers}"
    if body is None:
        return f"{head}\r\n".encode("ascii")
    sized = f"{head}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return sized.encode("ascii") + body


class Answer:
    """An answer as it comes in; `done` once it is complete."""

    __slots__ = ("_parser", "_parts", "_size", "begun", "done", "keep", "retry_after_s", "status")

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._size = 0
        self.begun = False
        self.done = False
        self.keep = False
        self.status = 0
        self.retry_after_s: int | None = None

    def feed(self, data: bytes) -> None:
        """Take in what came.

        Raises:
            NoAnswer: it is not HTTP, or more than an answer may hold.
        """
        self.begun = True
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            raise NoAnswer(f"what came back is not HTTP ({error})") from error
        if self._size > ANSWER_BYTES_MAX:
            raise NoAnswer(f"the answer is longer than {ANSWER_BYTES_MAX} bytes")

    def ended(self) -> None:
        """The server closed the connection.

        Raises:
            NoAnswer: before the answer was complete.
        """
        if not self.done:
            when = "in the middle of its answer" if self.begun else "without an answer"
            raise NoAnswer(f"the server closed the connection {when}")

    @property
    def body(self) -> bytes:
        """The body as far as it came."""
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    # Called by the parser.

    def on_header(self, name: bytes, value: bytes) -> None:
        """Only one header matters beside those the parser itself uses."""
        if name.lower() == b"retry-after" and value.isdigit():
            self.retry_after_s = int(value)

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._size += len(data)
        self._parts.append(data)

    def on_message_complete(self) -> None:
        """The answer is complete, unless it is only the announcement of one (1xx)."""
        self.status = self._parser.get_status_code()
        if self.status >= _FINAL:
            self.keep = self._parser.should_keep_alive()
            self.done = True
