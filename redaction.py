"""Secrets and paths of this machine are taken out of what is written, and looked for in what is pushed."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from .errors import OptionError

HIDDEN = "***"
"""What stands in a file where a secret was."""

_SECRET = re.compile(
    r"(^|_)(api_?key|key|token|secrets?|pass(word|wd|phrase)?|pwd|credentials?|auth|authorization|bearer"
    r"|pat|cookie)(_|$)(?!env$|file$)"
)
# Keys have forms of their own, whatever the name beside them: OpenAI's sk-, Hugging Face's hf_, GitHub's
# gh?_ and github_pat_, GitLab's glpat-, Slack's xox?-, Amazon's AKIA, Google's AIza.
_SHAPES = re.compile(
    r"(?:\b(?:sk|hf|gh[opsu]|github_pat|glpat|xox[a-z])[-_]|\bAKIA|\bAIza|(?<=Bearer ))[\w./+=-]{12,}"
)
_URL = re.compile(r"(\w+://)(?:[^/@\s]*@)?([^/?#\s]*)([^?#\s]*)(?:\?[^#\s]*)?")
# A webhook's address is its secret: only parts of a path that look like words or versions are shown.
_PLAIN_PART = re.compile(
    r"[a-z_-]{0,16}|v?[\d.]{1,8}|[\w.-]{1,40}\.(?:git|gz|json|jsonl|tar|tgz|zip)"
)


def is_secret(name: str) -> bool:
    """Return whether a value of this name is a secret: a key, a token, a password."""
    parts = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|[^A-Za-z0-9]+", "_", name).lower()
    return _SECRET.search(parts) is not None


def without_secrets(value: Any, name: str = "") -> Any:
    """Return JSON data to be written, with `HIDDEN` for secrets.

    These are the texts and numbers under names such as ``api_key`` at any depth, texts in the form of
    a known service's keys, and of addresses user, query, and the parts that are no plain words.
    """
    if isinstance(value, Mapping):
        # What is within a secret is one, whatever its own name.
        public = {}
        for key, part in value.items():
            part_name = name if is_secret(name) else str(key)
            public[key] = without_secrets(part, part_name)
        return public
    if isinstance(value, list | tuple):
        return [without_secrets(part, name) for part in value]
    if isinstance(value, bool) or value is None or value == "":
        return value
    if is_secret(name):
        # A number of tokens is none, nor is the word by which a cache is looked up.
        is_count = isinstance(value, int | float) and "token" in name
        is_word = name == "key" and re.fullmatch("[a-z]{1,8}", str(value))
        return value if is_count or is_word else HIDDEN
    return _SHAPES.sub(HIDDEN, _URL.sub(_public_url, value)) if isinstance(value, str) else value


def _public_url(url: re.Match[str]) -> str:
    scheme, host, path = url.groups()
    parts = (part if _PLAIN_PART.fullmatch(part) else HIDDEN for part in path.split("/"))
    return scheme + host + "/".join(parts)


_OPTION = re.compile(r"--[\w.-]+=?")
_NAME = re.compile(r"[\w.-]+=")  # of a value that has a name itself: --model-option api_key=...
_PATH = re.compile(r"(?:(?<=[=,\[\"'(])|^)(?:~|/|[A-Za-z]:[\\/])[^,\"'\])=]*")


def public_words(words: Sequence[str]) -> list[str]:
    """Return the words of a command without secrets, and of machine paths only the last name."""
    public = []
    next_is_secret = False  # --api-key VALUE: the value is a word of its own
    for word in words:
        option = (_OPTION.match(word) or [""])[0]
        rest = word[len(option) :]

        name, equals, value = "", "", rest
        if _NAME.match(rest):
            name, equals, value = rest.partition("=")

        has_secret_name = is_secret(option) or is_secret(name)
        is_hidden = has_secret_name or (next_is_secret and not option)
        public.append(option + name + equals + _public_value(value, is_hidden))
        next_is_secret = is_secret(option) and not rest
    return public


def public_option(value: Any, name: str) -> Any:
    """Return an option's value, as JSON data, without secrets, and of machine paths the last name."""
    if isinstance(value, Mapping):
        return {key: public_option(part, f"{name}.{key}") for key, part in value.items()}
    if isinstance(value, list):
        return [public_option(part, name) for part in value]
    if not isinstance(value, str):
        return value

    # As on the command line, so that both records of an option say the same.
    (word,) = public_words([f"--{name}={value}"])
    _, _, public = word.partition("=")
    return public


def _public_value(text: str, is_hidden: bool) -> str:
    if is_hidden and text:
        return HIDDEN

    # A value may be JSON, with secrets under its names. What has none is left as it was written.
    with suppress(ValueError, RecursionError):
        data = json.loads(text)
        public = without_secrets(data)
        if isinstance(data, dict | list) and public != data:
            text = json.dumps(public)
    text = without_secrets(text)
    return text if "://" in text else _PATH.sub(_last_name, text)


def _last_name(path: re.Match[str]) -> str:
    name = re.split(r"[\\/]", path[0].rstrip("\\/"))[-1]
    return f".../{name}" if name not in ("", "~") else "..."


def check_public(text: str, where: str) -> None:
    """Raise where a text has a secret of this process: what a variable named like one holds."""
    # Short values and paths (SSH_AUTH_SOCK) occur in texts by chance.
    for name, value in os.environ.items():
        if is_secret(name) and len(value) >= 8 and value[0] != "/" and value in text:
            raise OptionError(
                f"expected nothing secret in {where}, found what the variable {name} holds; nothing was "
                "pushed: take it out there"
            )
