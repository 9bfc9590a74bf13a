"""Figures for Prometheus at /metrics, as OpenMetrics text.

Names follow RabbitMQ's plugin where the meaning is the same (`rabbitmq_queue_messages_ready` is
`ebbmq_queue_messages_ready`), so that dashboards can be carried over.

Counters count from the start of the process. The broker's own totals go on over restarts, and fall
back a little after a crash; to Prometheus that would look like a restart from zero, and add all of
them a second time.
"""

from __future__ import annotations

import platform
import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from litestar import Response, get

from ebbmq import __version__
from ebbmq.model import LOSSES, REASON_TEXT
from ebbmq.node.server.asking import Answer, Asking, NoFields, caller_of, query_of
from ebbmq.node.server.health import readiness
from ebbmq.node.server.queues import views

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from litestar.handlers import HTTPRouteHandler

    from ebbmq.feed.advice import Plans
    from ebbmq.model import DeviceStatus
    from ebbmq.node.server.context import Context

CONTENT_TYPE: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"
#: Reasons, and the totals that count them.
_REMOVED: Final = {text: text for text in REASON_TEXT.values()} | {"overflow": "overflowed"}
_DEAD: Final = {
    text: f"dead_lettered_{text}"
    for text in ("stale", "expired", "max_attempts", "overflow", "faded")
}
_LOST: Final = {text: f"undone_{text}" for text in LOSSES}

Labels = tuple[tuple[str, str], ...]
Stats = dict[str, Any]


class Family(NamedTuple):
    """A metric: its name without suffix, its type, what it says, and its samples."""

    name: str
    kind: str
    help: str
    samples: Sequence[tuple[Labels, float]]


_DEPTHS: Final = (
    ("messages_ready", "ready", "Messages that can be leased."),
    ("messages_unacked", "leased", "Messages under a lease."),
    ("messages_scheduled", "scheduled", "Messages that wait for their time."),
    ("messages_replicating", "replicating", "Messages whose confirm level does not hold yet."),
    ("messages_dying", "dying", "Messages that their dead queue has not taken yet."),
)
_GAUGES: Final[tuple[tuple[str, str, Callable[[Stats], float]], ...]] = (
    ("messages", "Messages, whatever their state.", lambda s: sum(s["depth"].values())),
    ("message_bytes", "Bytes of all bodies and headers.", lambda s: s["bytes"]),
    (
        "oldest_message_age_seconds",
        "Age of the oldest message; 0 when there is none.",
        lambda s: s["oldest_age_ms"] / 1_000,
    ),
    (
        "decay_factor",
        "What newly published decay rates are multiplied by.",
        lambda s: s["decay_factor"],
    ),
    ("paused", "1 while no leases are granted.", lambda s: int(s["paused"])),
    ("cache_bytes", "Bytes of bodies in RAM.", lambda s: s["cache"]["bytes"]),
    (
        "partitions_faulty",
        "Partitions that take no requests.",
        lambda s: sum(each["state"] != "ok" for each in s["partitions"]),
    ),
)
#: Counters of a queue: what they are called, which total it is, what they say.
_COUNTERS: Final = (
    ("messages_published", "published", "Messages taken in."),
    ("messages_delivered", "leased", "Leases granted."),
    ("messages_acked", "acked", "Messages whose work was done."),
    ("messages_retried", "retried", "Leases given back as failed."),
    ("messages_released", "released", "Leases given back unused."),
    ("leases_expired", "lease_expired", "Leases that ended before they were settled."),
)


class Metrics:
    """The endpoint /metrics; shows queues the caller may see, and the process."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def routes(self) -> list[HTTPRouteHandler]:
        """What Litestar serves."""
        return [get("/metrics")(self.show)]

    async def show(self, request: Asking) -> Answer:
        """All figures the caller may see."""
        query_of(request, NoFields)
        caller = caller_of(self._context, request)
        seen = [view["stats"] for view in await views(self._context, caller)]
        families = [*of_queues(seen), *await self._of_node(len(seen))]
        if self._context.access.may_see(caller, None):
            families += of_devices(await self._context.broker.devices())
            families += of_feed(await self._context.broker.feed())
            families += of_plans(
                await self._context.broker.plan_outcomes(), await self._context.broker.plans()
            )
        return Response(text_of(families).encode(), headers={"content-type": CONTENT_TYPE})

    async def _of_node(self, queues: int) -> list[Family]:
        journal = await self._context.broker.journal()
        health = await readiness(self._context)
        used = resource.getrusage(resource.RUSAGE_SELF)
        gauges = (
            ("queues", "Queues shown here.", queues),
            ("ready", "1 while the server should be sent work.", int(health.ready)),
            ("damaged_records", "What of the store could not be read.", len(health.damage)),
            ("journal_bytes", "Bytes of the journal.", journal["bytes"]),
            ("journal_segments", "Files of the journal.", journal["segments"]),
            ("disk_space_available_bytes", "Free on the data's disk.", journal["free_bytes"]),
            ("process_resident_memory_bytes", "RAM of the process.", resident_bytes()),
            ("process_open_fds", "Open file descriptors.", _files_open()),
            ("process_max_fds", "Most file descriptors.", _files_max()),
            (
                "process_start_time_seconds",
                "When the server started.",
                self._context.started_at_ms / 1_000,
            ),
        )
        counters = (
            ("io_sync_ops", "Flushes of the journal to its device.", journal["flushes"]),
            ("io_write_bytes", "Bytes written to the journal.", journal["written_bytes"]),
            ("process_cpu_seconds", "CPU time of the process.", used.ru_utime + used.ru_stime),
        )
        refused = [
            ((("status", str(status)), ("code", code)), count)
            for (status, code), count in sorted(self._context.refused.items())
        ]
        build = (("python", platform.python_version()), ("version", __version__))
        return [
            Family("ebbmq_build", "info", "What runs.", [(build, 1)]),
            *(
                Family(f"ebbmq_{name}", "gauge", told, [((), value)])
                for name, told, value in gauges
            ),
            *(
                Family(f"ebbmq_{name}", "counter", told, [((), value)])
                for name, told, value in counters
            ),
            Family("ebbmq_http_refused", "counter", "Requests answered with an error.", refused),
        ]


_OF_DEVICES: Final[tuple[tuple[str, str, str, Callable[[DeviceStatus], float]], ...]] = (
    ("used_bytes", "gauge", "What is kept there takes.", lambda d: d.used_bytes),
    ("capacity_bytes", "gauge", "What may be kept there.", lambda d: d.capacity_bytes),
    ("latency_seconds", "gauge", "How long a call takes.", lambda d: d.latency_ms / 1_000),
    ("status", "gauge", "From 0, good, to -100, as rules see it.", lambda d: d.status),
    ("circuit_open", "gauge", "1 while it is not used.", lambda d: int(not d.usable)),
    ("pending_bytes", "gauge", "What waits to be written there.", lambda d: d.pending_bytes),
    ("copies", "gauge", "Copies of messages it has.", lambda d: d.copies),
    ("moves", "gauge", "Copies on their way to it or from it.", lambda d: d.moves),
    ("calls", "counter", "Calls and probes.", lambda d: d.calls),
    ("errors", "counter", "Calls and probes that failed or were refused.", lambda d: d.errors),
)


def of_devices(devices: Sequence[DeviceStatus]) -> list[Family]:
    """What there is to say of devices."""
    return [
        Family(
            f"ebbmq_device_{name}",
            kind,
            told,
            [((("device", device.name),), value(device)) for device in devices],
        )
        for name, kind, told, value in _OF_DEVICES
    ]


#: Of the feed: what they are called, their kind, what they say.
_OF_FEED: Final = (
    ("ok", "gauge", "1 while the lake takes what happens."),
    ("pending_bytes", "gauge", "What waits in RAM to be written."),
    ("lake_bytes", "gauge", "What the node's files take in the lake."),
    ("events", "counter", "Events written into the lake."),
    ("events_missed", "counter", "Events left out because the lake did not take them in time."),
    ("files", "counter", "Files written."),
    ("files_removed", "counter", "Files that had to go so that others fit."),
    (
        "lacking_bytes",
        "gauge",
        "What feed.bytes_max lacks for snapshots, or for more than one file of events.",
    ),
    ("snapshots", "counter", "Snapshots written."),
    ("snapshots_given_up", "counter", "Snapshots given up because feed.bytes_max has no room."),
    ("failures", "counter", "Tries to write that failed."),
)


def of_feed(figures: dict[str, int] | None) -> list[Family]:
    """What there is to say of the feed."""
    return [
        Family(f"ebbmq_feed_{name}", kind, told, [((), figures[name])])
        for name, kind, told in _OF_FEED
        if figures is not None
    ]


def of_plans(outcomes: dict[tuple[str, str], int], plans: Plans) -> list[Family]:
    """What there is to say of the pipeline's advice."""
    return [
        Family(
            "ebbmq_plan_rows",
            "counter",
            "Rows of plans and rates by what became of them: applied, in_force, or why refused.",
            [
                ((("table", table), ("outcome", outcome)), count)
                for (table, outcome), count in sorted(outcomes.items())
            ],
        ),
        Family(
            "ebbmq_plan_pinned_messages",
            "gauge",
            "Messages that are held to a plan.",
            [((), plans.pinned)],
        ),
    ]


def of_queues(seen: Sequence[Stats]) -> list[Family]:
    """What there is to say of queues."""
    gauges = [
        *((name, told, _depth(state)) for name, state, told in _DEPTHS),
        *_GAUGES,
    ]
    counters = [
        *((name, told, _total(key)) for name, key, told in _COUNTERS),
        ("cache_hits", "Bodies that were in RAM when asked for.", lambda s: s["cache"]["hits"]),
        ("cache_misses", "Bodies that had to be read.", lambda s: s["cache"]["misses"]),
    ]
    return [
        *(_family(name, "gauge", told, seen, value) for name, told, value in gauges),
        *(_family(name, "counter", told, seen, value) for name, told, value in counters),
        Family(
            "ebbmq_queue_messages_by_importance",
            "gauge",
            "Messages by the importance they were published with.",
            [
                ((("queue", stats["queue"]), ("importance", str(importance))), count)
                for stats in seen
                for importance, count in stats["by_importance"].items()
            ],
        ),
        _by_reason("removed", "Messages that left other than by ack.", seen, _REMOVED),
        _by_reason("dead_lettered", "Messages moved to the dead queue.", seen, _DEAD),
        _by_reason("lost", "Messages that left undone and are in no dead queue.", seen, _LOST),
    ]


def _depth(state: str) -> Callable[[Stats], float]:
    return lambda stats: stats["depth"][state]


def _total(key: str) -> Callable[[Stats], float]:
    return lambda stats: stats["since_open"].get(key, 0)


def _family(
    name: str, kind: str, told: str, seen: Sequence[Stats], value: Callable[[Stats], float]
) -> Family:
    samples = [((("queue", stats["queue"]),), value(stats)) for stats in seen]
    return Family(f"ebbmq_queue_{name}", kind, told, samples)


def _by_reason(name: str, told: str, seen: Sequence[Stats], keys: dict[str, str]) -> Family:
    samples = [
        ((("queue", stats["queue"]), ("reason", reason)), _total(key)(stats))
        for stats in seen
        for reason, key in keys.items()
    ]
    return Family(f"ebbmq_queue_messages_{name}", "counter", told, samples)


_UNITS: Final = ("bytes", "seconds")


def text_of(families: Iterable[Family]) -> str:
    """Metrics as OpenMetrics writes them."""
    lines: list[str] = []
    for family in families:
        lines.append(f"# TYPE {family.name} {family.kind}")
        lines += [f"# UNIT {family.name} {u}" for u in _UNITS if family.name.endswith(f"_{u}")]
        lines.append(f"# HELP {family.name} {family.help}")
        suffix = {"counter": "_total", "info": "_info"}.get(family.kind, "")
        lines += [
            f"{family.name}{suffix}{_labels(labels)} {value:.17g}"
            for labels, value in family.samples
        ]
    return "\n".join([*lines, "# EOF\n"])


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    pairs = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels)
    return f"{{{pairs}}}"


def _escaped(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def resident_bytes() -> int:
    """RAM of this process."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * resource.getpagesize()


def _files_open() -> int:
    return sum(1 for _ in Path("/proc/self/fd").iterdir())


def _files_max() -> int:
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]
