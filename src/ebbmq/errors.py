"""Every error a user of EbbMQ can see: what happened, to what, and what to do about it.

EbbError
  ClientError          the caller's call is refused, everything else goes on
    UnknownQueue UnknownDevice InvalidMessage InvalidSpec LeaseLost Overloaded QueueFull
    QueueDiffers
    InvalidRequest UnknownPath TooLarge TooSlow Unauthenticated Forbidden    over the network
  Draining             the server is stopping: publish elsewhere or later, settling goes on
  Unreachable          no answer came from the server
  InternalError        the server failed in a way nobody foresaw; its log says how
  StorageFailed        the node stops taking messages; what is confirmed stays confirmed
    DamagedRecord      one record or body cannot be read; the others can
  DirectoryInUse       the broker does not start
  ClosedBroker         the broker was closed, or this process is a fork of its owner
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from typing_extensions import override

if TYPE_CHECKING:
    from collections.abc import Sequence


class EbbError(Exception):
    """Root of every error: `code` is for programs, `detail` and `action` are for people."""

    code: ClassVar[str] = "error"

    def __init__(self, detail: str, action: str = "", *, code: str | None = None) -> None:
        super().__init__(detail)
        self.detail = detail
        self.action = action
        if code is not None:
            self.code = code  # type: ignore[misc]  # an instance may narrow its class's code

    @override
    def __str__(self) -> str:
        text = f"{self.code}; {self.detail}"
        return f"{text} ({self.action})" if self.action else text


class ClientError(EbbError):
    """The call is refused because of what was asked; the broker is fine."""

    code = "client_error"


class UnknownQueue(ClientError):
    """No queue or topic of that name is declared."""

    code = "unknown_queue"
    #: The one of nearest name, where the action names it: ("queue" or "topic", its name).
    near: tuple[str, str] | None = None


class UnknownDevice(ClientError):
    """No device of that name is configured."""

    code = "unknown_device"


class DeviceInUse(ClientError):
    """The device works, so what was asked would give up copies that are fine."""

    code = "device_in_use"


class InvalidMessage(ClientError):
    """A message, or an argument of a message verb, is outside its limits."""

    code = "invalid_message"


class InvalidSpec(ClientError):
    """A queue, topic or configuration value is outside its limits."""

    code = "invalid_spec"


class QueueDiffers(ClientError):
    """A queue or topic of that name is declared otherwise, and no change was asked for."""

    code = "queue_differs"


class UnknownRule(ClientError):
    """There is no storage rule of that id."""

    code = "unknown_rule"


class UnknownRun(ClientError):
    """There is no advice of that run of the pipeline."""

    code = "unknown_run"


class RuleConflict(ClientError):
    """A storage rule is there already, was changed by somebody else, or cannot be changed here."""

    code = "rule_conflict"


class LeaseLost(ClientError):
    """Some tokens no longer hold a lease; the other tokens of the call were applied."""

    code = "lease_lost"

    def __init__(self, tokens: Sequence[str]) -> None:
        self.tokens = list(tokens)
        shown = ", ".join(self.tokens[:3]) + (", .." if self.tokens[3:] else "")
        super().__init__(
            f"{len(self.tokens)} token(s) hold no lease: {shown}",
            "the lease expired, was settled before, or the token is not ours; "
            "the message is or will be delivered again unless it was acked",
        )


class Overloaded(ClientError):
    """The broker refuses new work because a bound is reached."""

    code = "overloaded"


class QueueFull(ClientError):
    """The queue's max_messages or max_bytes is reached and its overflow policy is reject."""

    code = "queue_full"


class InvalidRequest(ClientError):
    """A request is not of the form the server takes: not JSON, a wrong type, an unknown field."""

    code = "invalid_request"


class UnknownPath(ClientError):
    """The server has nothing at that path, or not with that method."""

    code = "unknown_path"


class TooLarge(ClientError):
    """A request, or its header section, is larger than the server takes."""

    code = "too_large"


class TooSlow(ClientError):
    """A request did not arrive in time, so the server cut it off."""

    code = "too_slow"


class Unauthenticated(ClientError):
    """The server does not know who is asking."""

    code = "unauthenticated"


class Forbidden(ClientError):
    """The caller may not do that to this queue."""

    code = "forbidden"


class Draining(EbbError):
    """The server is stopping: it takes no more messages; leases can still be settled."""

    code = "draining"


class Unreachable(EbbError):
    """No usable answer came from the server in time."""

    code = "unreachable"


class InternalError(EbbError):
    """The server failed in a way nobody foresaw; nothing more is told, its log has the rest."""

    code = "internal_error"


class StorageFailed(EbbError):
    """The journal cannot be trusted with more; intake stops until the broker is reopened."""

    code = "storage_failed"


class DamagedRecord(StorageFailed):
    """One stored record or body does not match its checksum; it is never delivered."""

    code = "damaged_record"


class DirectoryInUse(EbbError):
    """This data directory is open already, mostly in another process."""

    code = "directory_in_use"


class ClosedBroker(EbbError):
    """The broker was closed, or belongs to the parent of this forked process."""

    code = "closed_broker"
