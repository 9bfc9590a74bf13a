"""Where copies of a message should be: one answer for intake, review and repair.

Theory of operation. At intake the rules choose the first device; where copies beyond it go, and
what becomes of all of them later, is decided by the decay score. While a message is fresh its
copies may become more. Where the queue has tiers and a score, a message goes to the tier of its
phase, up as well as down, at a review: the rules are asked again among the devices of the tier,
with the score, age and access rate of the moment. On the way back it must be well below the
threshold. A copy that cannot be reached does not count, so repair is nothing but asking again.

Invariants, as far as usable devices allow:
1. A durable message has a durable copy. Where the choice has none, a durable device is added to it;
   the choice of the rules is never replaced (the durability floor).
2. Copies are on distinct failure domains. A second copy in one domain would protect nothing.
3. There are as many copies as the target says. Copies beyond the publisher's count wait while a
   device's status is low.
4. Nothing is dropped before everything wanted is there, and never what is wanted.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Literal, NamedTuple

import msgspec

from ebbmq.model import OnFaded
from ebbmq.policy.decay import Access, Phase, Score, next_crossing_ms
from ebbmq.policy.rules.choose import Choice
from ebbmq.policy.rules.properties import ARCHIVE, UNKNOWN, Properties
from ebbmq.policy.status import EXTRA_COPIES_ABOVE

if TYPE_CHECKING:
    from ebbmq.model import QueueSpec
    from ebbmq.policy.rules.choose import View

EVALUATE_EVERY_MS: Final = 60_000
Occasion = Literal["intake", "review", "repair"]
Action = Literal["keep", "remove", "dead_letter"]
# Fields of structs are looked up at run time, hence no names for type checkers only.
Faded = OnFaded
Chosen = Choice | None


class Pin(NamedTuple):
    """A planned target and tier for a message, which holds until an instant unless outdated."""

    target: int
    tier: str | None
    decided_at_ms: int
    until_ms: int
    generation: int
    policy_version: int


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """What a queue asks of placement."""

    score: Score = Score()
    min_copies: int = 1
    max_replicas: int | None = None
    #: From the fastest to the archive.
    tiers: tuple[str, ...] = ()
    on_faded: Faded = "archive"
    default: str | None = None
    evaluate_every_ms: int = EVALUATE_EVERY_MS
    version: int = 0

    @classmethod
    def of(cls, spec: QueueSpec, *, default: str | None = None, version: int = 0) -> Terms:
        """The terms of a queue; `default` is the device of one that names none."""
        return cls(
            score=Score.of(spec),
            min_copies=spec.min_copies,
            max_replicas=spec.max_replicas,
            tiers=spec.tiers,
            on_faded=spec.on_faded,
            evaluate_every_ms=spec.evaluate_every_ms,
            default=spec.default_device or default,
            version=version,
        )

    def tier(self, phase: Phase) -> str | None:
        """The tier of a phase: the first, the middle, the last."""
        if not self.tiers:
            return None
        return self.tiers[(len(self.tiers) - 1) * phase // Phase.FADED]

    @property
    def promotes(self) -> bool:
        """Whether messages go to the tier of their phase whatever rules chose for them."""
        return bool(self.tiers) and self.score.acts

    def phase(self, score: float, here: str | None) -> Phase:
        """What a score asks for of a message that is in a tier."""
        back = self.score.way_back().phase(score)
        return self.settled(self.score.phase(score), back, here)

    def settled(self, phase: Phase, back: Phase, here: str | None) -> Phase:
        """The phase, or the one its tier is of while it is on the way back from there."""
        if not self.promotes or here not in self.tiers or self.tier(back) == self.tier(phase):
            return phase
        order = self.tiers.index
        return back if order(here) >= order(str(self.tier(back))) else phase


class Placed(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """A message as placement sees it; without copies it is at intake."""

    properties: Properties
    terms: Terms
    durable: bool = True
    replicas: int = 1
    #: Best first, as `Wanted` has them; where that is not known, those that are not durable first.
    copies: tuple[str, ...] = ()
    target: int = 1
    enqueued_at_ms: int = 0
    access: Access = Access()
    review_at_ms: int | None = None
    generation: int = 0
    #: When it last entered another phase; a plan made before that is outdated.
    crossed_at_ms: int = 0
    pin: Pin | None = None


class Wanted(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Where copies should be, best first, and what follows from where they are."""

    copies: tuple[str, ...]
    target: int
    #: Copies that no usable device can take.
    missing: int
    score: float
    phase: Phase
    tier: str | None
    action: Action
    add: tuple[str, ...]
    drop: tuple[str, ...]
    floor_added: str | None
    review_at_ms: int | None
    occasion: Occasion
    chosen_by: Chosen
    #: Whether a plan had a say in it.
    pinned: bool = False


def occasion(message: Placed, now_ms: int) -> Occasion:
    """Why placement is asked."""
    if not message.copies:
        return "intake"
    due_ms = message.review_at_ms
    return "review" if due_ms is not None and now_ms >= due_ms else "repair"


def is_pinned(message: Placed, now_ms: int) -> bool:
    """Whether a plan holds: in time, for this generation and policy, no crossing since."""
    pin = message.pin
    return (
        pin is not None
        and now_ms < pin.until_ms
        and pin.generation == message.generation
        and pin.policy_version == message.terms.version
        and message.crossed_at_ms <= pin.decided_at_ms
    )


def place(message: Placed, now_ms: int, devices: View) -> Wanted:
    """Return where the copies of a message should be at an instant."""
    why, terms = occasion(message, now_ms), message.terms
    rate = message.access.rate_at(now_ms)
    score = terms.score.at(now_ms - message.enqueued_at_ms, rate)
    phase = Phase.FRESH if why == "intake" else terms.phase(score, _here(message, devices))
    pin = message.pin if is_pinned(message, now_ms) else None
    asked = _present(message, now_ms, score, rate)
    floor = 1 if phase is Phase.FADED else max(message.replicas, terms.min_copies)
    target = _target(message, phase, floor, why) if pin is None else max(1, pin.target)
    tier = terms.tier(phase) if pin is None else pin.tier
    ranked = devices.ranked(asked, terms.default)
    ranked[1:] = sorted(ranked[1:], key=lambda each: _further(each, message, devices))
    if why != "intake":
        ranked = _by_tier(ranked, message, now_ms, (phase, tier), devices)
    chosen, floor_added = _select(ranked, target, floor, message, devices)
    placed = len(chosen) - (floor_added is not None)
    if placed < target:
        target = max(floor, placed, min(target, message.target if why != "intake" else target))
    copies = tuple(chosen)
    add = tuple(name for name in copies if name not in message.copies)
    return Wanted(
        copies=copies,
        target=target,
        missing=max(0, target - placed),
        score=score,
        phase=phase,
        tier=tier,
        action=_action(terms, phase),
        add=add,
        drop=() if add or placed < target else _spare(message, copies, devices),
        floor_added=floor_added,
        review_at_ms=_review_at_ms(message, now_ms, (phase, target)),
        occasion=why,
        chosen_by=next((each for each in ranked if each.device in copies[:1]), None),
        pinned=pin is not None,
    )


def sole_choice(message: Placed, devices: View) -> Choice | None:
    """The choice of `place` for a message at intake, found without ranking all devices.

    None where it wants more than one device, or where it has to be asked.
    """
    if message.copies or max(message.replicas, message.terms.min_copies) > 1:
        return None
    choice = devices.choose(message.properties, message.terms.default)
    if choice is None or (message.durable and not devices.states[choice.device].durable):
        return None
    return choice


def _here(message: Placed, devices: View) -> str | None:
    """The first of its queue's tiers where a message has a copy."""
    known = {devices.states[name].tier for name in message.copies if name in devices.states}
    return next((tier for tier in message.terms.tiers if tier in known), None)


def _present(message: Placed, now_ms: int, score: float, rate: float) -> Properties:
    if not message.copies:
        return message.properties
    age_days = (now_ms - message.enqueued_at_ms) / 86_400_000
    return msgspec.structs.replace(
        message.properties, decay_score=score, age=age_days, access_rate=rate
    )


def _target(message: Placed, phase: Phase, floor: int, why: Occasion) -> int:
    if why == "intake" or phase is Phase.FADED:
        return floor
    most = max(floor, message.terms.max_replicas or message.replicas)
    more = message.target + (phase is Phase.FRESH and why == "review")
    return min(max(floor, more), most)


def _action(terms: Terms, phase: Phase) -> Action:
    if phase is not Phase.FADED or terms.on_faded == "archive":
        return "keep"
    return terms.on_faded


def _by_tier(
    ranked: list[Choice], message: Placed, now_ms: int, wanted: tuple[Phase, str | None], view: View
) -> list[Choice]:
    """The same devices, for a message that is stored already."""
    tiers, (phase, tier) = message.terms.tiers, wanted
    is_review = occasion(message, now_ms) == "review"
    goes_up = is_review and message.terms.promotes
    settled = phase is Phase.FRESH and not goes_up and not is_pinned(message, now_ms)
    crossing = not settled and is_review

    def distance(choice: Choice) -> int:
        here = view.states[choice.device].tier
        if tier is None or here == tier:
            return 0
        if tier not in tiers or here not in tiers:
            return len(tiers) + 1
        return abs(tiers.index(here) - tiers.index(tier))

    def order(choice: Choice) -> tuple[int, bool, int]:
        has, ruled = choice.device in message.copies, choice.ground == "rules"
        frail = message.durable and not view.states[choice.device].durable
        # At a crossing the rules are asked again; otherwise copies stay as they were chosen.
        place = message.copies.index(choice.device) if has else len(message.copies)
        return (
            0 if settled and (has or ruled) else distance(choice),
            # The one copy of the archive should not need a durable one beside it.
            phase is Phase.FADED and frail,
            -1 if crossing and ruled else place,
        )

    return sorted(ranked, key=order)


def _select(
    ranked: list[Choice], target: int, floor: int, message: Placed, devices: View
) -> tuple[list[str], str | None]:
    """Take devices from the best on, one of each failure domain; then see to the floor."""
    states, durable = devices.states, message.durable
    chosen: list[str] = []
    domains: set[str] = set()
    rest = [choice.device for choice in ranked]
    while len(chosen) < target:
        lacks_durable = durable and bool(chosen) and not any(states[d].durable for d in chosen)
        open_to = [
            name
            for name in rest
            if _domain(name, devices) not in domains
            and (
                len(chosen) < floor
                or name in message.copies
                or states[name].status >= EXTRA_COPIES_ABOVE
            )
        ]
        if not open_to:
            break
        # The first is the rules' choice; from the second on a durable one comes first.
        preferred = [name for name in open_to if states[name].durable] if lacks_durable else []
        name = (preferred or open_to)[0]
        chosen.append(name)
        domains.add(_domain(name, devices))
        rest.remove(name)
    added = durable_floor(chosen, rest, devices) if durable else None
    return ([*chosen, added] if added else chosen), added


def durable_floor(chosen: list[str], rest: list[str], devices: View) -> str | None:
    """The device that must be added so that one of them is durable; None if one is, or none can."""
    states = devices.states
    if any(states.get(name, UNKNOWN).durable for name in chosen):
        return None
    domains = {_domain(name, devices) for name in chosen}
    durable = [name for name in rest if states[name].durable]
    apart = [name for name in durable if _domain(name, devices) not in domains]
    return next(iter(apart or durable), None)


def _further(choice: Choice, message: Placed, devices: View) -> tuple[bool, int, bool]:
    """Further copies that no rule speaks of go where they last, and to the fastest tier there.

    An archive is for what has faded: where the queue does not name its tiers it comes last.
    """
    if choice.ground != "status":
        return False, 0, False
    state, tiers = devices.states[choice.device], message.terms.tiers
    tier = tiers.index(state.tier) if state.tier in tiers else len(tiers)
    return message.durable and not state.durable, tier, state.slowness >= ARCHIVE


def _domain(name: str, devices: View) -> str:
    # A device that names no domain is one of its own.
    return devices.states[name].failure_domain or f"device {name}"


def _spare(message: Placed, copies: tuple[str, ...], devices: View) -> tuple[str, ...]:
    """Copies nobody wants; those that cannot be reached are not judged."""
    return tuple(
        name
        for name in message.copies
        if name not in copies and devices.states.get(name, UNKNOWN).usable
    )


def _review_at_ms(message: Placed, now_ms: int, wanted: tuple[Phase, int]) -> int | None:
    """When to ask again, if nobody reads it meanwhile and no device fails; None for never."""
    terms, (phase, target) = message.terms, wanted
    if occasion(message, now_ms) == "repair":
        return message.review_at_ms
    crossing_ms = next_crossing_ms(terms.score, message.enqueued_at_ms, message.access, now_ms)
    soon_ms = now_ms + terms.evaluate_every_ms
    if phase is Phase.FRESH and target < max(target, terms.max_replicas or message.replicas):
        return soon_ms if crossing_ms is None else min(soon_ms, crossing_ms)
    if message.copies:
        return crossing_ms
    if terms.score.phase(terms.score.at(now_ms - message.enqueued_at_ms, 0.0)) is not Phase.FRESH:
        return soon_ms
    # What is consumed promptly is never looked at.
    return None if crossing_ms is None else max(soon_ms, crossing_ms)
