"""Formulas as MathML, made when the site is built: readers need no script and no font server.

``$x$`` and ``$$x$$`` in a page are found by `pymdownx.arithmatex`; here their LaTeX becomes MathML,
which browsers draw by themselves.
"""

from __future__ import annotations

import html
import re
from typing import Any
from xml.etree import ElementTree

__all__ = ["mathml", "on_page_content"]

_FOUND = re.compile(
    r'<(?P<tag>span|div) class="arithmatex">\\[(\[](?P<latex>.*?)\\[)\]]</(?P=tag)>', re.DOTALL
)
_FUNCTION = re.compile(r"<mi>(?:log|ln)</mi>(?!<mo)")


def mathml(latex: str, block: bool) -> str:
    """Return a formula as MathML.

    Args:
        latex: The formula, as in LaTeX's math mode.
        block: Whether it stands on lines of its own.

    Raises:
        ValueError: A part of it is not understood.
    """
    from latex2mathml.converter import convert

    markup: str = convert(latex.strip(), display="block" if block else "inline")
    try:
        text = "".join(ElementTree.fromstring(markup).itertext())
    except ElementTree.ParseError:
        text = "&"
    if "\\" in text or "&" in text:
        raise ValueError(f"expected a formula that latex2mathml knows, found {latex.strip()!r}")
    return _FUNCTION.sub(r'\g<0><mspace width="0.167em" />', markup)


def on_page_content(content: str, **_: Any) -> str:
    """Put MathML in the place of a page's formulas; MkDocs calls this."""

    def written(formula: re.Match[str]) -> str:
        is_block = formula["tag"] == "div"
        markup = mathml(html.unescape(formula["latex"]), is_block)
        return f'<div class="formula">{markup}</div>' if is_block else markup

    return _FOUND.sub(written, content)
