"""Drafting an action: the reminder, and the three ways of decoding."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from comap.agents.acting import choose_action, draft_action, seed_for
from comap.agents.config import AgentConfig
from comap.agents.prompting import converse
from comap.envs.conformance.transcripts import load
from comap.errors import LanguageModelError, OptionError
from comap.lm import Generate, Score

HERE = Path(__file__).with_name("scripted.py")
drive, view = load(f"{HERE}:drive"), load(f"{HERE}:view")


def draft(replies: Any, seen: Any = None, **options: Any) -> Any:
    seen, config = seen or view(), AgentConfig(**options)
    return drive(draft_action(seen, config, converse(seen, config)), replies)


def test_free_text() -> None:
    talk = draft(["Thought: Hm.\nAction: look\nObservation: You see a pen."])
    assert (talk.result.action, talk.result.parsed) == ("look", True)
    assert talk.result.text == "Thought: Hm.\nAction: look"  # the stop string cut the rest
    assert talk.result.thought == "Hm." and talk.result.decoding == "free"
    (asked,) = talk.requests
    assert asked.sampling.stop == ("\nObservation:", "\nTask:", "\n---")
    assert asked.sampling.max_new_tokens == 64 and asked.choices is None


def test_one_reminder_and_no_second() -> None:
    talk = draft(["I wonder.", "Action: look"])
    assert talk.result.action == "look" and talk.purposes == ["draft", "draft: retry"]
    *_, said, reminder = talk.requests[1].messages
    assert said == ("assistant", "I wonder.") and "Action:" in reminder.content
    assert talk.requests[1].messages[:-2] == talk.requests[0].messages
    assert talk.requests[1].sampling.seed != talk.requests[0].sampling.seed
    failed = draft(["I wonder.", "  Still.  "])
    assert (failed.result.action, failed.result.parsed) == ("Still", False)
    assert failed.result.text == "Still."


@pytest.mark.parametrize("text", ["", " \n\t ", "***", '""'])
def test_an_empty_reply_is_still_an_action_to_refuse(text: str) -> None:
    talk = draft([text, text])
    assert talk.result.action == "..." and not talk.result.parsed
    said = talk.requests[1].messages[-2]
    assert said.role == "assistant" and said.content.strip()


def test_a_long_reply_that_cannot_be_read_is_a_short_action() -> None:
    talk = draft(["word " * 9000] * 2)
    assert len(talk.result.action) <= 200 and not talk.result.parsed


def test_a_reminder_fits_as_well() -> None:
    full = view(*[("look", "You see nothing new. " * 9)] * 40)
    for said in ("I wonder.", "word " * 9000):
        talk = draft([said, "Action: look"], full)
        first, again = (request.messages for request in talk.requests)
        assert sum(full.count_tokens(m.content) + 8 for m in again) + 64 <= 2048
        assert again[-1].content.startswith(first[-1].content) or again[:-2] == first
        assert talk.result.action == "look"


def test_masked_decoding_thinks_first_and_then_chooses() -> None:
    talk = draft(["Thought: Hm.\n", "look"], decoding="masked")
    thought, choice = talk.requests
    assert thought.sampling.stop[0] == "Action:" and thought.choices is None
    assert choice.prefix == "Thought: Hm.\nAction:"
    assert choice.choices == tuple(f" {action}" for action in view().admissible_actions)
    assert choice.messages == thought.messages
    assert (talk.result.text, talk.result.decoding) == ("Thought: Hm.\nAction: look", "masked")
    empty = draft(["  ", "look"], decoding="masked")
    assert empty.requests[1].prefix == "Action:" and empty.result.thought is None


def test_brief_prompts_have_no_thought() -> None:
    (asked,) = draft(["look"], decoding="masked", prompts="brief").requests
    assert isinstance(asked, Generate) and asked.prefix == "Action:"
    (scored,) = draft([(-1, -2, -3, -4)], decoding="scored", prompts="brief").requests
    assert isinstance(scored, Score) and scored.prefix == "Action:" and scored.ended


@pytest.mark.parametrize("actions", [None, ()])
def test_an_open_action_space_is_free(actions: Any) -> None:
    talk = draft(["Action: say hello"], view(actions=actions), decoding="scored")
    assert (talk.result.action, talk.result.decoding) == ("say hello", "free")


def test_the_room_for_a_choice_is_enough_for_the_longest() -> None:
    seen = view(actions=("look", "é" * 50))
    (asked,) = draft(["look"], seen, decoding="masked", prompts="brief").requests
    assert asked.sampling.max_new_tokens >= 101


def choices(scores: Any, **options: Any) -> str:
    seed = options.pop("seed", 0)
    config = AgentConfig(decoding="scored", seed=seed, **options)
    asked = choose_action(view(), config, converse(view(), config), "Action:")
    chosen: str = drive(asked, [scores]).result[0]
    return chosen


def test_without_temperature_the_best_is_taken_and_the_first_of_equals() -> None:
    assert choices((-3, -1, -2, -1), temperature=0) == "go to safe 1"
    totals = [(-1, -1), (-1.5,), (-3,), (-4,)]
    assert choices(totals, temperature=0) == "go to safe 1"  # as a whole, not by token


def test_with_temperature_actions_are_drawn_by_probability() -> None:
    scores = (0.0, -1.0, -2.0, -30.0)
    found = Counter(choices(scores, temperature=1.0, top_p=1.0, seed=n) for n in range(300))
    assert found["go to desk 1"] > found["go to safe 1"] > found["go to shelf 1"] > 0
    assert found["look"] == 0
    narrow = Counter(choices(scores, temperature=1.0, top_p=0.9, seed=n) for n in range(200))
    assert set(narrow) == {"go to desk 1", "go to safe 1"}
    assert {choices(scores, temperature=1.0, seed=7) for _ in range(5)} == {
        choices(scores, temperature=1.0, seed=7)
    }


def test_seeds_differ_by_everything_that_matters() -> None:
    config, seen = AgentConfig(), view()
    seeds = {
        seed_for(config, seen),
        seed_for(config, seen, "again"),
        seed_for(AgentConfig(seed=1), seen),
        seed_for(config, view(task="other")),
        seed_for(config, view(trial=2)),
        seed_for(config, view(("look", "x"))),
    }
    assert len(seeds) == 6 and all(0 <= seed < 2**31 for seed in seeds)
    assert seed_for(config, seen) == seed_for(config, view())


def test_faults_pass_through() -> None:
    with pytest.raises(LanguageModelError):
        draft([LanguageModelError("too long")])


@pytest.mark.parametrize(
    "options",
    [
        {"decoding": "x"},
        {"state_text": "x"},
        {"prompts": "x"},
        {"history_turns": -1},
        {"history_turns": "2"},
        {"seed": 1.5},
        {"temperature": "hot"},
        {"max_length": 0},
        {"draft_tokens": 1.5},
        {"temperature": -1},
        {"top_p": 0},
        {"examples": 2},
    ],
    ids=str,
)
def test_wrong_settings_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(OptionError, match=next(iter(options))):
        AgentConfig(**options)


def test_the_reminder_speaks_of_the_form_that_the_prompts_have() -> None:
    standard = draft(["I wonder.", "Action: look"]).requests[1].messages[-1].content
    assert "Thought: <one short line>" in standard and "'Action:'" in standard
    brief = draft(["I wonder.", "Action: look"], prompts="brief").requests[1].messages
    assert brief[-2:] == (("assistant", "I wonder."), ("user", "Action:"))


def test_the_reminder_quotes_no_more_than_has_room() -> None:
    said = "word " * 9000  # from a server that did not keep to the tokens it was given
    again = draft([said, "Action: look"]).requests[1].messages
    assert again[-2].role == "assistant" and again[-2].content.endswith(" [...]")
    assert view().count_tokens(again[-2].content) <= 2048 // 8
    assert "'Action:'" in again[-1].content


def test_a_reminder_has_room_in_every_standard_prompt() -> None:
    for turns in range(20, 120):
        full = view(*[("look", "You see nothing." + "!" * turns)] * turns)
        again = draft(["w" * 192, "Action: look"], full).requests[1].messages
        assert "'Action:'" in again[-1].content
        assert sum(full.count_tokens(m.content) + 8 for m in again) + 64 <= 2048


def test_an_empty_reply_is_told_as_its_action() -> None:
    told = converse(view(("...", "Nothing happens.")), AgentConfig(), {0: ""})
    assert ("assistant", "Action: ...") in told
