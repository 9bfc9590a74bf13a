"""Decisions about copies in the words of people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq.node.keeping import decisions

if TYPE_CHECKING:
    from ebbmq.node.keeping.decision_log import Told

_EVENTS: Final = {
    "placed": "placed on {device}: {reason}",
    "asked": "{device} was asked for a copy: {reason}",
    "archived": "{device} was asked for a copy, as its archive: {reason}",
    "copied": "copied to {device}: {reason}",
    "moved": "moved {reason} to {device}",
    "dropped": "not to be kept on {device} any longer: {reason}",
    "refused": "{device} did not take a copy: {reason}",
    "lost": "{device} lost its copy: {reason}",
    "faded": "to leave, as it is faded: {reason}",
    "pinned": "held to what a plan says: {reason}",
    "unpinned": "held to a plan no longer: {reason}",
}
_REASONS: Final = {
    "default": "no rule is true of it, and this is the default",
    "status": "no rule is true of it, and this device is doing best",
    decisions.REPLICA: "one more copy beside the others",
    decisions.MOVE: "in the place of another copy",
    decisions.REPAIR: "a copy was lacking",
    decisions.UNUSABLE: "it could not be used",
    decisions.NOT_VERIFIED: "what it gave back was not all as it was given",
    decisions.COPY_TIMEOUT: "a publish waited for it longer than copy_timeout_ms",
    decisions.UNREADABLE: "no other device gave the body to copy",
    decisions.MISSING: "it answers, and does not have it",
    decisions.DAMAGED: "its bytes were wrong",
    decisions.EVICTED: "the device was given up",
    decisions.SPARE: "there are more copies than there should be",
}
#: Where rules speak of a device that cannot be used.
_INSTEAD: Final = {"default": "this is the default", "status": "this device is doing best"}


def words(told: Told) -> str:
    """A decision as a sentence."""
    first, *more = told.reason.split("; ")
    if told.event == "refused" and first not in _REASONS:
        first = f"the call failed ({first})"
    ground, instead, why = first.partition(", as ")
    if instead and ground in _INSTEAD:
        first = f"{_INSTEAD[ground]}, as {why}"
    reason = "; ".join([_REASONS.get(first, first), *more])
    return _EVENTS.get(told.event, "{device}: {reason}").format(device=told.device, reason=reason)
