"""The endpoints of storage rules: list, add, change, remove, who changed them, and explain."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from litestar import Response, delete, get, post, put

from ebbmq.errors import RuleConflict, UnknownRule
from ebbmq.node.server.asking import (
    Answer,
    Asking,
    NoFields,
    Turns,
    answer,
    body_of,
    caller_of,
    name_of,
    query_of,
)
from ebbmq.policy.rules.properties import Properties
from ebbmq.policy.rules.spec import RuleSpec
from ebbmq.wire.http import rules as forms

if TYPE_CHECKING:
    from litestar.handlers import HTTPRouteHandler

    from ebbmq.node.server.access import Caller
    from ebbmq.node.server.context import Context
    from ebbmq.policy.rules.spec import RuleView

_RULE: Final = "/v1/rules/{rule:str}"
_NOT_MODIFIED: Final = 304


class Rules:
    """Endpoints below /v1/rules; they are about the whole server, so its pattern is `*`."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._broker = context.broker
        self._changes = Turns("changes of rules", 8)
        self._explanations = Turns("explanations", 2)
        self._applications = Turns("applications of rules to what is stored", 1)

    def routes(self) -> list[HTTPRouteHandler]:
        """What Litestar serves."""
        return [
            get("/v1/rules")(self.list_all),
            post("/v1/rules", status_code=201)(self.add),
            put("/v1/rules")(self.put_all),
            get("/v1/rules/audit")(self.audit),
            post("/v1/rules/explain", status_code=200)(self.explain),
            post("/v1/rules/apply", status_code=200)(self.apply),
            get(_RULE)(self.show),
            put(_RULE)(self.change),
            delete(_RULE, status_code=204)(self.remove),
        ]

    async def list_all(self, request: Asking) -> Answer:
        """Every rule; 304 for who has this version already."""
        self._managed(request)
        query_of(request, NoFields)
        found = await self._broker.rules()
        tag = forms.etag(found.version)
        if tag in request.headers.get("if-none-match", "").replace("W/", "").split(", "):
            return _tagged(Response(b"", status_code=_NOT_MODIFIED), found.version)
        return _tagged(answer(found), found.version)

    async def add(self, request: Asking) -> Answer:
        """A new rule; one of its id must not be there."""
        caller = self._managed(request)
        query_of(request, NoFields)
        spec = forms.spec_of(await body_of(request, forms.RuleForm))
        with self._changes:
            view = await self._broker.put_rule(spec, new=True, who=caller.name)
        return _tagged(answer(view, 201), view.version)

    async def put_all(self, request: Asking) -> Answer:
        """Many rules at once: all of them or none."""
        caller = self._managed(request)
        query_of(request, NoFields)
        form = await body_of(request, forms.RulesForm)
        specs = [forms.spec_of(each) for each in form.rules]
        with self._changes:
            found = await self._broker.put_rules(specs, others=form.others, who=caller.name)
        return _tagged(answer(found), found.version)

    async def show(self, request: Asking) -> Answer:
        """One rule."""
        self._managed(request)
        query_of(request, NoFields)
        view = await self._broker.rule(name_of(request, "rule"))
        return _tagged(answer(view), view.version)

    async def change(self, request: Asking) -> Answer:
        """Change a rule, or add it; If-Match holds it to what the caller has seen."""
        caller, rule_id = self._managed(request), name_of(request, "rule")
        asked = query_of(request, forms.VersionQuery).version
        form = await body_of(request, forms.RuleChangeForm)
        before = await self._find(rule_id)
        spec = forms.changed_of(rule_id, form, None if before is None else _spec(before))
        version = _version(request, asked, before)
        if version is None and before is not None and spec != _spec(before):
            # What the body left out is taken from what was read just now: it must still be so.
            version = before.version
        new = before is None or request.headers.get("if-none-match", "") == "*"
        with self._changes:
            view = await self._broker.put_rule(spec, version=version, new=new, who=caller.name)
        return _tagged(answer(view, 201 if before is None else 200), view.version)

    async def remove(self, request: Asking) -> None:
        """Remove a rule that was added."""
        caller, rule_id = self._managed(request), name_of(request, "rule")
        asked = query_of(request, forms.VersionQuery).version
        version = _version(request, asked, await self._find(rule_id))
        with self._changes:
            await self._broker.remove_rule(rule_id, version=version, who=caller.name)

    async def audit(self, request: Asking) -> Answer:
        """Who changed which rule, newest last."""
        self._managed(request)
        asked = query_of(request, forms.AuditQuery)
        changes = await self._broker.rule_changes()
        return answer(forms.ChangesForm(changes[-asked.count :]))

    async def explain(self, request: Asking) -> Answer:
        """Which devices a message would be kept on, and why."""
        self._managed(request)
        query_of(request, NoFields)
        form = await body_of(request, forms.ExplainForm)
        asked = {name: getattr(form.message, name) for name in Properties.__struct_fields__}
        with self._explanations:
            told = await self._broker.explain_rules(
                Properties(**asked),
                durable=form.durable,
                replicas=form.replicas,
                default=form.default,
                statuses=form.statuses,
            )
        return answer(told)

    async def apply(self, request: Asking) -> Answer:
        """Ask the rules again for everything that is stored."""
        self._managed(request)
        query_of(request, NoFields)
        await body_of(request, NoFields)
        with self._applications:
            return answer(forms.AppliedForm(await self._broker.apply_rules()))

    def _managed(self, request: Asking) -> Caller:
        caller = caller_of(self._context, request)
        self._context.access.check(caller, "manage", None)
        return caller

    async def _find(self, rule_id: str) -> RuleView | None:
        try:
            return await self._broker.rule(rule_id)
        except UnknownRule:
            return None


def _spec(view: RuleView) -> RuleSpec:
    return RuleSpec(view.id, view.weight, view.device, view.when, view.enabled)


def _version(request: Asking, asked: int | None, before: RuleView | None) -> int | None:
    """The version the caller has seen, by If-Match or query; None where any will do."""
    given = request.headers.get("if-match")
    if given is None:
        return asked
    version = forms.version_in(given)
    if version is None and before is None:
        raise RuleConflict(
            "If-Match: * is about a rule that is there, and there is none",
            "leave the header out to add it",
            code="version_conflict",
        )
    return version


def _tagged(response: Answer, version: int) -> Answer:
    response.headers["etag"] = forms.etag(version)
    return response
