"""Privileged messages are for consumers with the permission."""

from ebbmq.policy.privilege import Privilege, may_consume

OS = Privilege(clients=frozenset({"kernel", "init"}), permission="system")


def test_a_privileged_message_is_for_consumers_with_the_permission() -> None:
    assert not may_consume("kernel", [], [OS])
    assert not may_consume("kernel", ["other"], [OS])
    assert may_consume("kernel", ["system"], [OS])


def test_other_messages_are_for_everybody() -> None:
    assert may_consume("shop", [], [OS])
    assert may_consume(None, [], [OS])
    assert may_consume("kernel", [], [])


def test_every_privilege_that_covers_a_client_must_be_met() -> None:
    audit = Privilege(clients=frozenset({"kernel"}), permission="audit")
    assert not may_consume("kernel", ["system"], [OS, audit])
    assert may_consume("kernel", ["system", "audit"], [OS, audit])
