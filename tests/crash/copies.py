"""What the devices have, beside what the broker says that they have."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ebbmq.core.copies import LOG, name_of, parts_of
from ebbmq.node.keeping.keeper import lacks
from tests.servers import wait_until

if TYPE_CHECKING:
    from ebbmq import Broker
    from ebbmq.core.copies import Holding, Name


def holdings(broker: Broker) -> dict[Name, Holding]:
    """Every message that is not only in the log."""
    with broker.engine.lock:
        return dict(broker.engine.holdings.items())


def is_settled(broker: Broker) -> bool:
    """Whether every message has the copies it should have, and no device owes anything."""
    with broker.engine.lock:
        if broker.engine.holdings.tombstones():
            return False
        return not any(
            holding.pending or holding.dropping or holding.leaving or lacks(holding, frozenset())
            for _, holding in broker.engine.holdings.items()
        )


def wait_until_settled(broker: Broker, what: str) -> None:
    try:
        wait_until(lambda: is_settled(broker), what)
    except AssertionError:
        unsettled = [h for h in holdings(broker).values() if h.pending or h.dropping or h.leaving]
        short = [h for h in holdings(broker).values() if lacks(h, frozenset())]
        told = f"{broker.engine.holdings.tombstones()} tombstones, {set(unsettled)}, {set(short)}"
        raise AssertionError(f"{what}: {told}") from None


def stored(broker: Broker) -> dict[str, set[Name]]:
    """By device: what it lists."""
    devices = broker.engine.devices
    assert devices is not None
    store = broker.engine.directory.identity.uuid
    return {
        name: {name_of(each.key.pid, each.key.seq) for each in port.scan(store).result()}
        for name, port in devices.ports.items()
    }


def supposed(broker: Broker) -> dict[str, set[Name]]:
    """By device: what the broker believes it has."""
    devices = broker.engine.devices
    assert devices is not None
    found: dict[str, set[Name]] = {name: set() for name in devices.ports}
    for name, holding in holdings(broker).items():
        for device in holding.copies - {LOG}:
            found[device].add(name)
    return found


def differences(broker: Broker) -> dict[str, set[Name]]:
    """By device: what it has and should not have, or the other way round.

    Copies of messages whose records were lost with the tail are kept: nothing tells of them.
    """
    told, there, shards = supposed(broker), stored(broker), broker.engine.catalog.shards
    found: dict[str, set[Name]] = {}
    for device in told:
        for name in told[device] ^ there[device]:
            pid, seq = parts_of(name)
            if pid not in shards or seq not in shards[pid].passed_over:
                found.setdefault(device, set()).add(name)
    return found
