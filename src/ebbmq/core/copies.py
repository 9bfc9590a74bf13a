"""What is said of copies of bodies: the state of one body, the effects and facts of a change."""

from __future__ import annotations

from typing import Final, NamedTuple

#: The node's own log, as a device among others.
LOG: Final = "log"

Devices = frozenset[str]
Name = tuple[int, int]
NO_DEVICES: Final[Devices] = frozenset()


class Holding(NamedTuple):
    """What is known of one body; equal ones are shared by all bodies they are true of."""

    needs: int = 1
    copies: Devices = frozenset({LOG})
    pending: Devices = NO_DEVICES  # a copy was asked for and is not confirmed
    dropping: Devices = NO_DEVICES  # the removal of a copy was asked for and is not confirmed
    target: int = 1
    min_copies: int = 1
    durable: bool = True


NORMAL: Final = Holding()


class PutCopy(NamedTuple):
    """Copy the body to the device, then tell `copy_acked` or `copy_failed`."""

    body: int
    device: str


class DropCopy(NamedTuple):
    """Delete the copy of a body that lives on elsewhere, then tell `drop_acked`."""

    body: int
    device: str


class ForgetCopy(NamedTuple):
    """Delete the copy of a message that left, then tell `removal_acked`."""

    name: Name
    device: str


class BodyLost(NamedTuple):
    """No copy of this body is left; its messages cannot be delivered."""

    body: int


class Held(NamedTuple):
    """Fact: this is where the body is and how many copies it should have."""

    body: int
    copies: Devices
    dropping: Devices
    target: int
    min_copies: int
    durable: bool


class Gone(NamedTuple):
    """Fact: the message left, and these devices have yet to confirm it; none: all have."""

    name: Name
    waiting: Devices


Effect = PutCopy | DropCopy | ForgetCopy | BodyLost
Fact = Held | Gone


class Step(NamedTuple):
    """What follows from a transition: append the facts, then carry out the effects."""

    effects: tuple[Effect, ...] = ()
    facts: tuple[Fact, ...] = ()


NOTHING: Final = Step()


class Tombstone(NamedTuple):
    """A message that left, with the devices that have and have not confirmed it."""

    waiting: Devices
    acked: Devices = NO_DEVICES


def held(body: int, holding: Holding) -> Held:
    """The fact of a state."""
    return Held(
        body,
        holding.copies,
        holding.dropping,
        holding.target,
        holding.min_copies,
        holding.durable,
    )
