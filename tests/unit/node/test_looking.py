"""What is asked of a broker: what left and why, what was counted, what the journal did."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from ebbmq import Broker, InvalidMessage, Message, QueueSpec, UnknownQueue, limits
from ebbmq.core.facts import REMOVAL_DTYPE
from ebbmq.journal.disk import FileDisk
from ebbmq.model import Reason
from ebbmq.node import looking
from ebbmq.node.removals import Removals
from ebbmq.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def records(*seqs: int) -> bytes:
    made = np.zeros(len(seqs), dtype=REMOVAL_DTYPE)
    made["pid"], made["seq"], made["reason"] = 1, seqs, int(Reason.STALE)
    return made.tobytes()


def seqs(found: np.ndarray[tuple[int], np.dtype[np.void]]) -> list[int]:
    return [int(seq) for seq in found["seq"]]


def test_a_reading_shows_what_was_there_when_it_was_made(tmp_path: Path) -> None:
    log = Removals(FileDisk(tmp_path))
    log.note(records(1, 2), 10)
    log.flush(10)
    log.note(records(3), 20)
    reading = log.reading()
    log.note(records(4), 30)
    log.flush(30)
    assert seqs(reading.find([1])) == [1, 2, 3]
    assert seqs(log.reading().find([1])) == [1, 2, 3, 4]
    log.close()


def test_a_reading_outlives_the_files_taking_turns(tmp_path: Path) -> None:
    log = Removals(FileDisk(tmp_path), bytes_max=200)
    log.note(records(1, 2), 10)
    log.flush(10)
    reading = log.reading()
    for number in range(3, 9):
        log.note(records(number), number * 10)
        log.flush(number * 10)
    assert seqs(reading.find([1])) == [1, 2]
    assert 1 not in seqs(log.reading().find([1]))
    log.close()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[Broker]:
    with Broker.open(tmp_path, clock=ManualClock()) as opened:
        opened.declare(QueueSpec("q"))
        yield opened


def test_removals_are_read_page_by_page(broker: Broker) -> None:
    broker.publish("q", [Message(b"x") for _ in range(5)])
    broker.purge("q")
    everything = [removal.id for removal in broker.removals("q")]
    seen: list[str] = []
    while page := looking.removals(
        broker.engine,
        "q",
        reason=None,
        since_ms=None,
        after=seen[-1] if seen else None,
        count=2,
    ):
        assert len(page) <= 2
        seen += [removal.id for removal in page]
    assert seen == everything
    assert len(seen) == 5


@pytest.mark.parametrize(
    "identity",
    ["", "1", "1-", "-1", "1--5", " 1-1", "1-1 ", "1-" + "f" * 13, "f" * 9 + "-1", "1-1_0"],
)
def test_what_is_no_id_is_refused_as_such(broker: Broker, identity: str) -> None:
    with pytest.raises(InvalidMessage, match="not a message id"):
        broker.why(identity)


def test_dead_letters_are_counted_by_reason(broker: Broker) -> None:
    broker.declare(QueueSpec("work", max_attempts=1, dead_queue="dead"))
    broker.publish("work", [Message(b"poison"), Message(b"late", ttl_ms=1_000)])
    broker.retry("work", [broker.lease("work")[0].token])
    assert isinstance(broker.engine.clock, ManualClock)
    broker.engine.clock.advance(2_000)
    totals = broker.stats("work")["totals"]
    assert totals["dead_lettered"] == 2
    assert totals["dead_lettered_max_attempts"] == totals["dead_lettered_expired"] == 1


def test_a_redrive_is_no_dead_letter(broker: Broker) -> None:
    broker.declare(QueueSpec("work", max_attempts=1, dead_queue="dead"))
    broker.publish("work", Message(b"poison"))
    broker.retry("work", [broker.lease("work")[0].token])
    broker.redrive("dead")
    assert broker.stats("dead")["totals"]["dead_lettered"] == 0


def test_the_journal_counts_its_flushes(broker: Broker) -> None:
    before = looking.journal(broker.engine)
    broker.publish("q", Message(b"x"), confirm="synced")
    after = looking.journal(broker.engine)
    assert after["flushes"] > before["flushes"]
    assert after["written_bytes"] > before["written_bytes"]
    assert after["bytes"] > before["bytes"]


def test_counts_since_the_broker_was_opened_start_at_zero(tmp_path: Path) -> None:
    for _ in range(2):
        with Broker.open(tmp_path) as broker:
            broker.declare(QueueSpec("q"))
            broker.publish("q", [Message(b"x"), Message(b"y")])
            assert broker.stats("q")["since_open"]["published"] == 2
            total = broker.stats("q")["totals"]["published"]
    assert total == 4


@pytest.mark.parametrize("checkpoint", [True, False])
def test_deleted_queues_are_remembered_across_a_restart_up_to_a_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, checkpoint: bool
) -> None:
    monkeypatch.setattr(limits, "DELETED_QUEUES_MAX", 2)
    names = ["first", "second", "third"]
    ids = []
    with Broker.open(tmp_path, clock=ManualClock()) as broker:
        for name in names:
            broker.declare(QueueSpec(name, partitions=2))
            ids += [receipt.id for receipt in broker.publish(name, [Message(b"m")])]
            broker.delete(name)
    if not checkpoint:
        for path in (tmp_path / "checkpoints").iterdir():
            path.unlink()
    with Broker.open(tmp_path, clock=ManualClock()) as broker:
        with pytest.raises(UnknownQueue):
            broker.removals("first")
        assert [broker.why(identity)["queue"] for identity in ids] == [None, "second", "third"]
        assert {broker.why(identity)["reason"] for identity in ids} == {"deleted"}
        assert [removal.id for removal in broker.removals("third")] == ids[2:]
