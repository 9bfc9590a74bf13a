"""What people and their tools look at: metrics, health, the start page, the manual."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from typing_extensions import override

from ebbmq import Message, QueueSpec
from ebbmq.errors import UnknownPath
from ebbmq.node.server import management
from ebbmq.node.server.metrics import CONTENT_TYPE
from ebbmq.node.server.openapi import document
from ebbmq.node.server.page import duration, size
from ebbmq.wire.http import codec, routes
from tests.served import Answer, Served, read_answer

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
STRANGE = '<script>alert("x")</script> & \\ {} \'"'


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    with Served(tmp_path / "data") as running:
        yield running


def samples(answer: Answer) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """Every sample by name and labels, read by Prometheus' own parser."""
    parser = pytest.importorskip("prometheus_client.openmetrics.parser")
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in parser.text_string_to_metric_families(answer.body.decode())
        for sample in family.samples
    }


def labelled(name: str, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return name, frozenset(labels.items())


class TestMetrics:
    def test_they_are_openmetrics_to_the_last_line(self, served: Served) -> None:
        answer = served.ask("GET", "/metrics")
        assert answer.headers["content-type"] == CONTENT_TYPE
        assert answer.body.endswith(b"\n# EOF\n")

    def test_prometheus_reads_what_the_broker_counts(self, served: Served) -> None:
        broker = served.broker
        broker.publish("q", [Message(b"12345", importance=i) for i in (9, 9, 2)])
        first, second = broker.lease("q", 2)
        broker.ack("q", [first.token])
        broker.release("q", [second.token])
        found = samples(served.ask("GET", "/metrics"))
        expected = {
            "ebbmq_queue_messages_ready": 2,
            "ebbmq_queue_messages_unacked": 0,
            "ebbmq_queue_messages": 2,
            "ebbmq_queue_message_bytes": 10,
            "ebbmq_queue_messages_published_total": 3,
            "ebbmq_queue_messages_delivered_total": 2,
            "ebbmq_queue_messages_acked_total": 1,
            "ebbmq_queue_messages_released_total": 1,
            "ebbmq_queue_leases_expired_total": 0,
            "ebbmq_queue_decay_factor": 1,
            "ebbmq_queue_paused": 0,
            "ebbmq_queue_cache_hits_total": 2,
        }
        assert {name: found[labelled(name, queue="q")] for name in expected} == expected
        by_importance = labelled("ebbmq_queue_messages_by_importance", queue="q", importance="9")
        assert found[by_importance] == 1

    def test_why_messages_left_is_counted(self, served: Served) -> None:
        broker = served.broker
        broker.declare(QueueSpec("work", max_attempts=1, dead_queue="dead"))
        broker.publish("work", [Message(b"x"), Message(b"y")])
        broker.retry("work", [broker.lease("work")[0].token])
        broker.purge("work")
        found = samples(served.ask("GET", "/metrics"))
        removed = labelled("ebbmq_queue_messages_removed_total", queue="work", reason="purged")
        dead = "ebbmq_queue_messages_dead_lettered_total"
        assert found[removed] == 1
        assert found[labelled(dead, queue="work", reason="max_attempts")] == 1
        assert found[labelled(dead, queue="work", reason="expired")] == 0

    def test_what_is_lost_is_counted_by_reason_and_shown(self, served: Served) -> None:
        broker = served.broker
        broker.declare(QueueSpec("tried", max_attempts=1))
        broker.declare(QueueSpec("work", max_attempts=1, dead_queue="dead"))
        broker.declare(QueueSpec("full", max_messages=2, overflow="drop_lowest"))
        broker.declare(QueueSpec("old", default_ttl_ms=1))
        for queue in ("tried", "work"):
            broker.publish(queue, [Message(b"x")])
            broker.retry(queue, [broker.lease(queue)[0].token])
        broker.publish("full", [Message(b"x")] * 1_236)
        broker.publish("old", [Message(b"x")])
        expired = labelled("ebbmq_queue_messages_removed_total", queue="old", reason="expired")
        deadline = time.monotonic() + 20
        while samples(served.ask("GET", "/metrics"))[expired] != 1:
            assert time.monotonic() < deadline
        found = samples(served.ask("GET", "/metrics"))
        lost = "ebbmq_queue_messages_lost_total"
        assert found[labelled(lost, queue="tried", reason="max_attempts")] == 1
        assert found[labelled(lost, queue="work", reason="max_attempts")] == 0
        assert found[labelled(lost, queue="full", reason="overflow")] == 1_234
        for reason in ("damaged", "lost"):
            assert found[labelled(lost, queue="tried", reason=reason)] == 0
        text = page_of(served.ask("GET", "/")).text
        for told in ("1 max_attempts", "1,234 overflow", "1 expired"):
            assert told in text

    def test_an_expired_lease_is_counted(self, served: Served) -> None:
        served.broker.publish("q", Message(b"x"))
        served.broker.lease("q", lease_timeout_ms=1)
        name = labelled("ebbmq_queue_leases_expired_total", queue="q")
        deadline = time.monotonic() + 20
        while samples(served.ask("GET", "/metrics"))[name] != 1:
            assert time.monotonic() < deadline

    def test_the_process_and_its_disk_are_measured(self, served: Served) -> None:
        before = samples(served.ask("GET", "/metrics"))
        served.broker.publish("q", Message(b"x"), confirm="synced")
        after = samples(served.ask("GET", "/metrics"))
        flushes = labelled("ebbmq_io_sync_ops_total")
        assert after[flushes] > before[flushes]
        for name in ("resident_memory_bytes", "open_fds", "max_fds", "cpu_seconds_total"):
            assert after[labelled(f"ebbmq_process_{name}")] > 0
        assert after[labelled("ebbmq_disk_space_available_bytes")] > 0
        assert after[labelled("ebbmq_journal_bytes")] > 0
        assert after[labelled("ebbmq_ready")] == 1

    def test_refusals_are_counted_by_status_and_code(self, tmp_path: Path) -> None:
        bounds = {"receive_timeout_ms": 300, "request_bytes_max": 2_048}
        name = "ebbmq_http_refused_total"
        expected = {
            ("404", "unknown_queue"): 2,
            ("404", "unknown_path"): 1,
            ("405", "method_not_allowed"): 1,
            ("408", "too_slow"): 1,
            ("413", "too_large"): 1,
            ("429", "queue_full"): 1,
            ("503", "draining"): 1,
            ("503", "too_many_connections"): 0,
            ("401", "unauthenticated"): 0,
        }
        with Served(tmp_path / "data", bounds) as served:
            served.broker.declare(QueueSpec("full", max_messages=1))
            two = {"messages": [{"text": "x"}, {"text": "y"}]}
            served.ask("GET", "/v1/queues/none")
            served.ask("POST", "/v1/queues/none/messages", two)
            served.ask("GET", "/nowhere")
            served.ask("DELETE", "/metrics")
            served.ask("POST", "/v1/queues/q/messages", bytes(4_096))
            served.ask("POST", "/v1/queues/full/messages", two)
            with served.connect() as slow:
                slow.sendall(b"GET /")
                assert b" 408 " in read_answer(slow)
            served.context.draining = True
            served.ask("POST", "/v1/queues/q/messages", two)
            found = samples(served.ask("GET", "/metrics"))
        assert {
            (status, code): found[labelled(name, status=status, code=code)]
            for status, code in expected
        } == expected

    def test_connections_that_are_refused_are_counted(self, tmp_path: Path) -> None:
        name = labelled("ebbmq_http_refused_total", status="503", code="too_many_connections")
        with Served(tmp_path / "data", {"connections_max": 1}) as served:
            with served.connect(), served.connect() as one_too_many:
                assert b" 503 " in read_answer(one_too_many)
            deadline = time.monotonic() + 20
            while (answer := served.ask("GET", "/metrics")).status != 200:
                assert time.monotonic() < deadline
        assert samples(answer)[name] >= 1

    def test_any_name_is_a_label(self, served: Served) -> None:
        served.broker.declare(QueueSpec(STRANGE))
        found = samples(served.ask("GET", "/metrics"))
        assert found[labelled("ebbmq_queue_messages_ready", queue=STRANGE)] == 0

    def test_counters_start_at_zero_with_the_process(self, tmp_path: Path) -> None:
        name = labelled("ebbmq_queue_messages_published_total", queue="q")
        for _ in range(2):
            with Served(tmp_path / "data") as served:
                assert samples(served.ask("GET", "/metrics"))[name] == 0
                served.broker.publish("q", Message(b"x"))
                assert samples(served.ask("GET", "/metrics"))[name] == 1


def request(method: bytes, path: str) -> bytes:
    return b"%s %s HTTP/1.1\r\nhost: localhost\r\n\r\n" % (method, path.encode())


class TestHealth:
    def test_a_sound_server_is_live_and_ready(self, served: Served) -> None:
        assert served.ask("GET", "/health/live").json == {"live": True}
        answer = served.ask("GET", "/health/ready")
        assert (answer.status, answer.json["ready"]) == (200, True)

    @pytest.mark.parametrize("path", ["/health/live", "/health/ready", "/metrics", "/", "/docs"])
    def test_a_probe_may_leave_out_the_body(self, served: Served, path: str) -> None:
        with served.connect() as raw:
            # The second answer is readable only if the first one had no body.
            raw.sendall(b"".join(request(method, path) for method in (b"HEAD", b"GET")))
            with raw.makefile("rb") as stream:
                head = [stream.readline() for _ in range(2)]
                while stream.readline() != b"\r\n":
                    pass
                assert head[0] == stream.readline() == b"HTTP/1.1 200 OK\r\n"

    def test_a_draining_server_is_live_and_says_why_it_is_not_ready(self, served: Served) -> None:
        served.context.draining = True
        answer = served.ask("GET", "/health/ready")
        assert answer.status == 503
        assert [problem["code"] for problem in answer.json["problems"]] == ["draining"]
        assert served.ask("GET", "/health/live").status == 200

    def test_a_store_in_doubt_says_why(self, served: Served) -> None:
        served.broker.engine.clock_doubt = "the clock is a year behind"
        answer = served.ask("GET", "/health/ready")
        assert answer.status == 503
        assert answer.json["problems"] == [
            {"code": "store", "detail": "the clock is a year behind"}
        ]
        assert b"a year behind" in served.ask("GET", "/").body
        assert b"not ready" in served.ask("GET", "/").body
        served.broker.engine.clock_doubt = None

    def test_a_closed_broker_is_live_and_not_ready(self, served: Served) -> None:
        served.broker.close()
        assert served.ask("GET", "/health/live").status == 200
        assert served.ask("GET", "/health/ready").status == 503
        assert served.ask("GET", "/v1/queues").json["code"] == "closed_broker"


class Page(HTMLParser):
    """Tags, texts and what a page would load or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.loads: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""
        self.open: list[str] = []
        self.feed(text)

    @override
    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        if tag not in {"meta", "link"}:
            self.open.append(tag)
        for name, value in attrs:
            self.attributes.add(name)
            if name in {"src", "href"} and not (value or "").startswith(("data:", "/", "#")):
                self.loads.append(value or "")

    @override
    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    @override
    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)

    @override
    def handle_data(self, data: str) -> None:
        self.text += data


def page_of(answer: Answer) -> Page:
    assert answer.headers["content-type"].startswith("text/html")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    page = Page(answer.body.decode())
    assert page.open == []
    assert page.loads == []
    assert "script" not in page.tags
    assert not {"style", "onclick", "onload", "onerror"} & page.attributes
    return page


class TestPages:
    def test_the_start_page_shows_queues_by_importance_and_age(self, served: Served) -> None:
        served.broker.publish("q", [Message(b"x", importance=9) for _ in range(1_234)])
        page = page_of(served.ask("GET", "/"))
        assert "1,234" in page.text
        assert "importance 9: 1,234" in page.text
        assert f"curl -s -X PUT http://127.0.0.1:{served.port}/v1/queues/hello" in page.text

    def test_no_name_becomes_part_of_the_page(self, served: Served) -> None:
        served.broker.declare(QueueSpec(STRANGE))
        page = page_of(served.ask("GET", "/"))
        assert STRANGE in page.text

    @pytest.mark.parametrize("host", ['localhost"><script>', "localhost/x", "localhost:99999999"])
    def test_a_strange_host_is_not_repeated(self, served: Served, host: str) -> None:
        assert host.encode() not in served.ask("GET", "/", headers={"host": host}).body

    def test_a_server_without_queues_says_how_to_make_one(self, served: Served) -> None:
        served.broker.delete("q")
        assert "none yet" in page_of(served.ask("GET", "/")).text

    def test_many_queues_are_cut_off_with_a_word(self, served: Served) -> None:
        for number in range(201):
            served.broker.declare(QueueSpec(f"queue-{number:03}"))
        assert "and 2 more" in page_of(served.ask("GET", "/")).text

    def test_the_style_is_the_one_the_policy_knows(self, served: Served) -> None:
        answer = served.ask("GET", "/")
        [style] = re.findall(r"<style>(.*?)</style>", answer.body.decode(), re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
        assert f"'sha256-{digest}'" in answer.headers["content-security-policy"]

    def test_the_manual_names_every_operation(self, served: Served) -> None:
        text = page_of(served.ask("GET", "/docs")).text
        for path, methods in document()["paths"].items():
            assert path in text
            for operation in methods.values():
                assert operation["summary"] in text

    @pytest.mark.parametrize(
        ("seconds", "said"),
        [(0, "0 ms"), (0.25, "250 ms"), (59, "59 s"), (61, "1 min 1 s"), (90_061, "1 d 1 h")],
    )
    def test_durations_read_well(self, seconds: float, said: str) -> None:
        assert duration(seconds) == said

    @pytest.mark.parametrize(
        ("nbytes", "said"),
        [(12, "12 B"), (2_048, "2 KiB"), (5 << 20, "5 MiB"), (3 << 29, "1.5 GiB")],
    )
    def test_sizes_read_well(self, nbytes: int, said: str) -> None:
        assert size(nbytes) == said


class TestOpenApi:
    def test_it_is_served_as_it_is_made(self, served: Served) -> None:
        assert served.ask("GET", "/openapi.json").json == json.loads(codec.encode(document()))

    def test_every_route_is_described_and_nothing_else(self, served: Served) -> None:
        described = {
            (method.upper(), path)
            for path, methods in document()["paths"].items()
            for method in methods
        }
        # The pages and the document itself are for people, or describe themselves.
        undescribed = {("GET", "/"), ("GET", "/docs"), ("GET", "/openapi.json")}
        served_here = {
            (method, re.sub(r":\w+}", "}", path))
            for handler in management.handlers(served.context)
            for path in handler.paths
            for method in handler.http_methods
        } | message_verbs()
        assert described == served_here - undescribed

    def test_every_reference_leads_somewhere(self) -> None:
        described = document()
        references = set(re.findall(r"'#/components/(\w+)/(\w+)'", str(described)))
        assert references
        for kind, name in references:
            assert name in described["components"][kind]

    def test_names_of_operations_are_used_once(self) -> None:
        names = [
            operation["operationId"]
            for methods in document()["paths"].values()
            for operation in methods.values()
        ]
        assert len(names) == len(set(names))


def message_verbs() -> set[tuple[str, str]]:
    found: set[tuple[str, str]] = set()
    for kind, name in (("queues", "{queue}"), ("topics", "{topic}")):
        for verb in ("messages", "leases", "reads", "acks", "retries", "releases", "extensions"):
            for tail in ("", "/{name}"):
                path = f"/v1/{kind}/{name}/{verb}{tail}"
                found |= {(method, path) for method in methods_of(path)}
    return found


def methods_of(path: str) -> list[str]:
    found = []
    for method in ("GET", "POST", "PUT", "DELETE"):
        try:
            if routes.parse(method, path.encode()) is not None:
                found.append(method)
        except UnknownPath:
            continue
    return found


def test_the_page_on_metrics_names_those_there_are(served: Served) -> None:
    text = served.ask("GET", "/metrics").body.decode()
    there = {re.split(r"[{ ]", line)[0] for line in text.splitlines() if not line.startswith("#")}
    there |= set(re.findall(r"# TYPE (\w+)", text))
    told = set(re.findall(r"`(ebbmq_\w+)", (ROOT / "docs" / "http.md").read_text()))
    assert told
    assert told <= there
