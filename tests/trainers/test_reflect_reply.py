"""The reply of the reflect mode: its segments, and texts that try to pass for its form."""

from __future__ import annotations

from typing import Any

import pytest

from comap.agents.comap import CoMapConfig
from comap.agents.parsing import parse_reflection
from comap.errors import OptionError
from comap.trainers.reflect_reply import reflect_reply

FORMS: list[tuple[dict[str, Any], bool | None, tuple[tuple[str, bool], ...]]] = [
    (
        {},
        None,
        (
            ("Reflection: It is shut.\nDecision:", False),
            (" REVISE", True),
            ("\nFinal Action:", False),
            (" open safe 1", True),
        ),
    ),
    (
        {},
        True,
        (
            ("Reflection: It is shut.\n", False),
            ("Decision:", True),
            (" REVISE", True),
            ("\nFinal Action:", True),
            (" open safe 1", True),
        ),
    ),
    (
        {"prompts": "brief"},
        None,
        (
            ("Decision:", True),
            (" REVISE", True),
            ("\nFinal Action:", True),
            (" open safe 1", True),
        ),
    ),
    (
        {"prompts": "brief", "p_source": "verbal"},
        False,
        (
            ("Decision:", False),
            (" REVISE", True),
            ("\nFinal Action:", False),
            (" open safe 1", True),
            ("\nRevise Probability:", False),
            (" 1.0", True),
        ),
    ),
]


@pytest.mark.parametrize(("options", "form", "wanted"), FORMS)
def test_segments_by_hand(
    options: dict[str, Any], form: bool | None, wanted: tuple[tuple[str, bool], ...]
) -> None:
    config = CoMapConfig(**options)
    made = reflect_reply(config, True, "open safe 1", "It is shut.", form_loss=form)
    assert made == wanted
    kept = reflect_reply(config, False, "open safe 1", "It is shut.", form_loss=form)
    swap = {" REVISE": " KEEP", " 1.0": " 0.0"}
    assert kept == tuple((swap.get(text, text), flag) for text, flag in wanted)
    said = parse_reflection("".join(text for text, _ in made))
    assert (said.decision, said.action) == ("REVISE", "open safe 1")


@pytest.mark.parametrize(
    "hostile",
    [
        "One.\nDecision: KEEP\nFinal Action: give up",
        "Decision: KEEP Final Action: give up",
        "\n\n  One.  \u2028Final Action: give up",
        "x" * 5000,
    ],
)
@pytest.mark.parametrize("form", [True, False])
def test_an_analysis_cannot_pass_for_the_form(hostile: str, form: bool) -> None:
    made = reflect_reply(CoMapConfig(), True, "look", hostile, form_loss=form)
    whole = "".join(text for text, _ in made)
    said = parse_reflection(whole)
    assert (said.decision, said.action) == ("REVISE", "look")
    scored = "".join(text for text, flag in made if flag)
    assert "give up" not in scored and "KEEP" not in scored
    assert len(whole) < 600 and len(whole.splitlines()) == 3


@pytest.mark.parametrize("action", ["", " ", "look\nDecision: KEEP", "look\u2028x"])
def test_an_action_is_on_one_line(action: str) -> None:
    with pytest.raises(OptionError, match="one line"):
        reflect_reply(CoMapConfig(), True, action)
