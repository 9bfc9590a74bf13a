"""Warnings of the processes that Spark starts, logged by the process of the user.

Spark lets Python plan reads, lease batches and commit writes in processes of its own. What these
write to standard error goes to Java's, and that of a session of `spark_session` goes to a file. So
such a session has an address, a socket among its scratch files, and whatever one of these processes
logs as `ebbmq.spark` comes here as one datagram, and is logged as if it were said here. Where there
is no such address, or nobody listens any more, it goes to standard error as ever.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
import threading
from typing import TYPE_CHECKING, Final

import msgspec
from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

NAME: Final = "ebbmq.spark"
#: Where a process finds the address; Spark sets it for those that it starts.
VARIABLE: Final = "EBBMQ_SPARK_TOLD_TO"
#: Names of sockets have an end, here where it is shortest.
_ADDRESS_BYTES_MAX: Final = 103
_TEXT_MAX: Final = 4_000
_DATAGRAM_BYTES_MAX: Final = 65_536
#: How long to wait while others are listened to.
_TELL_S: Final = 5.0


class _Told(msgspec.Struct, array_like=True):
    level: int
    text: str


class _ToUser(logging.Handler):
    """Sends each record to whoever listens."""

    def __init__(self, address: str) -> None:
        super().__init__()
        self._address = address

    @override
    def emit(self, record: logging.LogRecord) -> None:
        told = _Told(record.levelno, record.getMessage()[:_TEXT_MAX])
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as to:
                to.settimeout(_TELL_S)
                to.sendto(msgspec.json.encode(told), self._address)
        except OSError:
            if logging.lastResort is not None:
                logging.lastResort.handle(record)


@functools.cache
def logger() -> logging.Logger:
    """What to log to, wherever this process was started."""
    found = logging.getLogger(NAME)
    if VARIABLE in os.environ:
        found.addHandler(_ToUser(os.environ[VARIABLE]))
    return found


def address_in(scratch: Path) -> Path | None:
    """Where a session is told, among its scratch files; None if they are too deep for a socket."""
    address = scratch / "told"
    return address if len(os.fsencode(address)) <= _ADDRESS_BYTES_MAX else None


@contextlib.contextmanager
def heard(address: Path | None) -> Iterator[None]:
    """Log what is told to an address; all that was told before the end is logged by then."""
    if address is None:
        yield
        return
    with (
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as ear,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end,
    ):
        try:
            ear.bind(str(address))
            end.connect(str(address))
        except OSError:  # not every file system takes sockets
            yield
            return
        listening = threading.Thread(target=_listen, args=(ear,), daemon=True, name="ebbmq told")
        listening.start()
        try:
            yield
        finally:
            end.send(b"")
            listening.join()


def _listen(ear: socket.socket) -> None:
    log = logging.getLogger(NAME)
    # It is closed under us if the end is cut off.
    with contextlib.suppress(OSError):
        while data := ear.recv(_DATAGRAM_BYTES_MAX):
            with contextlib.suppress(msgspec.DecodeError):
                told = msgspec.json.decode(data, type=_Told)
                log.log(told.level, "%s", told.text)
