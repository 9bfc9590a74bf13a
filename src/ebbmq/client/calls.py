"""Every request a client makes: where it goes, how its answer is read, whether it may repeat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, TypeVar
from urllib.parse import quote, urlencode

import msgspec
from msgspec import UNSET, UnsetType

from ebbmq.errors import EbbError, InternalError, UnknownQueue
from ebbmq.model import DeviceStatus, Evicted, Upkept
from ebbmq.wire.http import codec, forms, managing

if TYPE_CHECKING:
    from collections.abc import Callable

    from ebbmq.feed.advice import FactorOutcome
    from ebbmq.model import Lease, Peeked, QueueSpec, Receipt, Removal, TopicSpec

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_UNAVAILABLE: Final = 503
_UPKEEP_WAIT_MS: Final = 600_000
#: However much a device has that is to be copied first.
_DRAIN_WAIT_MS: Final = 86_400_000
MAY_BE_DONE: Final = "it may have been carried out: look before you do it again"


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Generic[T_co]):
    """One request, and what may be done when nobody answers it."""

    method: str
    path: str
    body: bytes | None = None
    read: Callable[[bytes], T_co]
    #: How long the server may take on purpose, beside what a call may take anyway.
    wait_ms: int = 0
    #: Whether it may be sent again although it may have been carried out.
    repeatable: bool = True
    #: What a person should do when it is not known whether it was carried out.
    doubt: str = ""
    #: An error that means, if an earlier try may have been carried out, that it was.
    done_if: type[EbbError] | None = None
    #: A status that is an answer although it looks like an error.
    accepts: int = 0


class Reply(NamedTuple):
    """What a call came to, and whether an earlier try of it may have been carried out too."""

    value: Any
    in_doubt: bool


def reader(form: type[T]) -> Callable[[bytes], T]:
    """A function that reads an answer's body as a form, or raises InternalError."""
    decode = msgspec.json.Decoder(form).decode

    def read(body: bytes) -> T:
        try:
            return decode(body)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise InternalError(
                f"the answer cannot be read: {error}"[:400],
                "check the URL, and that server and client are of versions that go together",
            ) from error

    return read


def nothing(_: bytes) -> None:
    """Read an answer that says no more than that it is done."""
    return


def _name(kind: str, name: object) -> str:
    """A name as a part of a path; what cannot be one is no queue's or topic's name."""
    if not isinstance(name, str) or not name:
        raise UnknownQueue(f"no {kind} {name!r:.80}", "give the name of a declared one")
    try:
        return quote(name, safe="")
    except UnicodeEncodeError:
        raise UnknownQueue(f"no {kind} {name!r:.80}", "its name is not Unicode text") from None


def _queue(queue: object, *rest: str) -> str:
    return "/".join(("/v1/queues", _name("queue", queue), *rest))


def _topic(topic: object, *rest: str) -> str:
    return "/".join(("/v1/topics", _name("topic", topic), *rest))


# Messages


class _Lease(forms.LeaseForm, kw_only=True):
    """A lease as it comes in: one of the two forms of its body is left out."""

    body_b64: bytes | UnsetType = UNSET
    text: str | UnsetType = UNSET


class _Leases(msgspec.Struct):
    leases: list[_Lease]


class _Peek(forms.PeekForm, kw_only=True):
    """A peeked message as it comes in: one of the two forms of its body is left out."""

    body_b64: bytes | UnsetType = UNSET
    text: str | UnsetType = UNSET


class _Peeks(msgspec.Struct):
    messages: list[_Peek]


_receipts = reader(forms.ReceiptsForm)
_topic_receipts = reader(forms.TopicReceiptsForm)
_leases = reader(_Leases)
_peeks = reader(_Peeks)
_PUBLISH_DOUBT: Final = (
    "it may be stored: give your messages ids of your own, then they can be published again safely"
)
_LEASE_DOUBT: Final = (
    "messages may have been leased by it; they come back when their lease ends. "
    "A lease with a name can be asked for again"
)


def publish(queue: str, form: forms.PublishForm) -> Call[list[Receipt]]:
    """Messages that all have ids, so that it may be repeated."""
    return Call(
        method="POST",
        path=_queue(queue, "messages"),
        body=codec.encode(form),
        read=lambda body: _receipts(body).receipts,
        wait_ms=form.timeout_ms or 0,
        doubt=_PUBLISH_DOUBT,
    )


def publish_topic(topic: str, form: forms.PublishForm) -> Call[dict[str, list[Receipt]]]:
    """Not repeated in doubt: a topic does not know producers' ids."""
    return Call(
        method="POST",
        path=_topic(topic, "messages"),
        body=codec.encode(form),
        read=lambda body: _topic_receipts(body).receipts,
        wait_ms=form.timeout_ms or 0,
        repeatable=False,
        doubt="it may be stored, and a topic cannot tell a second publish from the first",
    )


def lease(
    queue: str, count: int, wait_ms: int, lease_timeout_ms: int | None, name: str | None
) -> Call[list[Lease]]:
    """Repeatable under a name: whoever asks again gets the same leases."""
    return Call(
        method="POST",
        path=_queue(queue, "leases"),
        body=codec.encode(
            forms.LeaseRequest(
                count=count, wait_ms=wait_ms, lease_timeout_ms=lease_timeout_ms, name=name
            )
        ),
        read=_read_leases,
        wait_ms=wait_ms,
        repeatable=name is not None,
        doubt=_LEASE_DOUBT,
    )


def _read_leases(body: bytes) -> list[Lease]:
    return [codec.lease_of(form) for form in _leases(body).leases]


def read_lease(queue: str, name: str, first: int, last: int | None) -> Call[list[Lease]]:
    """The leases held under a name."""
    query = {"from": first} if last is None else {"from": first, "to": last}
    return Call(
        method="GET",
        path=f"{_queue(queue, 'leases', _name('lease', name))}?{urlencode(query)}",
        read=_read_leases,
    )


class _Settled(msgspec.Struct):
    """What matters of the answer to every settling verb."""

    refused: list[forms.RefusedForm]


_settled = reader(_Settled)


def settle(queue: str, verb: str, form: msgspec.Struct) -> Call[list[str]]:
    """`acks`, `retries`, `releases` or `extensions`; the tokens that were refused."""
    return Call(
        method="POST",
        path=_queue(queue, verb),
        body=codec.encode(form),
        read=lambda body: [refused.token for refused in _settled(body).refused],
    )


def peek(queue: str, count: int, state: str, *, counted: bool = False) -> Call[list[Peeked]]:
    """Messages in a state, in delivery order if they are ready."""
    asked = {"count": count, "state": state} | ({"counted": "true"} if counted else {})
    return Call(
        method="GET",
        path=f"{_queue(queue, 'messages')}?{urlencode(asked)}",
        read=lambda body: [codec.peeked_of(form) for form in _peeks(body).messages],
    )


# Queues

_queue_view = reader(managing.QueueView)
_queue_views = reader(managing.QueuesForm)
_removals = reader(managing.RemovalsForm)
_purged = reader(managing.PurgedForm)
_redriven = reader(managing.RedrivenForm)
_factor = reader(managing.DecayFactorView)


def declare(spec: QueueSpec) -> Call[None]:
    """Make or change a queue."""
    body = codec.encode(managing.form_of_spec(spec))
    return Call(method="PUT", path=_queue(spec.name), body=body, read=nothing)


def delete(queue: str) -> Call[None]:
    """Remove a queue."""
    return Call(method="DELETE", path=_queue(queue), read=nothing, done_if=UnknownQueue)


def spec(queue: str) -> Call[QueueSpec]:
    """What a queue promises."""
    return Call(method="GET", path=_queue(queue), read=lambda body: _queue_view(body).spec)


def stats(queue: str) -> Call[dict[str, Any]]:
    """How a queue is doing."""
    return Call(method="GET", path=_queue(queue), read=_read_stats)


def _read_stats(body: bytes) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.to_builtins(_queue_view(body).stats)
    return found


def queues() -> Call[list[QueueSpec]]:
    """Every queue the caller may see."""
    return Call(
        method="GET",
        path="/v1/queues",
        read=lambda body: [view.spec for view in _queue_views(body).queues],
    )


def pause(queue: str) -> Call[None]:
    """Grant no more leases."""
    return Call(method="POST", path=_queue(queue, "pause"), read=nothing, body=b"")


def resume(queue: str) -> Call[None]:
    """Grant leases again."""
    return Call(method="POST", path=_queue(queue, "resume"), read=nothing, body=b"")


def purge(queue: str) -> Call[int]:
    """Not repeated in doubt: what arrived since would go as well, and the count would be wrong."""
    return Call(
        method="POST",
        path=_queue(queue, "purge"),
        body=b"",
        read=lambda body: _purged(body).purged,
        repeatable=False,
        doubt=MAY_BE_DONE,
    )


def redrive(
    queue: str, to: str | None, rate: float | None, ids: list[str] | None, wait_ms: int
) -> Call[int]:
    """Not repeated in doubt: the count would be wrong."""
    return Call(
        method="POST",
        path=_queue(queue, "redrive"),
        body=codec.encode(managing.RedriveForm(to=to, rate=rate, ids=ids)),
        read=lambda body: _redriven(body).redriven,
        wait_ms=wait_ms,
        repeatable=False,
        doubt=MAY_BE_DONE,
    )


def set_decay_factor(
    queue: str, factor: float, until_ms: int, run: str, decided_at_ms: int | None
) -> Call[FactorOutcome]:
    """Multiply newly published rates."""
    form = managing.DecayFactorForm(
        factor=factor, until_ms=until_ms, run=run, decided_at_ms=decided_at_ms
    )
    return Call(
        method="PUT",
        path=_queue(queue, "decay-factor"),
        body=codec.encode(form),
        read=lambda body: _factor(body).outcome,
    )


def removals(
    queue: str, reason: str | None, since_ms: int | None, after: str | None
) -> Call[tuple[list[Removal], bool]]:
    """A page of removals, and whether more follow."""
    asked = {
        "reason": reason,
        "since_ms": since_ms,
        "after": after,
        "count": managing.REMOVALS_COUNT_MAX,
    }
    query = urlencode({key: value for key, value in asked.items() if value is not None})

    def read(body: bytes) -> tuple[list[Removal], bool]:
        found = _removals(body)
        return found.removals, found.more

    return Call(method="GET", path=f"{_queue(queue, 'removals')}?{query}", read=read)


# Topics

_topics = reader(managing.TopicsForm)


def declare_topic(spec: TopicSpec) -> Call[None]:
    """Make or change a topic."""
    body = codec.encode(msgspec.structs.asdict(spec))
    return Call(method="PUT", path=_topic(spec.name), body=body, read=nothing)


def delete_topic(topic: str) -> Call[None]:
    """Remove a topic."""
    return Call(method="DELETE", path=_topic(topic), read=nothing, done_if=UnknownQueue)


def subscribe(topic: str, queue: str, *, subscribed: bool) -> Call[None]:
    """Have a queue get what a topic gets, or no longer."""
    path = _topic(topic, "queues", _name("queue", queue))
    if subscribed:
        return Call(method="PUT", path=path, body=b"", read=nothing)
    return Call(method="DELETE", path=path, read=nothing)


def topics() -> Call[list[dict[str, Any]]]:
    """Every topic the caller may see."""

    def read(body: bytes) -> list[dict[str, Any]]:
        return [msgspec.structs.asdict(view) for view in _topics(body).topics]

    return Call(method="GET", path="/v1/topics", read=read)


# The server

_health = reader(managing.HealthForm)
_backed_up = reader(managing.BackedUpForm)
_object = reader(dict[str, Any])


def why(message_id: str) -> Call[dict[str, Any]]:
    """Where a message is, or why it left."""
    path = f"/v1/messages/{quote(str(message_id) or ' ', safe='')}"
    return Call(method="GET", path=path, read=_object)


_devices = reader(managing.DevicesForm)
_device = reader(DeviceStatus)
_evicted = reader(Evicted)
_upkept = reader(Upkept)


def devices() -> Call[list[DeviceStatus]]:
    """Every device of the server."""
    return Call(method="GET", path="/v1/devices", read=lambda body: _devices(body).devices)


def probe_device(name: str) -> Call[DeviceStatus]:
    """Have a device tried."""
    return Call(method="POST", path=f"{_device_path(name)}/probe", body=b"", read=_device)


def _device_path(name: str) -> str:
    return f"/v1/devices/{quote(str(name) or ' ', safe='')}"


def admit_device(name: str) -> Call[DeviceStatus]:
    """Have a device taken back; a second time changes nothing."""
    return Call(method="POST", path=f"{_device_path(name)}/admit", body=b"", read=_device)


def evict_device(name: str, *, force: bool, drain: bool) -> Call[Evicted]:
    """Not repeated in doubt: a second answer would tell of nothing."""
    return Call(
        method="POST",
        path=f"{_device_path(name)}/evict",
        body=codec.encode(managing.EvictForm(force=force, drain=drain)),
        read=_evicted,
        wait_ms=_DRAIN_WAIT_MS if force and drain else 0,
        repeatable=False,
        doubt="look at the devices, and at the removals, before you do it again",
    )


def tend_device(name: str) -> Call[Upkept]:
    """Have a device apply what the pipeline offers; a second time it finds nothing."""
    path = f"{_device_path(name)}/upkeep"
    return Call(method="POST", path=path, body=b"", read=_upkept, wait_ms=_UPKEEP_WAIT_MS)


def health() -> Call[dict[str, Any]]:
    """Whether the server is ready; one that is not says so with 503."""

    def read(body: bytes) -> dict[str, Any]:
        found = _health(body)
        problems = [problem.detail for problem in found.problems]
        return {
            "ready": found.ready,
            "problems": problems,
            "damage": found.damage,
            "devices": found.devices,
            "feed": found.feed,
        }

    return Call(method="GET", path="/health/ready", read=read, accepts=_UNAVAILABLE)


def backup(target: str, wait_ms: int) -> Call[int]:
    """Copy the store to a directory on the server's machine."""
    return Call(
        method="POST",
        path="/v1/backup",
        body=codec.encode(managing.BackupForm(target=target)),
        read=lambda body: _backed_up(body).bytes,
        wait_ms=wait_ms,
        repeatable=False,
        doubt="look at the directory on the server before you do it again",
    )
