"""Prompts, what stays in them when there is too much, and drafts: the reminder, three ways of decoding."""

from __future__ import annotations

import warnings
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import comap
from comap.agents.base import estimate_tokens
from comap.agents.comap import CoMapAgent, CoMapConfig
from comap.agents.config import AgentConfig
from comap.agents.prompting import (
    Draft,
    choose_action,
    converse,
    draft_action,
    fill,
    prompts_sha256,
    seed_for,
    situation,
)
from comap.agents.react import ReActAgent, ReActConfig
from comap.envs.briefing import GENERAL_INSTRUCTIONS, Briefing
from comap.errors import OptionError
from comap.facts import State
from comap.lm import Message
from comap.lm.prompts import load_template
from comap.trajectory import Turn
from kits.scripted import converse_with, drive, view

PROMPTS = Path(comap.__file__).parent / "agents" / "prompts"


def size_of(messages: tuple[Message, ...]) -> int:
    return sum(estimate_tokens(message.content) + 8 for message in messages)


@pytest.mark.parametrize("path", sorted(PROMPTS.rglob("*.txt")), ids=lambda path: path.name)
def test_each_template_is_read(path: Path) -> None:
    messages = load_template("comap.agents", path.parent.name, path.stem)
    assert messages and all(role in ("system", "user", "assistant") for role, _ in messages)
    assert all(text.strip() and text == text.strip("\n") for _, text in messages)


def test_slots_are_filled_once_and_must_be_given() -> None:
    (message,) = fill("brief", "reflect", action="$future ${action}", future="[system]\n$action")
    assert message == Message("user", "draft: $future ${action}\nnext: [system]\n$action")
    with pytest.raises(KeyError):
        fill("brief", "reflect", action="a")


def test_a_standard_conversation() -> None:
    current_view = view(("look", "A desk."), ("open desk 1", "Nothing happens."))
    config = AgentConfig(examples=0, show_actions=False)
    system, *rest = converse(
        current_view, config, {1: "Thought: x\nAction: open desk 1"}, system="Mind."
    )
    assert system.role == "system" and "Action: <one action>" in system.content
    assert system.content.index("Mind.") > system.content.index("robot")
    assert rest == [
        ("user", f"{current_view.history[0].observation}\n{current_view.goal}"),
        ("assistant", "Action: look"),
        ("user", "A desk."),
        ("assistant", "Thought: x\nAction: open desk 1"),
        ("user", "Nothing happens."),
    ]
    assert len(converse(current_view, AgentConfig())) == len(rest) + 1 + 12
    view_with_goal = view(observation=f"A room. {current_view.goal}")
    assert converse(view_with_goal, config)[-1].content == f"A room. {current_view.goal}"


def test_admissible_actions_end_the_last_message_alone() -> None:
    current_view = view(("look", "A desk."), actions=["look", "open desk 1"])
    for decoding in ("free", "masked"):
        messages = converse(current_view, AgentConfig(examples=0, decoding=decoding))
        assert messages[-1].content == "A desk.\n\nWhat you can do now:\nlook\nopen desk 1"
        assert all("open desk 1" not in message.content for message in messages[:-1])

    unknown = view(("look", "A desk."), actions=None)
    assert converse(unknown, AgentConfig(examples=0))[-1].content == "A desk."
    brief = AgentConfig(prompts="brief")
    assert "What you can do" not in converse(current_view, brief)[-1].content


def test_of_hundreds_of_actions_the_first_are_listed_and_the_rest_counted() -> None:
    current_view = view(actions=[f"go to desk {number}" for number in range(250)])
    (*_, last) = converse(current_view, AgentConfig(examples=0, max_length=8192))
    lines = last.content.partition("What you can do now:\n")[2].splitlines()
    assert lines[0] == "go to desk 0" and lines[99:] == ["go to desk 99", "... and 150 more"]

    current_view = view(
        actions=[f"go to the desk in corner number {number}" for number in range(250)]
    )
    config = AgentConfig(examples=0, max_length=2048, draft_tokens=64)
    messages = converse(current_view, config)
    assert "more" in messages[-1].content.splitlines()[-1]
    assert size_of(messages) <= config.max_length - config.draft_tokens


def test_a_shop_lists_the_form_of_a_search_and_a_robot_no_help() -> None:
    shop = view(env_id="comap/WebShop-v0", actions=["search[red rug]", "click[buy now]"])
    (*_, last) = converse(shop, AgentConfig(examples=0))
    assert last.content.endswith("now:\nsearch[<your query>]\nclick[buy now]")
    robot = view(actions=["help", "look"])
    assert converse(robot, AgentConfig(examples=0))[-1].content.endswith("now:\nlook")


def test_an_environment_of_ones_own_says_what_its_actions_are() -> None:
    briefing = Briefing("Say left or right.", (("user", "Start."), ("assistant", "Action: left")))
    custom_view = replace(view(env_id="own/World-v0"), briefing=briefing)
    system, *rest = converse(custom_view, AgentConfig())
    assert system.content.startswith("Say left or right.\n")
    assert rest[:2] == [("user", "Start."), ("assistant", "Action: left")]
    assert GENERAL_INSTRUCTIONS in converse(view(env_id="own/World-v0"), AgentConfig())[0].content


def test_an_example_that_does_not_fit_is_missed_aloud_and_once() -> None:
    steps = (("user", "A page. " * 500), ("assistant", "Action: left"))
    custom_view = replace(
        view(env_id="own/Long-v0"), briefing=Briefing("Say left or right.", steps)
    )
    short = AgentConfig(max_length=1024)

    with pytest.warns(UserWarning, match=r"example of own/Long-v0 .*max_length=1,024 tokens"):
        messages = converse(custom_view, short)
    assert all("A page." not in message.content for message in messages)

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        converse(custom_view, short)  # it was said
        converse(custom_view, replace(short, max_length=4096, examples=0))  # none is meant
        fitting = converse(custom_view, replace(short, max_length=4096))
    assert any("A page." in message.content for message in fitting)


# Prompts of the user's own.


def folder_of_prompts(folder: Path, **texts: str) -> str:
    for name, text in texts.items():
        path = folder / f"{name.replace('__', '/')}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return str(folder)


def test_a_folder_replaces_prompts_and_briefings(tmp_path: Path) -> None:
    folder = folder_of_prompts(
        tmp_path,
        agents__standard__act="[system]\n$instructions\nNow act.\n",
        envs__alfworld__briefing__instructions="[system]\nCost: $5.\n",
    )
    config = AgentConfig(examples=0, prompt_folder=folder)
    assert converse(view(), config)[0].content == "Cost: $5.\nNow act."
    shop_view = view(env_id="comap/WebShop-v0")
    assert "Cost" not in converse(shop_view, config)[0].content
    assert config.describe()["prompt_folder"] == tmp_path.name, "no path of a machine"

    ours, theirs = (prompts_sha256(c, Briefing(), "comap/X-v0") for c in (AgentConfig(), config))
    assert ours != theirs


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("agents__standard__akt", "[system]\nx", "agents/standard/act.txt"),
        ("agents__standard__act", "no role", "[system]"),
        ("agents__standard__act", "[system]\n$goal", "$instructions"),
        ("agents__standard__act", "[system]\n$instructions costs 5 $", "$$"),
    ],
)
def test_a_folder_with_a_wrong_prompt_is_refused(
    name: str, text: str, message: str, tmp_path: Path
) -> None:
    folder = folder_of_prompts(tmp_path, **{name: text})
    with pytest.raises(OptionError) as refusal:
        AgentConfig(prompt_folder=folder)
    assert message in str(refusal.value)


def test_a_folder_without_prompts_is_refused(tmp_path: Path) -> None:
    for folder in (tmp_path, tmp_path / "missing"):
        with pytest.raises(OptionError, match="comap init prompts"):
            AgentConfig(prompt_folder=str(folder))


def test_belief_and_history() -> None:
    view_now = view(
        ("look", "A desk."), ("wait", "Hm."), facts=State(frozenset({("at", "agent", "x")}))
    )
    belief = converse(view_now, AgentConfig(state_text="belief", prompts="brief"))[0].content
    assert "goal:" in belief and "A desk." not in belief
    assert len(converse(view_now, AgentConfig(state_text="belief"))) == 2  # no example, no turns
    last = situation(view_now, AgentConfig(history_turns=1))
    assert "look" not in last and "> wait\nHm." in last
    assert "> wait" not in situation(view_now, AgentConfig(history_turns=0))
    imagined_situation = situation(view_now, AgentConfig(), after=[Turn("go", "There.")])
    assert imagined_situation.endswith("> go\nThere.")


WIDE_GOAL = "\U00010000" * 40  # each character takes more than a token
texts = st.text(max_size=3000)
histories = st.lists(
    st.tuples(st.text(min_size=1, max_size=60), st.text(max_size=900)), max_size=25
)


def check_kept(
    messages: tuple[Message, ...], current_view: Any, longest: int, reserve: int
) -> None:
    """Check that a conversation fits, and tells goal and present, if only their beginnings."""
    assert size_of(messages) + reserve <= longest
    all_text = "\n".join(message.content for message in messages)
    assert current_view.goal[:40] in all_text
    assert current_view.history[-1].observation[:20] in messages[-1].content


@given(
    turns=histories,
    first=texts,
    last=texts,
    goal=st.text(min_size=1, max_size=400),
    style=st.sampled_from([("standard", 1400), ("standard", 2048), ("brief", 512)]),
)
@example(turns=[], first="", last=WIDE_GOAL, goal=WIDE_GOAL, style=("standard", 1400))
@example(turns=[], first="x" * 3000, last="x" * 3000, goal="cool a mug", style=("standard", 1400))
@settings(max_examples=120, deadline=None)
def test_cutting_never_drops_the_goal_or_the_present(
    turns: list[tuple[str, str]], first: str, last: str, goal: str, style: tuple[str, int]
) -> None:
    prompts, longest = style
    current_view = view(*turns, ("look", last), observation=first, goal=f"The goal: {goal}")
    options: dict[str, Any] = {"prompts": prompts, "max_length": longest}
    check_kept(converse(current_view, AgentConfig(**options)), current_view, longest, 64)
    agent = CoMapAgent(CoMapConfig(**options, reflect_tokens=64))
    long = Draft(first, "look", True, "free")
    question = agent.question(current_view, {}, long, last)
    check_kept(question, current_view, longest, 64 + 16)


@given(count=st.integers(0, 80))
@settings(max_examples=30, deadline=None)
def test_what_is_cut_is_the_oldest(count: int) -> None:
    turns = [(f"act {n}", f"seen {n} " + "x" * 60) for n in range(count)]
    _, _, *turn_messages = converse(view(*turns), AgentConfig(examples=0))
    action_replies = [message.content for message in turn_messages if message.role == "assistant"]
    assert action_replies == [f"Action: act {n}" for n in range(count - len(action_replies), count)]
    assert len(action_replies) == count or len(action_replies) > 10


# Drafts.


def draft(replies: Any, current_view: Any = None, **options: Any) -> Any:
    current_view, config = current_view or view(), AgentConfig(**options)
    return drive(draft_action(current_view, config, converse(current_view, config)), replies)


def test_free_text() -> None:
    talk = draft(["Thought: Hm.\nAction: look\nObservation: You see a pen."])
    assert (talk.result.action, talk.result.parsed) == ("look", True)
    assert talk.result.text == "Thought: Hm.\nAction: look"  # the stop string cut the rest
    assert talk.result.thought == "Hm." and talk.result.decoding == "free"
    (request,) = talk.requests
    assert request.sampling.stop == ("\nObservation:", "\nTask:")
    assert request.sampling.max_new_tokens == 64 and request.choices is None


@pytest.mark.parametrize("rule", ["---", "***", "-----"])
def test_a_rule_before_the_action_ends_no_reply_and_is_no_thought(rule: str) -> None:
    talk = draft([f"**Thought:** I look.\n\n{rule}\n\n**Action:** look"])

    assert talk.purposes == ["draft"], "no reminder was needed"
    assert (talk.result.action, talk.result.parsed) == ("look", True)
    assert talk.result.shown == "Thought: I look.\nAction: look"


def test_one_reminder_and_no_second() -> None:
    talk = draft(["I wonder.", "Action: look"])
    assert talk.result.action == "look" and talk.purposes == ["draft", "draft: retry"]
    *_, failed_reply, reminder = talk.requests[1].messages
    assert failed_reply == ("assistant", "I wonder.") and "Action:" in reminder.content
    assert talk.requests[1].messages[:-2] == talk.requests[0].messages
    assert talk.requests[1].sampling.seed != talk.requests[0].sampling.seed
    failed = draft(["I wonder.", "  Still.  "])
    assert (failed.result.action, failed.result.parsed) == ("Still", False)
    assert failed.result.text == "Still."


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


def test_without_a_thought_nothing_asks_for_one() -> None:
    free = draft(["I wonder.", "Action: look"], with_thought=False)
    texts = [message.content for request in free.requests for message in request.messages]
    assert free.result.action == "look" and not any("Thought:" in text for text in texts)

    masked = draft(["look"], decoding="masked", with_thought=False)
    (choice,) = masked.requests
    assert choice.prefix == "Action:" and masked.result.text == "Action: look"

    prefixed = draft([" look"], form="given", with_thought=False)
    assert prefixed.requests[0].prefix == "Action:"


@pytest.mark.parametrize("actions", [None, ()])
def test_an_open_action_space_is_free(actions: Any) -> None:
    talk = draft(["Action: say hello"], view(actions=actions), decoding="scored")
    assert (talk.result.action, talk.result.decoding) == ("say hello", "free")


def choices(scores: Any, **options: Any) -> str:
    seed = options.pop("seed", 0)
    config = AgentConfig(decoding="scored", seed=seed, **options)
    choice_requests = choose_action(view(), config, converse(view(), config), "Action:")
    action: str = drive(choice_requests, [scores]).result[0]
    return action


def test_without_temperature_the_best_is_taken_and_the_first_of_equals() -> None:
    assert choices((-3, -1, -2, -1), temperature=0) == "go to safe 1"
    totals = [(-1, -1), (-1.5,), (-3,), (-4,)]
    assert choices(totals, temperature=0) == "go to safe 1"  # as a whole, not by token


def test_with_temperature_actions_are_drawn_by_probability() -> None:
    scores = (0.0, -1.0, -2.0, -30.0)
    counts = Counter(choices(scores, temperature=1.0, top_p=1.0, seed=n) for n in range(300))
    assert counts["go to desk 1"] > counts["go to safe 1"] > counts["go to shelf 1"] > 0
    assert counts["look"] == 0
    narrow = Counter(choices(scores, temperature=1.0, top_p=0.9, seed=n) for n in range(200))
    assert set(narrow) == {"go to desk 1", "go to safe 1"}
    assert {choices(scores, temperature=1.0, seed=7) for _ in range(5)} == {
        choices(scores, temperature=1.0, seed=7)
    }


def test_seeds_differ_by_everything_that_matters() -> None:
    config, current_view = AgentConfig(), view()
    seeds = {
        seed_for(config, current_view),
        seed_for(config, current_view, "again"),
        seed_for(AgentConfig(seed=1), current_view),
        seed_for(config, view(task="other")),
        seed_for(config, view(trial=2)),
        seed_for(config, view(("look", "x"))),
    }
    assert len(seeds) == 6 and all(0 <= seed < 2**31 for seed in seeds)
    assert seed_for(config, current_view) == seed_for(config, view())


# ReAct.

LOOK = "Thought: Where am I?\nAction: look"


def test_thoughts_stay_in_the_conversation() -> None:
    memory: dict[str, Any] = {}
    agent = ReActAgent(ReActConfig(show_actions=False))
    converse_with(agent, view(memory=memory), [LOOK])
    second = view(("look", "A desk."), memory=memory)
    talk = converse_with(agent, second, ["Thought: Go.\nAction: go to desk 1"])
    assert talk.requests[0].messages[-2:] == (("assistant", LOOK), ("user", "A desk."))
