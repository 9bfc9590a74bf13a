"""Plans over HTTP: applied from the lake of a server, told, counted, guarded."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any

import jsonschema_rs
import pytest

from ebbmq import Client, Message, QueueSpec, UnknownRun
from ebbmq.node.server.openapi import document
from ebbmq.wire.http import codec
from tests.advice import plan_row, until_usable, write_plan
from tests.served import Served
from tests.serving import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

ROOM = 64 << 20
HOUR_MS = 3_600_000


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    config = {
        "node": "n1",
        "feed": {"lake": str(tmp_path / "lake"), "plans_every_ms": 0},
        "devices": {
            "log": {"tier": "fast"},
            "cold": {
                "kind": "object", "directory": "cold", "capacity_bytes": ROOM, "tier": "archive",
            },
        },
    }  # fmt: skip
    with Served(tmp_path / "data", **config) as running:
        running.broker.declare(QueueSpec("mine", tiers=("fast", "archive")))
        until_usable(running.broker)
        yield running


def url(served: Served) -> str:
    return f"http://127.0.0.1:{served.port}"


def published(served: Served, count: int) -> list[str]:
    messages = [Message(b"body %d" % number) for number in range(count)]
    return [receipt.id for receipt in served.broker.publish("mine", messages)]


def row(message_id: str, **fields: Any) -> dict[str, Any]:
    now_ms = time.time_ns() // 1_000_000
    times = {"decided_at_ms": now_ms, "until_ms": now_ms + HOUR_MS}
    return plan_row(message_id, **{"queue": "mine", **times, **fields})


def test_a_client_has_a_plan_of_the_lake_applied(served: Served, tmp_path: Path) -> None:
    ids = published(served, 3)
    write_plan(tmp_path / "lake", "r1", [row(each) for each in ids], time.time_ns() // 1_000_000)
    with Client(url(served)) as client:
        (told,) = client.apply_plans("r1")
        assert (told.run, told.rows, told.applied) == ("r1", 3, 3)
        wait_until(lambda: client.why(ids[0])["copies"] == ["cold"], "the message moves")
        assert client.why(ids[0])["pinned"]["run"] == "r1"
        assert client.apply_plans() == []
        found = client.plans()
        assert (found.node, found.pinned, found.problems) == ("n1", 3, [])
        assert [(each.run, each.applied, each.pinned) for each in found.runs] == [("r1", 3, 3)]
        with pytest.raises(UnknownRun, match="r2"):
            client.apply_plans("r2")


def test_what_names_no_run_is_refused_by_name(served: Served) -> None:
    for body, what in (({"run": ""}, "run"), ({"runs": "r"}, "runs"), ({"rows": []}, "rows")):
        answer = served.ask("POST", "/v1/plans", json.dumps(body).encode())
        assert answer.status == 400
        assert what in answer.body.decode()


def test_what_became_of_rows_is_counted(served: Served, tmp_path: Path) -> None:
    (one,) = published(served, 1)
    write_plan(tmp_path / "lake", "r1", [row(one), row("99-1")], time.time_ns() // 1_000_000)
    with Client(url(served)) as client:
        client.apply_plans("r1")
    told = served.ask("GET", "/metrics").body.decode()
    assert 'ebbmq_plan_rows_total{table="plans",outcome="applied"} 1' in told
    assert 'ebbmq_plan_rows_total{table="plans",outcome="gone"} 1' in told
    assert "ebbmq_plan_pinned_messages 1" in told


def described() -> Any:
    """Whether an answer is what the document says of a message, with no field it does not name."""
    components = json.loads(codec.encode(document()))["components"]
    for kind in components["schemas"].values():
        if "properties" in kind:
            kind["additionalProperties"] = False
    return jsonschema_rs.validator_for(
        {"$ref": "#/components/schemas/MessageView", "components": components}
    )


def test_what_is_told_of_a_message_is_what_the_document_says(
    served: Served, tmp_path: Path
) -> None:
    form = described()
    kept, purged, acked = published(served, 3)
    (bare,) = (each.id for each in served.broker.publish("q", [Message(b"never planned for")]))
    with Client(url(served)) as client:
        seen = {"new": client.why(kept), "of no plan": client.why(bare)}
        leases = client.lease("mine", 3)
        client.ack("mine", [lease.token for lease in leases if lease.id == acked])
        client.release("mine", [lease.token for lease in leases if lease.id != acked])
        rows = [row(each, generation=1) for each in (kept, purged)]
        write_plan(tmp_path / "lake", "r1", rows, time.time_ns() // 1_000_000)
        assert client.apply_plans("r1")[0].applied == 2
        seen["held to a plan"] = client.why(kept)
        wait_until(lambda: client.why(kept)["copies"] == ["cold"], "the message moves")
        seen["moved"] = client.why(kept)
        client.purge("mine")
        seen |= {"purged": client.why(purged), "acked": client.why(acked)}
        seen["unknown"] = client.why("1-ffff")
    for told in seen.values():
        form.validate(told)
    assert seen["moved"]["pinned"]["run"] == "r1"
    assert {each["event"] for each in seen["moved"]["decisions"]} >= {"pinned", "asked"}
    assert [seen[each]["state"] for each in ("purged", "acked", "unknown")] == [
        "removed", "gone", "unknown",
    ]  # fmt: skip
    assert not form.is_valid({**seen["moved"], "more": 1})
    assert not form.is_valid({**seen["moved"], "pinned": {"run": "r1"}})
