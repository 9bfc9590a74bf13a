"""Reading reports of damage."""

from __future__ import annotations

import re


def named(texts: list[str]) -> set[str]:
    """The ids in a report; `1-5 to 1-9` names what lies between."""
    text = " \n".join(texts)
    ids = set(re.findall(r"\b[0-9a-f]+-[0-9a-f]+\b", text))
    for pid, first, last in re.findall(r"\b([0-9a-f]+)-([0-9a-f]+) to \1-([0-9a-f]+)\b", text):
        ids |= {f"{pid}-{seq:x}" for seq in range(int(first, 16), int(last, 16) + 1)}
    return ids


def certain(texts: list[str]) -> list[str]:
    """Reports without those that say themselves that they are in doubt."""
    return [text for text in texts if " may " not in text]
