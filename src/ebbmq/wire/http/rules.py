"""What travels over HTTP about storage rules."""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from ebbmq import limits
from ebbmq.errors import InvalidRequest, InvalidSpec, UnknownRule
from ebbmq.policy.rules.properties import Properties
from ebbmq.policy.rules.rule import RULES_MAX
from ebbmq.policy.rules.spec import RuleChange, RuleSpec
from ebbmq.policy.status import STATUS_BEST, STATUS_WORST
from ebbmq.wire.http.forms import ShortText

Status = Annotated[float, Meta(ge=STATUS_WORST, le=STATUS_BEST)]
#: Longer than any version, so that no number in a header takes long to read.
_VERSION_CHARS_MAX: Final = 15


class _Request(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """A request's body or query: a field that is not known is refused by name."""


class RuleForm(_Request):
    """POST /v1/rules: prefer `device`, by `weight`, where `when` is true."""

    id: ShortText
    weight: float
    device: ShortText
    when: str = "ALWAYS"
    enabled: bool = True


class RuleChangeForm(_Request):
    """PUT /v1/rules/{rule}: what is left out stays; a new rule needs `weight` and `device`."""

    id: ShortText | None = None
    weight: float | UnsetType = UNSET
    device: ShortText | UnsetType = UNSET
    when: str | UnsetType = UNSET
    enabled: bool | UnsetType = UNSET


class VersionQuery(_Request):
    """PUT and DELETE /v1/rules/{rule}: as If-Match, for who cannot send headers."""

    version: Annotated[int, Meta(ge=0, le=10**15)] | None = None


class RulesForm(_Request):
    """PUT /v1/rules: all of these or none; `others` says what becomes of other added rules."""

    rules: Annotated[list[RuleForm], Meta(max_length=RULES_MAX)]
    others: Literal["keep", "remove"] = "keep"


class AuditQuery(_Request):
    """GET /v1/rules/audit."""

    count: Annotated[int, Meta(ge=1, le=limits.RULE_CHANGES_MAX)] = 100


class AppliedForm(msgspec.Struct):
    """POST /v1/rules/apply: how many stored messages are to be moved, which goes on meanwhile."""

    moving: int


class ChangesForm(msgspec.Struct):
    """GET /v1/rules/audit: who changed which rule, newest last."""

    changes: list[RuleChange]


def _kind(name: str, kind: Any) -> Any:
    if name == "headers":
        return dict[str, str]
    if kind is float:
        return Annotated[float, Meta(ge=-1e15, le=1e15)]
    return kind


PropertiesForm: Final = msgspec.defstruct(
    "PropertiesForm",
    [
        (field.name, _kind(field.name, field.type), field.default)
        if field.name != "headers"
        else ("headers", dict[str, str], msgspec.field(default_factory=dict))
        for field in msgspec.structs.fields(Properties)
    ],
    bases=(_Request,),
    namespace={"__doc__": "A message as rules see it; `size` in KiB, `age` in days."},
    kw_only=True,
)


class ExplainForm(_Request):
    """POST /v1/rules/explain; `statuses` are used instead of those that are measured."""

    message: PropertiesForm = msgspec.field(default_factory=PropertiesForm)  # type: ignore[valid-type]
    durable: bool = True
    replicas: Annotated[int, Meta(ge=1, le=limits.REPLICAS_MAX)] = 1
    default: ShortText | None = None
    statuses: Annotated[dict[str, Status], Meta(max_length=1_000)] = {}


def spec_of(form: RuleForm) -> RuleSpec:
    """The rule a form asks for."""
    return RuleSpec(form.id, form.weight, form.device, form.when, form.enabled)


def form_of(spec: RuleSpec) -> RuleForm:
    """A rule as the body of a request."""
    return RuleForm(
        id=spec.id,
        weight=spec.weight,
        device=spec.device,
        when=spec.when,
        enabled=spec.enabled,
    )


def changed_of(rule_id: str, form: RuleChangeForm, before: RuleSpec | None) -> RuleSpec:
    """The rule a change and its path ask for.

    Raises:
        InvalidSpec: the path and the body name two rules, or a new one lacks what it needs.
        UnknownRule: a rule that is not there is to be switched on or off.
    """
    if form.id is not None and form.id != rule_id:
        raise InvalidSpec(
            f"the path says rule {rule_id!r:.80}, the body {form.id!r:.80}",
            "leave `id` out of the body, or give the same",
        )
    fields = {
        name: value
        for name in ("weight", "device", "when", "enabled")
        if (value := getattr(form, name)) is not UNSET
    }
    if before is not None:
        return msgspec.structs.replace(before, **fields)
    if not fields.keys() - {"enabled"}:
        raise UnknownRule(f"there is no rule {rule_id!r:.80}", "list the rules to see their ids")
    lacking = [name for name in ("weight", "device") if name not in fields]
    if lacking:
        raise InvalidSpec(
            f"there is no rule {rule_id!r:.80}, and a new one needs {' and '.join(lacking)}",
            "give both, or the id of a rule that is there",
        )
    return RuleSpec(rule_id, **fields)


def etag(version: int) -> str:
    """A version as the header ETag has it."""
    return f'"{version}"'


def version_in(header: str) -> int | None:
    """The version a header If-Match names; None for `*`.

    Raises:
        InvalidRequest: it names none.
    """
    text = header.strip()
    if text == "*":
        return None
    digits = text.removeprefix("W/").strip('"')
    if not digits.isdecimal() or len(digits) > _VERSION_CHARS_MAX:
        raise InvalidRequest(
            f"the header If-Match is {text!r:.80}", 'send a version as ETag had it: If-Match: "12"'
        )
    return int(digits)
