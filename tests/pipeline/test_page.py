"""The report is a page that needs nothing else, whatever queues are called."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import msgspec
import pytest

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
    planned=[Total("archive", "ssd", EVIL, 3, 400, 800)],
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


def test_what_is_missing_where_files_were_refused_is_not_said_to_be_the_nodes_doing() -> None:
    assert "2 events are missing: left out by a node, lost with it, or in the files" in page.html(
        FULL
    )
    record = msgspec.structs.replace(FULL.record, refused={})
    text = page.html(FULL._replace(record=record))
    assert "2 events were left out by a node, or lost with it" in text


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"messages": 5}, "nothing: every message is kept as it should be"),
        (
            {"messages": 5, "refused": {"a": "b"}},
            "nothing: 1 file could not be read; of the",
        ),
        ({"refused": {"a": "b", "c": "d"}}, "nothing: 2 files could not be read, and in the other"),
        ({}, "nothing: there is no message in any snapshot"),
    ],
)
def test_a_plan_that_asks_for_nothing_says_what_is_known(
    changes: dict[str, Any], said: str
) -> None:
    record = Record(run="r", kind="run", started_at_ms=0, ended_at_ms=1, **changes)
    assert said in page.html(EMPTY._replace(record=record))


def test_a_file_that_was_refused_is_named_once_in_one_line() -> None:
    refused = {"events/x.json": "x.json is of version 7", "events/y.json": "a.parquet is\ndamaged"}
    record = Record(run="r", kind="run", started_at_ms=0, ended_at_ms=1, refused=refused)
    text = page.html(EMPTY._replace(record=record))
    assert "<li>not read: x.json is of version 7</li>" in text
    assert "<li>events/y.json was not read: a.parquet is damaged</li>" in text


def test_an_amount_of_money_has_two_digits_that_say_something() -> None:
    record = Record(
        run="r", kind="run", started_at_ms=0, ended_at_ms=1,
        cost_before=1_234.5, cost_after=0.0123, budget=0.001,
    )  # fmt: skip
    tiers = {"ssd": Tier(1 << 20, 1 << 30, 0.1, 0.0000977)}
    text = page.html(EMPTY._replace(record=record, tiers=tiers))
    assert "1,234.50 → 0.012 of 0.0010" in text
    assert "0.000098" in text


def test_half_and_95_of_100_that_are_the_same_are_both_seen() -> None:
    same = [Lasting("q", hour * HOUR_MS, 3, 10, 10) for hour in (1, 2)]
    text = page.html(EMPTY._replace(latencies=same))
    drawn = dict(re.findall(r'<polyline class="(p\d+)" style="stroke-width:([0-9.]+)"', text))
    # What is drawn first, and covered, is the wider.
    assert list(drawn) == ["p95", "p50"]
    assert float(drawn["p95"]) > float(drawn["p50"])
    radii = dict(re.findall(r'<circle class="(p\d+)".* r="([0-9.]+)"', text.replace("><", ">\n<")))
    assert float(radii["p95"]) > float(radii["p50"])


def test_an_axis_of_one_hour_has_one_label() -> None:
    text = page.html(EMPTY._replace(latencies=[Lasting("q", HOUR_MS, 3, 10, 20)]))
    assert text.count("01 Jan 01:00") == 1
