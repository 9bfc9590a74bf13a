"""Where the server listens: sockets for a host and a port, and who may listen elsewhere."""

from __future__ import annotations

import errno
import socket
from typing import TYPE_CHECKING

from ebbmq.errors import ClientError
from ebbmq.node.server.access import is_loopback

if TYPE_CHECKING:
    from ebbmq.node.config import HttpConfig


def bind(config: HttpConfig, *, has_users: bool) -> list[socket.socket]:
    """Sockets for every address of the host, bound and not yet listening.

    Raises:
        ClientError: the host is not known, the port is taken, or the address is one where others
            could listen in or come in (`tls_needed`, `users_needed`).
    """
    found = _resolve(config.host, config.port)
    for _, address in found:
        if not is_loopback(address):
            _check_exposure(config, address, has_users=has_users)
    bound: list[socket.socket] = []
    port = config.port
    try:
        for family, address in found:
            try:
                bound.append(_bind(family, address, port))
            except OSError as error:
                # `localhost` is often two addresses of which a machine has one.
                if error.errno != errno.EADDRNOTAVAIL or len(found) == 1:
                    raise _refused(address, port, error) from error
                continue
            port = bound[0].getsockname()[1]
    except BaseException:
        for each in bound:
            each.close()
        raise
    if not bound:
        raise ClientError(
            f"no address of {config.host!r} is one of this machine",
            "listen on 127.0.0.1, or on an address that `ip address` shows",
            code="unknown_host",
        )
    return bound


def url(config: HttpConfig, bound: socket.socket) -> str:
    """How a caller names what listens there."""
    host, port = bound.getsockname()[:2]
    scheme = "http" if config.tls_certificate is None else "https"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


def _resolve(host: str, port: int) -> list[tuple[int, str]]:
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ClientError(
            f"the host {host!r} is not known",
            "use an address such as 127.0.0.1 or 0.0.0.0, or a name this machine can resolve",
            code="unknown_host",
        ) from error
    return list(dict.fromkeys((family, str(address[0])) for family, *_, address in found))


def _bind(family: int, address: str, port: int) -> socket.socket:
    bound = socket.socket(family, socket.SOCK_STREAM)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            # `::` means every address, those of IPv4 as well.
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(address != "::"))
        bound.bind((address, port))
    except BaseException:
        bound.close()
        raise
    return bound


def _check_exposure(config: HttpConfig, address: str, *, has_users: bool) -> None:
    if not has_users:
        raise ClientError(
            f"refusing to listen on {address}: there are no users, so everybody could come in",
            "add a user first: ebbmq users add NAME --publish '*' ..; or listen on 127.0.0.1",
            code="users_needed",
        )
    if config.tls_certificate is None and not config.insecure_plain_http:
        raise ClientError(
            f"refusing to listen on {address} without TLS: tokens could be read on the way",
            "set http.tls_certificate and http.tls_key; or, where something in front encrypts, "
            "say --insecure-plain-http",
            code="tls_needed",
        )


def _refused(address: str, port: int, error: OSError) -> ClientError:
    if error.errno == errno.EADDRINUSE:
        return ClientError(
            f"{address} port {port} is in use",
            "stop what listens there, or choose another port: --http-port",
            code="address_in_use",
        )
    return ClientError(
        f"cannot listen on {address} port {port}: {error.strerror}",
        "choose an address of this machine, and a port above 1023 unless you are root",
        code="cannot_listen",
    )
