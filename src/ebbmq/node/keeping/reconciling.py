"""Devices that go and come: what is lost is copied anew, what came back is compared.

Theory of operation. A thread looks at the devices now and then. One that could not be used for
`repair_after_ms` counts as lost until it answers: messages that had a copy there get another, the
most important ones first. One that answers again is asked what it has: copies of messages that left
meanwhile are deleted, and copies it should have and has not are made anew. Looking at all messages
that have copies is done in slices, the lock free between them, and only when something changed.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Final

import numpy as np

from ebbmq.core.copies import LOG, name_of
from ebbmq.errors import EbbError
from ebbmq.holding.listing import Listing
from ebbmq.node.keeping import mending, restarting
from ebbmq.node.keeping.decisions import DAMAGED, MISSING
from ebbmq.node.log import log

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from ebbmq.core.copies import Holding, Name
    from ebbmq.holding.columns import Numbers
    from ebbmq.holding.contract import Key, Stored
    from ebbmq.node.engine import Engine

_PAUSE_S: Final = 0.25
_AT_ONCE: Final = 2_048
#: While copies are lacking that no device can take, all messages are looked through so often.
_MEND_EVERY_MS: Final = 2_000
_MEND_EVERY_MS_MAX: Final = 60_000
#: Kinds of devices whose calls are never carried out later than the next.
_IN_PROCESS: Final = ("file", "memory")


class Reconciler:
    """One thread that mends what devices break."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._stop = threading.Event()
        self._wake = threading.Event()
        #: Devices to be asked what they have: all of them at the start.
        assert engine.devices is not None
        self._devices = engine.devices
        self._to_compare = set(engine.devices.ports)
        #: By device: when to ask it once more, since it may be late with what it was given.
        self._compare_at_ms: dict[str, int] = {}
        self._away_since: dict[str, int] = {}
        self._lost: frozenset[str] = frozenset()
        self._usable: frozenset[str] = self._usable_devices()
        self._mend_at_ms = 0
        #: By device: copies that it said are damaged, those that are new and all there are.
        self._damaged: dict[str, set[Name]] = {}
        self._known_damaged: dict[str, set[Name]] = {}
        engine.devices.on_return = self.returned
        engine.devices.on_damaged = self.damaged
        self._thread = threading.Thread(
            target=engine.guarded(self._run), name="ebbmq-reconciler", daemon=True
        )

    def start(self) -> None:
        """Begin to look."""
        self._thread.start()

    def stop(self) -> None:
        """Look no more."""
        self._stop.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()

    def returned(self, device: str) -> None:
        """A device answers again (called by its own thread)."""
        self._to_compare.add(device)
        self.compare_later(device)
        self._wake.set()

    def compare_later(self, device: str) -> None:
        """Ask a server what it has once it can be late with no call any more.

        A call that was given up is unknown to the next: it may be carried out after a deletion that
        was asked for later.
        """
        config = self._engine.config.devices.get(device)
        if config is not None and config.kind not in _IN_PROCESS:
            at_ms = self._engine.clock.elapsed_ms() + config.timeout_ms
            self._compare_at_ms.setdefault(device, at_ms)

    def damaged(self, device: str, keys: Sequence[Key]) -> None:
        """A device cannot give copies as they were put (called by its own thread)."""
        own = self._engine.directory.identity.uuid
        found = {name_of(key.pid, key.seq) for key in keys if key.store == own}
        fresh = found - self._known_damaged.get(device, set())
        self._known_damaged[device] = found
        if fresh:
            self._damaged[device] = fresh
            self._wake.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._wake.wait(_PAUSE_S)
            self._wake.clear()
            if self._engine.closed is not None:
                return
            self.look()

    def look(self) -> None:
        """Do what is to be done (the lock is free)."""
        now_ms = self._engine.clock.elapsed_ms()
        for device, at_ms in list(self._compare_at_ms.items()):
            if now_ms >= at_ms:
                del self._compare_at_ms[device]
                self._to_compare.add(device)
        for device in list(self._to_compare):
            if device == LOG or device not in self._devices.ports:
                self._to_compare.discard(device)
            elif self._devices.states[device].usable:
                self._to_compare.discard(device)
                if self._devices.take_back(device):
                    log.warning("device_admitted", device=device, by="return")
                try:
                    self._compare(device)
                except EbbError as error:
                    log.warning("not_compared", device=device, detail=error.detail)
                    self._to_compare.add(device)
        for device in list(self._damaged):
            self._replace(device, sorted(self._damaged.pop(device)))
        lost, usable = self._lost_devices(), self._usable_devices()
        keeper, now_ms = self._engine.keeping, self._engine.clock.elapsed_ms()
        again = keeper.is_short and now_ms >= self._mend_at_ms
        if lost != self._lost or usable != self._usable or again:
            self._lost, self._usable = lost, usable
            keeper.lost = lost
            self._mend_at_ms = now_ms + _MEND_EVERY_MS
            keeper.is_short = False
            mending.mend(self._engine, self._slices, lost, self._stop.is_set)
            # Looking through very many again and again would be all that is done.
            took_ms = self._engine.clock.elapsed_ms() - now_ms
            self._mend_at_ms = now_ms + min(max(_MEND_EVERY_MS, 10 * took_ms), _MEND_EVERY_MS_MAX)

    def _lost_devices(self) -> frozenset[str]:
        now_ms = self._engine.clock.elapsed_ms()
        patience_ms = self._engine.config.placement.repair_after_ms
        for device, state in self._devices.states.items():
            if state.usable:
                self._away_since.pop(device, None)
            else:
                self._away_since.setdefault(device, now_ms)
        return frozenset(
            device for device, since in self._away_since.items() if now_ms - since >= patience_ms
        )

    def _usable_devices(self) -> frozenset[str]:
        return frozenset(name for name, state in self._devices.states.items() if state.usable)

    # A device that is back

    def _compare(self, device: str) -> None:
        """Make what a device has and what it should have the same."""
        engine, keeper = self._engine, self._engine.keeping
        # What is confirmed while the device is asked need not be in what it tells.
        with engine.lock:
            fresh: set[Name] = set()
            keeper.confirmed_since[device] = fresh
        try:
            stored = self._devices.ports[device].scan(engine.directory.identity.uuid).result()
            listed = _names(stored)
            missing = 0
            for alike in self._slices():
                held = [names for holding, names in alike.items() if device in holding.copies]
                absent = _absent([name for names in held for name in names], listed)
                spare = [
                    name
                    for holding, names in alike.items()
                    if device in holding.copies and len(holding.staying()) > holding.target
                    for name in names
                ]
                with engine.lock:
                    gone = [
                        name
                        for name in absent
                        if name not in fresh and device in engine.holdings.of(name).copies
                    ]
                    if gone:
                        missing += len(gone)
                        # A volatile device that answers and has it not has lost it.
                        volatile = not self._devices.ports[device].spec.durable
                        given_up = gone if volatile else ()
                        keeper.copies_lost(device, gone, damaged=given_up, reason=MISSING)
                    if spare:
                        keeper.spare(spare)
        finally:
            with engine.lock:
                del keeper.confirmed_since[device]
        if missing:
            log.warning("copies_missing", device=device, count=missing)
        self._forget_strays(device, listed)

    def _forget_strays(self, device: str, listed: Numbers) -> None:
        engine, strays, unclaimed = self._engine, 0, 0
        keeper = engine.keeping
        was_evicted = device in self._devices.evicted and keeper.is_whole
        for at in range(0, len(listed), _AT_ONCE):
            with engine.lock:
                some = engine.holdings.unheld(device, listed[at : at + _AT_ONCE].tolist())
                if not some:
                    continue
                restarting.adopt(engine, device, some)
                gone = [
                    name
                    for name in some
                    if restarting.has_left(engine, name)
                    or (was_evicted and keeper.row_of(name) is not None)
                ]
                step = engine.holdings.strays(device, gone)
                strays += len(step.effects)
                unclaimed += len(engine.holdings.unheld(device, some)) - len(step.effects)
                keeper.apply([step])
        keeper.unclaimed[device] = unclaimed
        self._devices.evicted.discard(device)
        if unclaimed:
            log.warning("copies_unclaimed", device=device, count=unclaimed)
        if strays:
            log.info("strays_deleted", device=device, count=strays)

    def _replace(self, device: str, names: Sequence[Name]) -> None:
        """Have damaged copies made anew from others, and deleted where they are; not an only one.

        The device is named again once another copy is there, else only when it was put right.
        """
        engine = self._engine
        log.error("copies_damaged", device=device, count=len(names))
        for at in range(0, len(names), _AT_ONCE):
            with engine.lock:
                some = names[at : at + _AT_ONCE]
                known = [name for name in some if device in engine.holdings.of(name).copies]
                engine.keeping.copies_lost(device, known, reason=DAMAGED)
                gone = [name for name in some if restarting.has_left(engine, name)]
                engine.keeping.apply([engine.holdings.strays(device, {*known, *gone})])

    def _slices(self) -> Iterator[Mapping[Holding, Sequence[Name]]]:
        """Every message that has copies, a few at a time, those that are alike together."""
        name: Name | None = 0
        while name is not None and not self._stop.is_set():
            with self._engine.lock:
                told, name = self._engine.holdings.told_from(name, _AT_ONCE)
            yield told.held


def _names(stored: Sequence[Stored]) -> Numbers:
    """The names of what a device has, in order."""
    if isinstance(stored, Listing):
        parts = [part.seqs.astype(np.int64) | name_of(part.pid, 0) for part in stored.parts]
        return np.sort(np.concatenate([np.zeros(0, np.int64), *parts]))
    names = (name_of(each.key.pid, each.key.seq) for each in stored)
    return np.sort(np.fromiter(names, np.int64, len(stored)))


def _absent(names: Sequence[Name], listed: Numbers) -> list[Name]:
    """Those names that are not listed."""
    asked = np.array(names, np.int64)
    if not len(listed) or not len(asked):
        return list(names)
    at = np.minimum(np.searchsorted(listed, asked), len(listed) - 1)
    found: list[Name] = asked[listed[at] != asked].tolist()
    return found
