"""Where a server is: a URL taken apart, and the TLS settings that go with it."""

from __future__ import annotations

import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote, urlsplit

from ebbmq.errors import InvalidSpec

_PORTS: Final = {"http": 80, "https": 443}
_EXAMPLE: Final = "use a URL such as http://127.0.0.1:8080 or https://queue.example:8443"


@dataclass(frozen=True, slots=True)
class Address:
    """A server's URL in the parts a connection needs."""

    url: str
    host: str
    port: int
    #: Put before every path: the server may stand behind a proxy that gives it a part of a site.
    prefix: str
    tls: ssl.SSLContext | None
    #: Header lines that every request has.
    headers: str


def address(
    url: str, token: str | None, ca_file: str | Path | None, tls: ssl.SSLContext | None
) -> Address:
    """Take a URL apart.

    Raises:
        InvalidSpec: it is not the URL of a server, or the token or the CA file cannot be used.
    """
    scheme, host, port, path = _split(url)
    shown = f"[{host}]" if ":" in host else host
    netloc = shown if port == _PORTS[scheme] else f"{shown}:{port}"
    headers = f"host: {netloc}\r\n"
    if token is not None:
        headers += f"authorization: Bearer {_checked(token)}\r\n"
    return Address(
        f"{scheme}://{netloc}{path}",
        host,
        port,
        quote(path, safe="/%"),
        _context(scheme, ca_file, tls),
        headers,
    )


def _split(url: str) -> tuple[str, str, int, str]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except (ValueError, TypeError, AttributeError) as error:
        raise InvalidSpec(f"{url!r:.80} is not a URL: {error}", _EXAMPLE) from error
    if parts.scheme not in _PORTS or not parts.hostname:
        raise InvalidSpec(f"{url!r:.80} is not the URL of a server", _EXAMPLE)
    if parts.username is not None or parts.password is not None:
        raise InvalidSpec(
            f"the URL of {parts.hostname} has a user in it", "give the token as token=.. instead"
        )
    if parts.query or parts.fragment:
        raise InvalidSpec(f"{url!r:.80} has a query or a fragment", _EXAMPLE)
    return parts.scheme, parts.hostname, port or _PORTS[parts.scheme], parts.path.rstrip("/")


def _checked(token: object) -> str:
    if not isinstance(token, str) or not token.isascii() or not token.isprintable() or not token:
        # The token is a secret: the message must not show it.
        raise InvalidSpec(
            "the token is not a line of printable ASCII characters",
            "give it as `ebbmq users add` printed it, without a line end",
        )
    return token


def _context(
    scheme: str, ca_file: str | Path | None, tls: ssl.SSLContext | None
) -> ssl.SSLContext | None:
    if scheme == "http":
        if ca_file is not None or tls is not None:
            raise InvalidSpec("TLS settings are given for an http:// URL", "use https://")
        return None
    if tls is not None:
        return tls
    try:
        return ssl.create_default_context(cafile=None if ca_file is None else str(Path(ca_file)))
    except (OSError, ssl.SSLError) as error:
        raise InvalidSpec(
            f"cannot read certificates from {ca_file}: {error.strerror or error}",
            "give a PEM file with the certificate the server's was signed with",
        ) from error
