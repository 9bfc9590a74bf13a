"""Pages for people: plain HTML with one style sheet in it, no script, nothing from elsewhere."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Final

from litestar import Response

if TYPE_CHECKING:
    from ebbmq.node.server.asking import Answer

_STYLE: Final = resources.files(__package__).joinpath("style.css").read_text()
_LOGO: Final = (
    '<svg viewBox="0 0 48 48" aria-hidden="true"><rect width="48" height="48" rx="11" '
    'fill="#0b6e8f"/><path d="M7 14c5 0 5 4 10 4s5-4 10-4 5 4 10 4 4-2 5-2" fill="none" '
    'stroke="#fff" stroke-width="3.6" stroke-linecap="round"/><path d="M7 25c5 0 5 4 10 4s5-4 '
    '10-4 4 2 6 3" fill="none" stroke="#fff" stroke-opacity=".65" stroke-width="3.6" '
    'stroke-linecap="round"/><path d="M7 36c5 0 5 3 9 3" fill="none" stroke="#fff" '
    'stroke-opacity=".35" stroke-width="3.6" stroke-linecap="round"/></svg>'
)
_ICON: Final = base64.b64encode(
    _LOGO.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" ').encode()
).decode()
_STYLE_HASH: Final = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
#: Nothing runs, nothing is loaded, nobody frames it; the one style sheet is known by its hash.
HEADERS: Final = {
    "content-security-policy": (
        f"default-src 'none'; style-src 'sha256-{_STYLE_HASH}'; img-src data:; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Markup(str):
    """Text that is HTML already; everything else is escaped."""

    __slots__ = ()


def tag(template: str, **values: object) -> Markup:
    """Fill a template; values that are not Markup are escaped."""
    filled = {
        name: value if isinstance(value, Markup) else escape(str(value))
        for name, value in values.items()
    }
    return Markup(template.format(**filled))


def joined(parts: list[Markup]) -> Markup:
    """Pieces of HTML one after the other."""
    return Markup("".join(parts))


_PAGE: Final = (
    '<!doctype html><html lang="en"><head><meta charset="utf-8">'
    '<meta name="viewport" content="width=device-width, initial-scale=1">{again}'
    '<title>{title}</title><link rel="icon" href="data:image/svg+xml;base64,{icon}">'
    "<style>{style}</style></head><body><header>{logo}{head}</header><main>{body}</main>"
    "<footer>{foot}</footer></body></html>\n"
)
_FOOT: Final = Markup(
    '<a href="/">Start</a><a href="/docs">HTTP interface</a><a href="/openapi.json">OpenAPI</a>'
    '<a href="/metrics">Metrics</a><a href="/health/ready">Health</a>'
)


def page(
    title: str, head: Markup, body: Markup, *, again_s: int | None = None, status: int = 200
) -> Answer:
    """A whole page; `again_s` has the browser load it again."""
    again = tag('<meta http-equiv="refresh" content="{s}">', s=again_s) if again_s else Markup("")
    text = tag(
        _PAGE,
        again=again,
        title=title,
        icon=_ICON,
        style=Markup(_STYLE),
        logo=Markup(_LOGO),
        head=head,
        body=body,
        foot=_FOOT,
    )
    return Response(text.encode(), status_code=status, media_type="text/html", headers=HEADERS)
