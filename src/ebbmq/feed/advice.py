"""What a broker made of the advice of a run: how many rows it took, and why it refused others."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

# Fields of structs are looked up at run time, hence no names for type checkers only.
AdviceTable = Literal["plans", "rates"]
AdviceState = Literal["applying", "applied", "failed"]

#: Why a row of a plan is refused, and what that means.
REFUSALS: Final[dict[str, str]] = {
    "invalid": "it is no row of a plan: an id, an action, a text or a number in it cannot be",
    "gone": "its message is not there: it left, or never was in that queue of this node",
    "not_ready": "its message is leased, scheduled, waits for copies, or is about to leave",
    "generation": "its message was leased since",
    "policy_version": "the queue was declared with other parameters since",
    "run_out": "until_ms has passed",
    "too_old": "it was decided more than an hour ago",
    "clock": "it was decided more than five minutes from now: the clocks differ",
    "crossed": "the decay score crossed a threshold since, or the message was read",
    "superseded": "what was decided later, or another row of this run, has its message or queue",
    "faded": "its message is about to leave, because it faded",
    "unknown_tier": "no device here is of that tier, or the queue does not use it",
    "no_device": "no device of that tier can be used, or not as many as there are to be copies",
    "no_room": "the devices of that tier have no room for it",
    "out_of_bounds": "fewer copies than the queue and the publisher ask for, or more than allowed",
    "too_many_pins": "as many messages as can be are held to plans already",
    "unknown_queue": "of rates: this node has no such queue",
}


def plan_reason(run: str, why: str) -> str:
    """The reason of an event that a plan is the cause of; `why` begins with the action."""
    return f"plan {run}: {why}"


def of_plan(run: str, reason: str) -> str | None:
    """What `plan_reason` was told of a run; None for any other reason."""
    begin = plan_reason(run, "")
    return reason.removeprefix(begin) if reason.startswith(begin) else None


class Applied(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the rows of a run that are about this node."""

    run: str
    table: AdviceTable = "plans"
    state: AdviceState = "applied"
    began_at_ms: int = 0
    ended_at_ms: int | None = None
    #: Looked at; the next three add up to it.
    rows: int = 0
    applied: int = 0
    #: Applied before, or of messages that were kept so already.
    in_force: int = 0
    #: By reason, see REFUSALS.
    refused: dict[str, int] = {}
    #: Messages that are held to it at this moment; at the end of a plan there are none.
    pinned: int = 0
    #: Why it failed.
    detail: str = ""

    @property
    def refusals(self) -> int:
        """How many rows were refused."""
        return sum(self.refused.values())


class Plans(msgspec.Struct, frozen=True, kw_only=True):
    """What a node has made of advice: GET /v1/plans."""

    node: str
    #: Where it has plans from; None: it has no lake.
    lake: str | None = None
    #: Messages that are held to plans.
    pinned: int = 0
    #: The last runs, newest last.
    runs: list[Applied] = []
    #: What is wrong with the lake or with what is in it.
    problems: list[str] = []
