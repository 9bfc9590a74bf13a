"""Queues, topics and the store, managed over HTTP."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING
from urllib.parse import quote

import pytest

from ebbmq import Broker, Message, QueueSpec, limits
from tests.served import Answer, Served

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as running:
        yield running


def path(queue: str, *rest: str) -> str:
    return "/".join(("/v1/queues", quote(queue, safe=""), *rest))


def until(condition: object) -> None:
    assert callable(condition)
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def dead_letters(served: Served, count: int) -> list[str]:
    """Messages that failed once in `work` and wait in `dead`; their ids there."""
    broker = served.broker
    broker.declare(QueueSpec("work", max_attempts=1, dead_queue="dead"))
    broker.publish("work", [Message(b"%d" % number) for number in range(count)])
    broker.retry("work", [lease.token for lease in broker.lease("work", count)])
    until(lambda: broker.stats("dead")["depth"]["ready"] == count)
    return [seen.id for seen in broker.peek("dead", count)]


class TestQueues:
    def test_a_queue_is_made_changed_shown_and_deleted(self, served: Served) -> None:
        made = served.ask("PUT", "/v1/queues/orders", {"max_attempts": 3})
        assert (made.status, made.json["spec"]["max_attempts"]) == (201, 3)
        changed = served.ask("PATCH", "/v1/queues/orders", {"max_attempts": 4})
        assert (changed.status, changed.json["spec"]["max_attempts"]) == (200, 4)
        assert served.ask("GET", "/v1/queues/orders").json["spec"] == changed.json["spec"]
        gone = served.ask("DELETE", "/v1/queues/orders")
        assert (gone.status, gone.body) == (204, b"")
        assert served.ask("GET", "/v1/queues/orders").json["code"] == "unknown_queue"

    def test_nothing_but_a_name_makes_a_fifo(self, served: Served) -> None:
        served.ask("PUT", "/v1/queues/plain")
        assert QueueSpec("plain") in served.broker.queues()

    def test_what_was_read_can_be_changed_and_sent_back(self, served: Served) -> None:
        served.broker.declare(QueueSpec("orders", decay_rate=0.5, dead_queue="dead"))
        spec = served.ask("GET", "/v1/queues/orders").json["spec"]
        answer = served.ask("PATCH", "/v1/queues/orders", {**spec, "fair_share": 10})
        assert answer.status == 200
        expected = QueueSpec("orders", decay_rate=0.5, dead_queue="dead", fair_share=10)
        assert expected in served.broker.queues()

    @pytest.mark.parametrize("name", ["a/b", "grün & blau", "50%", "a%2Fb", "..", "?x=#", "☃", "%"])
    def test_any_name_can_be_used(self, served: Served, name: str) -> None:
        assert served.ask("PUT", path(name)).status == 201
        assert served.ask("GET", path(name)).json["spec"]["name"] == name
        assert served.ask("POST", path(name, "pause")).json == {"paused": True}
        assert name in [spec.name for spec in served.broker.queues()]

    @pytest.mark.parametrize(
        ("body", "told"),
        [
            ({"max_attempt": 3}, "max_attempt"),
            ({"max_attempts": "3"}, "max_attempts"),
            ({"partitions": 0}, "partitions"),
            ({"adapt": {"stepp": 2}}, "stepp"),
            ({"adapt": {"step": 0.5}}, "step"),
            ({"dead_queue": "orders"}, "dead_queue"),
            ({"name": "other"}, "other"),
            ([1], "object"),
        ],
    )
    def test_what_is_wrong_with_a_specification_is_said_by_name(
        self, served: Served, body: object, told: str
    ) -> None:
        answer = served.ask("PUT", "/v1/queues/orders", body)
        assert answer.status == 400
        assert told in answer.json["detail"]
        assert answer.json["action"]
        assert served.ask("GET", "/v1/queues/orders").status == 404

    @pytest.mark.parametrize("body", [b"{", b"\xff", b"[" * 100_000, b'{"a": 1} x', b"\x00"])
    def test_what_is_not_json_is_refused(self, served: Served, body: bytes) -> None:
        answer = served.ask("PUT", "/v1/queues/orders", body)
        assert (answer.status, answer.json["code"]) == (400, "invalid_request")

    def test_a_listing_shows_every_queue_with_its_stats(self, served: Served) -> None:
        served.broker.publish("q", [Message(b"x", importance=9), Message(b"y", importance=2)])
        [view] = served.ask("GET", "/v1/queues").json["queues"]
        assert view["spec"]["name"] == "q"
        assert view["stats"]["depth"]["ready"] == 2
        assert view["stats"]["by_importance"] == {"9": 1, "2": 1}

    def test_a_paused_queue_grants_nothing_until_it_is_resumed(self, served: Served) -> None:
        served.broker.publish("q", Message(b"x"))
        assert served.ask("POST", "/v1/queues/q/pause").json == {"paused": True}
        assert served.broker.lease("q") == []
        assert served.ask("POST", "/v1/queues/q/resume", {}).json == {"paused": False}
        assert len(served.broker.lease("q")) == 1

    def test_a_purge_says_how_many_went(self, served: Served) -> None:
        served.broker.publish("q", [Message(b"x"), Message(b"y")])
        assert served.ask("POST", "/v1/queues/q/purge").json == {"purged": 2}
        assert served.broker.stats("q")["depth"]["ready"] == 0

    def test_a_decay_factor_is_answered_with_the_one_that_counts(self, served: Served) -> None:
        form = {"factor": 3, "until_ms": (1 << 48) - 1, "run": "r1"}
        answer = served.ask("PUT", "/v1/queues/q/decay-factor", form)
        assert answer.json == {"decay_factor": 3.0}
        assert served.broker.stats("q")["decay_factor"] == 3.0

    @pytest.mark.parametrize("verb", ["pause", "resume", "purge", "redrive"])
    def test_a_queue_that_is_not_there_is_not_made_by_a_verb(
        self, served: Served, verb: str
    ) -> None:
        assert served.ask("POST", f"/v1/queues/none/{verb}").status == 404

    @pytest.mark.parametrize("method", ["GET", "PUT", "POST", "DELETE"])
    def test_an_unknown_parameter_is_refused(self, served: Served, method: str) -> None:
        place = "/v1/queues/q/purge" if method == "POST" else "/v1/queues/q"
        answer = served.ask(method, f"{place}?dry_run=1")
        assert answer.status == 400
        assert "dry_run" in answer.json["detail"]
        assert served.ask("GET", "/v1/queues/q").status == 200

    def test_another_method_is_told_which_there_are(self, served: Served) -> None:
        answer = served.ask("POST", "/v1/queues/q")
        assert (answer.status, answer.json["code"]) == (405, "method_not_allowed")
        assert set(answer.headers["allow"].split(", ")) >= {"GET", "PUT", "PATCH", "DELETE"}


class TestRedrive:
    def test_dead_letters_go_back_to_where_they_came_from(self, served: Served) -> None:
        dead_letters(served, 3)
        assert served.ask("POST", "/v1/queues/dead/redrive").json == {"redriven": 3}
        assert served.broker.stats("work")["depth"]["ready"] == 3

    def test_only_those_asked_for_go(self, served: Served) -> None:
        ids = dead_letters(served, 3)
        answer = served.ask("POST", "/v1/queues/dead/redrive", {"ids": ids[1:2], "to": "q"})
        assert answer.json == {"redriven": 1}
        assert [seen.body for seen in served.broker.peek("q")] == [b"1"]

    def test_a_redrive_whose_caller_went_away_stops(self, served: Served) -> None:
        dead_letters(served, 4)
        body = b'{"rate": 0.001}'
        with served.connect() as raw:
            raw.sendall(
                b"POST /v1/queues/dead/redrive HTTP/1.1\r\nhost: localhost\r\n"
                b"content-length: %d\r\n\r\n%s" % (len(body), body)
            )
            until(lambda: served.broker.stats("dead")["depth"]["ready"] == 3)
        for _ in range(3):
            until(lambda: served.ask("POST", "/v1/queues/dead/redrive", {"ids": []}).status == 200)
        assert served.broker.stats("dead")["depth"]["ready"] == 3

    def test_too_many_at_once_are_refused(self, served: Served) -> None:
        dead_letters(served, 4)
        body = b'{"rate": 0.001}'
        request = (
            b"POST /v1/queues/dead/redrive HTTP/1.1\r\nhost: localhost\r\n"
            b"content-length: %d\r\n\r\n%s" % (len(body), body)
        )
        with served.connect() as first, served.connect() as second:
            first.sendall(request)
            second.sendall(request)
            until(lambda: served.broker.stats("dead")["depth"]["ready"] == 2)
            answer = served.ask("POST", "/v1/queues/dead/redrive")
            assert (answer.status, answer.json["code"]) == (429, "overloaded")
            assert int(answer.headers["retry-after"]) > 0
            assert served.ask("GET", "/v1/queues").status == 200


class TestRemovals:
    def test_pages_follow_each_other(self, served: Served) -> None:
        served.broker.publish("q", [Message(b"x") for _ in range(5)])
        served.broker.purge("q")
        seen: list[str] = []
        more = True
        while more:
            after = f"&after={seen[-1]}" if seen else ""
            answer = served.ask("GET", f"/v1/queues/q/removals?count=2{after}").json
            seen += [removal["id"] for removal in answer["removals"]]
            more = answer["more"]
        assert seen == [removal.id for removal in served.broker.removals("q")]
        assert len(seen) == 5

    def test_reason_and_instant_narrow_it(self, served: Served) -> None:
        served.broker.publish("q", Message(b"x"))
        served.broker.purge("q")
        [removal] = served.broker.removals("q")
        asked = f"/v1/queues/q/removals?since_ms={removal.at_ms}&reason="
        assert len(served.ask("GET", f"{asked}purged").json["removals"]) == 1
        assert served.ask("GET", f"{asked}stale").json["removals"] == []

    @pytest.mark.parametrize(
        "query",
        ["reason=bored", "count=0", "count=99999", "since_ms=-1", "after=x", "count=1&count=2"],
    )
    def test_a_parameter_out_of_bounds_is_refused(self, served: Served, query: str) -> None:
        assert served.ask("GET", f"/v1/queues/q/removals?{query}").status == 400


class TestTopics:
    def test_a_topic_reaches_the_queues_subscribed_to_it(self, served: Served) -> None:
        given = {"max_age_ms": 60_000, "score_per_day": 2.0, "score_high": 9.0}
        assert served.ask("PUT", "/v1/topics/news", given).status == 201
        left_open = {"score_base": 0.0, "score_access_bonus": 0.0, "score_medium": None}
        shown = {"topic": "news", "queues": ["q"], **given, **left_open}
        assert served.ask("PUT", "/v1/topics/news/queues/q").json == shown
        assert served.ask("GET", "/v1/queues/q").json["stats"]["score"]["score_high"] == 9.0
        body = {"messages": [{"text": "hi"}]}
        assert served.ask("POST", "/v1/topics/news/messages", body).status == 200
        assert served.broker.stats("q")["depth"]["ready"] == 1
        assert served.ask("DELETE", "/v1/topics/news/queues/q").json["queues"] == []
        assert served.ask("GET", "/v1/topics").json["topics"] == [{**shown, "queues": []}]

    def test_a_topic_that_is_not_there_is_unknown(self, served: Served) -> None:
        assert served.ask("GET", "/v1/topics/none").json["code"] == "unknown_queue"
        assert served.ask("PUT", "/v1/topics/none/queues/q").status == 404

    def test_a_topic_is_changed_without_losing_its_subscriptions(self, served: Served) -> None:
        served.ask("PUT", "/v1/topics/news")
        served.ask("PUT", "/v1/topics/news/queues/q")
        answer = served.ask("PATCH", "/v1/topics/news", {"max_age_ms": 5})
        assert (answer.status, answer.json["queues"]) == (200, ["q"])


class TestStore:
    def test_a_message_says_where_it_is_and_why_it_left(self, served: Served) -> None:
        [receipt] = served.broker.publish("q", Message(b"x"))
        there = served.ask("GET", f"/v1/messages/{receipt.id}").json
        assert (there["queue"], there["state"]) == ("q", "ready")
        served.broker.purge("q")
        left = served.ask("GET", f"/v1/messages/{receipt.id}").json
        assert (left["state"], left["reason"]) == ("removed", "purged")

    @pytest.mark.parametrize("identity", ["x", "1--1", "1-" + "f" * 40, "%00", "%FF", "1/2"])
    def test_what_is_no_id_is_refused(self, served: Served, identity: str) -> None:
        assert served.ask("GET", f"/v1/messages/{identity}").status in {400, 404}

    def test_a_backup_of_a_running_server_can_be_opened(
        self, served: Served, tmp_path: Path
    ) -> None:
        served.broker.publish("q", [Message(b"x"), Message(b"y")])
        target = tmp_path / "backup"
        answer = served.ask("POST", "/v1/backup", {"target": str(target)})
        assert answer.json["bytes"] > 0
        served.broker.publish("q", Message(b"later"))
        with Broker.open(target) as copy:
            assert [seen.body for seen in copy.peek("q")] == [b"x", b"y"]

    @pytest.mark.parametrize("target", ["", "relative", "no\0name", "/proc/nothing", 7])
    def test_a_backup_needs_a_place(self, served: Served, target: object) -> None:
        assert served.ask("POST", "/v1/backup", {"target": target}).status == 400

    def test_a_backup_does_not_overwrite(self, served: Served, tmp_path: Path) -> None:
        (tmp_path / "full").mkdir()
        (tmp_path / "full" / "something").write_text("mine")
        answer = served.ask("POST", "/v1/backup", {"target": str(tmp_path / "full")})
        assert answer.json["code"] == "invalid_spec"


def test_a_failure_nobody_foresaw_tells_nothing(
    served: Served, caplog: pytest.LogCaptureFixture
) -> None:
    # The catalog itself is broken, as no request can break it.
    served.broker.engine.catalog.topics["odd"] = None  # type: ignore[assignment]
    answer: Answer = served.ask("GET", "/v1/topics")
    assert (answer.status, answer.json["code"]) == (500, "internal_error")
    assert "NoneType" not in json.dumps(answer.json)
    assert "NoneType" in caplog.text
    assert served.ask("GET", "/v1/queues").status == 200
    del served.broker.engine.catalog.topics["odd"]


def test_the_longest_names_fit_in_a_path(served: Served) -> None:
    queue = "\N{WATER WAVE}" * limits.NAME_CHARS_MAX
    topic = "\N{DESERT}" * limits.NAME_CHARS_MAX
    assert served.ask("PUT", f"/v1/queues/{quote(queue)}").status == 201
    assert served.ask("PUT", f"/v1/topics/{quote(topic)}").status == 201
    answer = served.ask("PUT", f"/v1/topics/{quote(topic)}/queues/{quote(queue)}")
    assert answer.json["queues"] == [queue]
