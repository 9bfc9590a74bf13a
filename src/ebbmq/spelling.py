"""Words near a misspelt one, for messages to people; what finds them is loaded when one is met."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable


def get_close_matches(
    word: str, known: Iterable[str], n: int = 3, cutoff: float = 0.6
) -> list[str]:
    """The known words most like `word`, the nearest first."""
    import difflib  # noqa: PLC0415

    return difflib.get_close_matches(word, list(known), n, cutoff)
