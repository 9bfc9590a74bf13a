"""Every request a client makes about plans of the pipeline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq.client.calls import Call, reader
from ebbmq.feed.advice import Plans
from ebbmq.wire.http import codec
from ebbmq.wire.http.plans import AppliedPlansForm, ApplyPlansForm

if TYPE_CHECKING:
    from ebbmq.feed.advice import Applied

_PLANS: Final = "/v1/plans"
_plans: Final = reader(Plans)
_applied: Final = reader(AppliedPlansForm)


def every() -> Call[Plans]:
    """What was made of advice."""
    return Call(method="GET", path=_PLANS, read=_plans)


def apply(run: str | None, wait_ms: int) -> Call[list[Applied]]:
    """Have plans applied that the server's lake has; twice is as once."""
    form = ApplyPlansForm(run=run)
    return Call(
        method="POST",
        path=_PLANS,
        body=codec.encode(form),
        read=lambda body: _applied(body).runs,
        wait_ms=wait_ms,
    )
