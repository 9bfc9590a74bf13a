"""Archives in a local directory: packs of messages of 1 KiB, written by their own device."""

from __future__ import annotations

import secrets
import time
from typing import TYPE_CHECKING, Any, Final

from bench.load import KIB

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from bench.run import Run

STORE: Final = b"u" * 16
_PACK_MESSAGES: Final = 60_000
_ROOM: Final = 1 << 40


def device(directory: Path) -> Any:
    """The device of an archive."""
    from ebbmq.holding.bucket import Bucket  # noqa: PLC0415  # an extra
    from ebbmq.holding.contract import DeviceSpec  # noqa: PLC0415
    from ebbmq.holding.objects import ObjectDevice  # noqa: PLC0415

    spec = DeviceSpec(
        name="archive", tier="archive", durable=True, failure_domain="here", capacity_bytes=_ROOM
    )
    return ObjectDevice(spec, Bucket(directory.as_uri()), time.perf_counter)


def fill(run: Run, directory: Path, count: int) -> None:
    """Write so many messages, numbered from 0."""
    from crc32c import crc32c  # noqa: PLC0415

    from ebbmq.holding.contract import Copy, Key, Properties  # noqa: PLC0415

    into, done = device(directory), 0
    for size in run.steps(f"filling {count:,}", count, run.scale(_PACK_MESSAGES, 1_000)):
        bodies = [secrets.token_bytes(KIB) for _ in range(size)]
        told = Properties("q", 5, 1_700_000_000_000)
        into.put_many(
            [
                Copy(Key(STORE, 1, done + at), body, crc32c(body), told)
                for at, body in enumerate(bodies)
            ]
        )
        done += size


def kill(directory: Path, numbers: Iterable[int]) -> None:
    """Have messages of these numbers dead; they stay in their packs."""
    from ebbmq.holding.contract import Key  # noqa: PLC0415

    device(directory).delete_many([Key(STORE, 1, number) for number in numbers])
