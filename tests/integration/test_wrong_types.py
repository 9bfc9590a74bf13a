"""Values of a wrong type: refused by name or stored as what they stand for; the store reopens."""

from __future__ import annotations

import asyncio
import enum
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from ebbmq import AdaptSpec, AsyncBroker, Broker, Message, QueueSpec, TopicSpec
from ebbmq.errors import EbbError, InvalidMessage, InvalidSpec, UnknownDevice, UnknownQueue
from ebbmq.policy.rules.spec import RuleSpec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

LATER_MS = 4 * 10**12
HALF_A_PAIR = "\ud800"


class Name(str):
    """A string of somebody's own kind."""


class Queues(str, enum.Enum):  # noqa: UP042  # as many still do
    """Names of queues, as programs keep them."""

    ORDERS = "orders"


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker.open(tmp_path / "data") as broker:
        broker.declare(QueueSpec("q"))
        broker.publish("q", [Message(b"kept")])
        yield broker
        # Whatever was refused, publishing and declaring go on ..
        broker.declare(QueueSpec("another"))
        broker.publish("q", [Message(b"another")])
    with Broker.open(tmp_path / "data") as again:  # .. and the directory can be opened.
        assert [lease.body for lease in again.lease("q", 9)] == [b"kept", b"another"]


@pytest.mark.parametrize(
    "fields",
    [
        {"cache_enabled": 1},
        {"page_to_disk": "no"},
        {"band_width": True},
        {"band_width": 1e-9},
        {"decay_rate": "0.5"},
        {"adapt": 5},
        {"adapt": AdaptSpec},
        {"tiers": "fast"},
        {"tiers": ("fast", 1)},
        {"tiers": {"fast": 1}},
        {"privileged": "boss"},
        {"privileged": (7,)},
        {"on_stale": ["drop"]},
    ],
)
def test_a_field_of_a_queue_of_a_wrong_type_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        QueueSpec("spec", **fields)
    (field,) = fields
    assert field.removesuffix("s") in caught.value.detail
    assert caught.value.action


@pytest.mark.parametrize(
    "fields",
    [
        {"step": "much"},
        {"step": float("nan")},
        {"lower_below_ms": "x"},
        {"raise_above_ms": True},
        {"factor_max": float("inf")},
        {"window": 1.5},
        {"window": 0},
        {"window": 10**12},
        {"dwell_ms": -1},
    ],
)
def test_a_field_of_adapt_of_a_wrong_type_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidSpec) as caught:
        AdaptSpec(**fields)
    (field,) = fields
    assert field in caught.value.detail
    assert caught.value.action


def test_what_a_queue_is_declared_with_is_there_again_whatever_kind_of_number_it_was(
    tmp_path: Path,
) -> None:
    spec = QueueSpec(
        Queues.ORDERS,
        decay_rate=np.float64(0.25),
        band_width=2,
        dead_queue=Name("orders.dead"),
        tiers=["fast"],  # type: ignore[arg-type]  # the point
        privileged=(Name("boss-*"),),
        adapt=AdaptSpec(step=np.float64(1.5)),
    )
    with Broker.open(tmp_path / "data") as broker:
        broker.declare(spec)
        broker.declare_topic(TopicSpec(Name("news")))
        broker.subscribe(Name("news"), Queues.ORDERS)
        broker.set_decay_factor(Name("orders"), np.float64(2.0), LATER_MS, Name("run"))
        stats = broker.stats("orders")
    with Broker.open(tmp_path / "data") as broker:
        assert spec in broker.queues()
        assert (spec.name, spec.decay_rate, spec.tiers) == ("orders", 0.25, ("fast",))
        assert broker.stats("orders")["decay_factor"] == stats["decay_factor"] == 2.0
        assert list(broker.publish_topic("news", Message(b"m"))) == ["orders"]


def test_a_rule_is_stored_with_what_its_values_stand_for(tmp_path: Path) -> None:
    with Broker.open(tmp_path / "data") as broker:
        rule = RuleSpec(Name("W-1"), np.float64(2.0), Name("log"), Name("SIZE > 10"))
        broker.put_rule(rule, who=Name("me"))
    with Broker.open(tmp_path / "data") as broker:
        (known,) = broker.rules().rules
        assert (known.id, known.weight, known.device, known.when) == (
            "W-1",
            2.0,
            "log",
            "SIZE > 10",
        )
        assert [change.who for change in broker.rule_changes()] == ["me"]


def test_a_message_is_stored_with_what_its_values_stand_for(broker: Broker) -> None:
    headers = {Name("of"): Queues.ORDERS}
    message = Message(
        b"m",
        decay_rate=np.float64(0.5),
        headers=headers,
        id=Name("id"),
        key=np.str_("key"),
        type=Name("TEXT"),
    )
    headers[Name("later")] = Queues.ORDERS
    broker.declare(QueueSpec("typed"))
    broker.publish("typed", message)
    (lease,) = broker.lease("typed")
    assert (lease.headers, lease.type, lease.decay_rate) == ({"of": "orders"}, "TEXT", 0.5)
    assert type(lease.headers["of"]) is str


@pytest.mark.parametrize(
    "fields",
    [
        {"id": HALF_A_PAIR},
        {"key": f"k{HALF_A_PAIR}"},
        {"type": HALF_A_PAIR},
        {"store": HALF_A_PAIR},
        {"headers": {HALF_A_PAIR: "v"}},
        {"headers": {"k": HALF_A_PAIR}},
        {"decay_rate": 10**400},
        {"decay_rate": True},
    ],
)
def test_a_field_that_cannot_be_stored_is_refused_by_name(fields: dict[str, Any]) -> None:
    with pytest.raises(InvalidMessage) as caught:
        Message(b"m", **fields)
    (field,) = fields
    assert field.removesuffix("s") in caught.value.detail
    str(caught.value).encode()


CALLS: list[tuple[type[EbbError], Callable[[Any], object]]] = [
    (InvalidMessage, lambda b: b.publish("q", Message(b"m"), timeout_ms=-1)),
    (InvalidMessage, lambda b: b.publish("q", Message(b"m"), timeout_ms="5")),
    (InvalidMessage, lambda b: b.publish("q", Message(b"m"), timeout_ms=10**18)),
    (InvalidMessage, lambda b: b.publish("q", Message(b"m"), confirm=["synced"])),
    (InvalidMessage, lambda b: b.publish("q", Message(b"m"), confirm="memory", timeout_ms=-1)),
    (InvalidMessage, lambda b: b.lease("q", name=5)),
    (InvalidMessage, lambda b: b.lease("q", name="")),
    (InvalidMessage, lambda b: b.lease("q", name=HALF_A_PAIR)),
    (InvalidMessage, lambda b: b.lease("q", 3, name="x" * 256)),
    (InvalidMessage, lambda b: b.read_lease("q", ["a name"])),
    (InvalidMessage, lambda b: b.peek("q", where=5)),
    (InvalidMessage, lambda b: b.redrive("q", where="all")),
    (InvalidMessage, lambda b: b.redrive("q", rate="fast")),
    (InvalidMessage, lambda b: b.removals("q", since_ms="yesterday")),
    (InvalidSpec, lambda b: b.set_decay_factor("q", 2, float(LATER_MS))),
    (InvalidSpec, lambda b: b.set_decay_factor("q", 2, float("nan"))),
    (InvalidSpec, lambda b: b.set_decay_factor("q", 2, 10**40)),
    (InvalidSpec, lambda b: b.set_decay_factor("q", 2, "tomorrow")),
    (InvalidSpec, lambda b: b.set_decay_factor("q", True, LATER_MS)),
    (InvalidSpec, lambda b: b.set_decay_factor("q", "2", LATER_MS)),
    (InvalidSpec, lambda b: b.set_decay_factor("q", 10**400, LATER_MS)),
    (InvalidSpec, lambda b: b.set_decay_factor("q", 2, LATER_MS, 5)),
    (InvalidSpec, lambda b: b.set_decay_factor("q", 2, LATER_MS, HALF_A_PAIR)),
    (InvalidSpec, lambda b: b.put_rule(RuleSpec("W-1", 1, "log"), who=HALF_A_PAIR)),
    (InvalidSpec, lambda b: b.put_rule(RuleSpec("W-1", 1, "log"), who=5)),
    (InvalidSpec, lambda b: b.put_rule(RuleSpec(HALF_A_PAIR, 1, "log"))),
    (InvalidSpec, lambda b: b.put_rule(RuleSpec("W-1", 1, HALF_A_PAIR))),
    (InvalidSpec, lambda b: b.put_rule(RuleSpec("W-1", 1, "log", f'TYPE == "{HALF_A_PAIR}"'))),
    (UnknownDevice, lambda b: b.evict_device(HALF_A_PAIR, force=True)),
    (UnknownDevice, lambda b: b.admit_device(HALF_A_PAIR)),
]


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_an_argument_of_a_wrong_type_is_refused_by_name(broker: Broker, number: int) -> None:
    error, call = CALLS[number]
    with pytest.raises(error) as caught:
        call(broker)
    assert caught.value.action
    assert broker.stats("q")["depth"] | {"ready": 0} == dict.fromkeys(broker.stats("q")["depth"], 0)


@pytest.mark.parametrize("number", range(len(CALLS)))
def test_an_argument_of_a_wrong_type_is_refused_by_name_also_when_awaited(
    tmp_path: Path, number: int
) -> None:
    error, call = CALLS[number]

    async def refused() -> None:
        async with await AsyncBroker.open(tmp_path / "data") as broker:
            await broker.declare(QueueSpec("q"))
            with pytest.raises(error):
                await call(broker)  # type: ignore[misc]  # the awaitable ones
            await broker.publish("q", Message(b"m"))

    asyncio.run(refused())


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"headers": {1: "x"}}, "the name of header 1 is int"),
        ({"headers": {"n": 1}}, "the value of header 'n' is int"),
        ({"body": bytearray(b"x")}, "bytes(body)"),
        ({"body": "x"}, ".encode()"),
    ],
)
def test_what_is_wrong_with_a_message_is_told_with_what_helps(
    fields: dict[str, Any], told: str
) -> None:
    with pytest.raises(InvalidMessage) as caught:
        Message(**{"body": b"", **fields})
    assert told in str(caught.value)


@pytest.mark.parametrize("path", ["", None, 5, b"data", "a\0b"])
def test_what_is_no_directory_is_refused_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InvalidSpec) as caught:
        Broker.open(path)
    assert "directory" in caught.value.action
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("config", [5, ["cache_bytes"], {1: 2}])
def test_what_is_no_configuration_is_refused_by_name(tmp_path: Path, config: Any) -> None:
    with pytest.raises(InvalidSpec) as caught:
        Broker.open(tmp_path / "data", config)
    assert "TOML" in caught.value.action


#: Every verb of a queue or topic, called with something that is no name.
NAMELESS: list[Callable[[Broker, Any], object]] = [
    lambda b, name: b.publish(name, [Message(b"m")]),
    lambda b, name: b.publish(name, [Message(b"m")], confirm="written"),
    lambda b, name: b.publish(name, [Message(b"m")], timeout_ms=1_000),
    lambda b, name: b.publish_topic(name, [Message(b"m")]),
    lambda b, name: b.lease(name),
    lambda b, name: b.lease(name, 5, wait_ms=1),
    lambda b, name: b.ack(name, ["0" * 48]),
    lambda b, name: b.ack(name, ["0" * 48, "1"]),
    lambda b, name: b.retry(name, ["0" * 48]),
    lambda b, name: b.release(name, ["0" * 48]),
    lambda b, name: b.extend(name, ["0" * 48], 1_000),
    lambda b, name: b.peek(name),
    lambda b, name: b.stats(name),
    lambda b, name: b.removals(name),
    lambda b, name: b.purge(name),
    lambda b, name: b.pause(name),
    lambda b, name: b.delete(name),
    lambda b, name: b.delete_topic(name),
    lambda b, name: b.redrive(name),
    lambda b, name: b.redrive("q", to=name),
    lambda b, name: b.subscribe(name, "q"),
    lambda b, name: b.set_decay_factor(name, 2.0, LATER_MS),
    lambda b, name: list(b.consume(name)),
]


@pytest.mark.parametrize("name", [["q"], {"q": 1}, Message(b"m"), 7])
@pytest.mark.parametrize("number", range(len(NAMELESS)))
def test_what_is_no_name_is_an_unknown_queue_and_nobody_else_suffers(
    broker: Broker, number: int, name: Any
) -> None:
    with pytest.raises(UnknownQueue) as caught:
        NAMELESS[number](broker, name)
    assert caught.value.action
