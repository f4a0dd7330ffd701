"""Reading what a language model wrote: actions, reflections, numbers. Nothing is guessed."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass

__all__ = [
    "Reflection",
    "clean_action",
    "final_action_span",
    "first_line",
    "number_in",
    "parse_action",
    "parse_reflection",
]

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
    """Return an action without quotes and marks around it, and full stops behind it; None for nothing.

    Example:
        >>> clean_action(' "go to fridge 1". ')
        'go to fridge 1'
    """
    action = text.strip(_EDGES).rstrip(_EDGES + ".")
    return action if action and len(action) <= _LONGEST else None


def parse_action(text: str) -> str | None:
    r"""Return the action of a reply ``Thought: ... Action: ...``; None where it has none.

    The first ``Action:`` line counts: what a model writes after it is its own idea of what follows.
    Only an ``Action Input:`` with a JSON object right behind it belongs to it: tool users write so.

    Example:
        >>> parse_action("Thought: It is hungry.\nAction: open fridge 1\nObservation: ...")
        'open fridge 1'
        >>> parse_action('Action: search\nAction Input: {"q": "rug"}\nObservation: ...')
        'search {"q": "rug"}'
        >>> parse_action("I do not know.") is None
        True
    """
    found = _ACTION.search(text)
    if found is None:
        return None
    action = clean_action(found["text"])
    told = _INPUT.match(text, found.end())
    if action is None or told is None:
        return action
    return clean_action(f"{action} {_object_at_start(told['text'])}")


def _object_at_start(text: str) -> str:
    """Return the JSON object that a text begins with, on one line; or its first line."""
    try:
        data, _ = json.JSONDecoder(strict=False).raw_decode(text)
    except (ValueError, RecursionError):
        return text.splitlines()[0]
    return json.dumps(data, ensure_ascii=False)


def first_line(text: str) -> str:
    r"""Return the first line that is not blank, without blanks around it.

    Example:
        >>> first_line("  \n one \n two")
        'one'
    """
    return next((line.strip() for line in text.splitlines() if line.strip()), "")


def number_in(text: str, low: float, high: float) -> float | None:
    """Return the first number in a text, brought into a range; None where there is none.

    With a percent sign it counts hundredths. What is written ``nan`` or ``inf`` is no number.

    Example:
        >>> number_in("about 0.7 of 1", 0, 1), number_in("7", 0, 1), number_in("none", 0, 1)
        (0.7, 1, None)
        >>> number_in("10 %", 0, 1)
        0.1
    """
    found = _NUMBER.search(text[:_LONGEST])
    if found is None:
        return None
    hundredths = text[found.end() :].lstrip(" ").startswith("%")
    return min(max(float(found[0]) / (100 if hundredths else 1), low), high)


@dataclass(frozen=True, slots=True)
class Reflection:
    """What a reply in CoMap's reflect mode says (METHODS.md 1.1); None for what it leaves out.

    Attributes:
        text: The reflection itself.
        decision: ``"KEEP"`` or ``"REVISE"``.
        action: The final action.
        probability: The probability of revising, 0 to 1.
    """

    text: str | None = None
    decision: str | None = None
    action: str | None = None
    probability: float | None = None


def parse_reflection(text: str) -> Reflection:
    r"""Read the four lines of a reflection; of a line given twice the first counts.

    Example:
        >>> parse_reflection("Reflection: It is shut.\nDecision: REVISE\n"
        ...                  "Final Action: open safe 1\nRevise Probability: 0.9")
        Reflection(text='It is shut.', decision='REVISE', action='open safe 1', probability=0.9)
    """
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
    r"""Return where the final action of a reflection is written: from behind its colon, to its end.

    Of a line given twice the first counts, as in `parse_reflection`; None where there is none.

    Example:
        >>> text = "Decision: KEEP\nFinal Action: open safe 1\nRevise Probability: 0.1"
        >>> start, end = final_action_span(text) or (0, 0)
        >>> text[:start], text[start:end]
        ('Decision: KEEP\nFinal Action:', ' open safe 1')
    """
    for match in _FIELD.finditer(text):
        if match["name"].lower() == "final action":
            return text.rindex(":", 0, match.start("text")) + 1, match.end()
    return None
