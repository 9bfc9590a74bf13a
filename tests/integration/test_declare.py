"""Declaring again never changes a queue or topic unless that is asked for."""

from __future__ import annotations

import functools
import itertools
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest

from ebbmq import Broker, Message, QueueDiffers, QueueSpec, TopicSpec, limits
from ebbmq.cli.main import main
from ebbmq.errors import InvalidSpec, UnknownQueue
from tests.served import Served
from tests.serving import Running
from tests.verbs import OVER_HTTP, WAYS, Opened

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

NUMBERS = itertools.count()


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with Running(tmp_path_factory.mktemp("server") / "data") as server:
        yield server.url
        assert server.stop() == 0


@pytest.fixture(scope="module", params=WAYS)
def broker(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    way = request.param
    address = request.getfixturevalue("url") if way in OVER_HTTP else None
    with Opened(way, tmp_path_factory.mktemp("embedded") / "data", address) as opened:
        yield opened.broker


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as running:
        yield running


@pytest.fixture
def name() -> str:
    return f"codes-{next(NUMBERS)}"


def spec_of(broker: Any, name: str) -> QueueSpec:
    (found,) = (spec for spec in broker.queues() if spec.name == name)
    assert isinstance(found, QueueSpec)
    return found


def topic_of(broker: Any, name: str) -> dict[str, Any]:
    (found,) = (topic for topic in broker.topics() if topic["topic"] == name)
    return dict(found)


# Broker, AsyncBroker, Client, AsyncClient


def test_the_same_specification_again_changes_nothing(broker: Any, name: str) -> None:
    spec = QueueSpec.deadline(name, ttl_ms=600_000)
    broker.declare(spec)
    broker.declare(spec)
    broker.declare(spec, change=True)
    assert spec_of(broker, name) == spec


def test_a_queue_that_differs_is_refused_with_each_field_and_both_values(
    broker: Any, name: str
) -> None:
    spec = QueueSpec(name, decay_rate=1.0, default_ttl_ms=600_000)
    broker.declare(spec)
    with pytest.raises(QueueDiffers) as refused:
        broker.declare(QueueSpec(name))
    assert refused.value.code == "queue_differs"
    for told in (name, "decay_rate 1.0 -> 0.0", "default_ttl_ms 600000 -> None"):
        assert told in refused.value.detail
    assert "max_attempts" not in refused.value.detail
    assert "change=True" in refused.value.action
    assert spec_of(broker, name) == spec


def test_a_change_that_is_asked_for_is_made(broker: Any, name: str) -> None:
    broker.declare(QueueSpec(name, decay_rate=1.0))
    broker.publish(name, Message(b"kept"))
    broker.declare(QueueSpec(name, lease_timeout_ms=5_000), change=True)
    assert spec_of(broker, name) == QueueSpec(name, lease_timeout_ms=5_000)
    assert [seen.body for seen in broker.peek(name, 10)] == [b"kept"]


def test_a_change_of_what_is_not_there_makes_it(broker: Any, name: str) -> None:
    broker.declare(QueueSpec(name, decay_rate=1.0), change=True)
    broker.declare_topic(TopicSpec(name, max_age_ms=9), change=True)
    assert spec_of(broker, name).decay_rate == 1.0
    assert topic_of(broker, name)["max_age_ms"] == 9


def test_a_change_of_named_fields_leaves_the_others(broker: Any, name: str) -> None:
    broker.declare(QueueSpec(name, decay_rate=1.0, fair_share=3))
    asked = QueueSpec(name, fair_share=4)
    broker.declare(QueueSpec(name, decay_rate=1.0), fields=("decay_rate",))
    with pytest.raises(QueueDiffers, match="fair_share 3 -> 4"):
        broker.declare(asked, fields=("fair_share",))
    broker.declare(asked, change=True, fields=("fair_share",))
    assert spec_of(broker, name) == QueueSpec(name, decay_rate=1.0, fair_share=4)
    with pytest.raises(UnknownQueue):
        broker.declare(QueueSpec(f"no {name}", fair_share=4), change=True, fields=("fair_share",))


def test_the_number_of_partitions_cannot_be_changed(broker: Any, name: str) -> None:
    broker.declare(QueueSpec(name))
    for change in (False, True):
        with pytest.raises(InvalidSpec, match="has 1 partitions, 2 were asked for"):
            broker.declare(QueueSpec(name, partitions=2), change=change)


def test_a_topic_that_differs_is_refused_until_a_change_is_asked_for(
    broker: Any, name: str
) -> None:
    broker.declare(QueueSpec(name))
    broker.declare_topic(TopicSpec(name, max_age_ms=1_000))
    broker.subscribe(name, name)
    broker.declare_topic(TopicSpec(name, max_age_ms=1_000))
    with pytest.raises(QueueDiffers, match="max_age_ms 1000 -> None"):
        broker.declare_topic(TopicSpec(name))
    broker.declare_topic(TopicSpec(name, max_age_ms=2_000), change=True)
    seen = topic_of(broker, name)
    assert (seen["max_age_ms"], seen["queues"]) == (2_000, [name])


def test_a_change_is_logged_with_old_and_new_values(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ebbmq")
    with Broker.open(tmp_path) as broker:
        broker.declare(QueueSpec("q", decay_rate=1.0))
        broker.declare(QueueSpec("q", fair_share=2), change=True)
        broker.declare_topic(TopicSpec("t"))
        broker.declare_topic(TopicSpec("t", max_age_ms=9), change=True)
    assert "queue_changed queue='q' changes='decay_rate 1.0 -> 0.0, fair_share 0 -> 2'" in (
        caplog.messages
    )
    assert "topic_changed topic='t' changes='max_age_ms None -> 9'" in caplog.messages


# Presets bring a dead queue


@pytest.mark.parametrize(
    "preset",
    [QueueSpec.fifo, QueueSpec.fresh_first, functools.partial(QueueSpec.deadline, ttl_ms=60_000)],
)
def test_a_preset_brings_a_dead_queue_where_there_is_none(
    broker: Any, name: str, preset: Callable[..., QueueSpec]
) -> None:
    dead = f"{name}.dead"
    broker.declare(preset(name))
    assert spec_of(broker, name).dead_queue == dead
    assert spec_of(broker, dead) == QueueSpec(dead)
    broker.declare(preset(name))
    broker.declare(QueueSpec(dead, max_messages=7), change=True)
    broker.delete(name)
    broker.declare(preset(name))
    assert spec_of(broker, dead) == QueueSpec(dead, max_messages=7)
    broker.declare(preset(f"other {name}", dead_queue=None))
    assert f"other {dead}" not in [spec.name for spec in broker.queues()]


def test_the_name_of_a_preset_leaves_room_for_its_dead_queue() -> None:
    longest = "x" * limits.NAME_CHARS_MAX
    assert QueueSpec(longest).name == QueueSpec.fifo(longest, dead_queue=None).name
    assert QueueSpec.fifo(longest[:-5]).dead_queue == f"{longest[:-5]}.dead"
    with pytest.raises(InvalidSpec, match=r"leaves no room for \.dead") as refused:
        QueueSpec.fifo(longest[:-4])
    assert refused.value.action == "use at most 250 characters, or name another dead_queue"


# By hand, over HTTP


def test_an_empty_put_changes_nothing_and_makes_a_plain_queue_where_there_is_none(
    served: Served,
) -> None:
    spec = QueueSpec.deadline("codes", ttl_ms=600_000)
    served.broker.declare(spec)
    served.broker.declare_topic(TopicSpec("news", max_age_ms=9))
    for body in (None, {}):
        assert served.ask("PUT", "/v1/queues/codes", body).status == 200
        assert served.ask("PUT", "/v1/topics/news", body).status == 200
    assert spec_of(served.broker, "codes") == spec
    assert topic_of(served.broker, "news")["max_age_ms"] == 9
    assert served.ask("PUT", "/v1/queues/plain").status == 201
    assert spec_of(served.broker, "plain") == QueueSpec("plain")


def test_a_put_compares_the_fields_it_names(served: Served) -> None:
    served.broker.declare(QueueSpec("codes", max_attempts=5, fair_share=3))
    assert served.ask("PUT", "/v1/queues/codes", {"max_attempts": 5}).status == 200
    refused = served.ask("PUT", "/v1/queues/codes", {"max_attempts": 6, "fair_share": 3})
    assert (refused.status, refused.json["code"]) == (409, "queue_differs")
    assert "max_attempts 5 -> 6" in refused.json["detail"]
    assert "fair_share" not in refused.json["detail"]
    assert "PATCH" in refused.json["action"]
    served.broker.declare_topic(TopicSpec("news", max_age_ms=9))
    refused = served.ask("PUT", "/v1/topics/news", {"max_age_ms": None})
    assert (refused.status, refused.json["code"]) == (409, "queue_differs")
    assert topic_of(served.broker, "news")["max_age_ms"] == 9


def test_a_patch_changes_the_fields_it_names(served: Served) -> None:
    served.broker.declare(QueueSpec("codes", default_ttl_ms=9_000, fair_share=3))
    done = served.ask("PATCH", "/v1/queues/codes", {"fair_share": 4, "default_ttl_ms": None})
    assert done.status == 200
    assert spec_of(served.broker, "codes") == QueueSpec("codes", fair_share=4)
    assert done.json["spec"]["fair_share"] == 4
    served.broker.declare_topic(TopicSpec("news", max_age_ms=9))
    assert served.ask("PATCH", "/v1/topics/news", {"max_age_ms": 8}).json["max_age_ms"] == 8
    for path in ("/v1/queues/no", "/v1/topics/no"):
        unknown = served.ask("PATCH", path, {})
        assert (unknown.status, unknown.json["code"]) == (404, "unknown_queue")
    assert served.ask("PATCH", "/v1/queues/codes", {"partitions": 2}).status == 400


# On the command line


def test_queues_change_changes_the_fields_that_are_given(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--data", str(tmp_path / "data"))
    assert run("queues", "declare", "orders", "--set", "fair_share=3", *data) == 0
    assert run("queues", "declare", "orders", *data) != 0
    told = capsys.readouterr().err
    assert "fair_share 3 -> 0" in told
    assert "queues change" in told
    assert run("queues", "change", "orders", "--lease-timeout-ms", "2m", *data) == 0
    assert run("queues", "change", "orders", "--max-bytes", "none", "--fair-share", "4", *data) == 0
    assert run("queues", "change", "orders", *data) != 0
    assert run("queues", "change", "ordres", "--fair-share", "4", *data) != 0
    assert "did you mean 'orders'" in capsys.readouterr().err
    assert run("topics", "declare", "news", "--max-age", "7d", *data) == 0
    assert run("topics", "declare", "news", "--max-age", "1d", *data) != 0
    assert run("topics", "declare", "news", "--max-age", "1d", "--change", *data) == 0
    with Broker.open(tmp_path / "data") as broker:
        expected = QueueSpec("orders", fair_share=4, lease_timeout_ms=120_000)
        assert spec_of(broker, "orders") == expected
        assert topic_of(broker, "news")["max_age_ms"] == 86_400_000


def test_queues_change_asks_a_server_as_well(
    url: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("queues", "declare", name, "--set", "decay_rate=0.5", "--url", url) == 0
    assert run("queues", "change", name, "--fair-share", "4", "--url", url) == 0
    capsys.readouterr()
    assert run("queues", "show", name, "--json", "--url", url) == 0
    spec = json.loads(capsys.readouterr().out)["spec"]
    assert (spec["decay_rate"], spec["fair_share"]) == (0.5, 4)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as exit_:
        main(arguments)
    return int(exit_.value.code or 0)
