"""Reading replies in tags, as PaW's policies write them: what acts, and whether the form was kept."""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["TaggedReply", "env_name", "read_tags", "text_between"]

_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_TAIL = {"webshop": 20}  # characters of a reply without an action that are sent all the same
_TAIL_ELSEWHERE = 30
_LONGEST = 1000  # characters of an action: no environment has longer ones


@dataclass(frozen=True, slots=True)
class TaggedReply:
    """What a reply in tags comes to.

    Attributes:
        action: What the environment gets; never empty.
        valid: Whether the reply kept the form. Whether the action is admissible does not matter.
    """

    action: str
    valid: bool


def env_name(env_id: str) -> str:
    """Return an environment's name without its namespace and version, in lower case.

    Example:
        >>> env_name("comap/SearchQA-v0"), env_name("toy")
        ('searchqa', 'toy')
    """
    return re.sub(r"-v\d+\Z", "", env_id.rpartition("/")[2]).lower()


def text_between(text: str, tag: str, *, last: bool = False) -> str | None:
    """Return what stands between a tag and its end, without blanks around it; None if nothing does.

    From an opening tag the text goes to the first closing tag after it, so that of nested tags the
    inner opening one is text. Tags are written exactly: in lower case, without blanks.

    Args:
        text: What a model wrote.
        tag: The tag's name, without its brackets.
        last: Take the last opening tag that is closed, and not the first.

    Example:
        >>> said = "<action>look</action> or <action>wait</action>"
        >>> text_between(said, "action"), text_between(said, "action", last=True)
        ('look', 'wait')
        >>> text_between("</action> look <action>", "action") is None
        True
    """
    opening, closing = f"<{tag}>", f"</{tag}>"
    start = text.rfind(opening, 0, max(text.rfind(closing), 0)) if last else text.find(opening)
    end = text.find(closing, start + len(opening)) if start >= 0 else -1
    return text[start + len(opening) : end].strip() if end >= 0 else None


def read_tags(env_id: str, reply: str) -> TaggedReply:
    """Read a reply by the rule of its environment (METHODS.md 2.6).

    In search QA the reply is valid if it opens one ``<search>`` or one ``<answer>`` tag, only one of
    them and only once, and closes it. The action is the first search with its tags; without a search
    it is the last answer, which is the one that is scored.

    Elsewhere it is valid if it has text between ``<think>`` and ``</think>`` tags and between
    ``<action>`` and ``</action>`` tags, in any order, perhaps more than once, perhaps empty, and no
    Chinese character (a Han ideograph, of any Unicode block) anywhere. The action is what stands
    between the first ``<action>`` and the first ``</action>`` after it.

    A reply without such tags is sent to the environment all the same: its last 30 characters, in
    WebShop 20. An action goes as it was written, without blanks around it; of one of absurd length
    the first 1,000 characters, of an empty one ``...``. Upstream makes actions lower case, searches a
    closing tag from the reply's beginning, and sends nothing for a search reply without tags.

    Args:
        env_id: The environment.
        reply: What the model wrote.

    Example:
        >>> read_tags("comap/ALFWorld-v0", "<think>Dark.</think><action>look</action>")
        TaggedReply(action='look', valid=True)
        >>> read_tags("comap/ALFWorld-v0", "I had better open the fridge 1.")
        TaggedReply(action='had better open the fridge 1.', valid=False)
        >>> read_tags("comap/SearchQA-v0", "<search> who wrote Emma? </search>")
        TaggedReply(action='<search>who wrote Emma?</search>', valid=True)
    """
    name = env_name(env_id)
    if name == "searchqa":
        action, valid = _search(reply)
    else:
        action, valid = _act(reply)
    if action is None:
        action = reply.strip()[-_TAIL.get(name, _TAIL_ELSEWHERE) :].strip()
    return TaggedReply(action or "...", valid)


def _act(reply: str) -> tuple[str | None, bool]:
    """Return the action of a reply, and whether it keeps the form."""
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
