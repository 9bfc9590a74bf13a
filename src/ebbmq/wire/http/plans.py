"""What travels over HTTP about plans of the pipeline."""

import msgspec

from ebbmq.feed.advice import Applied
from ebbmq.wire.http.forms import ShortText


class ApplyPlansForm(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """POST /v1/plans: `run` of the server's lake; without one, all that are new there."""

    run: ShortText | None = None


class AppliedPlansForm(msgspec.Struct):
    """POST /v1/plans: what became of each run."""

    runs: list[Applied]
