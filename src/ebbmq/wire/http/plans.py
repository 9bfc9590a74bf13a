"""What travels over HTTP about plans of the pipeline."""

from typing import Annotated

import msgspec
from msgspec import Meta

from ebbmq import limits
from ebbmq.feed.advice import Applied
from ebbmq.feed.plans import PlanRow
from ebbmq.wire.http.forms import ShortText


class ApplyPlansForm(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """POST /v1/plans: `rows` of the plan of `run`; without rows the server reads its lake.

    Without a run, too, it takes all that are new there. An empty list of rows says that those
    before it were all.
    """

    run: ShortText | None = None
    rows: Annotated[list[PlanRow], Meta(max_length=limits.PLAN_ROWS_MAX)] | None = None


class AppliedPlansForm(msgspec.Struct):
    """POST /v1/plans: what became of each run."""

    runs: list[Applied]
