"""Whose messages are privileged."""

from ebbmq.policy.privilege import is_privileged


def test_what_a_client_of_the_patterns_publishes_is_privileged() -> None:
    assert is_privileged("kernel", ("kernel", "init"))
    assert is_privileged("system.audit", ("system.*",))


def test_what_others_publish_is_not() -> None:
    assert not is_privileged("shop", ("kernel", "system.*"))
    assert not is_privileged("Kernel", ("kernel",))
    assert not is_privileged("kernel", ())
