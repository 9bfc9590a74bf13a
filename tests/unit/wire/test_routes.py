"""Paths of message verbs, and all the others."""

from __future__ import annotations

from contextlib import suppress
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ebbmq.errors import InvalidRequest, UnknownPath
from ebbmq.wire.http import routes
from ebbmq.wire.http.routes import Route


@pytest.mark.parametrize(
    ("method", "path", "route"),
    [
        ("POST", "/v1/queues/q/messages", Route("publish", "q")),
        ("GET", "/v1/queues/q/messages", Route("peek", "q")),
        ("POST", "/v1/queues/q/leases", Route("lease", "q")),
        ("GET", "/v1/queues/q/leases/n", Route("read_lease", "q", "n")),
        ("POST", "/v1/queues/q/acks", Route("ack", "q")),
        ("POST", "/v1/queues/q/retries", Route("retry", "q")),
        ("POST", "/v1/queues/q/releases", Route("release", "q")),
        ("POST", "/v1/queues/q/extensions", Route("extend", "q")),
        ("POST", "/v1/topics/t/messages", Route("publish_topic", "t")),
        ("GET", "/v1/queues/q", None),
        ("POST", "/v1/queues/q/messages/x", None),
        ("POST", "/v1/topics/t/leases", None),
        ("POST", "/v2/queues/q/messages", None),
        ("POST", "x/v1/queues/q/messages", None),
        ("GET", "/", None),
        ("GET", "", None),
    ],
)
def test_a_path_names_its_verb(method: str, path: str, route: Route | None) -> None:
    assert routes.parse(method, path.encode()) == route


@pytest.mark.parametrize(
    "path",
    [
        "/v1/queues/q/messages/",
        "/v1/queues/q/leases/",
        "/v1/queues//messages",
        "//v1/queues/q/messages",
        "/v1/queues/q/",
        "/v1/queues/",
        "/docs/",
        "//",
    ],
)
def test_a_path_with_an_empty_part_is_unknown(path: str) -> None:
    with pytest.raises(UnknownPath, match="empty") as caught:
        routes.parse("POST", path.encode())
    assert "slash" in caught.value.action


@given(st.text(st.characters(codec="utf-8"), min_size=1))
def test_any_name_can_stand_in_a_path(name: str) -> None:
    raw = quote(name, safe="").encode()
    assert routes.parse("POST", b"/v1/queues/%s/acks" % raw) == Route("ack", name)


@given(st.text(), st.binary())
def test_any_path_is_a_verb_or_not_or_refused(method: str, path: bytes) -> None:
    for raw in (path, b"/v1/queues/" + path, b"/v1/queues/q/leases/" + path):
        with suppress(InvalidRequest, UnknownPath):
            routes.parse(method, raw)


@given(st.binary())
def test_any_query_is_read_or_refused(query: bytes) -> None:
    with suppress(InvalidRequest):
        found = routes.parameters(query, ("count",))
        assert set(found) <= {"count"}
        assert (routes.whole(found, "count") or 0) >= 0


def test_a_path_with_another_method_says_which() -> None:
    with pytest.raises(UnknownPath, match="use POST or GET") as caught:
        routes.parse("DELETE", b"/v1/queues/q/messages")
    assert caught.value.code == "method_not_allowed"
    assert routes.allowed(b"/v1/queues/q/messages") == "POST, GET"
