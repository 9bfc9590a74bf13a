"""Confirm levels as numbers, so that they can be compared and indexed."""

from __future__ import annotations

from typing import Final

MEMORY: Final = 0
WRITTEN: Final = 1
SYNCED: Final = 2
#: Added to one of them: and with as many copies as the queue needs.
COPIED: Final = 3
RANK: Final = {"memory": MEMORY, "written": WRITTEN, "synced": SYNCED}
