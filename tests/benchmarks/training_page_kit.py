"""What tests of reports on trainings share: hostile text, and a page that is read."""

from __future__ import annotations

import sys
from html.parser import HTMLParser

__all__ = ["HOSTILE", "KIT", "Page", "read_page"]

HOSTILE = "</td><script>alert(1)</script>\x1b[2J\u202e{{ 7*7 }}"
_EMPTY = ("meta", "path", "use", "rect")


class Page(HTMLParser):
    """What is on a page.

    Attributes:
        open: Elements that were begun and not ended.
        seen: All elements, with their attributes.
        text: The text.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    @property
    def tags(self) -> list[str]:
        """The names of all elements."""
        return [tag for tag, _ in self.seen]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in _EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        if tag not in _EMPTY:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def read_page(source: str) -> Page:
    """Read a page which `HOSTILE` is part of: it is whole, and nothing on it runs or is fetched."""
    page = Page()
    page.feed(source)
    assert page.open == [] and not {"script", "link", "img"} & set(page.tags)
    for _, attributes in page.seen:
        assert not [name for name in attributes if name.startswith("on") or name == "src"]
        assert (attributes.get("href") or "#").startswith("#")
    assert "default-src 'none'" in source and "\x1b" not in source and "\u202e" not in source
    assert "alert(1)" in page.text and "{{ 7*7 }}" in page.text
    ids = [attributes["id"] for _, attributes in page.seen if "id" in attributes]
    assert len(ids) == len(set(ids))
    return page


KIT = sys.modules[__name__]
"""This module, for tests: ``load("training_page_kit.py:KIT")``."""
