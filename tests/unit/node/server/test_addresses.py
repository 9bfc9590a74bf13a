"""Where a server may listen, and which certificates it can use."""

from __future__ import annotations

import socket
import ssl
from pathlib import Path

import pytest

from ebbmq.errors import ClientError, InvalidSpec
from ebbmq.node.config import HttpConfig
from ebbmq.node.server import addresses
from ebbmq.node.server.reloading import secure

CERTIFICATES = Path(__file__).parents[3] / "certificates"


def tls(key: str = "first.key") -> dict[str, str]:
    return {
        "tls_certificate": str(CERTIFICATES / "first.pem"),
        "tls_key": str(CERTIFICATES / key),
    }


def refusal(config: HttpConfig, *, has_users: bool) -> str:
    with pytest.raises(ClientError) as refused:
        addresses.bind(config, has_users=has_users)
    assert refused.value.action
    return refused.value.code


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "::ffff:192.0.2.1"])
def test_nobody_listens_elsewhere_without_users_or_without_tls(host: str) -> None:
    for options in ({}, {"insecure_plain_http": True}, tls()):
        assert refusal(HttpConfig(host=host, **options), has_users=False) == "users_needed"
    assert refusal(HttpConfig(host=host), has_users=True) == "tls_needed"


@pytest.mark.parametrize("options", [{"insecure_plain_http": True}, tls()], ids=["told to", "tls"])
def test_with_users_it_listens_everywhere_with_tls_or_when_told_to(
    options: dict[str, object],
) -> None:
    (bound,) = addresses.bind(HttpConfig(host="0.0.0.0", port=0, **options), has_users=True)
    bound.close()


def test_this_machine_needs_neither() -> None:
    (bound,) = addresses.bind(HttpConfig(port=0), has_users=False)
    with bound:
        port = bound.getsockname()[1]
        assert addresses.url(HttpConfig(), bound) == f"http://127.0.0.1:{port}"
        assert addresses.url(HttpConfig(**tls()), bound) == f"https://127.0.0.1:{port}"


def test_every_address_of_a_name_gets_the_same_port() -> None:
    bound = addresses.bind(HttpConfig(host="localhost", port=0), has_users=False)
    assert len({each.getsockname()[1] for each in bound}) == 1
    for each in bound:
        each.close()


def test_a_port_that_is_taken_and_a_host_that_is_not_known_have_names() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        config = HttpConfig(port=taken.getsockname()[1])
        assert refusal(config, has_users=False) == "address_in_use"
    assert refusal(HttpConfig(host="no.such.host.invalid"), has_users=False) == "unknown_host"
    assert refusal(HttpConfig(host="a" * 300), has_users=False) == "unknown_host"


@pytest.mark.parametrize("key", ["second.key", "first.locked.key", "none.key", "README"])
def test_a_key_that_cannot_be_used_is_refused_by_name(key: str) -> None:
    with pytest.raises(InvalidSpec, match=key):
        secure(HttpConfig(**tls(key)))


def test_a_locked_key_is_opened_with_its_password() -> None:
    assert secure(HttpConfig(**tls("first.locked.key"), tls_key_password="sesame")) is not None
    with pytest.raises(InvalidSpec) as refused:
        secure(HttpConfig(**tls("first.locked.key"), tls_key_password="wrong secret"))
    assert "wrong secret" not in str(refused.value)


def test_old_versions_of_tls_are_not_spoken() -> None:
    context = secure(HttpConfig(**tls()))
    assert context is not None
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
