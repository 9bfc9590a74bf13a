"""The storage rules on the start page: what each weighs now, and how often it chose."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ebbmq.node.server.html import Markup, joined, tag

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from ebbmq.model import DeviceStatus
    from ebbmq.policy.rules.spec import RulesView, RuleView

_SHOWN_MAX: Final = 50
_COLUMNS: Final = ("rule", "weight", "now", "device", "when", "placed")
_ROW: Final = (
    '<tr{off}><td>{id}{note}</td><td>{weight}</td><td title="{why}">{now}</td>'
    '<td class="words">{device}</td><td class="words when" title="{when}"><code>{when}</code></td>'
    "<td>{placed}</td></tr>"
)
_TABLE: Final = (
    '<h2>Rules<span class="note">version {version}, {strategy}</span></h2>'
    '<div class="card scroll"><table class="rules"><thead><tr>{head}</tr></thead>'
    "<tbody>{rows}</tbody></table></div>{more}"
)
_NONE: Final = Markup(
    '<h2>Rules</h2><p class="soft">There are none: messages go to their queue\'s default device, '
    "else to the node's log. <code>ebbmq rules add</code> makes one.</p>"
)


def rules_table(found: RulesView, devices: Sequence[DeviceStatus]) -> Markup:
    """The rules that weigh most first; nothing where there is no device to choose."""
    if not found.rules:
        return _NONE if len(devices) > 1 else Markup("")
    by_name = {device.name: device for device in devices}
    ranked = sorted(found.rules, key=lambda rule: (not rule.enabled, -rule.weight, rule.id))
    more = len(ranked) - _SHOWN_MAX
    return tag(
        _TABLE,
        version=found.version,
        strategy=found.strategy.replace("_", " "),
        head=joined([_head(name) for name in _COLUMNS]),
        rows=joined([_row(rule, by_name, found.placed) for rule in ranked[:_SHOWN_MAX]]),
        more=tag('<p class="soft">and {n} more; see /v1/rules</p>', n=f"{more:,}")
        if more > 0
        else Markup(""),
    )


def _head(name: str) -> Markup:
    kind = Markup(' class="words"') if name in {"device", "when"} else Markup("")
    return tag("<th{kind}>{name}</th>", kind=kind, name=name)


def _row(rule: RuleView, devices: Mapping[str, DeviceStatus], placed: Mapping[str, int]) -> Markup:
    device = devices.get(rule.device)
    why, now = _now(rule, device)
    return tag(
        _ROW,
        off=Markup("") if rule.enabled else Markup(' class="off"'),
        id=rule.id,
        note=Markup("") if rule.enabled else Markup('<span class="note">off</span>'),
        weight=f"{rule.weight:g}",
        why=why,
        now=now,
        device=rule.device,
        when=rule.when,
        placed=f"{placed.get(rule.id, 0):,}",
    )


def _now(rule: RuleView, device: DeviceStatus | None) -> tuple[str, str]:
    """What a rule weighs with its device's status, and why."""
    if not rule.enabled:
        return "it is switched off", "-"
    if device is None:
        return f"there is no device {rule.device}", "-"
    if not device.usable:
        return f"{rule.device} cannot be used", "-"
    now = f"{rule.weight + device.status:.1f}".removesuffix(".0")
    return f"with the status of {rule.device}, {round(device.status)}", now
