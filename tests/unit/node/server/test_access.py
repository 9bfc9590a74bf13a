"""Who is let in, and what each scope opens."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING

import pytest

from ebbmq import limits
from ebbmq.errors import Forbidden, Unauthenticated, UnknownQueue
from ebbmq.node.server.access import LOCAL, Access, is_loopback
from ebbmq.node.server.users import Users

if TYPE_CHECKING:
    from pathlib import Path

HERE, ELSEWHERE = "127.0.0.1", "192.0.2.7"


def bearer(token: str) -> bytes:
    return f"Bearer {token}".encode()


@pytest.mark.parametrize(
    "address", ["127.0.0.1", "127.8.8.8", "::1", "::ffff:127.0.0.1", "::FFFF:7f00:1", "::1%lo"]
)
def test_every_spelling_of_this_machine_is_loopback(address: str) -> None:
    assert is_loopback(address)


@pytest.mark.parametrize(
    "address",
    ["0.0.0.0", "::", "192.0.2.7", "::ffff:192.0.2.7", "::127.0.0.1", "localhost", "", "127.1"],
)
def test_anything_else_is_not_loopback(address: str) -> None:
    assert not is_loopback(address)


@pytest.mark.parametrize("peer", ["127.0.0.1", "::1", "::ffff:127.0.0.1"])
def test_without_users_this_machine_may_do_everything(tmp_path: Path, peer: str) -> None:
    access = Access(tmp_path)
    caller = access.caller(None, peer, [(b"host", b"127.0.0.1:8080")])
    assert caller is LOCAL
    for scope in ("publish", "consume", "manage"):
        access.check(caller, scope, "orders")
        access.check(caller, scope, None)
        access.check_topic(caller, scope, "news")


@pytest.mark.parametrize("peer", [ELSEWHERE, "::ffff:192.0.2.7", "2001:db8::1", None, ""])
def test_without_users_nobody_else_is_let_in(tmp_path: Path, peer: str | None) -> None:
    with pytest.raises(Unauthenticated):
        Access(tmp_path).caller(None, peer)


@pytest.mark.parametrize(
    "header",
    [
        (b"host", b"evil.example:8080"),
        (b"host", b"127.0.0.1.evil.example"),
        (b"origin", b"https://evil.example"),
        (b"origin", b"null"),
        (b"forwarded", b"for=192.0.2.7"),
        (b"x-forwarded-for", b"127.0.0.1"),
    ],
)
def test_without_users_a_proxy_or_a_web_page_is_not_this_machine(
    tmp_path: Path, header: tuple[bytes, bytes]
) -> None:
    with pytest.raises(Unauthenticated, match="only this machine"):
        Access(tmp_path).caller(None, HERE, [(b"accept", b"*/*"), header])


@pytest.mark.parametrize(
    "header",
    [
        (b"host", b"localhost"),
        (b"host", b"LOCALHOST:8080"),
        (b"host", b"[::1]:8080"),
        (b"host", b"127.0.0.1"),
        (b"origin", b"http://localhost:3000"),
        (b"origin", b"http://[::1]:3000"),
    ],
)
def test_without_users_a_call_to_this_machine_by_any_of_its_names_is_let_in(
    tmp_path: Path, header: tuple[bytes, bytes]
) -> None:
    assert Access(tmp_path).caller(None, HERE, [header]) is LOCAL


def test_with_users_this_machine_needs_a_token_too(tmp_path: Path) -> None:
    access = Access(tmp_path)
    local = access.caller(None, HERE)
    Users(tmp_path).add("shop", {"publish": ("*",)})
    with pytest.raises(Unauthenticated):
        access.caller(None, HERE)
    with pytest.raises(Unauthenticated):
        access.check(local, "publish", "orders")


@pytest.mark.parametrize("peer", [HERE, ELSEWHERE, None])
def test_a_token_counts_from_anywhere(tmp_path: Path, peer: str | None) -> None:
    token = Users(tmp_path).add("shop", {"publish": ("*",)})
    access = Access(tmp_path)
    assert access.caller(bearer(token), peer).name == "shop"
    assert access.caller(b"bearer  " + token.encode() + b" ", peer).name == "shop"


@pytest.mark.parametrize(
    "value",
    [b"", b"Bearer", b"Bearer ", b"Bearer nonsense", b"Basic Z3Vlc3Q6Z3Vlc3Q=", b"\xff\xfe"],
)
def test_anything_but_a_valid_token_is_refused_even_from_this_machine(
    tmp_path: Path, value: bytes
) -> None:
    access = Access(tmp_path)
    with pytest.raises(Unauthenticated):
        access.caller(value, HERE)
    Users(tmp_path).add("shop", {"publish": ("*",)})
    with pytest.raises(Unauthenticated):
        access.caller(value, HERE)


def test_the_hash_of_a_token_is_not_a_token(tmp_path: Path) -> None:
    Users(tmp_path).add("shop", {"publish": ("*",)})
    kept = Users(tmp_path).read()["shop"].token_sha256
    with pytest.raises(Unauthenticated):
        Access(tmp_path).caller(bearer(kept), HERE)


def test_a_removed_token_stops_at_once_also_for_a_request_under_way(tmp_path: Path) -> None:
    users = Users(tmp_path)
    token, _ = users.add("shop", {"consume": ("*",)}), users.add("ops", {"manage": ("*",)})
    access = Access(tmp_path)
    caller = access.caller(bearer(token), HERE)
    users.remove("shop")
    with pytest.raises(Unauthenticated):
        access.check(caller, "consume", "orders")
    with pytest.raises(Unauthenticated):
        access.caller(bearer(token), HERE)


def test_the_token_of_the_last_user_stops_as_well(tmp_path: Path) -> None:
    users = Users(tmp_path)
    token = users.add("shop", {"consume": ("*",)})
    access = Access(tmp_path)
    users.remove("shop")
    with pytest.raises(Unauthenticated):
        access.caller(bearer(token), HERE)
    assert access.caller(None, HERE) is LOCAL


def test_a_user_added_again_under_the_same_name_has_only_the_new_token(tmp_path: Path) -> None:
    users = Users(tmp_path)
    old = users.add("shop", {"publish": ("*",)})
    access = Access(tmp_path)
    caller = access.caller(bearer(old), HERE)
    users.remove("shop")
    new = users.add("shop", {"publish": ("*",)})
    assert access.caller(bearer(new), HERE).name == "shop"
    with pytest.raises(Unauthenticated):
        access.check(caller, "publish", "orders")


@pytest.mark.parametrize("text", [b"{", b'{"users": 3}', b'{"users": {"a": {"tokn": "x"}}}', b""])
def test_a_users_file_that_cannot_be_read_lets_nobody_in(tmp_path: Path, text: bytes) -> None:
    token = Users(tmp_path).add("shop", {"publish": ("*",)})
    access = Access(tmp_path)
    (tmp_path / "users.json").write_bytes(text)
    for authorization in (None, bearer(token)):
        with pytest.raises(Unauthenticated):
            access.caller(authorization, HERE)
    assert access.has_users


@pytest.fixture
def access(tmp_path: Path) -> Access:
    return Access(tmp_path)


def caller_with(tmp_path: Path, access: Access, **patterns: tuple[str, ...]) -> object:
    token = Users(tmp_path).add("shop", patterns)
    return access.caller(bearer(token), ELSEWHERE)


@pytest.mark.parametrize("held", ["publish", "consume", "manage"])
@pytest.mark.parametrize("asked", ["publish", "consume", "manage"])
def test_a_scope_opens_itself_and_nothing_else(
    tmp_path: Path, access: Access, held: str, asked: str
) -> None:
    caller = caller_with(tmp_path, access, **{held: ("orders.*",)})
    if held == asked:
        access.check(caller, asked, "orders.new")
    else:
        with pytest.raises(Forbidden):
            access.check(caller, asked, "orders.new")
    with pytest.raises(UnknownQueue):
        access.check(caller, asked, "billing")
    with pytest.raises(Forbidden):
        access.check(caller, asked, None)


@pytest.mark.parametrize(
    ("pattern", "matches", "misses"),
    [
        ("orders", ["orders"], ["orders.new", "Orders", "order"]),
        ("orders.*", ["orders.new", "orders.", "orders.a.b"], ["orders", "xorders.new"]),
        ("order?", ["orders"], ["order", "orders2"]),
        ("[ab]", ["a", "b"], ["c", "[ab]"]),
        ("*", ["a", "topic:a", "a\nb"], []),
        ("topic:news", [], ["news", "topic:news"]),
        ("topic:*", [], ["news", "topic:news"]),
    ],
)
def test_a_pattern_matches_queues(
    tmp_path: Path, access: Access, pattern: str, matches: list[str], misses: list[str]
) -> None:
    caller = caller_with(tmp_path, access, consume=(pattern,))
    assert [name for name in matches if not access.may_see(caller, name)] == []
    assert [name for name in misses if access.may_see(caller, name)] == []


@pytest.mark.parametrize(
    ("pattern", "matches", "misses"),
    [
        ("topic:news", ["news"], ["news2", "topic:news"]),
        ("topic:n*", ["news"], ["old"]),
        ("*", ["news"], []),
        ("news", [], ["news"]),
        ("n*", [], ["news"]),
    ],
)
def test_a_pattern_matches_topics_only_when_it_says_so(
    tmp_path: Path, access: Access, pattern: str, matches: list[str], misses: list[str]
) -> None:
    caller = caller_with(tmp_path, access, publish=(pattern,))
    assert [name for name in matches if not access.may_see_topic(caller, name)] == []
    assert [name for name in misses if access.may_see_topic(caller, name)] == []
    for name in misses:
        with pytest.raises(UnknownQueue):
            access.check_topic(caller, "publish", name)


def test_long_names_and_hosts_are_judged_and_not_remembered(tmp_path: Path) -> None:
    access = Access(tmp_path)
    tracemalloc.start()
    try:
        for number in range(100):
            name = f"{number:03}" + "x" * 60_000
            access.check(LOCAL, "publish", name)
            access.check_topic(LOCAL, "publish", name)
            with pytest.raises(Unauthenticated):
                access.caller(None, "127.0.0.1", [(b"host", name.encode())])
            del name
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < limits.MIB
