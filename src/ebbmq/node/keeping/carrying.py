"""What follows from a change of copies: facts to the journal first, then effects to the mover.

A copy is deleted only once the fact that it may go is on the device: a power cut must not bring a
message back whose body is gone. Everything here is called with the engine's lock held.
"""

from __future__ import annotations

from itertools import groupby
from typing import TYPE_CHECKING

from ebbmq.core import held
from ebbmq.core.copies import (
    LOG,
    BodyLost,
    DropCopy,
    Effect,
    ForgetCopy,
    PutCopy,
    Step,
    parts_of,
    seqs_of,
)
from ebbmq.model import Reason
from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from ebbmq.core.copies import Changed, Fact, Name
    from ebbmq.node.engine import Engine
    from ebbmq.node.keeping.confirming import Confirming
    from ebbmq.node.keeping.mover import Mover


class Carrying:
    """Carries out steps of the holdings."""

    def __init__(self, engine: Engine, confirming: Confirming) -> None:
        self._engine = engine
        self._holdings = engine.holdings
        self._confirming = confirming
        #: None while there is nothing but the log.
        self.mover: Mover | None = None

    def apply(self, steps: Iterable[Step], *, calm: bool = False) -> None:
        """Append the facts of steps, then carry out what follows; `calm`: when there is time."""
        facts: list[Fact] = []
        effects: list[Effect] = []
        for step in steps:
            facts += step.facts
            effects += step.effects
        position = self._append(facts)
        # Neighbours of one kind are handed over together, as they are carried out together.
        for _, alike in groupby(effects, key=_kind):
            self._carry_out(list(alike), position, calm=calm)
        if self._confirming:
            names = (fact.name for fact in facts)
            self._confirming.copied([each for each in names if self._holdings.is_eligible(each)])
            self._engine.open_held()

    def change(self, changed: Changed) -> None:
        """Append the facts of a transition of many, then carry out what follows, calmly."""
        position = self.tell(changed)
        for device, names in changed.dropped.items():
            if device == LOG:
                self.leave_log(names)
        if self.mover is not None:
            self._hand_over(changed, position, self.mover)
        if self._confirming:
            for holding, names in changed.held.items():
                if len(holding.copies) >= holding.min_copies:
                    self._confirming.copied(names)
            for names in changed.gone.values():
                self._confirming.copied(names)
            self._engine.open_held()

    def _hand_over(self, changed: Changed, position: int, mover: Mover) -> None:
        """Have copies made, and deleted once the facts are on the device up to a position."""
        for device, names in changed.asked.items():
            mover.put_many(names, device, calm=True)
        for device, names in changed.dropped.items():
            if device != LOG:
                mover.delete_many(names, device, position, forget=False)
        for devices, names in changed.gone.items():
            for device in devices:
                mover.delete_many(names, device, position, forget=True)

    def tell(self, changed: Changed) -> int:
        """Append the facts of a transition of many; returns the position after."""
        self._engine.append(held.pack_changed(changed))
        return self._engine.journal.position

    def carry_out(self, effect: Effect, position: int, *, calm: bool = False) -> None:
        """Do what follows from a step whose facts end at a position."""
        self._carry_out([effect], position, calm=calm)

    def _carry_out(self, alike: list[Effect], position: int, *, calm: bool) -> None:
        mover, effect, names = self.mover, alike[0], [each.name for each in alike]
        if isinstance(effect, BodyLost):
            for name in names:
                self._lost(name)
        elif isinstance(effect, DropCopy) and effect.device == LOG:
            self.leave_log(names)
        elif mover is None:
            return  # asked for again when there are devices
        elif isinstance(effect, PutCopy):
            mover.put_many(names, effect.device, calm=calm)
        else:
            forget = isinstance(effect, ForgetCopy)
            mover.delete_many(names, effect.device, position, forget=forget)

    def leave_log(self, names: Sequence[Name]) -> None:
        """The log does not have these bodies any more, as soon as their segments go."""
        self._engine.keeping.progress.left(LOG, len(names))
        for pid, seqs in seqs_of(names).items():
            shard = self._engine.catalog.shards.get(pid)
            if shard is not None:
                shard.partition.leave_log(seqs)
                self._engine.settle(shard)

    def _lost(self, name: Name) -> None:
        """Put a message without any copy on the record as damaged."""
        pid, seq = parts_of(name)
        shard = self._engine.catalog.shards.get(pid)
        row = None if shard is None else shard.partition.index.read(seq)
        if shard is None or row is None:
            return
        identity = f"{pid:x}-{seq:x}"
        self._engine.damage.append(f"every copy of message {identity} is lost")
        log.error("body_lost", message=identity, queue=shard.queue.spec.name)
        shard.partition.remove([(seq, row)], Reason.LOST, self._engine.now_ms())
        self._engine.settle(shard)

    def _append(self, facts: Sequence[Fact]) -> int:
        if facts:
            self._engine.append(held.pack(facts))
        return self._engine.journal.position


def _kind(effect: Effect) -> tuple[type[Effect], str]:
    return type(effect), "" if isinstance(effect, BodyLost) else effect.device
