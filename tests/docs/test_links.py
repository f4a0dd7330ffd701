"""All Markdown of the repository can be read as it is: links lead somewhere, and nothing is raw syntax."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
FOLDERS = ("agents", "benchmarks", "docs", "envs", "examples", "integrations", "lm")
PAGES = sorted(
    [*ROOT.glob("*.md")] + [path for folder in FOLDERS for path in ROOT.glob(f"{folder}/**/*.md")]
)
MARKDOWN = MarkdownIt().enable("table")

RAW = re.compile(
    r"^:::|^:   |^!!!|^\?\?\?|^=== \"|\{[#:.][\w-]+|\]\[[\w. ]+\]|^<!-- \w+: .*-->\s*<!-- end -->",
    re.MULTILINE,
)
"""What only a site's extensions understand: directives, admonitions, attributes, undefined references."""


def names(pages: list[Path]) -> list[str]:
    return [page.relative_to(ROOT).as_posix() for page in pages]


@cache
def tokens_of(page: Path) -> list[Token]:
    return MARKDOWN.parse(page.read_text("utf-8"))


def targets_of(page: Path) -> Iterator[str]:
    """Yield where a page's links and pictures lead."""
    for token in tokens_of(page):
        for part in token.children or ():
            if part.type == "link_open":
                yield str(part.attrs["href"])
            elif part.type == "image":
                yield str(part.attrs["src"])


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    tokens = tokens_of(page)
    headings = [text for token, text in pairwise(tokens) if token.type == "heading_open"]
    return {anchor_of(heading) for heading in headings}


def anchor_of(heading: Token) -> str:
    parts = heading.children or ()
    text = "".join(part.content for part in parts if part.type in ("text", "code_inline"))
    return re.sub(r"[^\w\- ]", "", text.lower()).strip().replace(" ", "-")


def leads_somewhere(target: str, page: Path) -> bool:
    address = urlsplit(target)
    if address.scheme:
        return True  # other hosts are not asked
    target_page = page.parent / unquote(address.path) if address.path else page
    if not target_page.resolve().is_relative_to(ROOT) or not target_page.is_file():
        return False
    return not address.fragment or unquote(address.fragment) in anchors_of(target_page)


def test_broken_links_and_raw_syntax_are_noticed() -> None:
    assert leads_somewhere("docs/index.md#where-to-begin", ROOT / "README.md")
    for target in ("docs/nowhere.md", "docs/index.md#nowhere", "../elsewhere.md", "docs"):
        assert not leads_somewhere(target, ROOT / "README.md")
    for text in (
        "::: comap.facts.diff",
        "[`diff`][comap.facts.diff]",
        "# Title {#title}",
        ":   text",
    ):
        assert RAW.search(text)


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_links_and_pictures_lead_somewhere(page: Path) -> None:
    assert [target for target in targets_of(page) if not leads_somewhere(target, page)] == []


@pytest.mark.parametrize("page", PAGES, ids=names(PAGES))
def test_nothing_is_shown_raw(page: Path) -> None:
    """Outside of code there is only what every reader of Markdown renders."""
    texts = []
    for token in tokens_of(page):
        if token.type == "html_block":
            texts.append(token.content)
        texts += [part.content for part in token.children or () if part.type == "text"]
    assert [text for text in texts if RAW.search(text)] == []


def test_all_committed_pages_are_read() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if listed.returncode:
        pytest.skip("no git repository")
    committed = {name for name in listed.stdout.split() if not name.startswith("tests/")}
    assert committed <= set(names(PAGES))
