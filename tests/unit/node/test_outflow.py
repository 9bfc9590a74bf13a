"""A batch of leases shows the same values as leases made one by one."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ebbmq.core import row as rows
from ebbmq.core.block import Block, as_words
from ebbmq.core.classes import class_key
from ebbmq.core.grants import Grants
from ebbmq.core.partition import Partition
from ebbmq.model import InLog, QueueSpec
from ebbmq.node import outflow
from ebbmq.node.server import polling
from ebbmq.wire.http import codec
from ebbmq.wire.http.forms import LeasesForm

NOW_MS = 1_700_000_000_000

row = st.builds(
    lambda importance, rate, age_ms, ttl_ms, generation: (
        rows.READY,
        rows.DURABLE,
        importance,
        0,
        rate,
        NOW_MS - age_ms,
        (NOW_MS - age_ms + ttl_ms) if ttl_ms else 0,
        0,
        1,
        1,
        0,
        4,
        0,
        generation,
        0,
    ),
    st.integers(1, 10),
    st.sampled_from([0, 1, 250_000_000, 333_333_333, rows.RATE_UNIT]),
    st.integers(0, 10_000_000),
    st.sampled_from([0, 1, 60_000, 3_600_000]),
    st.integers(0, 5),
)


def classified(partition: Partition, one: tuple[int, ...]) -> tuple[int, ...]:
    """The row with the number of its order class above the end of its TTL."""
    span_ms = one[6] - one[5] if one[6] else partition.spec.decay_unit_ms
    known = partition.classes.of_key(class_key(one[2], one[4], span_ms))
    return (*one[:6], one[6] | known.number << rows.HIGH, *one[7:])


def delivery(partition: Partition, given_rows: list[tuple[int, ...]]) -> outflow.Delivery:
    grants = Grants([], [], NOW_MS + 1, 9)
    packed = b"".join(rows.ROW.pack(*one) for one in given_rows)
    grants.add_many(list(range(1, len(given_rows) + 1)), Block(as_words(packed)))
    bodies = [b"body"] * len(given_rows)
    view = outflow.View.of(partition, grants, NOW_MS)
    return outflow.Delivery(view, grants, bodies, InLog(NOW_MS, partition.score))


@given(st.lists(row, min_size=1, max_size=20), st.sampled_from([0.0, 0.1, 0.5, 1.0, 3.0]))
def test_a_batch_of_leases_shows_what_single_leases_show(
    given_rows: list[tuple[int, ...]], width: float
) -> None:
    partition = Partition(7, QueueSpec("q", band_width=width), 3)
    given_rows = [classified(partition, one) for one in given_rows]
    together = delivery(partition, given_rows).leases()
    kept = InLog(NOW_MS, partition.score)
    alone = [
        outflow.lease_of(partition, seq, one, b"body", NOW_MS + 1, 9, NOW_MS, kept)
        for seq, one in enumerate(given_rows, 1)
    ]
    assert together == alone


@given(
    st.lists(st.lists(row, min_size=1, max_size=8), min_size=1, max_size=2),
    st.sampled_from([0.0, 1.0, 3.0]),
    st.booleans(),
    st.integers(0, 4),
)
def test_an_answer_of_leases_is_the_json_of_their_form(
    batches: list[list[tuple[int, ...]]], width: float, are_same: bool, failures: int
) -> None:
    partition = Partition(7, QueueSpec("q", band_width=width), 3)
    leases = []
    for batch in batches:
        chosen = [batch[0]] * len(batch) if are_same else batch
        chosen = [classified(partition, one) for one in chosen]
        last = chosen[-1]
        chosen[-1] = (*last[:5], last[5] | failures << rows.HIGH, *last[6:])
        leases.append(delivery(partition, chosen))
    forms = [codec.lease_form(lease) for each in leases for lease in each.leases()]
    assert polling.answer_of(leases) == codec.encode(LeasesForm(forms))


def test_an_answer_without_leases_is_an_empty_list() -> None:
    assert polling.answer_of([]) == codec.encode(LeasesForm([]))
