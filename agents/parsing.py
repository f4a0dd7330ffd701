"""Reading what a language model wrote: actions, reflections, numbers. Nothing is guessed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

from ..envs.registry import text_env_of

_ACTION = re.compile(r"^[ \t]*Action[ \t]*:[ \t]*(?P<text>.*)$", re.IGNORECASE | re.MULTILINE)
_INPUT = re.compile(r"\s*Action[ \t]+Input[ \t]*:[ \t]*(?P<text>\{.*)", re.IGNORECASE | re.DOTALL)
_FIELD = re.compile(
    r"^[ \t*]*(?P<name>Reflection|Decision|Final Action|Revise Probability)[ \t*]*:[ \t]*"
    r"(?P<text>.*)$",
    re.IGNORECASE | re.MULTILINE,
)
_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]*\w)")
_EDGES = "\"'`*" + "".join(filter(str.isspace, map(chr, range(0x3001))))
_LONGEST = 1000


def clean_action(text: str) -> str | None:
    """Return an action without quotes and marks around it, and full stops behind it; None for nothing."""
    action = text.strip(_EDGES).rstrip(_EDGES + ".")
    return action if action and len(action) <= _LONGEST else None


def parse_action(text: str) -> str | None:
    r"""Return the action of a reply ``Thought: ... Action: ...``; None where it has none."""
    found = _ACTION.search(text)
    if found is None:
        return None
    action = clean_action(found["text"])
    argument = _INPUT.match(text, found.end())
    if action is None or argument is None:
        return action
    return clean_action(f"{action} {_object_at_start(argument['text'])}")


def _object_at_start(text: str) -> str:
    """Return the JSON object that a text begins with, on one line; or its first line."""
    try:
        data, _ = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return text.splitlines()[0]
    return json.dumps(data, ensure_ascii=False)


def first_line(text: str) -> str:
    r"""Return the first line that is not blank, without blanks around it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def number_in(text: str, low: float, high: float) -> float | None:
    """Return the first number in a text, brought into a range; None where there is none."""
    found = _NUMBER.search(text[:_LONGEST])
    if found is None:
        return None
    hundredths = text[found.end() :].lstrip(" ").startswith("%")
    return min(max(float(found[0]) / (100 if hundredths else 1), low), high)


@dataclass(frozen=True, slots=True)
class Reflection:
    """What a reply in CoMap's reflect mode says (CoMap, Figure 10); None for what it leaves out."""

    text: str | None = None
    decision: str | None = None
    action: str | None = None
    probability: float | None = None


def parse_reflection(text: str) -> Reflection:
    r"""Read the four lines of a reflection; of a line given twice the first counts."""
    found: dict[str, str] = {}
    for match in _FIELD.finditer(text):
        found.setdefault(match["name"].lower(), match["text"].strip())
    decision = re.match(r"\W*(KEEP|REVISE)\b", found.get("decision", ""), re.IGNORECASE)
    probability = found.get("revise probability")
    return Reflection(
        found.get("reflection") or None,
        None if decision is None else decision[1].upper(),
        clean_action(found.get("final action", "")),
        None if probability is None else number_in(probability, 0.0, 1.0),
    )


def final_action_span(text: str) -> tuple[int, int] | None:
    r"""Return where the final action of a reflection is written: from behind its colon, to its end."""
    for match in _FIELD.finditer(text):
        if match["name"].lower() == "final action":
            return text.rindex(":", 0, match.start("text")) + 1, match.end()
    return None


_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")


@dataclass(frozen=True, slots=True)
class TaggedReply:
    """What a reply in tags comes to."""

    action: str
    valid: bool


def text_between(text: str, tag: str, *, last: bool = False) -> str | None:
    """Return what stands between a tag and its end, without blanks around it; None if nothing does."""
    opening, closing = f"<{tag}>", f"</{tag}>"
    start = text.rfind(opening, 0, max(text.rfind(closing), 0)) if last else text.find(opening)
    end = text.find(closing, start + len(opening)) if start >= 0 else -1
    return text[start + len(opening) : end].strip() if end >= 0 else None


def read_tags(env_id: str, reply: str) -> TaggedReply:
    """Read a reply by the rule of its environment (PaW, Figures 7 to 9).

    A reply without such tags is sent to the environment all the same: its last 30 characters, in
    WebShop 20. An action goes as it was written, without blanks around it; of one of absurd length
    the first 1,000 characters, of an empty one ``...``. Upstream makes actions lower case, searches a
    closing tag from the reply's beginning, and sends nothing for a search reply without tags.
    """
    form = text_env_of(env_id).reply_form
    action, valid = _search(reply) if form.kind == "search" else _act(reply)
    if action is None:
        action = reply.strip()[-form.tail :].strip()
    return TaggedReply(action or "...", valid)


def _act(reply: str) -> tuple[str | None, bool]:
    action, thought = text_between(reply, "action"), text_between(reply, "think")
    if action is None:
        return None, False
    return action[:_LONGEST], thought is not None and not _HAN.search(reply)


def _search(reply: str) -> tuple[str | None, bool]:
    """Return the search or the answer of a reply with its tags, and whether it keeps the form."""
    opened = reply.count("<search>") + reply.count("<answer>")
    for tag, last in (("search", False), ("answer", True)):
        text = text_between(reply, tag, last=last)
        if text is not None:
            return f"<{tag}>{text[:_LONGEST]}</{tag}>", opened == 1
    return None, False
