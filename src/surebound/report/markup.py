"""HTML and SVG as calls. What is not markup already is escaped, so that no name from a file becomes part of a page."""

from collections.abc import Iterable
from html import escape

from surebound.errors import visible

_VOID = {"br", "circle", "img", "line", "link", "meta", "path", "rect"}


class Markup(str):
    """Text that may go into a page as it is."""

    __slots__ = ()


def text(value: object) -> Markup:
    r"""A value as markup, with what a browser would obey or hide written out.

    >>> text("<b>"), text(Markup("<b>")), text("\u202eabc")
    ('&lt;b&gt;', '<b>', '\\u202eabc')
    """
    return value if isinstance(value, Markup) else Markup(escape(visible(str(value), keep="\n\t")))


def join(parts: Iterable[object]) -> Markup:
    """Parts one after the other; None is nothing."""
    return Markup("".join(text(part) for part in parts if part is not None))


def element(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element. Attributes that are None are left out; `class_` is class, `aria_label` is aria-label.

    >>> element("td", "a < b", class_="n", title=None)
    '<td class="n">a &lt; b</td>'
    """
    opening = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{opening}>" if name in ("br", "img", "link", "meta") else f"<{name}{opening}/>")
    return Markup(f"<{name}{opening}>{join(children)}</{name}>")


def _attribute(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.2f}".rstrip("0").rstrip(".")
    return text(value)
