"""Reading what a language model wrote: actions, reflections, numbers. Nothing is guessed."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple, TypeAlias

from ..envs.registry import text_env_of
from ..lm.thoughts import hide_thoughts, is_thinking, without_thoughts
from .labels import ACTIONS, Field, first_of, read_fields, text_span
from .naming import meant_action, only_named
from .objects import WrittenObject, action_in, joined_action, member, object_at, objects_in

_NUMBER = re.compile(r"(?<![\w.])[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?(?![\w.]*\w)")
_OUT_OF_TEN = re.compile(r"\s{0,3}(?:/|out\s{1,3}of)\s{0,3}(?P<whole>10{1,2})\b", re.IGNORECASE)
_EDGES = "\"'`*“”‘’" + "".join(filter(str.isspace, map(chr, range(0x3001))))
_LONGEST = 1000  # characters of an action: what is longer is a text that somebody forgot to end


def clean_action(text: str) -> str | None:
    """Return an action without quotes and marks around it, and full stops behind it; None for nothing."""
    action = text.strip(_EDGES).rstrip(_EDGES + ".")
    return action if action and len(action) <= _LONGEST else None


def first_line(text: str) -> str:
    r"""Return the first line that is not blank, without blanks around it."""
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def number_in(text: str, low: float, high: float) -> float | None:
    """Return the first number in a text, brought into a range; None where there is none."""
    number = _NUMBER.search(text[:_LONGEST])
    if number is None:
        return None
    value = float(number[0])
    if text[number.end() :].lstrip(" ").startswith("%"):
        value /= 100
    return min(max(value, low), high)


class WrittenAction(NamedTuple):
    """An action that a reply says, and where its letters stand in the reply.

    Attributes:
        action: As it is taken: an admissible action in the environment's own writing.
        start: Where it begins in the reply.
        end: Where it ends there.
        thought: What the reply says before it, without think blocks and labels.
    """

    action: str
    start: int
    end: int
    thought: str = ""


@dataclass(frozen=True, slots=True)
class _Spoken:
    """A reply as it is read: think blocks are blank, what it invents is left out."""

    text: str
    fields: Sequence[Field]
    limit: int
    reflecting: bool = False

    @classmethod
    def of(cls, reply: str, reflecting: bool = False) -> _Spoken:
        text = hide_thoughts(reply)
        return cls(text, *read_fields(text), reflecting)


_Reads: TypeAlias = "Callable[[_Spoken, Any, Sequence[str]], WrittenAction | None]"
_TAGGED = re.compile(r"<(?P<tag>(?:next_|final_)?action|search|answer|tool_call)>", re.IGNORECASE)
_TAGS_TRIED = 16
_OWN_TAGS = ("search", "answer")  # tags that are a part of the action
_BRACKETS = {"[": "]", "<": ">", "(": ")", "{": "}"}
_BULLET = re.compile(r"[\s>*+•–-]*(?:\d{1,3}[.)]\s{1,9})?")
_FENCE = re.compile(r"^[ \t]*(?:(?:```|~~~)\w*|-{3,}|\*{3,}|_{3,})[ \t\r]*$", re.MULTILINE)
"""Lines that are marks alone: fences of code, and rules."""
_FORM = re.compile(  # what the prompts write where an action is to stand
    r"[<\[(]?(?:exactly\s)?(?:one\s(?:executable\s)?action)[>\])]?|<[^<>]{0,40}\baction>|\[(?:your\s)?action\]",
    re.IGNORECASE,
)


def parse_action(text: str, admissible: Sequence[str] | None = None) -> str | None:
    r"""Return the action that a reply says to take; None where it says none.

    Labels (``Action:``), members of JSON objects and tags are read in whatever markup, and of several
    steps the first. Think blocks are never read, nor is what follows an invented observation.

    Args:
        text: The reply.
        admissible: The actions that the environment lists. One of them is returned as it is listed,
            without an explanation behind it; without a label it is read where the reply names exactly
            one. None, where they are not listed: labels alone count.

    Example:
        >>> parse_action("**Thought:** I look.\n**Action:** look")
        'look'
        >>> parse_action("I had better open Fridge 1.", ["open fridge 1", "look"])
        'open fridge 1'
    """
    found_action = find_action(text, admissible)
    return None if found_action is None else found_action.action


def find_action(text: str, admissible: Sequence[str] | None = None) -> WrittenAction | None:
    """Return the action of a reply as `parse_action` does, and where it is written."""
    spoken = _Spoken.of(text)
    admissible = admissible or ()
    announced = _announced(spoken, admissible, ACTIONS)
    if announced is not None or not admissible:
        return announced

    # No label: the one admissible action that the reply names, if it is one. Of two that it names
    # none is taken: which one was meant would be a guess.
    reply = spoken.text[: spoken.limit]
    mention = only_named(reply, admissible)
    if mention is None:
        return None
    is_all = (clean_action(reply) or "").casefold() == mention.action.casefold()
    return WrittenAction(*mention, "" if is_all else reply.strip())


def spoken_part(text: str) -> str:
    """Return what a reply says outside of think blocks, up to what it invents of the world's answer."""
    spoken = without_thoughts(text)
    _, limit = read_fields(spoken)
    return spoken if limit == len(spoken) else spoken[:limit].strip()


def _announced(
    spoken: _Spoken, admissible: Sequence[str], kinds: Sequence[str]
) -> WrittenAction | None:
    """Return the first action that a label, an object or a tag announces."""
    places: list[tuple[int, _Reads, Any]] = []
    for field in spoken.fields:
        if field.name in kinds:
            places.append((field.start, _labelled, field))
    for json_object in objects_in(spoken.text, spoken.limit):
        places.append((json_object.start, partial(_in_object, kinds=kinds), json_object))

    # Only so many tags are tried: a reply that repeats one a thousand times must not cost a thousand
    # searches.
    if "action" in kinds:
        for tag in islice(_TAGGED.finditer(spoken.text, 0, spoken.limit), _TAGS_TRIED):
            places.append((tag.start(), _in_tag, tag))

    # Of several steps the first: the next ones answer observations that the reply cannot know. A
    # place without an action in it (a form's own words) is passed over.
    for start, read, place in sorted(places, key=lambda place: place[0]):
        action = read(spoken, place, admissible)
        if action is not None:
            thought = action.thought or _thought_before(spoken, start)
            return action._replace(thought=thought)
    return None


def _thought_before(spoken: _Spoken, end: int) -> str:
    """Return the thought that a reply tells before a place; without a label all that stands there."""
    before = [field for field in spoken.fields if field.start < end]
    thought = first_of(before, "thought")
    if thought is None:
        text = spoken.text[:end]
    else:
        later = [field.start for field in before if field.start > thought.start]
        text = spoken.text[thought.after : min([*later, end])]
    return _FENCE.sub("", text).strip("*_#>{" + _EDGES).strip()


def _labelled(spoken: _Spoken, field: Field, admissible: Sequence[str]) -> WrittenAction | None:
    """Return the action behind a label."""
    text = spoken.text
    start, end = text_span(text, field, spoken.limit)

    # On a line below the label the action may be the entry of a list.
    if start > field.after and "\n" in text[field.after : start]:
        bullet = _BULLET.match(text, start, end)
        if bullet is not None:
            start = bullet.end()

    # Markup within markup: an object or a tag behind the label says more exactly what the action is.
    action = _object_behind(spoken, start, end, admissible)
    if action is not None:
        return action

    tag = _TAGGED.match(text, _first_letter(text, start, end), end)
    if tag is not None:
        action = _in_tag(spoken, tag, admissible)
        if action is not None:
            return action

    action = _resolved(spoken, start, end, admissible)
    return None if action is None else _with_input(spoken, field, action, admissible)


def _first_letter(text: str, start: int, end: int) -> int:
    """Return where a part of a text begins, behind quotes and marks."""
    part = text[start:end]
    return start + len(part) - len(part.lstrip(_EDGES))


def _object_behind(
    spoken: _Spoken, start: int, end: int, admissible: Sequence[str]
) -> WrittenAction | None:
    """Return the action that a JSON object tells with which a part of a reply begins."""
    first = _first_letter(spoken.text, start, end)
    if not spoken.text.startswith("{", first):
        return None
    json_object = object_at(spoken.text, first)
    return None if json_object is None else _in_object(spoken, json_object, admissible, ACTIONS)


def _with_input(
    spoken: _Spoken, field: Field, action: WrittenAction, admissible: Sequence[str]
) -> WrittenAction:
    """Return an action with what ``Action Input:`` gives on the lines below it."""
    # Of a tool's call the name stands behind "Action:", the arguments behind "Action Input:", as in the
    # answer files of StableToolBench's inference (`comap.envs.stabletoolbench.scoring`).
    next_field = next((later for later in spoken.fields if later.start >= field.end), None)
    if next_field is None or next_field.name != "action input":
        return action
    if clean_action(spoken.text[action.end : next_field.start]) is not None:
        return action  # something else stands between them

    start, end = text_span(spoken.text, next_field, spoken.limit)
    line = spoken.text[start:end].strip(_EDGES)
    arguments: Any = line
    is_object = line.startswith("{")
    if is_object:
        json_object = object_at(spoken.text, spoken.text.find(line, start))
        if json_object is not None:
            arguments = json_object.members

    # Arguments in words may be a remark as well: then only the list of actions can tell.
    joined = clean_action(joined_action(action.action, arguments, admissible))
    if joined is None or not (is_object or joined in admissible):
        return action
    return action._replace(action=joined)


def _resolved(
    spoken: _Spoken, start: int, end: int, admissible: Sequence[str]
) -> WrittenAction | None:
    """Return the action that a part of a reply is; None for nothing, and for a form's own words."""
    decision = _DECIDED.match(spoken.text, start, end) if spoken.reflecting else None
    if decision is not None:  # "Final Action: KEEP: look"
        start = decision.end()

    action = _meant(spoken.text[start:end], admissible)
    if action is None:
        return None
    if spoken.reflecting and action.action not in admissible and _KEPT.fullmatch(action.action):
        return None
    return action._replace(start=action.start + start, end=action.end + start)


def _meant(text: str, admissible: Sequence[str]) -> WrittenAction | None:
    """Return the action that a text is, an admissible one if it means one."""
    cleaned = clean_action(text)
    inner = text.strip(_EDGES) if cleaned is None else cleaned
    start = text.find(inner)

    # Also in a text that is too long to be an action: an explanation may follow the one that is meant.
    if inner and admissible:
        listed = meant_action(inner, admissible)
        if listed is not None:
            return WrittenAction(listed.action, start + listed.start, start + listed.end)

    if cleaned is None or _FORM.fullmatch(cleaned):
        return None
    bare = _unwrapped(cleaned)
    start = text.index(bare)
    return WrittenAction(bare, start, start + len(bare))


def _unwrapped(action: str) -> str:
    """Return an action without the one pair of brackets that it stands in as a whole."""
    closing = _BRACKETS.get(action[0])
    inner = action[1:-1]
    if closing is None or not action.endswith(closing) or len(inner) < 1:
        return action

    # Brackets within belong to an action such as "search[...]", or to a form that was copied.
    if any(sign in inner for sign in "[]<>(){}|") or not inner[:1].isalnum():
        return action
    return clean_action(inner) or action


def _in_object(
    spoken: _Spoken, json_object: WrittenObject, admissible: Sequence[str], kinds: Sequence[str]
) -> WrittenAction | None:
    """Return the action that a JSON object tells."""
    text = action_in(json_object, spoken.text, admissible, kinds)
    if text is None:
        return None

    # What the member says is read as if it were a reply of its own.
    inner = _Spoken(text, (), len(text), spoken.reflecting)
    resolved = _resolved(inner, 0, len(text), admissible)
    if resolved is None:
        return None

    # The value may be written otherwise in JSON: then the object is the place.
    start = spoken.text.rfind(resolved.action, json_object.start, json_object.end)
    end = start + len(resolved.action)
    if start < 0:
        start = json_object.start
        end = json_object.end
    thought = member(json_object.members, ("thought", "reflection"))
    return WrittenAction(resolved.action, start, end, thought if isinstance(thought, str) else "")


def _in_tag(spoken: _Spoken, tag: re.Match[str], admissible: Sequence[str]) -> WrittenAction | None:
    """Return the action between two tags, or with them where they are a part of it."""
    name = tag["tag"].lower()
    text = spoken.text
    start = tag.end()
    closing = re.compile(rf"</{name}>", re.IGNORECASE).search(text, start, spoken.limit)

    # A tag that was never closed ends with its line.
    end = text.find("\n", start, spoken.limit)
    if closing is not None:
        end = closing.start()
    elif end < 0:
        end = spoken.limit

    # A tool call is JSON or nothing: its bare text would be no action of any environment.
    action = _object_behind(spoken, start, end, admissible)
    if action is not None or name == "tool_call":
        return action

    resolved = _resolved(spoken, start, end, admissible)
    if name not in _OWN_TAGS or (resolved is not None and resolved.action in admissible):
        return resolved

    # In search QA the tags are a part of the action.
    if closing is None or resolved is None:
        return None
    whole = clean_action(text[tag.start() : closing.end()])
    return None if whole is None else WrittenAction(whole, tag.start(), closing.end())


@dataclass(frozen=True, slots=True)
class Reflection:
    """What a reply in CoMap's reflect mode says (CoMap, Figure 10); None for what it leaves out."""

    text: str | None = None
    decision: str | None = None
    action: str | None = None
    probability: float | None = None


_EITHER = r"(?:KEEP|REVISE)\s{0,3}(?:or|/|\||,)\s{0,3}(?:KEEP|REVISE)\b"  # as the prompt writes it
_DECISION = re.compile(
    rf"\W*+(?:{_EITHER}\W*+)?"
    r"(?:(?:(?:i|we)\s(?:will|would|should|choose\sto|decided?\sto)|(?:the|my)\sdecision\sis(?:\sto)?|to)\s)?"
    r"(?P<decision>KEEP|REVISE)\b",
    re.IGNORECASE,
)
_DECISION_ALONE = re.compile(
    r"^[^\w\n]*+(?P<decision>KEEP|REVISE)[^\w\n]*+$", re.IGNORECASE | re.MULTILINE
)
_DECIDED = re.compile(r"\W*+(?:(?:KEEP|REVISE)\s{0,3}[:–—-]{1,2}\W*+){1,8}", re.IGNORECASE)
_KEPT = re.compile(  # what stands for no action where the final one is asked for
    rf"\W*(?:{_EITHER}|(?:keep|revise)(?:\s(?:the|it|my|as|to|this|that|draft|candidate|current|original|proposed"
    r"|same)\b.*)?|(?:the\s)?same(?:\s(?:as|action)\b.*)?|unchanged|none|n/a)\W*",
    re.IGNORECASE | re.DOTALL,
)
_RANGE = re.compile(
    r"\W*(?:a\snumber\s(?:from|between)\s)?0\s?(?:to|and|\.\.|-|–)\s?1\W*", re.IGNORECASE
)


def parse_reflection(text: str, admissible: Sequence[str] | None = None) -> Reflection:
    r"""Read the lines of a reflection, or the members of its JSON object; of one given twice the first.

    What the prompt writes where an answer is to stand (``KEEP or REVISE``, ``<one action>``) is no
    answer, and ``KEEP`` is no action.

    Example:
        >>> parse_reflection("1. Decision: **REVISE**\n2. Final Action: Look.", ["look"])
        Reflection(text=None, decision='REVISE', action='look', probability=None)
    """
    spoken = _Spoken.of(text, reflecting=True)
    decision = _decision(spoken)
    action = _final_action(spoken, admissible or (), decision is not None)
    return Reflection(
        text=_value_of(spoken, "reflection") or None,
        decision=decision,
        action=None if action is None else action.action,
        probability=_probability(_value_of(spoken, "revise probability")),
    )


def find_final_action(text: str, admissible: Sequence[str] | None = None) -> WrittenAction | None:
    """Return the final action of a reflection as `parse_reflection` does, and where it is written."""
    spoken = _Spoken.of(text, reflecting=True)
    decision = _decision(spoken)
    return _final_action(spoken, admissible or (), decision is not None)


def final_action_span(text: str) -> tuple[int, int] | None:
    r"""Return where the final action of a reflection is written: from behind its label, to its end."""
    spoken = _Spoken.of(text, reflecting=True)
    field = first_of(spoken.fields, "final action")
    if field is None:
        return None
    return field.after, text_span(spoken.text, field, spoken.limit)[1]


def _final_action(
    spoken: _Spoken, admissible: Sequence[str], decided: bool
) -> WrittenAction | None:
    """Return the final action; a reply that says its decision may call it an action."""
    action = _announced(spoken, admissible, ("final action",))
    if action is None and decided and first_of(spoken.fields, "final action") is None:
        action = _announced(spoken, admissible, ("action",))
    return action


def _value_of(spoken: _Spoken, name: str) -> str | None:
    """Return what a reply says behind a label, or as a member of an object."""
    for json_object in objects_in(spoken.text, spoken.limit):
        value = member(json_object.members, (name,))
        if value is not None:
            return str(value).strip()

    field = first_of(spoken.fields, name)
    if field is None:
        return None
    start, end = text_span(spoken.text, field, spoken.limit)
    return spoken.text[start:end].strip()


def _decision(spoken: _Spoken) -> str | None:
    """Return KEEP or REVISE, or None where neither is decided."""
    value = _value_of(spoken, "decision")
    if value is None:  # a line of its own may say it without a label
        word = _DECISION_ALONE.search(spoken.text, 0, spoken.limit)
    elif re.fullmatch(rf"\W*{_EITHER}\W*", value, re.IGNORECASE):
        return None
    else:
        word = _DECISION.match(value)
    return None if word is None else word["decision"].upper()


def _probability(value: str | None) -> float | None:
    """Return the probability that a reply states, also in hundredths or out of ten."""
    if value is None or _RANGE.fullmatch(value) or value.startswith("<"):
        return None

    number = _NUMBER.search(value[:_LONGEST])
    if number is not None:
        scale = _OUT_OF_TEN.match(value, number.end())
        if scale is not None:
            return min(max(float(number[0]) / float(scale["whole"]), 0.0), 1.0)
    return number_in(value, 0.0, 1.0)


_HAN = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]")
_CLOSING = ("</action>", "</search>", "</answer>")


@dataclass(frozen=True, slots=True)
class TaggedReply:
    """What a reply in tags comes to."""

    action: str
    valid: bool


def text_between(text: str, tag: str, *, last: bool = False) -> str | None:
    """Return what stands between a tag and its end, without blanks around it; None if nothing does."""
    opening = f"<{tag}>"
    closing = f"</{tag}>"
    if last:
        start = text.rfind(opening, 0, max(text.rfind(closing), 0))
    else:
        start = text.find(opening)
    if start < 0:
        return None

    # The end is looked for behind the opening tag. Upstream looks from the beginning of the reply, and
    # so finds one that the thought mentioned.
    start += len(opening)
    end = text.find(closing, start)
    return None if end < 0 else text[start:end].strip()


def read_tags(env_id: str, reply: str, *, thoughts: bool = False) -> TaggedReply:
    """Read a reply by the rule of its environment (PaW, Figures 7 to 9).

    What stands in a think block is not read, unless `thoughts` says so, as upstream does; a block that is
    left open up to a closing tag at the reply's end is none.
    A reply without such tags is sent to the environment all the same: its last 30 characters, in
    WebShop 20. An action goes as it was written, without blanks around it; of one of absurd length
    the first 1,000 characters, of an empty one ``...``. Upstream makes actions lower case, searches a
    closing tag from the reply's beginning, and sends nothing for a search reply without tags.
    """
    form = text_env_of(env_id).reply_form
    spoken = reply if thoughts else _outside_thoughts(reply)
    if form.kind == "search":
        action, valid = _search(spoken, reply)
    else:
        action, valid = _act(spoken, reply)

    if action is None:
        action = reply.strip()[-form.tail :].strip()
    return TaggedReply(action or "...", valid)


def _outside_thoughts(reply: str) -> str:
    """Return a reply with blanks in place of its think blocks."""
    unclosed = is_thinking(reply) and reply.rstrip().endswith(_CLOSING)
    return reply if unclosed else hide_thoughts(reply)


def _act(spoken: str, reply: str) -> tuple[str | None, bool]:
    """Return the action of a reply, and whether it keeps the form."""
    action = text_between(spoken, "action")
    if action is None:
        return None, False

    # The code that PaW builds on counts a reply without a think block, or with Chinese characters, as
    # invalid. Its action is taken all the same.
    thought = text_between(reply, "think")
    is_valid = thought is not None and not _HAN.search(reply)
    return action[:_LONGEST], is_valid


def _search(spoken: str, reply: str) -> tuple[str | None, bool]:
    """Return the search or the answer of a reply with its tags, and whether it keeps the form."""
    opening_tags = reply.count("<search>") + reply.count("<answer>")

    # As upstream: a search goes before an answer, the first search counts, and the last answer. Both
    # tags, or one of them twice, make the reply invalid, not the action.
    for tag, is_last in (("search", False), ("answer", True)):
        text = text_between(spoken, tag, last=is_last)
        if text is not None:
            return f"<{tag}>{text[:_LONGEST]}</{tag}>", opening_tags == 1
    return None, False
