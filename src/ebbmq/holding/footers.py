"""Reading the footer of a pack from a bucket: most often one request."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq import limits
from ebbmq.errors import DamagedRecord
from ebbmq.holding import pack

if TYPE_CHECKING:
    from ebbmq.holding.bucket import Bucket

_GUESS_BYTES: Final = 256 * limits.KIB


def footer_of(bucket: Bucket, path: str, size: int) -> bytes | None:
    """The end of a pack of that size, with its footer; None if there is no such object.

    Raises:
        DamagedRecord: it is shorter, or does not end as a pack does.
    """
    tail = bucket.get(path, max(0, size - _GUESS_BYTES), size)
    if tail is None:
        return None
    if len(tail) < min(size, _GUESS_BYTES) or len(tail) < pack.TAIL_BYTES:
        raise DamagedRecord(f"{path} is shorter than {size} bytes")
    wanted = pack.footer_bytes(tail)
    if wanted > len(tail):
        tail = bucket.get(path, max(0, size - wanted), size) or b""
    return tail
