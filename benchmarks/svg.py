"""Fits what matplotlib draws into a page with a strict content security policy.

The drawing is rebuilt from a list of known elements and attributes: style attributes become
presentation attributes, which such a policy allows, and colours become classes too, so that the
page's style sheet can change them in a dark scheme.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from xml.etree import ElementTree

__all__ = ["embeddable"]

_ELEMENTS = {"svg", "g", "path", "text", "tspan", "use", "defs", "clipPath", "rect"}
_ATTRIBUTES = {"viewBox", "d", "x", "y", "width", "height", "transform", "clip-path"}
_PROPERTIES = {"fill", "stroke", "opacity", "font-size", "text-anchor"}
_HREF = "{http://www.w3.org/1999/xlink}href"
_REFERENCE = re.compile(r"#([mp][0-9a-f]+)")  # the ids of markers and clip paths
_ROOT = {"role": "img", "stroke-linejoin": "round", "stroke-linecap": "butt"}


def embeddable(svg: bytes, name: str, description: str, classes: Mapping[str, str]) -> str:
    """Return a drawing of matplotlib's as an SVG element for an HTML page.

    Args:
        svg: What matplotlib wrote.
        name: What the ids inside start with: different for each drawing on a page.
        description: What a screen reader says of it.
        classes: A class for each colour: ``fill-`` or ``stroke-`` and this.

    Example:
        >>> svg = b'<svg><path style="fill: #ff0000" onclick="alert(1)"/></svg>'
        >>> print(embeddable(svg, "plot", "A plot", {"#ff0000": "red"}).partition(">")[2])
        <path fill="#ff0000" class="fill-red" /></svg>
    """
    root = _rebuild(ElementTree.fromstring(svg), name, classes)
    for key in ("width", "height"):
        root.attrib.pop(key, None)
    root.attrib.update(_ROOT)
    root.set("aria-label", description)
    return ElementTree.tostring(root, encoding="unicode")


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


def _rebuild(
    element: ElementTree.Element, name: str, classes: Mapping[str, str]
) -> ElementTree.Element:
    """Return a copy that holds known elements and attributes only, and no inline style."""
    copy = ElementTree.Element(_tag(element))
    copy.text = element.text if element.text and element.text.strip() else None
    for key, value in element.attrib.items():
        if key == _HREF:
            copy.set("href", _REFERENCE.sub(rf"#{name}-\1", value))
        elif key == "id" and _REFERENCE.fullmatch(f"#{value}"):
            copy.set("id", f"{name}-{value}")
        elif key in _ATTRIBUTES:
            copy.set(key, _REFERENCE.sub(rf"#{name}-\1", " ".join(value.split())))
    properties = _properties(element.get("style", ""))
    if copy.tag == "text":
        copy.set("class", "fill-ink")
    names = [f"{key}-{classes[value]}" for key, value in properties.items() if value in classes]
    copy.attrib.update(properties)
    if names:
        copy.set("class", " ".join(names))
    copy.extend(_rebuild(child, name, classes) for child in element if _tag(child) in _ELEMENTS)
    return copy


def _properties(style: str) -> dict[str, str]:
    """Return the properties of a style attribute that are wanted, as SVG attributes."""
    found = {}
    for declaration in style.split(";"):
        key, _, value = (part.strip() for part in declaration.partition(":"))
        if key == "font":  # shorthand, "10px 'DejaVu Sans', sans-serif"
            key, value = "font-size", value.split()[0]
        if key in _PROPERTIES or key.startswith(("stroke-", "fill-")):
            found[key] = value
    return found
