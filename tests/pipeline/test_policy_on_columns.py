"""One formula, one rule text, two engines: floats in the broker and columns in Spark agree.

A job of Spark takes as long for thousands of rows as for one: hypothesis draws them, edges of every
column and rows at the very thresholds are added, and all of it is one frame. What must be among
them, every branch of what is compared, is asserted.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any, TypeVar

import hypothesis
import msgspec
import pytest
from hypothesis import HealthCheck, given
from hypothesis import Phase as Step
from hypothesis import strategies as st
from pyspark.sql import functions as F

from ebbmq.feed.plans import ACTIONS
from ebbmq.model import AdaptSpec, QueueSpec
from ebbmq.policy import importance as policy
from ebbmq.policy.adapt import AdaptiveDecay, AdaptState
from ebbmq.policy.advice import Kept, advised
from ebbmq.policy.advice import wanted_target as target_of
from ebbmq.policy.decay import Access, Phase, Score, decay_score
from ebbmq.policy.placement import Terms
from ebbmq.policy.rules import conditions as c
from ebbmq.policy.rules.evaluate import degree_of
from ebbmq.policy.rules.properties import DeviceState, Properties
from ebbmq_spark.rules import column_of
from ebbmq_spark.transforms.importance import band_of, current_importance, is_stale
from ebbmq_spark.transforms.latency import recommended_factors
from ebbmq_spark.transforms.parameters import parameters_of
from ebbmq_spark.transforms.plans import judged, wanted_target
from ebbmq_spark.transforms.scores import access_rate_at, phase_of, tier_of, with_scores
from tests.pipeline.rows import DAY_MS, NOW_MS, catalog, events
from tests.property.rule_strategies import DEVICES, conditions, messages, states

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from hypothesis.strategies import SearchStrategy
    from pyspark.sql import SparkSession

T = TypeVar("T")
ROWS = 2_000
#: Of one example: more of them are more than hypothesis draws at once.
AT_ONCE = 50
FACTORY = "spark.sql.codegen.factoryMode"
DEFAULTS = Properties()


@pytest.fixture(scope="module", autouse=True)
def compiled(spark: SparkSession) -> Iterator[None]:
    """Formulas are compiled, as they are for users."""
    before = spark.conf.get(FACTORY)
    assert before is not None
    spark.conf.set(FACTORY, "FALLBACK")
    yield
    spark.conf.set(FACTORY, before)


def drawn(of: SearchStrategy[T], count: int) -> list[T]:
    """Values as hypothesis draws them; a test that fails names the one, so none is shrunk."""
    found: list[T] = []
    at_once = min(AT_ONCE, count // 10)

    @hypothesis.settings(
        # The first example is the simplest there is.
        max_examples=count // at_once + 1,
        phases=[Step.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(st.lists(of, min_size=at_once, max_size=at_once))
    def draw(some: list[T]) -> None:
        found.extend(some)

    draw()
    assert len(found) > count
    return found[-count:]


def with_edges(
    rows: list[tuple[Any, ...]], edges: Sequence[Sequence[Any]]
) -> list[tuple[Any, ...]]:
    """The rows, and for every edge of every column one of them that has it, and one of edges."""
    out = list(rows)
    for at, values in enumerate(edges):
        for value, row in zip(values, rows, strict=False):
            out.append((*row[:at], value, *row[at + 1 :]))
    most = max(map(len, edges))
    out += zip(*(itertools.islice(itertools.cycle(each), most) for each in edges), strict=True)
    return out


def test_scores_are_the_same_to_the_last_bit(spark: SparkSession) -> None:
    names = ["age", "access", "base", "per_day", "bonus", "medium", "high"]
    plain = st.floats(-1e6, 1e6, allow_nan=False)
    edges = (0.0, -0.0, 5e-324, 1.0, -1e6, 1e6)
    rows = with_edges(drawn(st.tuples(*[plain] * 7), ROWS), [edges] * 7)
    # A threshold itself is not yet above it; the next number below it is.
    for row in rows[:200]:
        score = decay_score(*row[:5])
        below = math.nextafter(score, -math.inf)
        rows += [(*row[:5], *ends) for ends in itertools.permutations([score, below, score + 1], 2)]
    frame = spark.createDataFrame(rows, names)
    score = decay_score(*(F.col(name) for name in names[:5]))
    got = frame.select(
        score.alias("score"), phase_of(score, F.col("medium"), F.col("high")).alias("phase")
    ).collect()
    seen = set()
    for row, (found, phase) in zip(rows, got, strict=True):
        medium, high = row[5:]
        assert found == decay_score(*row[:5]), row
        assert Phase(phase) is Score(*row[2:]).phase(found), row
        seen.add((phase, _side(found, medium), _side(found, high)))
    # By the phase, and on which side of either threshold the score is: all there are.
    assert seen == {
        (Phase.FRESH, medium, high) for medium in (-1, 0) for high in (-1, 0)
    } | {(Phase.KEPT, 1, high) for high in (-1, 0)} | {
        (Phase.FADED, medium, 1) for medium in (-1, 0, 1)
    }  # fmt: skip


def _side(value: float, of: float) -> int:
    return (value > of) - (value < of)


def test_importance_band_and_staleness_are_the_same_to_the_last_bit(spark: SparkSession) -> None:
    widths = [0.01, 0.1, 0.25, 0.3, 0.7, 1.0, 2.0, 10.0]
    columns = (
        st.integers(1, 10),
        st.floats(0, 1),
        st.integers(0, 10**9),
        st.integers(1, 10**9),
        st.sampled_from(widths),
        st.floats(0, 10),
    )
    rows = with_edges(
        drawn(st.tuples(*columns), ROWS),
        [
            (1, 10),
            (0.0, 5e-324, 1e-9, 1.0),
            (0, 1, 10**9, policy.AGE_MS_MAX),
            (1, 10**9, policy.AGE_MS_MAX),
            widths,
            (0.0, 5e-324, 0.5, 5.0, 10.0),
        ],
    )
    for importance, rate, _, span, width, threshold in rows[:ROWS]:
        # The millisecond at which it becomes stale, and the one before.
        stale_age = policy.stale_age_ms(importance, rate, span, threshold)
        if stale_age:
            ages = (stale_age - 1, stale_age)
            rows += [(importance, rate, age, span, width, threshold) for age in ages]
    # At the edge of a band, and beside it: there the quotient may be rounded to the wrong one.
    for width, band in itertools.product(widths, range(1, 100)):
        edge = band * width
        beside = (math.nextafter(edge, to) for to in (0.0, math.inf))
        rows += [(1, 1 - each, 1, 1, width, 1.0) for each in (edge, *beside) if 0 < each < 1]
    frame = spark.createDataFrame(
        rows, "importance int, rate double, age long, span long, width double, threshold double"
    )
    current = current_importance(F.col("importance"), F.col("rate"), F.col("age"), F.col("span"))
    got = frame.select(
        current.alias("current"),
        band_of(current, F.col("width")).alias("band"),
        is_stale(current, F.col("importance"), F.col("threshold")).alias("stale"),
    ).collect()
    bands, stales = set(), set()
    for values, row in zip(rows, got, strict=True):
        importance, rate, age, span, width, threshold = values
        exact = policy.current_importance(importance, rate, age, span)
        assert row.current == exact, values
        assert row.band == policy.band_of(exact, width), values
        stale_age = policy.stale_age_ms(importance, rate, span, threshold)
        assert row.stale == (stale_age is not None and age >= stale_age), values
        bands.add(row.band - math.ceil(exact / width) if exact else None)
        stales.add((row.stale, None if stale_age is None else threshold > importance / 2))
    # Used up, and by how much the quotient was off; never stale, or by either bound.
    assert bands == {None, -1, 0, 1}
    assert stales == {(False, None), *itertools.product((True, False), repeat=2)}


def test_access_rates_fade_alike(spark: SparkSession) -> None:
    now_ms = 50 * DAY_MS
    columns = (st.floats(0, 1e6), st.integers(0, 100 * DAY_MS))
    rows = with_edges(
        drawn(st.tuples(*columns), ROWS),
        [(0.0, -0.0, 5e-324, 1.0, 1e6), (0, now_ms - 1, now_ms, now_ms + 1, 100 * DAY_MS)],
    )
    frame = spark.createDataFrame(rows, "rate double, at long")
    got = frame.select(access_rate_at(F.col("rate"), F.col("at"), now_ms)).collect()
    seen = set()
    # Java and C round exp differently in the last place.
    for (rate, at_ms), (found,) in zip(rows, got, strict=True):
        assert found == pytest.approx(Access(rate, at_ms).rate_at(now_ms), rel=1e-12), (rate, at_ms)
        seen.add((rate == 0, _side(now_ms, at_ms)))
    assert seen == set(itertools.product((True, False), (-1, 0, 1)))


CLEF = "\N{MUSICAL SYMBOL G CLEF}"
WORDS = (
    "",
    "a",
    "fast-db",
    "TEXT",
    "50 %",
    "a_b",
    "it's",
    "\\",
    "\N{LATIN SMALL LETTER E WITH ACUTE}",
    CLEF,
)
NUMBERS = (0.0, -0.0, 1.0, 2.5, 5.0, 10.0, 100.0, -20.0, 5e-324, 1e300)
#: So many values Spark looks up in another way than a few.
MANY = 12
#: A device with the value that leaves ask for, beside one that nobody knows.
STATES = {DEVICES[0]: DeviceState(status=-20.0, latency_ms=5.0, free_percent=10.0)}


def leaves() -> list[c.Condition]:
    """Each keyword with each operator it takes, of values that are there and that are not."""
    arguments = {"": (None,), "header": ("x", "none"), "device": (DEVICES[0], "NOWHERE")}
    return [
        c.ALWAYS,
        *(
            leaf
            for keyword in c.KEYWORDS.values()
            for argument in arguments[keyword.needs]
            for leaf in _leaves(keyword, c.Property(keyword.name, argument))
        ),
    ]


def _leaves(keyword: c.Keyword, of: c.Property) -> Iterator[c.Condition]:
    if keyword.kind == "number":
        yield from (c.Compare(of, sign, 5.0) for sign in ("==", "!=", "<", "<=", ">", ">="))
        yield from (c.OneOf(of, (5.0, 0.0)), c.OneOf(of, tuple(map(float, range(MANY)))))
    elif keyword.choices:
        yield from (c.Compare(of, sign, keyword.choices[0]) for sign in ("==", "!="))
    else:
        yield from (c.Compare(of, sign, "a") for sign in ("==", "!="))
        yield from (c.OneOf(of, WORDS[:2]), c.OneOf(of, (*WORDS[1:], "more", "still more", "most")))
        yield c.IsPresent(of)
        yield from (c.Contains(of, part) for part in ("", "a", "%", "_", "'", "\\", CLEF))


def edge_messages(some: list[Properties]) -> list[Properties]:
    """For every edge of every attribute one of the messages that has it."""
    out = []
    for keyword in c.KEYWORDS.values():
        if keyword.needs == "device":
            continue
        values: Sequence[Any] = NUMBERS if keyword.kind == "number" else (*WORDS, None)
        if keyword.needs == "header":
            values = [{}, *({"x": word} for word in WORDS)]
        elif keyword.choices:
            values = keyword.choices
        for value, each in zip(values, some, strict=False):
            if value is not None or getattr(DEFAULTS, keyword.attribute) is None:
                out.append(msgspec.structs.replace(each, **{keyword.attribute: value}))
    return out


def test_rules_match_the_same_rows(spark: SparkSession) -> None:
    found = drawn(messages, ROWS)
    rows = [*found, *edge_messages(found), DEFAULTS]
    asked = leaves()
    tried = [(each, STATES) for each in asked]
    tried += zip(drawn(conditions, 50), drawn(states, 50), strict=True)
    kinds = {
        word.attribute: "map<string,string>"
        if word.needs == "header"
        else {"number": "double", "text": "string"}[word.kind]
        for word in c.KEYWORDS.values()
        if word.needs != "device"
    }
    values = [tuple(_value(row, name) for name in kinds) for row in rows]
    # A number that a row lacks is as in no message.
    values[-1] = tuple(
        None if kinds[name] == "double" else value
        for name, value in zip(kinds, values[-1], strict=True)
    )
    frame = spark.createDataFrame(values, ", ".join(f"{n} {kind}" for n, kind in kinds.items()))
    columns = {name: F.col(name) for name in kinds}
    got = frame.select(
        *(column_of(each, columns, of).alias(f"c{i}") for i, (each, of) in enumerate(tried))
    ).collect()
    for number, (each, of) in enumerate(tried):
        wrong = [
            row
            for row, is_so in zip(rows, got, strict=True)
            if is_so[number] != bool(degree_of(each, row, of))
        ]
        assert not wrong, (each, wrong[0])
    both = {number for number in range(len(tried)) if {row[number] for row in got} == {True, False}}
    # What is of a device is the same of all rows, no header is called none, a type always there.
    same = [each for number, each in enumerate(asked) if number not in both]
    assert [each for each in same if not _is_same_of_all(each)] == []
    assert {type(tried[number][0]) for number in both} >= {c.Not, c.All, c.Any}


def _is_same_of_all(leaf: c.Condition) -> bool:
    if leaf is c.ALWAYS:
        return True
    assert isinstance(leaf, c.Compare | c.OneOf | c.IsPresent | c.Contains)
    is_always_there = leaf in (c.IsPresent(c.Property("TYPE")), c.Contains(c.Property("TYPE"), ""))
    return leaf.property.argument in (DEVICES[0], "NOWHERE", "none") or is_always_there


def _value(row: object, name: str) -> object:
    value = getattr(row, name)
    return dict(value) if name == "headers" else value


@pytest.mark.parametrize(
    "tiers", [(), ("ssd",), ("ram", "hdd"), ("ram", "ssd", "s3"), tuple("abcd")]
)
def test_a_phase_has_the_tier_it_has_in_the_broker(spark: SparkSession, tiers: tuple) -> None:
    frame = spark.createDataFrame(
        [(list(tiers), int(p)) for p in Phase], "tiers array<string>, phase int"
    )
    got = [row[0] for row in frame.selectExpr(tier_of("tiers", "phase")).collect()]
    assert got == [Terms(tiers=tiers).tier(phase) for phase in Phase]


def test_messages_get_the_score_of_the_instant_asked_for(spark: SparkSession) -> None:
    specs = [
        QueueSpec(
            "q",
            score_per_day=10,
            score_medium=50,
            score_high=100,
            score_access_bonus=2,
            tiers=("ssd", "hdd", "s3"),
        ),
        QueueSpec("other", score_base=60, score_per_day=0, score_medium=50, score_high=100),
    ]
    rows = catalog(
        spark,
        {"message_id": "young", "enqueued_at_ms": NOW_MS - DAY_MS},
        {"message_id": "old", "enqueued_at_ms": NOW_MS - 11 * DAY_MS},
        {"message_id": "read", "enqueued_at_ms": NOW_MS - 11 * DAY_MS,
         "access_rate": 10.0, "access_at_ms": NOW_MS},
        {"message_id": "based", "queue": "other"},
        {"message_id": "of a queue nobody knows", "queue": "gone"},
    )  # fmt: skip
    got = with_scores(rows, parameters_of(spark, specs), NOW_MS).collect()
    assert {r.message_id: (r.decay_score, Phase(r.phase), r.wanted_tier) for r in got} == {
        "young": (10.0, Phase.FRESH, "ssd"),
        "old": (110.0, Phase.FADED, "s3"),
        "read": (90.0, Phase.KEPT, "hdd"),
        "based": (60.0, Phase.KEPT, None),
    }


MINUTE_MS = 60_000
TIERS = ("ram", "ssd", "hdd", "s3")
SPECS = st.builds(
    QueueSpec,
    st.just("q"),
    score_base=st.sampled_from([0.0, -5.0, 60.0]),
    score_per_day=st.sampled_from([0.0, 5.0, 10.0]),
    score_access_bonus=st.sampled_from([0.0, 1.0]),
    score_medium=st.sampled_from([20.0, 50.0]),
    score_high=st.sampled_from([30.0, 100.0]),
    evaluate_every_ms=st.sampled_from([1, MINUTE_MS, 5 * DAY_MS]),
    on_faded=st.sampled_from(["archive", "remove", "dead_letter"]),
    min_copies=st.integers(1, 3),
    max_replicas=st.none() | st.integers(1, 5),
    tiers=st.lists(st.sampled_from(TIERS), max_size=4, unique=True).map(tuple),
)
ADAPTS = st.builds(
    AdaptSpec,
    raise_above_ms=st.sampled_from([400.0, 1_000.0]),
    lower_below_ms=st.sampled_from([0.0, 100.0, 399.5]),
    step=st.floats(1.01, 10),
    dwell_ms=st.sampled_from([0, 1, MINUTE_MS]),
    factor_min=st.floats(0.1, 1),
    factor_max=st.floats(1, 8),
    window=st.integers(1, 12),
)


def test_a_message_is_advised_the_same(spark: SparkSession) -> None:
    specs = [
        msgspec.structs.replace(each, name=str(number))
        for number, each in enumerate(drawn(SPECS, 200))
    ]
    cooling = QueueSpec("cooling", score_per_day=10.0, score_medium=50, score_high=100, tiers=TIERS)
    # At the very instants at which it is first evaluated and at which phases may begin, too.
    ages = [0, MINUTE_MS - 1, MINUTE_MS, *(days * DAY_MS + more for days in range(12)
            for more in (0, 1))]  # fmt: skip
    columns = (
        st.sampled_from(specs),
        st.sampled_from(ages) | st.integers(0, 30 * DAY_MS),
        st.builds(Kept, st.integers(1, 4), st.integers(1, 5), st.integers(0, 6),
                  st.sampled_from([None, *TIERS, "odd"])),
        st.sampled_from([0.0, 0.5, 25.0]),
    )  # fmt: skip
    rows = drawn(st.tuples(*columns), ROWS)
    # What has as many copies as it should is drawn too seldom.
    rows += [(cooling, age, Kept(1, 1, 1, tier), 0.0) for age in ages for tier in TIERS]
    stored = catalog(
        spark,
        *(
            {"message_id": str(number), "queue": spec.name, "enqueued_at_ms": NOW_MS - age,
             "replicas": kept.replicas, "replica_target": kept.target, "copies": kept.copies,
             "tier": kept.tier, "access_rate": rate, "access_at_ms": NOW_MS}
            for number, (spec, age, kept, rate) in enumerate(rows)
        ),
    )  # fmt: skip
    parameters = parameters_of(spark, [*specs, cooling])
    acting = judged(stored, parameters, NOW_MS)
    got = {
        row.message_id: (row.action, row.target, row.wanted_tier)
        for row in acting.select("message_id", "action", "target", "wanted_tier").collect()
    }
    phases = with_scores(stored, parameters, NOW_MS).join(
        parameters.select("queue", "min_copies", "max_replicas"), on="queue"
    )
    targets = {row.message_id: row.target for row in
               phases.select("message_id", wanted_target().alias("target")).collect()}  # fmt: skip
    seen = set()
    for number, (spec, age, kept, rate) in enumerate(rows):
        terms = Terms.of(spec)
        score = terms.score.at(age, rate)
        crossed = target_of(kept, terms, terms.score.phase(score))
        assert targets[str(number)] == crossed, (spec, age, kept, rate)
        # On the way back a message is still in the phase of its tier.
        phase, young = terms.phase(score, kept.tier), age < spec.evaluate_every_ms
        action, target = advised(kept, terms, phase, young=young), target_of(kept, terms, phase)
        wanted = None if action is None else (action, target, terms.tier(phase))
        assert got.get(str(number)) == wanted, (spec, age, kept, rate)
        seen.add((action, phase, young))
    # Every action that there can be in a phase; none and repairs also of who is young.
    assert {action for action, *_ in seen} == {None, *ACTIONS}
    assert {(phase, young) for action, phase, young in seen if action in (None, "repair")} == set(
        itertools.product(Phase, (True, False))
    )
    faded = {action for action, phase, young in seen if phase is Phase.FADED and not young}
    assert faded == {None, "repair", "archive", "drop_copy"}


def test_a_controller_steps_the_same(spark: SparkSession) -> None:
    cases = drawn(
        st.tuples(
            ADAPTS,
            st.floats(0.05, 10),
            st.sampled_from([0, 1, MINUTE_MS - 1, MINUTE_MS, 2 * MINUTE_MS]),
            st.lists(st.sampled_from([0, 100, 399, 400, 1_000]) | st.integers(0, 3_000),
                     max_size=15),
        ),
        500,
    )  # fmt: skip
    queues = [QueueSpec(str(number), adapt=adapt) for number, (adapt, *_) in enumerate(cases)]
    told = events(
        spark,
        *(
            {"queue": str(number), "event": "acked", "seq": seq, "latency_ms": duration_ms}
            for number, (*_, durations_ms) in enumerate(cases)
            for seq, duration_ms in enumerate(durations_ms, 1)
        ),
    )
    before = spark.createDataFrame(
        [(str(number), factor, NOW_MS - ago_ms)
         for number, (_, factor, ago_ms, _) in enumerate(cases)],
        "queue string, factor double, stepped_at_ms long",
    )  # fmt: skip
    got = {
        row.queue: row
        for row in recommended_factors(
            told, queues, before, now_ms=NOW_MS, until_ms=NOW_MS
        ).collect()
    }
    seen = set()
    for number, (adapt, factor, ago_ms, durations_ms) in enumerate(cases):
        controller = AdaptiveDecay(adapt)
        controller.restore(AdaptState(factor=factor, rested_from_ms=NOW_MS - ago_ms))
        for duration_ms in durations_ms:
            controller.observe(duration_ms, NOW_MS)
        mean_ms, began = controller.mean_ms(), controller.state().factor
        row = got[str(number)]
        stepped_ms = controller.factor(NOW_MS), controller.state().rested_from_ms
        assert (row.factor, row.stepped_at_ms) == stepped_ms, cases[number]
        assert row.mean_ms == mean_ms, cases[number]
        stepped = stepped_ms[1] == NOW_MS and ago_ms > 0
        seen.add((stepped, None if mean_ms is None else _side(row.factor, began)))
    # Nothing told; up, down, and a step at a bound; between the thresholds, or at rest.
    assert seen >= {(False, None), (True, 1), (True, -1), (True, 0), (False, 0)}
