"""Bodies of the log that several queues need."""

from __future__ import annotations

from ebbmq.core.sharing import Sharing

BODY = 3 << 32 | 4_096


def test_the_body_of_a_topic_goes_when_the_last_subscription_lets_go():
    sharing = Sharing()
    sharing.share(BODY, 3)
    assert [sharing.let_go(BODY) for _ in range(3)] == [False, False, True]
    assert len(sharing) == 0


def test_a_body_nobody_shares_is_let_go_at_once():
    assert Sharing().let_go(BODY)


def test_counting_the_rows_again_after_a_restart_changes_nothing():
    sharing = Sharing()
    sharing.share(BODY, 2)
    sharing.share(BODY, 2)
    assert [sharing.let_go(BODY) for _ in range(2)] == [False, True]
