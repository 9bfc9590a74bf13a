"""The report is a page that needs nothing else, whatever queues are called."""

from __future__ import annotations

from html.parser import HTMLParser

from ebbmq.feed.runs import Action, Record
from ebbmq_spark.jobs import page
from ebbmq_spark.jobs.changes import Changed
from ebbmq_spark.jobs.fleet import Tier
from ebbmq_spark.jobs.reads import Reads
from ebbmq_spark.jobs.reporting import Figures, Lasting, Rate
from ebbmq_spark.jobs.totals import Total

HOUR_MS = 3_600_000
EVIL = '<script src="http://far.away/x.js">&"'
EMPTY = Figures("lake", None, [], {}, {}, [], [], [], [], [])
FULL = Figures(
    lake=EVIL,
    record=Record(
        run="20261116T081500123Z", kind="run", started_at_ms=0, ended_at_ms=HOUR_MS, missing=2,
        actions={"archive": Action(3, 400)}, cost_before=2.0, cost_after=1.5, notes=(EVIL,),
        refused={EVIL: EVIL}, budget=1.75,
        left_out={"room": Action(6, 2 << 10), "money": Action(5_678, 3 << 20), EVIL: Action(1, 1)},
    ),
    nodes=[EVIL],
    backlog={(0, 9): (1_234, 10), (6, 1): (5, 10)},
    tiers={EVIL: Tier(1 << 30, 2 << 30, 0.5, 0.5)},
    losses=[("stale", EVIL, 7)],
    latencies=[Lasting(EVIL, hour * HOUR_MS, 3, 10, 2_000) for hour in (1, 2)],
    reads=[Reads(EVIL, 5_432.1, 77, 3, [2_000] + [0] * 23, [0] * 23 + [9])],
    planned=[Total("archive", "ssd", EVIL, None, None, 3, 400, 800)],
    rates=[Rate(EVIL, 1.5, EVIL)],
    changed=Changed(
        run=EVIL, made_at_ms=HOUR_MS, asked={"move": Action(9_876, 1), EVIL: Action(1, 1)},
        applied={"move": 5_432}, copied={"move": Action(5_000, 3 << 20)},
        refused={"gone": 1_111, EVIL: 1}, ended={EVIL: 5}, nodes=[EVIL],
    ),
)  # fmt: skip


class Tags(HTMLParser):
    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.told: dict[str, list[str]] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        for name, value in attrs:
            self.told.setdefault(name, []).append(value or "")
        if tag != "meta":
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_names_stay_text_and_every_tag_is_closed() -> None:
    for told in (FULL, EMPTY):
        found = Tags(page.html(told))
        assert found.open == []
        assert not found.seen & {"script", "link", "img", "iframe"}
        assert not found.told.keys() & {"src", "href", "onload"}
    assert "1,234" in page.html(FULL)
    assert "2 s" in page.html(FULL)
    assert "read: 9" in page.html(FULL)
    assert "2 k" in page.html(FULL)
    assert "2.00 → 1.50 of 1.75" in page.html(FULL)


def test_what_became_of_the_last_plan_is_told_by_action_and_by_reason() -> None:
    text = page.html(FULL)
    assert "9,877 actions: 5,432 applied, 1,112 refused, 3,333 not told of yet; 3.0 MiB" in text
    assert "5,432 of 9,876" in text
    assert "its message is not there" in text


def test_what_was_left_out_is_told_also_where_nothing_is_left_to_do() -> None:
    for planned in (FULL.planned, []):
        text = page.html(FULL._replace(planned=planned))
        assert "want of room: 6 of what would be done, 2.0 KiB" in text
        assert "want of money: 5,678 of what would be done, 3.0 MiB" in text
        assert "every message is kept as it should be" not in text


def test_a_lake_without_anything_in_it_has_a_page_too() -> None:
    text = page.html(EMPTY)
    assert "no messages in any snapshot" in text
    assert "has not been run yet" in text
