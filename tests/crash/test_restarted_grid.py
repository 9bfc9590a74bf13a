"""A grid that starts anew between two probes has lost what it kept in memory: that is noticed."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, Message, QueueSpec
from ebbmq.core.copies import LOG
from tests.crash.copies import holdings, stored, wait_until_settled
from tests.crash.devices import MIB
from tests.servers import Valkey, wait_until

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.crash

#: So seldom that what the test does falls between two probes.
SELDOM = {"every_ms": 600_000}


def config_of(server: Valkey) -> dict[str, Any]:
    grid = {"kind": "grid", "url": server.url, "durable": False, "capacity_bytes": MIB}
    return {
        "devices": {"grid": {**grid, "status": SELDOM, "tier": "memory"}},
        "rules": [{"id": "G", "weight": 90, "device": "grid", "when": "TYPE == TEXT"}],
        "upkeep_every_ms": 20,
    }


def test_copies_of_a_grid_that_began_anew_are_made_again_or_put_on_record_as_lost(
    tmp_path: Path,
) -> None:
    with closing(Valkey("--appendonly", "no")) as server:
        server.start()
        with Broker.open(tmp_path, config_of(server)) as broker:
            broker.declare(QueueSpec("q"))
            broker.publish("q", [Message(b"kept", type="TEXT", replicas=2)])
            broker.publish("q", [Message(b"fleeting", type="TEXT", durable=False)])
            wait_until_settled(broker, "copying")
            found = sorted(sorted(each.copies) for each in holdings(broker).values())
            assert found == [["grid"], ["grid", LOG]]
            server.kill()
            server.start()
            devices = broker.engine.devices
            assert devices is not None
            assert devices.probe("grid").usable
            wait_until(lambda: len(stored(broker)["grid"]) == 1, "copying again")
            wait_until_settled(broker, "mending")
            assert [each.copies for each in holdings(broker).values()] == [{"grid", LOG}]
            assert [each.body for each in broker.lease("q", 10)] == [b"kept"]
            assert [each.reason for each in broker.removals("q")] == ["lost"]
