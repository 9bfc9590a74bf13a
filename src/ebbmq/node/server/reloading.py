"""What a running server can change when it is told to read its settings again."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final

from ebbmq.errors import EbbError, InvalidSpec
from ebbmq.node import config as configuration
from ebbmq.node import rule_changes
from ebbmq.node.log import log
from ebbmq.node.server import logs

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.node.config import Config, HttpConfig
    from ebbmq.node.server.context import Context

#: What counts from the next request or connection on; the rest was built in at the start.
CHANGEABLE: Final = frozenset(
    (
        "http.tls_certificate",
        "http.tls_key",
        "http.tls_key_password",
        "http.connections_max",
        "http.request_bytes_max",
        "http.pending_bytes_max",
        "http.receive_timeout_ms",
        "http.idle_timeout_ms",
        "http.drain_timeout_ms",
        "log.format",
        "log.level",
        "placement.strategy",
        "placement.combine",
        "placement.bias",
        "placement.softness",
        "rules",
    )
)


def secure(config: HttpConfig, tls: ssl.SSLContext | None = None) -> ssl.SSLContext | None:
    """The TLS context of a configuration; a given one takes over its certificate.

    Raises:
        InvalidSpec: the certificate or the key cannot be read or do not belong together.
    """
    if config.tls_certificate is None or config.tls_key is None:
        return None
    fresh = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    fresh.minimum_version = ssl.TLSVersion.TLSv1_2
    # A pair that does not match must not be half taken over by the context that is in use.
    for context in (fresh, tls) if tls is not None else (fresh,):
        try:
            context.load_cert_chain(
                config.tls_certificate, config.tls_key, lambda: config.tls_key_password or ""
            )
        except (OSError, ssl.SSLError) as error:
            raise InvalidSpec(
                f"cannot use {config.tls_certificate} with {config.tls_key}: {error}",
                "give a PEM certificate, with its chain, and the key that belongs to it",
            ) from error
    return tls or fresh


async def reload(context: Context, read: Callable[[], Config], tls: ssl.SSLContext | None) -> None:
    """Take over what changed and can change; a mistake changes nothing and is logged.

    Thousands of rules take seconds to read and to make ready: requests are answered meanwhile.
    """
    engine = context.broker.engine
    try:
        fresh = await asyncio.to_thread(read)
        rules = await asyncio.to_thread(rule_changes.prepare, engine, fresh)
        before, after = _all(context.config), _all(fresh)
        changed = [name for name in after if after[name] != before[name]]
        # Certificates can be exchanged; TLS itself cannot come or go while the server listens.
        has_tls = tls is not None and secure(fresh.http, tls) is not None
        fixed = [
            name
            for name in changed
            if name not in CHANGEABLE or (name.startswith("http.tls_") and not has_tls)
        ]
        await asyncio.to_thread(rule_changes.configure, engine, rules)
    except EbbError as error:
        log.error("reload_refused", detail=error.detail, action=error.action)
        return
    logs.configure(fresh.log)
    context.config = configuration.changed(fresh, {name: before[name] for name in fixed})
    context.access.refresh()
    for name in fixed:
        log.warning("restart_needed", setting=name, action="it counts after the next start")
    log.info("reloaded", changed=[name for name in changed if name not in fixed])


def _all(config: Config) -> dict[str, object]:
    return configuration.settings(config, hide=False)
