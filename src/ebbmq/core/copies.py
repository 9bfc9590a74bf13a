"""What is said of copies of bodies: the state of one body, the effects and facts of a change."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeVar

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_K = TypeVar("_K")

#: The node's own log, as a device among others.
LOG: Final = "log"

Devices = frozenset[str]
NO_DEVICES: Final[Devices] = frozenset()
_SEQ_BITS: Final = 48
_SEQ: Final = (1 << _SEQ_BITS) - 1

#: A message's name: its partition and number in one integer, as devices and locations need it.
Name = int


def name_of(pid: int, seq: int) -> Name:
    """The name of a message."""
    return pid << _SEQ_BITS | seq


def parts_of(name: Name) -> tuple[int, int]:
    """(pid, seq) of a name."""
    return name >> _SEQ_BITS, name & _SEQ


def names_of(pid: int, seqs: Sequence[int]) -> Sequence[Name]:
    """The names of messages of a partition; of a range of numbers a range."""
    base = name_of(pid, 0)
    if type(seqs) is range and seqs.step == 1:
        return range(base + seqs.start, base + seqs.stop)
    return [base | seq for seq in seqs]


def followed_by(names: Sequence[Name], more: Sequence[Name]) -> Sequence[Name]:
    """Names and those after them; a range if both are, and one continues the other."""
    if not names:
        return more
    if type(names) is range and type(more) is range and names.stop == more.start:
        return range(names.start, more.stop)
    return [*names, *more]


def seqs_of(names: Sequence[Name]) -> Mapping[int, Sequence[int]]:
    """The numbers of messages, by partition; a range of one partition's is a range of numbers."""
    if not names:
        return {}
    if type(names) is range:
        (pid, first), (last_pid, last) = parts_of(names[0]), parts_of(names[-1])
        if pid == last_pid and last - first + 1 == len(names):
            return {pid: range(first, last + 1)}
    pid = parts_of(min(names))[0]
    if parts_of(max(names))[0] == pid:
        base = name_of(pid, 0)
        return {pid: [name - base for name in names]}
    found: dict[int, list[int]] = {}
    for name in names:
        pid, seq = parts_of(name)
        found.setdefault(pid, []).append(seq)
    return found


class Holding(NamedTuple):
    """What is known of one body; equal ones are shared by all bodies they are true of."""

    copies: Devices = frozenset({LOG})
    pending: Devices = NO_DEVICES  # a copy was asked for and is not confirmed
    dropping: Devices = NO_DEVICES  # the removal of a copy was asked for and is not confirmed
    leaving: Devices = NO_DEVICES  # among `copies`: goes once what is pending is there
    target: int = 1
    min_copies: int = 1
    durable: bool = True
    replicas: int = 1  # as many as the publisher asked for

    def staying(self) -> Devices:
        """The confirmed copies that are meant to stay."""
        return self.copies - self.leaving

    def astray(self) -> Holding:
        """The same body, when it is not known where it is."""
        return self._replace(
            copies=NO_DEVICES, pending=NO_DEVICES, dropping=NO_DEVICES, leaving=NO_DEVICES
        )


NORMAL: Final = Holding()


class PutCopy(NamedTuple):
    """Copy the body to the device, then tell `copy_acked` or `copy_failed`."""

    name: Name
    device: str


class DropCopy(NamedTuple):
    """Delete the copy of a body that lives on elsewhere, then tell `drop_acked`.

    For the log nothing needs to be told: its bytes go when their segment goes.
    """

    name: Name
    device: str


class ForgetCopy(NamedTuple):
    """Delete the copy of a message that left, then tell `removal_acked`."""

    name: Name
    device: str


class BodyLost(NamedTuple):
    """No copy of this body is left; its message cannot be delivered."""

    name: Name


class Held(NamedTuple):
    """Fact: this is where the body is, where it is to be, and how many copies it should have."""

    name: Name
    holding: Holding


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


class Changed:
    """What follows from a transition of many bodies, those that are alike together."""

    __slots__ = ("asked", "dropped", "gone", "held")

    def __init__(
        self,
        held: Mapping[Holding, Sequence[Name]],
        gone: Mapping[Devices, Sequence[Name]] | None = None,
    ) -> None:
        #: Facts: what is true now of these.
        self.held = held
        #: Facts: these left, and these devices have yet to forget them.
        self.gone = {} if gone is None else gone
        #: Effects: copies to be made, by device.
        self.asked: dict[str, Sequence[Name]] = {}
        #: Effects: copies of bodies that live on elsewhere, to be deleted, by device.
        self.dropped: dict[str, Sequence[Name]] = {}


def add_names(found: dict[_K, Sequence[Name]], key: _K, names: Sequence[Name]) -> None:
    """Add names to those of a key; where they are the first they stay what they are."""
    before = found.get(key)
    found[key] = names if before is None else [*before, *names]


class Tombstone(NamedTuple):
    """A message that left, with the devices that have and have not confirmed it."""

    waiting: Devices
    acked: Devices = NO_DEVICES
