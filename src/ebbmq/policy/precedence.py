"""Which messages get the copies that are lacking first: the most valuable ones.

A message's value is its current importance, then how little it has faded by its decay score. Both
are taken in sixteenths, so that millions of messages fall into a few thousand bands: counting them
says which bands to take together, and nobody sorts them all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np

from ebbmq import limits

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

_STEPS: Final = 16
#: Above all bands there are.
BANDS: Final = (limits.IMPORTANCE_MAX * _STEPS + 1) * _STEPS


def bands_of(current: Any, score: Any, high: float) -> npt.NDArray[np.int16]:
    """The bands of messages, by current importance and decay score; above `high` it has faded."""
    importance = np.floor(np.clip(current, 0.0, limits.IMPORTANCE_MAX) * _STEPS)
    share = np.clip(np.divide(score, high), 0.0, 1.0) if high > 0 else np.greater(score, high)
    faded = np.floor(share * (_STEPS - 1))
    return np.asarray(importance * _STEPS + (_STEPS - 1) - faded).astype(np.int16)


def groups_of(counts: Sequence[int], most: int) -> list[range]:
    """Bands to be taken together, the most valuable first, by how many messages are in each.

    No group has more than `most` messages, unless it is one band.
    """
    found: list[range] = []
    total = 0
    for band in range(len(counts) - 1, -1, -1):
        if not counts[band]:
            continue
        if found and total + counts[band] <= most:
            found[-1] = range(band, found[-1].stop)
            total += counts[band]
        else:
            found.append(range(band, band + 1))
            total = counts[band]
    return found
