"""How much memory Spark may take on a machine, in the form that Java takes."""

from __future__ import annotations

import re
from typing import Final

from ebbmq.limits import GIB, KIB, MIB

_FORM: Final = re.compile(r"([0-9]{1,12})([kmg])", re.IGNORECASE)
_UNITS: Final = {"k": KIB, "m": MIB, "g": GIB}
#: Spark keeps 300 MiB for itself and does not start with less than half as much again.
_BYTES_MIN: Final = 450 * MIB
USE: Final = "use a whole number with k, m or g behind it, 450m or more"


def is_enough(memory: object) -> bool:
    """Whether it is an amount of memory, and one that Spark can start with."""
    found = _FORM.fullmatch(memory) if isinstance(memory, str) else None
    return found is not None and int(found[1]) * _UNITS[found[2].lower()] >= _BYTES_MIN
