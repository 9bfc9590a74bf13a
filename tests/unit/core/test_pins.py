"""What plans hold messages to: a map with a journal, whichever order it is read in."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from ebbmq import limits
from ebbmq.core import facts as fact
from ebbmq.core import pins
from ebbmq.core.copies import name_of
from ebbmq.core.pins import Advice, Pins
from ebbmq.policy.placement import Pin

ONE = Advice("r1", "archive", Pin(1, "cold", 100, 200, 0, 1))
TWO = Advice("r2", "promote", Pin(2, None, 150, 300, 3, 1))

steps = st.lists(
    st.tuples(
        st.integers(0, 2),
        st.lists(st.integers(0, 30), min_size=1, max_size=20, unique=True),
        st.sampled_from([ONE, TWO, None]),
    ),
    max_size=20,
)


@settings(deadline=None)
@given(steps)
def test_pins_are_a_map_and_their_facts_give_it_back(done) -> None:
    held, model, facts = Pins(), dict[int, Advice](), list[fact.Fact]()
    for pid, seqs, advice in done:
        names = [name_of(pid, seq) for seq in seqs]
        facts += held.pin(names, advice)
        model |= dict.fromkeys(names, advice)
    expected = {name: advice for name, advice in model.items() if advice is not None}
    again = Pins()
    for _ in range(2):  # a fact restored twice changes nothing, if all that follow it are, too
        for each in facts:
            again.restore(each.pid, b"".join(each.parts))
    for found in (held, again):
        assert len(found) == len(expected)
        assert dict(found.after(0, 1_000)) == expected
        assert sorted(found.names()) == sorted(expected)
        everything = [name_of(pid, seq) for pid in range(3) for seq in range(31)]
        assert found.of_many(everything) == [expected.get(name) for name in everything]
        assert sum(found.runs().values()) == len(expected)
    told = [(each.pid, seq) for each in facts for seq in pins.seqs_of(b"".join(each.parts))]
    assert sorted(told) == sorted((pid, seq) for pid, seqs, _ in done for seq in seqs)


def test_advice_runs_out_at_its_instant_and_leaves_with_its_message() -> None:
    held = Pins()
    held.pin([name_of(1, seq) for seq in range(10)], ONE)
    held.pin([name_of(1, 20)], TWO)
    assert not held.has_run_out(199)
    assert held.has_run_out(200)
    held.forget([name_of(1, seq) for seq in range(10)])
    assert not held.has_run_out(299)
    assert held.runs() == {"r2": 1}


def test_no_record_is_about_more_messages_than_one_may_be() -> None:
    count = limits.RECORD_ROWS_MAX + 1
    facts = Pins().pin([name_of(1, seq) for seq in range(count)], ONE)
    assert [len(list(pins.seqs_of(b"".join(each.parts)))) for each in facts] == [count - 1, 1]


def test_messages_that_are_held_to_the_same_take_a_few_bytes_each() -> None:
    held = Pins()
    held.pin(list(range(name_of(1, 0), name_of(1, 200_000))), ONE)
    assert len(held) == 200_000
    assert held.of(name_of(1, 7)) is held.of(name_of(1, 70_000))
