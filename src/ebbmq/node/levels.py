"""Confirm levels as numbers, so that they can be compared and indexed."""

from __future__ import annotations

from typing import Final

MEMORY: Final = 0
WRITTEN: Final = 1
SYNCED: Final = 2
RANK: Final = {"memory": MEMORY, "written": WRITTEN, "synced": SYNCED}
