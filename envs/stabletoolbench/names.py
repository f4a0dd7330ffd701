"""Names: how ToolBench names functions and parameters, and which names may reach the file system."""

from __future__ import annotations

import re
import unicodedata

__all__ = [
    "MAX_NAME",
    "changed",
    "file_part",
    "folder_of_category",
    "function_name",
    "parameter_name",
    "standard",
]

MAX_NAME = 64
"""The most characters of a function's name: OpenAI allows no more."""

_OTHER = {
    "strict": re.compile("[^\u4e00-\u9fa5a-zA-Z0-9_]"),
    "reference": re.compile("[^\u4e00-\u9fa5a-zA-Z0-9_^]"),  # a slip of upstream's keeps "^"
}
_NOT_OPENAI = re.compile("[^a-zA-Z0-9_]")
_RUNS = re.compile("__+")
_RESERVED = frozenset(("from", "class", "return", "false", "true", "id", "and"))
_LONGEST_PART = 200
_FORBIDDEN = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|]')


def standard(name: str, compat: str = "strict") -> str:
    """Return a name in ToolBench's standard form.

    Example:
        >>> standard("Top 10 Songs (US)"), standard("2nd-hand")
        ('top_10_songs_us', 'get_2nd_hand')
    """
    text = _RUNS.sub("_", _OTHER[compat].sub("_", name)).lower().strip("_")
    return f"get_{text}" if text[:1].isdigit() else text


def changed(name: str) -> str:
    """Return a name that is no word of a programming language.

    Example:
        >>> changed("from"), changed("origin")
        ('is_from', 'origin')
    """
    return f"is_{name}" if name in _RESERVED else name


def parameter_name(name: str, compat: str = "strict") -> str:
    """Return what functions call a parameter.

    Example:
        >>> parameter_name("ID"), parameter_name("Page Size")
        ('is_id', 'page_size')
    """
    return changed(standard(name, compat))


def function_name(api: str, tool: str, compat: str = "strict") -> str:
    """Return what an API is called: name, ``_for_``, its tool's name, of that the last 64 characters.

    Upstream lets Chinese characters and ``^`` pass, which OpenAI refuses; strictly, they become ``_``.

    Example:
        >>> function_name("Search by Name", "The Cocktail DB")
        'search_by_name_for_the_cocktail_db'
    """
    name = f"{changed(standard(api, compat))}_for_{standard(tool, compat)}"[-MAX_NAME:]
    return name if compat == "reference" else _NOT_OPENAI.sub("_", name)


def folder_of_category(category: str) -> str:
    """Return what the official cache calls a category's folder.

    Example:
        >>> folder_of_category("News, Media"), folder_of_category("Video/Images")
        ('News_Media', 'Video_Images')
    """
    return re.sub("[ ,/]", "_", category).replace("__", "_")


def file_part(name: str) -> str | None:
    """Return a name if it may be one part of a path, else None: whatever it is, it leads nowhere.

    Example:
        >>> file_part("top_songs"), file_part(".."), file_part("a/b"), file_part("\uff0e\uff0e")
        ('top_songs', None, None, None)
    """
    if not name or name.startswith(".") or name.endswith((".", " ")) or _FORBIDDEN.search(name):
        return None
    try:
        if len(name.encode()) > _LONGEST_PART or unicodedata.normalize("NFKC", name) != name:
            return None
    except UnicodeEncodeError:  # half a character
        return None
    return name
