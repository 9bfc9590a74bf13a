"""The OpenAPI document is true: what it allows is taken, what it does not is refused, by name."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis import GenerationMode

from ebbmq import QueueSpec, RuleSpec, TopicSpec
from ebbmq.node.server.openapi import document
from ebbmq.wire.http import codec
from tests.served import Served

if TYPE_CHECKING:
    from collections.abc import Iterator


NAMES = ("dead_queue", "privileged", "tiers", "to")
KNOWN = {"queue": "q", "topic": "t", "rule": "r", "device": "log", "id": "1-1"}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    path = tmp_path_factory.mktemp("schema")
    with Served(path / "data", feed={"lake": str(path / "lake")}) as running:
        yield running


def closed() -> dict[str, Any]:
    """The document, read so that an answer has no field it does not name."""
    described = json.loads(codec.encode(document()))
    for kind in described["components"]["schemas"].values():
        if "properties" in kind:
            kind.setdefault("additionalProperties", False)
    return described


# A backup writes to the machine of the server, wherever it is told to; a server that has no device
# but its own log refuses to apply rules to what is stored.
schema = schemathesis.openapi.from_dict(closed()).exclude(path=["/v1/backup", "/v1/rules/apply"])


@schema.parametrize()
@settings(
    max_examples=15,
    deadline=None,
    derandomize=True,
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_as_described(case: schemathesis.Case, served: Served) -> None:
    served.broker.declare(QueueSpec("q"), change=True)
    served.broker.declare_topic(TopicSpec("t"), change=True)
    served.broker.put_rule(RuleSpec("r", 1, "hdd"))
    assert case.meta is not None
    if case.meta.generation.mode == GenerationMode.POSITIVE:
        aim(case)
    case.call_and_validate(base_url=f"http://127.0.0.1:{served.port}", timeout=20)


def aim(case: schemathesis.Case) -> None:
    """Have a valid request be about what is there, and keep what no schema can say."""
    aim_path(case)
    if isinstance(case.body, dict):
        body = whole(case.body)
        aim_rules(body, in_path="rule" in case.path_parameters)
        # The path says it; fixed once a queue is made; bounds between fields; one the node has;
        # names are printable.
        for field in ("name", "partitions", "adapt", "default_device", *NAMES):
            body.pop(field, None)
        # Neither too long nor too short for any machine; an instant that is past is refused.
        for field, fit in (("wait_ms", 0), ("timeout_ms", 20_000), ("until_ms", (1 << 48) - 1)):
            if field in body and body[field] is not None:
                body[field] = fit
        if "topic" in case.path_parameters:
            for message in body.get("messages", ()):
                message.pop("id", None)  # a topic does not know its publishers' ids
        case.body = body


def aim_path(case: schemathesis.Case) -> None:
    """Have path and query be about what is there."""
    for name in case.path_parameters:
        case.path_parameters[name] = KNOWN.get(name, "some")
    if isinstance(case.query, dict):
        case.query.pop("version", None)  # one that nobody has seen is refused
    if case.path.endswith("/evict"):
        case.path_parameters["device"] = "some"  # the log cannot be given up


def aim_rules(body: dict[str, Any], *, in_path: bool) -> None:
    """A condition is a language of its own, names are printable, ids are given once."""
    usable = {"id": "r{}", "device": "d", "when": "SIZE > 1"}
    for number, rule in enumerate([body, *body.get("rules", ())]):
        rule |= {name: text.format(number) for name, text in usable.items() if name in rule}
    if in_path:
        body.pop("id", None)


def whole(value: Any) -> Any:
    """To JSON schema 3.0 is an integer; to the server it is not."""
    if isinstance(value, dict):
        return {key: whole(each) for key, each in value.items()}
    if isinstance(value, list):
        return [whole(each) for each in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
