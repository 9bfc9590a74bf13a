"""What happens to messages, told in batches to whoever listens: a partition's `tell`.

A batch is what the verb has at hand anyway, packed rows and numbers, not an object a message; who
listens takes it apart when there is time. Facts say what is and can be restored; this says what
happened, once, and is lost if nobody listens.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    import numpy.typing as npt

    from ebbmq.core.arrivals import ProfileKey
    from ebbmq.core.block import Words

    Numbers = Sequence[int] | npt.NDArray[np.uint64]
    #: Rows as they stand one after the other, or each on its own.
    Rows: TypeAlias = bytes | Words | Sequence[tuple[int, ...]]
    Tell = Callable[["Happened"], None]

PUBLISHED: Final = 0
#: Of the rows of a publish those that wait for their time.
SCHEDULED: Final = 1
LEASED: Final = 2
ACKED: Final = 3
RETRIED: Final = 4
RELEASED: Final = 5
LEASE_EXPIRED: Final = 6
#: Rows are records of `facts.REMOVAL`, which say why.
REMOVED: Final = 7
#: Looked at in a way that counts as an access.
PEEKED: Final = 8

OUTCOMES: Final = {"retried": RETRIED, "lease_expired": LEASE_EXPIRED}


class Happened(NamedTuple):
    """The same thing happened to so many messages of a partition at once."""

    event: int
    pid: int
    at_ms: int
    messages: int
    #: Which; None where they follow each other from `first` on, or where the rows say so.
    seqs: Numbers | None
    #: As they were before, but for failures, which are counted.
    rows: Rows
    first: int = 0
    #: For the end of a lease: how long it was to be, so that its row tells when it began.
    lease_ms: int = 0
    #: For how long they cannot be leased.
    delay_ms: int = 0
    #: The name they were leased under.
    name: str = ""
    #: For a publish: what publishers gave, of each stretch of messages for which that is the same;
    #: empty where it is not known.
    given: Sequence[ProfileKey] = ()
    #: At which of the messages each stretch begins.
    given_from: Sequence[int] = (0,)


#: A `Happened` of all its fields in one tuple: half as dear as to call it, where it is told often.
happened: Final = partial(tuple.__new__, Happened)
