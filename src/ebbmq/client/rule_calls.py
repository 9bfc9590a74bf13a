"""Every request a client makes about storage rules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from ebbmq.client.calls import MAY_BE_DONE, Call, nothing, reader
from ebbmq.errors import UnknownRule
from ebbmq.policy.rules.explain import Explanation
from ebbmq.policy.rules.properties import Properties
from ebbmq.policy.rules.spec import RuleChange, RuleSpec, RulesView, RuleView
from ebbmq.wire.http import codec
from ebbmq.wire.http import rules as forms

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Literal

_RULES: Final = "/v1/rules"

_rule: Final = reader(RuleView)
_rules: Final = reader(RulesView)
_changes: Final = reader(forms.ChangesForm)
_applied: Final = reader(forms.AppliedForm)
_explanation: Final = reader(Explanation)


def _path(rule_id: object, version: int | None = None) -> str:
    if not isinstance(rule_id, str) or not rule_id:
        raise UnknownRule(f"there is no rule {rule_id!r:.80}", "list the rules to see their ids")
    try:
        path = f"{_RULES}/{quote(rule_id, safe='')}"
    except UnicodeEncodeError:
        raise UnknownRule(f"no rule {rule_id!r:.80}", "its id is not Unicode text") from None
    return path if version is None else f"{path}?version={int(version)}"


def every() -> Call[RulesView]:
    """Every rule."""
    return Call(method="GET", path=_RULES, read=_rules)


def one(rule_id: str) -> Call[RuleView]:
    """One rule."""
    return Call(method="GET", path=_path(rule_id), read=_rule)


def put(rule: RuleSpec, version: int | None, *, new: bool) -> Call[RuleView]:
    """Add or change a rule."""
    rule.check()
    body = codec.encode(forms.form_of(rule))
    if new:
        return Call(
            method="POST",
            path=_RULES,
            body=body,
            read=_rule,
            repeatable=False,
            doubt=MAY_BE_DONE,
        )
    whole = forms.RuleChangeForm(
        weight=rule.weight, device=rule.device, when=rule.when, enabled=rule.enabled
    )
    return change(rule.id, whole, version)


def change(rule_id: str, form: forms.RuleChangeForm, version: int | None) -> Call[RuleView]:
    """Change what is given of a rule."""
    return Call(
        method="PUT",
        path=_path(rule_id, version),
        body=codec.encode(form),
        read=_rule,
        # What was carried out changed the version: the same again would be refused.
        repeatable=version is None,
        doubt=MAY_BE_DONE,
    )


def enable(rule_id: str, version: int | None, *, enabled: bool) -> Call[RuleView]:
    """Switch a rule on or off."""
    return change(rule_id, forms.RuleChangeForm(enabled=enabled), version)


def put_all(rules: Iterable[RuleSpec], others: Literal["keep", "remove"]) -> Call[RulesView]:
    """Add or change many rules."""
    found = list(rules)
    for rule in found:
        rule.check()
    form = forms.RulesForm(rules=[forms.form_of(rule) for rule in found], others=others)
    return Call(method="PUT", path=_RULES, body=codec.encode(form), read=_rules)


def remove(rule_id: str, version: int | None) -> Call[None]:
    """Remove a rule."""
    path = _path(rule_id, version)
    return Call(method="DELETE", path=path, read=nothing, done_if=UnknownRule)


def apply(wait_ms: int) -> Call[int]:
    """Ask the rules again for what is stored; not repeated in doubt, the count would be wrong."""
    return Call(
        method="POST",
        path=f"{_RULES}/apply",
        body=b"",
        read=lambda body: _applied(body).moving,
        wait_ms=wait_ms,
        repeatable=False,
        doubt=MAY_BE_DONE,
    )


def audit() -> Call[list[RuleChange]]:
    """Who changed which rule."""
    path = f"{_RULES}/audit?count=1000"
    return Call(method="GET", path=path, read=lambda body: _changes(body).changes)


def explain(message: Properties | None, **options: Any) -> Call[Explanation]:
    """Why a device would be chosen."""
    message = message or Properties()
    asked = {name: getattr(message, name) for name in Properties.__struct_fields__}
    asked["headers"] = dict(message.headers)
    form = forms.ExplainForm(message=forms.PropertiesForm(**asked), **options)
    path = f"{_RULES}/explain"
    return Call(method="POST", path=path, body=codec.encode(form), read=_explanation)
