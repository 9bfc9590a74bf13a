"""Copies that publishers have waited for too long: another device is asked, or they are told.

A device that hangs is given up by its port in the end, after `stall_ms`; a publisher may not want
to wait for that. After the queue's `copy_timeout_ms` a copy that was not confirmed is asked of
another device, and what the late one may have by then is deleted there. Where there is no other
device, one that works though slowly is waited for; where it hangs, the publisher is told.

It is called by the thread that looks after the devices, which waits for none of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq.core.copies import LOG
from ebbmq.errors import EbbError, Overloaded
from ebbmq.node.keeping.decisions import COPY_TIMEOUT
from ebbmq.node.log import log

if TYPE_CHECKING:
    from ebbmq.core.copies import Name
    from ebbmq.model import QueueSpec
    from ebbmq.node.engine import Engine


def hurry(engine: Engine) -> None:
    """See to every publish that has waited too long for its copies (the lock is free)."""
    if not engine.keeping.confirming:
        return
    with engine.lock:
        if engine.closed is None:
            try:
                _hurry(engine)
            except EbbError as error:
                log.error("copy_timeout", code=error.code, detail=error.detail)


def _hurry(engine: Engine) -> None:
    keeper, holdings = engine.keeping, engine.holdings
    for shard, record, names in keeper.confirming.overdue():
        spec, late = shard.queue.spec, _late(engine, names)
        if late and not _may_switch(engine, spec, list(late)):
            continue
        for device, some in late.items():
            log.warning("copy_timeout", device=device, queue=spec.name, count=len(some))
            keeper.refuse_for_now(device)
        for device, some in late.items():
            keeper.copies_failed(device, some, COPY_TIMEOUT)
        if not late:
            keeper.mend(names)
        if any(not holdings.is_eligible(name) and not holdings.of(name).pending for name in names):
            keeper.confirming.refuse(record, _refusal(spec))


def _late(engine: Engine, names: list[Name]) -> dict[str, list[Name]]:
    """By device: those of which it was asked to have a copy, and has not confirmed it."""
    late: dict[str, list[Name]] = {}
    for name in names:
        for device in engine.holdings.of(name).pending - {LOG}:
            late.setdefault(device, []).append(name)
    return late


def _may_switch(engine: Engine, spec: QueueSpec, late: list[str]) -> bool:
    """Whether there are other devices, or these do not get on with what they do."""
    devices = engine.devices
    assert devices is not None
    hung = {
        name
        for name, port in devices.ports.items()
        if not port.state.usable or port.busy_ms() >= spec.copy_timeout_ms
    }
    others = engine.keeping.domains(without=hung.union(late))
    return others >= spec.min_copies or not hung.isdisjoint(late)


def _refusal(spec: QueueSpec) -> Overloaded:
    return Overloaded(
        f"queue {spec.name!r} needs {spec.min_copies} copies, and no device took the last of them "
        f"within {spec.copy_timeout_ms} ms",
        "it is stored in the log, and gets them once a device can be used: see `ebbmq devices`",
        code="copy_timeout",
    )
