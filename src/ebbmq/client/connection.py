"""Blocking connections to one server, kept open and used again by any thread."""

from __future__ import annotations

import os
import select
import socket
import ssl
import time
from collections import deque
from typing import TYPE_CHECKING, Final

from ebbmq.client.exchange import Answer, NoAnswer, NotSent, request_bytes

if TYPE_CHECKING:
    from ebbmq.client.address import Address
    from ebbmq.client.calls import Call

CONNECT_TIMEOUT_S: Final = 5.0
IDLE_MAX: Final = 16
_READ_BYTES: Final = 1 << 16
_NOT_TLS: Final = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE")


class Connection:
    """One connection; one request at a time."""

    def __init__(self, address: Address, until_s: float) -> None:
        self._address = address
        timeout_s = max(0.001, min(CONNECT_TIMEOUT_S, until_s - time.monotonic()))
        try:
            plain = socket.create_connection((address.host, address.port), timeout_s)
        except socket.gaierror as error:
            raise NotSent(f"no machine is called {address.host!r}", hopeless=True) from error
        except OSError as error:
            raise NotSent(why(error, "connecting")) from error
        plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = plain
        if address.tls is not None:
            try:
                self._socket = address.tls.wrap_socket(plain, server_hostname=address.host)
            except OSError as error:
                plain.close()
                raise NotSent(why(error, "agreeing on TLS"), hopeless=is_distrust(error)) from error

    def is_usable(self) -> bool:
        """Whether an idle connection is open: a server closes it, or says nothing."""
        poll = select.poll()
        poll.register(self._socket, select.POLLIN)
        return not poll.poll(0)

    def exchange(self, method: str, path: str, body: bytes | None, until_s: float) -> Answer:
        """Send a request and wait for its answer until an instant of the monotonic clock.

        Raises:
            NotSent: not all of it could be sent, so it was not carried out.
            NoAnswer: no answer, or half of one.
        """
        answer = Answer()
        try:
            self._wait_until(until_s)
            self._socket.sendall(request_bytes(self._address, method, path, body))
        except OSError as error:
            # A server that refuses a request in the middle says why before it closes.
            if self._read_on(answer):
                return answer
            raise NotSent(why(error, "sending")) from error
        try:
            while not answer.done:
                self._wait_until(until_s)
                data = self._socket.recv(_READ_BYTES)
                if data:
                    answer.feed(data)
                else:
                    answer.ended()
        except OSError as error:
            raise NoAnswer(why(error, "waiting for the answer")) from error
        return answer

    def _wait_until(self, until_s: float) -> None:
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)

    def _read_on(self, answer: Answer) -> bool:
        try:
            self._socket.settimeout(1.0)
            while not answer.done and (data := self._socket.recv(_READ_BYTES)):
                answer.feed(data)
        except (OSError, NoAnswer):
            return False
        answer.keep = False
        return answer.done

    def close(self) -> None:
        """Let go of the socket."""
        self._socket.close()


class Pool:
    """Connections nobody uses at the moment; a forked child starts without any."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self._idle: deque[Connection] = deque()
        self._pid = os.getpid()
        self._closed = False

    def exchange(self, call: Call[object], until_s: float) -> Answer:
        """One request on an idle connection.

        What may not be repeated goes on a new one: an idle one may be closed while it is sent.
        """
        connection = (self._take() if call.repeatable else None) or Connection(
            self._address, until_s
        )
        try:
            answer = connection.exchange(call.method, call.path, call.body, until_s)
        except BaseException:
            # Half a request or half an answer is on it: nobody can use it again.
            connection.close()
            raise
        if not answer.keep or self._closed or len(self._idle) >= IDLE_MAX:
            connection.close()
        else:
            self._idle.append(connection)
        return answer

    def _take(self) -> Connection | None:
        if self._pid != os.getpid():
            self._idle, self._pid = deque(), os.getpid()
        while True:
            try:
                connection = self._idle.pop()
            except IndexError:
                return None
            if connection.is_usable():
                return connection
            connection.close()

    def close(self) -> None:
        """Close what is idle; what is in use is closed once its answer has come."""
        self._closed = True
        while self._idle:
            self._idle.pop().close()


def is_distrust(error: OSError) -> bool:
    """Whether it is the certificate, which does not get better by trying again."""
    return isinstance(error, ssl.SSLCertVerificationError)


def why(error: OSError, doing: str) -> str:
    """What went wrong while connecting, sending or waiting, for a person."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({error.verify_message})"
    if isinstance(error, TimeoutError):
        return f"timed out {doing}"
    if isinstance(error, ssl.SSLError) and error.reason in _NOT_TLS:
        return "it does not speak TLS; use http:// if that is meant"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed {doing} ({error.reason or error})"
    # asyncio puts a text of its own in place of the system's.
    told = os.strerror(error.errno) if error.errno else str(error) or type(error).__name__
    return told.lower()
