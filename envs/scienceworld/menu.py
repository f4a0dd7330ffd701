"""The simulator's question which of several actions was meant, and its answers to wrong actions."""

from __future__ import annotations

import re

__all__ = ["REFUSALS", "choices_of", "is_refusal"]

_QUESTION = "Ambiguous request:"
_CHOICE = re.compile(r"^(\d+):\t(.*)$", re.MULTILINE)
REFUSALS = ("No known action matches that input.", "Unknown action.")
"""What is answered to text that is no action, and to anything but a number when asked to choose."""


def choices_of(observation: str) -> tuple[str, ...]:
    r"""Return the actions that the simulator asks to choose from, in the order of their numbers.

    Empty where it does not ask. The next action is then the number of one of them.

    Example:
        >>> choices_of("Ambiguous request: Please enter the number\n0:\topen door\n1:\topen jar\n")
        ('open door', 'open jar')
        >>> choices_of("The door is now open.")
        ()
    """
    if not observation.startswith(_QUESTION):
        return ()
    return tuple(text.strip() for _, text in _CHOICE.findall(observation))


def is_refusal(observation: str) -> bool:
    """Return whether an observation is the answer to something that is no action here.

    Example:
        >>> is_refusal("No known action matches that input."), is_refusal("The door is not open.")
        (True, False)
    """
    return observation.lstrip().startswith(REFUSALS)
