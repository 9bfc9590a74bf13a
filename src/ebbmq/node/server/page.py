"""The start page: what runs, how its queues are doing, and how to publish the first message."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any, Final

from litestar import get

from ebbmq import __version__, limits
from ebbmq.errors import Unauthenticated
from ebbmq.model import LOSSES, gone
from ebbmq.node.server.asking import Answer, Asking, caller_of
from ebbmq.node.server.health import readiness
from ebbmq.node.server.html import Markup, joined, page, tag
from ebbmq.node.server.metrics import resident_bytes
from ebbmq.node.server.page_devices import devices_table
from ebbmq.node.server.page_rules import rules_table
from ebbmq.node.server.queues import views
from ebbmq.node.server.words import duration, size

if TYPE_CHECKING:
    from collections.abc import Sequence

    from litestar.handlers import HTTPRouteHandler

    from ebbmq.node.server.context import Context

Stats = dict[str, Any]

_AGAIN_S: Final = 5
_SHOWN_MAX: Final = 200
_HOST: Final = re.compile(
    r"[A-Za-z0-9.\-]{1,253}(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]{2,45}\](:[0-9]{1,5})?"
)


class StartPage:
    """The endpoint /."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[HTTPRouteHandler]:
        """What Litestar serves."""
        return [get("/")(self.show)]

    async def show(self, request: Asking) -> Answer:
        """The page; who has no token where one is needed sees how to use one, and nothing else."""
        url = _url(self._context, request)
        try:
            caller = caller_of(self._context, request)
        except Unauthenticated as error:
            body = tag(
                _CLOSED, why=error.detail, action=error.action, steps=_steps(url, token=True)
            )
            return page("EbbMQ", tag(_NAME_ALONE), body, status=401)
        seen = [view["stats"] for view in await views(self._context, caller)]
        health = await readiness(self._context)
        told = [problem.detail for problem in health.problems]
        told += health.damage + health.devices + health.feed + health.pipeline
        sees_all = self._context.access.may_see(caller, None)
        if not sees_all:
            told = ["ask its operator"] if told else []
        storage = await self._storage() if sees_all else Markup("")
        body = joined(
            [
                tag('<p class="bad">{why}</p>', why="; ".join(told)) if told else Markup(""),
                _tiles(seen),
                tag("<h2>Queues</h2>{queues}", queues=_queues(seen)),
                storage,
                _steps(url, token=self._context.access.has_users),
            ]
        )
        return page("EbbMQ", self._head(ready=health.ready), body, again_s=_AGAIN_S)

    async def _storage(self) -> Markup:
        """Where messages are kept: devices, what moves between them, the rules that choose."""
        broker = self._context.broker
        devices, rules = await broker.devices(), await broker.rules()
        return joined([devices_table(devices), rules_table(rules, devices)])

    def _head(self, *, ready: bool) -> Markup:
        up_s = max(0, int(time.time() - self._context.started_at_ms / 1_000))
        return tag(
            _HEAD,
            version=__version__,
            kind="good" if ready else "bad",
            state="ready" if ready else "not ready",
            node=self._context.config.node,
            up=duration(up_s),
        )


_NAME_ALONE: Final = "<h1>EbbMQ</h1>"
_HEAD: Final = (
    '<h1>EbbMQ<small>{version}</small></h1><span class="pill {kind}">{state}</span>'
    '<span class="soft right">node {node}, up {up}</span>'
)
_CLOSED: Final = (
    '<h2>A token is needed</h2><p>{why}.</p><p class="soft">What to do: {action}.</p>{steps}'
)


def _url(context: Context, request: Asking) -> str:
    """Where this server is, as the caller reached it; a strange Host header is not repeated."""
    http = context.config.http
    host = request.headers.get("host", "")
    if not _HOST.fullmatch(host):
        host = f"{http.host}:{http.port}"
    return f"{request.scope['scheme']}://{host}"


def _tiles(seen: Sequence[Stats]) -> Markup:
    rate = {verb: sum(stats["rates"][verb] for stats in seen) for verb in ("publish", "ack")}
    tiles = (
        (f"{sum(stats['depth']['ready'] for stats in seen):,}", "messages ready"),
        (f"{sum(stats['depth']['leased'] for stats in seen):,}", "under a lease"),
        (duration(max((s["oldest_age_ms"] for s in seen), default=0) / 1_000), "oldest message"),
        (f"{rate['publish']:,.0f} / s", "published"),
        (f"{rate['ack']:,.0f} / s", "acked"),
        (size(resident_bytes()), "RAM"),
    )
    shown = [tag('<div class="tile"><b>{v}</b><span>{n}</span></div>', v=v, n=n) for v, n in tiles]
    return tag('<div class="tiles">{tiles}</div>', tiles=joined(shown))


_COLUMNS: Final = (
    "queue",
    "by importance",
    "ready",
    "leased",
    "scheduled",
    "oldest",
    "published/s",
    "acked/s",
    "let go",
    "lost",
    "dead-lettered",
)
#: Reasons for which messages leave because they are worth nothing more.
_LET_GO: Final = ("stale", "expired", "retention", "faded")


def _queues(seen: Sequence[Stats]) -> Markup:
    if not seen:
        return Markup('<p class="soft">There are none yet. The first command below makes one.</p>')
    head = joined([tag("<th>{name}</th>", name=name) for name in _COLUMNS])
    rows = joined([_row(stats) for stats in seen[:_SHOWN_MAX]])
    more = len(seen) - _SHOWN_MAX
    return tag(
        '<div class="card scroll"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody>'
        "</table></div>{more}",
        head=head,
        rows=rows,
        more=tag('<p class="soft">and {n} more; see /v1/queues</p>', n=more)
        if more > 0
        else Markup(""),
    )


def _row(stats: Stats) -> Markup:
    depth, totals, rates = stats["depth"], stats["totals"], stats["rates"]
    faulty = sum(each["state"] != "ok" for each in stats["partitions"])
    notes = [
        tag('<span class="note">paused</span>') if stats["paused"] else Markup(""),
        tag('<span class="note bad">{n} partition(s) faulty</span>', n=faulty)
        if faulty
        else Markup(""),
    ]
    cells = (
        f"{depth['ready']:,}",
        f"{depth['leased']:,}",
        f"{depth['scheduled']:,}",
        duration(stats["oldest_age_ms"] / 1_000) if sum(depth.values()) else "-",
        f"{rates['publish']:,.0f}",
        f"{rates['ack']:,.0f}",
        _by_reason({reason: gone(totals, reason) for reason in _LET_GO}),
        _by_reason({reason: totals[f"undone_{reason}"] for reason in LOSSES}),
        f"{totals['dead_lettered']:,}",
    )
    return tag(
        '<tr><td title="{name}">{name}{notes}</td><td class="chart">{chart}</td>{cells}</tr>',
        name=stats["queue"],
        notes=joined(notes),
        chart=_chart(stats["by_importance"]),
        cells=joined([tag("<td>{cell}</td>", cell=cell) for cell in cells]),
    )


def _by_reason(counts: dict[str, int]) -> str:
    return ", ".join(f"{count:,} {reason}" for reason, count in counts.items() if count) or "0"


def _chart(by_importance: dict[int, int]) -> Markup:
    """One column per importance, as tall as it has messages."""
    most = max(by_importance.values(), default=0)
    bars = []
    for importance in range(limits.IMPORTANCE_MIN, limits.IMPORTANCE_MAX + 1):
        count = by_importance.get(importance, 0)
        tall = max(2, round(26 * count / most)) if count else 1
        bars.append(
            tag(
                '<rect class="{kind} f{i}" x="{x}" y="{y}" width="11" height="{tall}" rx="1.5">'
                "<title>importance {i}: {count}</title></rect>"
                '<text x="{middle}" y="39">{i}</text>',
                kind="bar" if count else "floor",
                i=importance,
                x=(importance - 1) * 14 + 1,
                middle=(importance - 1) * 14 + 6.5,
                y=30 - tall,
                tall=tall,
                count=f"{count:,}",
            )
        )
    return tag('<svg viewBox="0 0 140 41" role="img">{bars}</svg>', bars=joined(bars))


_PUBLISH: Final = '{"messages": [{"text": "hi", "importance": 9}]}'
_STEP: Final = "<div><h3>{title}</h3><pre>{command}</pre></div>"


def _steps(url: str, *, token: bool) -> Markup:
    """How to use it, to be copied as it stands."""
    curl = "curl -s" + (' -H "Authorization: Bearer $TOKEN"' if token else "")
    known = ", token=TOKEN" if token else ""
    queue = f"{url}/v1/queues/hello"
    steps = (
        ("Make a queue", f"{curl} -X PUT {queue}"),
        ("Publish", _post(f"{curl} {queue}/messages", _PUBLISH)),
        ("Lease", _post(f"{curl} {queue}/leases", '{"count": 10, "wait_ms": 5000}')),
        ("Ack, with the tokens of leases", _post(f"{curl} {queue}/acks", '{"tokens": [".."]}')),
        ("See how it is doing", f"{curl} {queue}"),
        ("In Python", f'from ebbmq import Client\n\nclient = Client("{url}"{known})'),
    )
    shown = joined([tag(_STEP, title=title, command=command) for title, command in steps])
    return tag('<h2>How to use it</h2><div class="steps">{shown}</div>', shown=shown)


def _post(command: str, body: str) -> str:
    return f"{command} \\\n  -d '{body}'"
