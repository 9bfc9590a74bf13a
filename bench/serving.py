"""A broker served to a load: the process, and connections that cost as little as possible."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

_HEAD_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length:"
_LIMIT_BYTES: Final = 1 << 24


class Served:
    """Where a broker listens, and its process."""

    def __init__(self, url: str, pid: int) -> None:
        parts = urlsplit(url)
        assert parts.hostname is not None
        assert parts.port is not None
        self.host, self.port = parts.hostname, parts.port
        self.pid = pid

    def rss_bytes(self) -> int:
        """Resident memory of the server."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS:"))
        return int(line.split()[1]) * 1024


@contextlib.contextmanager
def served(directory: Path) -> Iterator[Served]:
    """`ebbmq serve` on a data directory, until the block ends."""
    command = (sys.executable, "-m", "ebbmq.cli", "serve", "--data", str(directory))
    with subprocess.Popen(
        [*command, "--http-port", "0", "--json"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        try:
            ready = msgspec.json.decode(process.stdout.readline())
            yield Served(ready["ready"][0], process.pid)
        finally:
            process.terminate()


def embedded_rss_bytes(directory: Path) -> int:
    """Resident memory of a process that has the data directory open and does nothing else."""
    script = (
        "import sys; from ebbmq import Broker; broker = Broker.open(sys.argv[1]);"
        "print(next(l for l in open('/proc/self/status') if l.startswith('VmRSS:')).split()[1])"
    )
    told = subprocess.run(
        [sys.executable, "-c", script, str(directory)], capture_output=True, check=True
    )
    return int(told.stdout) * 1024


def request(method: str, path: str, body: Any = None) -> bytes:
    """The bytes of a request; made before the clock starts."""
    data = b"" if body is None else msgspec.json.encode(body)
    head = (
        f"{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
        f"content-length: {len(data)}\r\n\r\n"
    )
    return head.encode() + data


class Connection:
    """One connection, kept open; a request at a time."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    @classmethod
    async def open(cls, served: Served) -> Connection:
        """Connect."""
        return cls(*await asyncio.open_connection(served.host, served.port, limit=_LIMIT_BYTES))

    async def ask(self, sent: bytes) -> bytes:
        """Send a request and return the body of its answer, which must be a success."""
        self._writer.write(sent)
        head = await self._reader.readuntil(_HEAD_END)
        start = head.lower().find(_LENGTH) + len(_LENGTH)
        body = await self._reader.readexactly(int(head[start : head.index(b"\r", start)]))
        assert head.startswith(b"HTTP/1.1 2"), head + body
        return body

    async def close(self) -> None:
        """Hang up."""
        self._writer.close()
        await self._writer.wait_closed()


def device_flushes(directory: Path) -> int:
    """How often the disk under a directory was told to flush, by anybody."""
    number = directory.stat().st_dev
    wanted = [str(os.major(number)), str(os.minor(number))]
    for line in Path("/proc/diskstats").read_text().splitlines():
        fields = line.split()
        if fields[:2] == wanted and len(fields) > _FLUSHES:
            return int(fields[_FLUSHES])
    return 0


_FLUSHES: Final = 18
