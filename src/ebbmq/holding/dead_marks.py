"""Dead marks: small objects that name rows of packs which are no longer wanted.

"EBD1", u32 crc of the rest, (u32 pack, u32 body_at)*
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING, Any, Final

import crc32c
import numpy as np

from ebbmq.core.values import distinct_values
from ebbmq.errors import DamagedRecord

if TYPE_CHECKING:
    import numpy.typing as npt

    Marks = npt.NDArray[np.uint32]

_HEAD: Final = Struct("<4sI")
_MAGIC: Final = b"EBD1"


def pack(marks: Marks) -> bytes:
    """Marks, (pack, body_at) each, as an object holds them."""
    plain = marks.astype("<u4").tobytes()
    return _HEAD.pack(_MAGIC, crc32c.crc32c(plain)) + plain


def unpack(data: bytes) -> Marks:
    """The marks of an object.

    Raises:
        DamagedRecord: it is not what was written.
    """
    plain = data[_HEAD.size :]
    if data[: _HEAD.size] != _HEAD.pack(_MAGIC, crc32c.crc32c(plain)):
        raise DamagedRecord("an object of dead marks is damaged")
    return np.frombuffer(plain, "<u4").reshape(-1, 2)


def by_pack(parts: list[Marks]) -> dict[int, Any]:
    """body_at of the dead rows of each pack."""
    marks = np.concatenate([np.zeros((0, 2), "<u4"), *parts])
    marks = marks[np.argsort(marks[:, 0], kind="stable")]
    numbers = distinct_values(marks[:, 0])
    starts = np.searchsorted(marks[:, 0], numbers)
    ends = np.searchsorted(marks[:, 0], numbers, "right")
    found = zip(numbers.tolist(), starts.tolist(), ends.tolist(), strict=True)
    return {number: marks[start:end, 1] for number, start, end in found}
