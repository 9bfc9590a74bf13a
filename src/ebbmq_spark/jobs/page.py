"""The report as one HTML page that needs nothing else: no script, no font, no picture from afar."""

from __future__ import annotations

from datetime import UTC, datetime
from functools import cache
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Final

from ebbmq.feed import money
from ebbmq.feed.advice import REFUSALS
from ebbmq.feed.runs import Action, not_read, nothing_planned
from ebbmq.limits import GIB, KIB, MIB
from ebbmq_spark.jobs.charts import Bar, Line, Segment, bars, lines, milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from ebbmq.feed.runs import Checks
    from ebbmq_spark.jobs.changes import Changed
    from ebbmq_spark.jobs.reporting import Figures

_AGES: Final = (
    "up to 1 min", "up to 10 min", "up to 1 h", "up to 6 h", "up to 1 day", "up to 1 week", "older",
)  # fmt: skip
_NOTHING: Final = Action(0, 0)
_GROUPS: Final = (("high", 8, 10), ("middle", 4, 7), ("low", 1, 3))


@cache
def _style() -> str:
    return resources.files("ebbmq_spark.jobs").joinpath("page.css").read_text()


def html(told: Figures) -> str:
    """The whole page."""
    cards = [
        _card("Backlog by age and importance", _backlog(told)),
        _card("Bytes and cost by tier", _tiers(told)),
        _card("What left without being done", _losses(told)),
        _card("What the plan of this run asks for", _plan(told)),
        _card("What the last plan changed", _changed(told.changed), "card wide"),
        _card("How long leases last", _latencies(told), "card wide"),
        _card("Who is read, and when", _reads(told), "card wide"),
        _card("Recommended decay factors", _rates(told)),
        _card("What to look at", _attention(told)),
    ]
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>EbbMQ: {escape(told.lake)}</title><style>{_style()}</style></head><body>"
        f"<h1>What the fleet holds</h1><p>{_when(told)}</p>{_clocks(told)}"
        f'<div class="tiles">{_tiles(told)}</div>'
        f'<div class="cards">{"".join(cards)}</div></body></html>\n'
    )


def _card(title: str, inside: str, kind: str = "card") -> str:
    return f'<section class="{kind}"><h2>{escape(title)}</h2>{inside}</section>'


def _when(told: Figures) -> str:
    record = told.record
    when = f"run {escape(record.run)}, {_instant(record.ended_at_ms)}" if record else "no run yet"
    nodes = ", ".join(told.nodes) or "none with a snapshot"
    return f"Lake {escape(told.lake)}; {when}; nodes: {escape(nodes)}."


def _clocks(told: Figures) -> str:
    if not told.ahead_ms:
        return ""
    nodes = ", ".join(
        f"that of {node} is {_span(abs(ahead_ms))} {'ahead' if ahead_ms > 0 else 'behind'}"
        for node, ahead_ms in sorted(told.ahead_ms.items())
    )
    return (
        f"<p>Clocks differ: {escape(nodes)}. What a node tells is shown by its own clock, put "
        "right; hours of the day are as it tells them.</p>"
    )


def _span(span_ms: int) -> str:
    for unit, size in (("days", 24 * 3_600_000), ("h", 3_600_000)):
        if span_ms >= size:
            return f"{span_ms / size:,.1f} {unit}"
    return f"{span_ms / 60_000:.0f} min"


def _tiles(told: Figures) -> str:
    messages = sum(count for count, _ in told.backlog.values())
    size = sum(held for _, held in told.backlog.values())
    tiles = [("messages", f"{messages:,}", ""), ("in bodies", _bytes(size), "")]
    record = told.record
    if record is not None:
        change = record.cost_after - record.cost_before
        kind = "down" if change < 0 else ""
        of = "" if record.budget is None else f" of {money.show(record.budget)}"
        shown = f"{money.show(record.cost_before)} → {money.show(record.cost_after)}{of}"
        actions = sum(each.count for each in record.actions.values())
        tiles += [
            ("cost a month, with the plan", shown, kind),
            ("actions planned", f"{actions:,}", ""),
            ("events since the last run", f"{record.events:,}", ""),
            ("of them rejected or missing", f"{record.rejected + record.missing:,}", ""),
        ]
    return "".join(
        f'<div class="tile {kind}"><b>{escape(value)}</b><span>{escape(name)}</span></div>'
        for name, value, kind in tiles
    )


def _backlog(told: Figures) -> str:
    if not told.backlog:
        return _none("no messages in any snapshot")
    rows = []
    for age, label in enumerate(_AGES):
        segments, all_of_it = [], 0
        for colour, low, high in _GROUPS:
            count = sum(told.backlog.get((age, each), (0, 0))[0] for each in range(low, high + 1))
            all_of_it += count
            title = f"{label}, importance {low} to {high}: {count:,}"
            segments.append(Segment(count, colour, title))
        rows.append(Bar(label, segments, f"{all_of_it:,}" if all_of_it else ""))
    keys = ((colour, f"importance {low}-{high}") for colour, low, high in _GROUPS)
    return _keys(keys) + bars(rows, "messages by age and importance")


def _tiers(told: Figures) -> str:
    if not told.tiers:
        return _none("no node says what devices it has")
    rows = []
    for name, tier in told.tiers.items():
        free = max(0, tier.capacity_bytes - tier.used_bytes)
        segments = [
            Segment(tier.used_bytes, "used", f"{name}: {_bytes(tier.used_bytes)} used"),
            Segment(free, "room", f"{name}: {_bytes(free)} free"),
        ]
        share = tier.used_bytes / tier.capacity_bytes if tier.capacity_bytes else 0.0
        rows.append(Bar(name, segments, f"{_bytes(tier.used_bytes)}, {share:.0%}"))
    table = _table(
        ("tier", ">used", ">of", ">a GiB and month", ">a month"),
        (
            (
                name, _bytes(tier.used_bytes), _bytes(tier.capacity_bytes), f"{tier.price:,.3g}",
                money.show(tier.cost),
            )
            for name, tier in told.tiers.items()
        ),
    )  # fmt: skip
    return _keys((("used", "used"), ("room", "free"))) + bars(rows, "bytes by tier") + table


def _losses(told: Figures) -> str:
    if not told.losses:
        return _none("nothing left other than by ack in the hours shown")
    rows = []
    for event, reason, count in told.losses[:12]:
        what = event.replace("_", " ")
        label = what if not reason or reason == event else f"{what}: {reason}"
        rows.append(Bar(label, [Segment(count, "high", f"{label}: {count:,}")], f"{count:,}"))
    return "<p>Messages that left other than by ack, over the last two days.</p>" + bars(
        rows, "messages that left by reason"
    )


def _latencies(told: Figures) -> str:
    if not told.latencies:
        return _none("no lease ended in the hours shown")
    span = (
        min(each.hour_ms for each in told.latencies),
        max(each.hour_ms for each in told.latencies),
    )
    out = []
    for queue in dict.fromkeys(each.queue for each in told.latencies):
        own = [each for each in told.latencies if each.queue == queue]
        drawn = lines(
            [
                Line([(each.hour_ms, each.p95_ms) for each in own], "p95", "95 of 100"),
                Line([(each.hour_ms, each.p50_ms) for each in own], "p50", "half"),
            ],
            span,
            f"how long leases of {queue} last",
            (_hour(span[0]), _hour(span[1])),
            milliseconds,
        )
        leases = sum(each.samples for each in own)
        worst = milliseconds(max(each.p95_ms for each in own))
        said = f"<p>{leases:,} leases, worst hour {worst}</p>"
        out.append(f"<div><h3>{escape(queue)}</h3>{said}{drawn}</div>")
    keys = _keys((("p50", "half are shorter"), ("p95", "95 of 100 are shorter")))
    return f'{keys}<div class="many">{"".join(out)}</div>'


def _reads(told: Figures) -> str:
    if not told.reads:
        return _none("nothing was leased, peeked at or read from a topic in the hours kept")
    table = _table(
        ("queue", ">reads a day", ">read and not done", ">of them take half of the reads"),
        (
            (
                each.queue,
                f"{each.rate:,.1f}",
                *("-" if count is None else f"{count:,}" for count in (each.messages, each.hot)),
            )
            for each in told.reads
        ),
    )
    if any(each.messages is None for each in told.reads):
        table += (
            "<p>-: reads of each message are counted where something depends on them: the queue's "
            "score_access_bonus, or a storage rule that asks for ACCESS_RATE.</p>"
        )
    drawn = [
        f"<div><h3>{escape(each.queue)}</h3>"
        + lines(
            [
                Line(list(enumerate(each.published)), "p95", "published"),
                Line(list(enumerate(each.read)), "p50", "read"),
            ],
            (0, len(each.read) - 1),
            f"messages of {each.queue} published and read by the hour of the day",
            ("0:00 UTC", "23:00 UTC"),
            _short,
        )
        + "</div>"
        for each in told.reads
    ]
    keys = _keys((("p50", "read"), ("p95", "published, by the hour of the day")))
    return f'{keys}<div class="many">{"".join(drawn)}</div>{table}'


def _short(count: float) -> str:
    for unit, size in (("M", 1_000_000), ("k", 1_000)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count:.3g}"


def _plan(told: Figures) -> str:
    left_out = told.record.left_out if told.record else {}
    if not told.planned:
        why = "no run yet" if told.record is None else nothing_planned(told.record)
        return _left_out(left_out) or _none(f"nothing: {why}")
    return _left_out(left_out) + _table(
        ("action", "from", "to", ">messages", ">written", ">freed"),
        (
            (
                each.action.replace("_", " "),
                each.from_tier or "-", each.to_tier or "-",
                f"{each.times:,}",
                _bytes(each.bytes), _bytes(each.freed_bytes),
            )
            for each in told.planned
        ),
    )  # fmt: skip


def _changed(plan: Changed | None) -> str:
    if plan is None:
        return _none("no plan asked for anything so far")
    asked, applied = sum(each.count for each in plan.asked.values()), sum(plan.applied.values())
    written = sum(each.bytes for each in plan.copied.values())
    said = [f"{applied:,} applied", f"{sum(plan.refused.values()):,} refused"]
    said += [f"{plan.open:,} not told of yet"] if plan.open else []
    nodes = ", ".join(plan.nodes) or "no node yet"
    out = (
        f"<p>Plan {escape(plan.run)}, {_instant(plan.made_at_ms)}, asked for {asked:,} actions: "
        f"{', '.join(said)}; {_bytes(written)} were moved or copied for it. "
        f"Told by: {escape(nodes)}.</p>"
    )
    return out + _by_action(plan) + _whys(plan)


def _by_action(plan: Changed) -> str:
    rows = [
        Bar(
            action.replace("_", " "),
            [
                Segment(applied, "used", f"{action}: {applied:,} applied"),
                Segment(max(0, asked.count - applied), "room", f"{action}: {asked.count:,} asked"),
            ],
            f"{applied:,} of {asked.count:,}",
        )
        for action, asked in plan.asked.items()
        for applied in (plan.applied.get(action, 0),)
    ]
    table = _table(
        ("action", ">asked for", ">applied", ">copies made", ">bytes of them"),
        (
            (
                action.replace("_", " "), f"{asked.count:,}", f"{plan.applied.get(action, 0):,}",
                f"{made.count:,}", _bytes(made.bytes),
            )
            for action, asked in plan.asked.items()
            for made in (plan.copied.get(action, _NOTHING),)
        ),
    )  # fmt: skip
    keys = _keys((("used", "applied"), ("room", "refused, or not told of yet")))
    return keys + bars(rows, "actions of the last plan that were applied") + table


def _whys(plan: Changed) -> str:
    """Why rows were refused, and why messages are held to the plan no more."""
    out = ""
    if plan.refused:
        rows = (
            (reason, f"{count:,}", REFUSALS.get(reason, ""))
            for reason, count in plan.refused.items()
        )
        out += _table(("refused because", ">rows", "which means"), rows)
    if plan.ended:
        ended = ((why, f"{count:,}") for why, count in sorted(plan.ended.items()))
        out += _table(("held to it no more because", ">messages"), ended)
    return out


def _left_out(of: Mapping[str, Action]) -> str:
    return "".join(
        f"<p>Left out for want of {escape(lacking)}: {each.count:,} of what would be done, "
        f"{_bytes(each.bytes)}; the most valuable come first.</p>"
        for lacking, each in sorted(of.items())
    )


def _rates(told: Figures) -> str:
    if not told.rates:
        return _none("no queue adapts its decay rates, or nothing was leased")
    rows = ((each.queue, f"{each.factor:.3g}", each.reason) for each in told.rates)
    return _table(("queue", ">factor", "why"), rows)


def _attention(told: Figures) -> str:
    record = told.record
    if record is None:
        return _none("ebbmq pipeline run --lake DIR has not been run yet")
    found = [*record.notes, *(not_read(name, why) for name, why in record.refused.items())]
    lost = "left out by a node, or lost with it"
    if record.refused:
        lost = "missing: left out by a node, lost with it, or in the files that could not be read"
    for count, what in (
        (record.rejected, "events could not be used; they are below events/_rejected"),
        (record.missing, f"events {'are' if record.refused else 'were'} {lost}"),
        (record.recovered, "events that were missing before were told after all"),
        (record.duplicates, "events were told twice"),
        (record.impossible, "events cannot have happened after what was told before"),
    ):
        if count:
            found.append(f"{count:,} {what}")
    if not found:
        return _none("nothing")
    told_of = "".join(f"<li>{escape(each)}</li>" for each in found)
    return f"<ul>{told_of}</ul>{_checks(record.nodes)}"


def _checks(nodes: Mapping[str, Checks]) -> str:
    """What was wrong with events, by node."""
    wrong = {node: each for node, each in nodes.items() if not each.is_clean}
    if not wrong:
        return ""
    return _table(
        ("node", ">events", ">rejected", ">missing", ">came after all", ">twice", ">impossible"),
        (
            (
                node or "not told", f"{each.events:,}", f"{each.rejected:,}",
                f"{each.missing:,}", f"{each.recovered:,}", f"{each.duplicates:,}",
                f"{each.impossible:,}",
            )
            for node, each in wrong.items()
        ),
    )  # fmt: skip


def _keys(of: Iterable[tuple[str, str]]) -> str:
    marks = "".join(f'<i class="key {colour}"></i>{escape(name)}' for colour, name in of)
    return f"<p>{marks}</p>"


def _table(names: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    kinds = ['class="number"' if name.startswith(">") else "" for name in names]
    head = "".join(
        f"<th {kind}>{escape(name.removeprefix('>'))}</th>"
        for name, kind in zip(names, kinds, strict=True)
    )
    body = "".join(
        "<tr>"
        + "".join(f"<td {kind}>{escape(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    return f'<div class="scroll"><table><tr>{head}</tr>{body}</table></div>'


def _none(text: str) -> str:
    return f'<p class="none">{escape(text)}</p>'


def _bytes(count: float) -> str:
    for unit, size in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if count >= size:
            return f"{count / size:,.1f} {unit}"
    return f"{count:.0f} B"


def _instant(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, tz=UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _hour(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1_000, tz=UTC).strftime("%d %b %H:00")
