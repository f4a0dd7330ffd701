"""Replies as instruct models write them: what is read in which markup, and what is no action."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.agents.parsing import (
    find_action,
    find_final_action,
    parse_action,
    parse_reflection,
    spoken_part,
)

REPLIES = Path(__file__).parents[3] / "shared" / "data" / "replies" / "dev.jsonl"

HOME = (
    "go to cabinet 1",
    "go to cabinet 10",
    "go to countertop 1",
    "look",
    "inventory",
    "open fridge 1",
    "take apple 1 from countertop 1",
    "examine shelf 2",
)
SHOP = ("search[red shoes size 9]", "click[back to search]", "click[b07abcdefg]", "click[buy now]")


def test_the_list_of_replies_is_read() -> None:
    if not REPLIES.is_file():
        pytest.skip("the list of replies (shared/data/replies) is not beside this repository")
    wrong = []
    for line in REPLIES.read_text("utf-8").splitlines():
        row = json.loads(line)
        if row["mode"] == "react":
            read = parse_action(row["reply"], row["admissible"])
        else:
            reflection = parse_reflection(row["reply"], row["admissible"])
            read = (
                reflection.action
                if reflection.decision == "REVISE" and reflection.action
                else "KEEP"
            )
        if read != row["expected"]:
            wrong.append((row["reply"], read, row["expected"]))
    assert wrong == []


LABELED = [
    "* Action: look",
    "• **Action**: `look`",
    "1) Action: look",
    "- 2. **Action:** Look.",
    "__Action:__ look",
    "*Action*: *look*",
    "🎯 Action: look",
    "Action 3: look",
    "Action #2: look",
    "Next action: look",
    "My next action is: look",
    "The best action to take: look",
    "I'll take the following action: look",
    "Final Action: Action: look",
    "Action: Action: look",
    "ACTION\nlook",
    "**Action**\nlook",
    "## Action:\n\nlook",
    "Action:\n- look",
    "Action:\n> look",
    "Action:\n```\nlook\n```",
    "```\nThought: a\nAction: look\n```",
    "Action: ```look```",
    "Action = look",
    "Action -> look",
    "Action：look",
    "Thought: fine. Action: look",
    "Thought: I look around Action: look",
    "Step 1: Thought: x\nStep 1: Action: look",
    "Observation: You are in a kitchen.\nThought: x\nAction: look",
    "Action: look; Thought: hm",
    "Action: [look]",
    "Action: <look>",
    "Action: (look)",
    "Action: “look”",
    "Action: 1. look",
    "Action: LOOK!",
    "Action: look - to see more",
    "Action: look — to see more",
    "Action: look (to see more)",
    "Action: look because I must",
    "Action: look, since I know nothing",
    "Action: look and then open fridge 1",
    "Action: I will look.",
    "Action: look<|im_end|>",
    "Action: look\nAction Input: {}",
    "Thought: <one short line of reasoning>\nAction: <one action>\n\nThought: x\nAction: look",
]


OBJECTS = [
    '{"Thought": "x", "Action": "Look"}',
    'Sure:\n```json\n{"thought": "Action: inventory is bad", "action": "look"}\n```',
    "{'thought': 'x', 'action': 'look'}",
    '{"thought": "x", "action": "look"',
    '{\n "thought": "x",\n "next_action": "look",\n',
    '[{"action": "look"}, {"action": "inventory"}]',
    '{"actions": ["look", "inventory"]}',
    '{"name": "act", "arguments": {"action": "look"}}',
    '<tool_call>\n{"name": "act", "arguments": "{\\"action\\": \\"look\\"}"}\n</tool_call>',
    'Action: {"action": "look"}',
    "<action>look</action>",
    "<thought>open fridge 1</thought>\n<Action>Look</Action>",
]


@pytest.mark.parametrize("reply", [*LABELED, *OBJECTS])
def test_labels_objects_and_tags_are_read_in_whatever_markup(reply: str) -> None:
    assert parse_action(reply, HOME) == "look"


AT_HOME = [
    ('{"action": "open", "action_input": "fridge 1"}', "open fridge 1"),
    ('{"name": "open", "arguments": {"object": "Fridge 1"}}', "open fridge 1"),
    ('{"name": "go_to", "arguments": {"place": "cabinet 10"}}', "go to cabinet 10"),
    ("Action: open\nAction Input: fridge 1", "open fridge 1"),
    ("Action: go to countertop 1 to find the apple", "go to countertop 1"),
    ("Action: go to cabinet 1 to cabinet 10", "go to cabinet 1 to cabinet 10"),
    ("Action: go to cabinet 10", "go to cabinet 10"),
    ("Action: look at shelf 2", "look at shelf 2"),  # another action, which is not listed
    ("Action: dance (to see)", "dance (to see)"),
    ("Action: Dance", "Dance"),
    ("I should examine Shelf 2!", "examine shelf 2"),
    ("**go to cabinet 10**", "go to cabinet 10"),
]
IN_A_SHOP = [
    ("Action: Click [Buy Now]", "click[buy now]"),
    ("click [buy now]", "click[buy now]"),
    ("Action: search[blue shoes]", "search[blue shoes]"),
    ("Action: click[buy now] and be done", "click[buy now]"),
    ('{"name": "click", "arguments": {"element": "buy now"}}', "click[buy now]"),
    ("Action: search\nAction Input: red shoes size 9", "search[red shoes size 9]"),
    ("I click[buy now] or click[back to search].", None),
]
LISTED = [
    *(pytest.param(HOME, *row, id=f"home: {row[0]}") for row in AT_HOME),
    *(pytest.param(SHOP, *row, id=f"shop: {row[0]}") for row in IN_A_SHOP),
]


@pytest.mark.parametrize(("admissible", "reply", "action"), LISTED)
def test_the_list_decides_what_is_meant(
    admissible: tuple[str, ...], reply: str, action: str | None
) -> None:
    assert parse_action(reply, admissible) == action


CALL = '{"name": "find", "arguments": {"action": "on", "q": "rug"}}'


@pytest.mark.parametrize(
    ("reply", "action"),
    [
        ("Action: <search>who?</search>", "<search>who?</search>"),
        ("I look it up. <search>who?</search>", "<search>who?</search>"),
        ("<think>x</think><answer>Ada</answer>", "<answer>Ada</answer>"),
        (f"Thought: x\nAction: {CALL}", CALL),
        (f"I call it.\n{CALL}", CALL),
        (f"<tool_call>{CALL}</tool_call>", CALL),
        ('Action: {\n"name": "f",\n"arguments": {}\n}', '{"name": "f", "arguments": {}}'),
        ('Action: find\nAction Input: {"q": "rug"}', 'find {"q": "rug"}'),
        ('**Action:** find\n**Action Input:** ```json\n{"q": 1}\n```', 'find {"q": 1}'),
        ("Action: click [7]", "click [7]"),
        ("Action: type [3] [red lamp]", "type [3] [red lamp]"),
        ("Action: focus on OBJ", "focus on OBJ"),
        ("open safe 1", None),
        ("<search>never closed", None),
        ("```click [7]```", None),
    ],
)
def test_without_a_list_labels_calls_and_tags_count(reply: str, action: str | None) -> None:
    assert parse_action(reply) == action


@pytest.mark.parametrize(
    "reply",
    [
        "",
        "Action:",
        "Action: ...",
        "Action: <one action>",
        "Action: <action>",
        "Action:\nObservation: You see a fridge.\nAction: look",
        "I go to cabinet 1 or open fridge 1.",
        "The kitchen is fine; I overlook nothing.",
        "<think>Action: look",
        "<think>I look.</think>",
        "<think>I look.</think>Hm.",
        "I would look.</think>\n",
        '{"thought": "I go on"}',
        "Available actions: look, inventory",
    ],
)
def test_what_is_no_action(reply: str) -> None:
    assert parse_action(reply, HOME) is None


THOUGHTS = [
    "<think>\nAction: inventory\n</think>\n",
    "<thinking>Action: inventory</thinking>",
    "<Reasoning>\nAction: inventory\n</reasoning>\n\n",
    "[THINK]Action: inventory[/THINK]",
    "◁think▷Action: inventory◁/think▷",
    "<|begin_of_thought|>\nAction: inventory\n<|end_of_thought|>\n",
    "Action: inventory\nor not\n</think>\n\n",
    "<think>Action: inventory</think>a<think>Action: inventory</think>",
    "<think>one <think> Action: inventory</think>",
    "<|channel|>analysis<|message|>Action: inventory<|end|><|start|>assistant<|channel|>final<|message|>",
]


@pytest.mark.parametrize("thoughts", THOUGHTS)
def test_think_blocks_are_never_read(thoughts: str) -> None:
    assert parse_action(f"{thoughts}Thought: So.\nAction: look", HOME) == "look"
    assert parse_action(f"{thoughts}open fridge 1", HOME) == "open fridge 1"
    reflection = parse_reflection(f"{thoughts}Decision: REVISE\nFinal Action: look", HOME)
    assert (reflection.decision, reflection.action) == ("REVISE", "look")
    parsed_action = find_action(f"{thoughts}Thought: So.\nAction: look", HOME)
    assert parsed_action is not None and parsed_action.thought == "So."


FOLLOWING = {
    "an open thought": "<think>inventory",
    "an invented observation": "\nObservation 1: x\nAction: inventory",
    "a question": "\n\nAnything else?",
    "a rule": "\n---\nAction: inventory",
}


@pytest.mark.parametrize("text", FOLLOWING.values(), ids=FOLLOWING)
def test_what_follows_an_action_does_not_change_it(text: str) -> None:
    assert parse_action(f"Thought: a\nAction: look{text}", HOME) == "look"


def test_what_is_invented_is_not_spoken() -> None:
    assert spoken_part("<think>x</think>Go on.\n**Observation:** ok") == "Go on."


REVISED = [
    "Reflection:\nit fails\nDecision:\nREVISE\nFinal Action:\nlook",
    "### Reflection\nx\n### Decision\nREVISE\n### Final Action\nlook\n### Revise Probability\n0.9",
    '{"reflection": "x", "decision": "REVISE", "final_action": "look"}',
    '```json\n{"decision": "Revise", "finalAction": "Look"}\n```',
    '{"decision": "REVISE", "final_action": "look"',
    "Reflection: ok. Decision: REVISE. Final Action: look. Revise Probability: 0.9",
    "**Decision: REVISE**\n**Final Action: look**",
    "* **Decision**: Revise\n* **Final Action**: Look.",
    "Decision: [REVISE]\nFinal Action: [look]",
    "Decision: I would REVISE\nFinal Action: look (to see)",
    "Decision: REVISE\nFinal Action: KEEP: KEEP: look",
    "Decision: REVISE\nAction: look",
    "REVISE\nFinal Action: look",
    "<decision>REVISE</decision>\n<final_action>look</final_action>",
    "My decision: REVISE the draft\nRevised action: look",
    "<think>Decision: KEEP\nFinal Action: inventory</think>Decision: REVISE\nFinal Action: look",
]


@pytest.mark.parametrize("reply", REVISED)
def test_reflections_are_read_in_whatever_markup(reply: str) -> None:
    reflection = parse_reflection(reply, HOME)
    assert (reflection.decision, reflection.action) == ("REVISE", "look")


@pytest.mark.parametrize(
    "reply",
    [
        "Decision: KEEP\nFinal Action: look",
        "Decision: KEEP (no need to REVISE)\nFinal Action: look",
        "Decision: KEEP/REVISE\nFinal Action: look",
        "Decision: <KEEP or REVISE>\nFinal Action: look",
        "Decision: REVISE\nFinal Action: KEEP",
        "Decision: REVISE\nFinal Action: keep the draft",
        "Decision: REVISE\nFinal Action: <exactly one executable action>",
        "Decision: REVISE\nObservation: You see a fridge.\nFinal Action: look",
        "Final Action: look",
        "I look, and I revise nothing.",
        "<think>\nDecision: REVISE\nFinal Action: look",
    ],
)
def test_what_revises_nothing(reply: str) -> None:
    reflection = parse_reflection(reply, HOME)
    assert reflection.decision != "REVISE" or reflection.action is None


@pytest.mark.parametrize(
    ("text", "probability"),
    [
        ("90%", 0.9),
        ("9/10", 0.9),
        ("8 out of 10", 0.8),
        ("**0.8**", 0.8),
        ("0.9/1", 0.9),
        ("high", None),
        ("<a number from 0 to 1>", None),
        ("0 to 1", None),
    ],
)
def test_stated_probabilities(text: str, probability: float | None) -> None:
    assert parse_reflection(f"Revise Probability: {text}").probability == probability


def test_an_environment_may_have_an_action_that_is_called_keep() -> None:
    reflection = parse_reflection("Decision: REVISE\nFinal Action: Keep", ["keep", "roll"])
    assert reflection.action == "keep"


ACTIONS = st.sampled_from(
    [
        *HOME,
        *SHOP,
        "put pen 2 in/on shelf 3",
        "focus on red wire",
        "press_key 7",
        "drink O'Brien's ale",
    ]
)
LISTS = st.lists(ACTIONS, min_size=1, max_size=8, unique=True)
MARKUP = st.sampled_from(
    ["{}", "**{}**", "`{}`", '"{}"', "*{}*", "“{}”", "[{}]", "<{}>", "{}.", "**`{}`**"]
)
CASES = st.sampled_from([str, str.upper, str.title, str.capitalize])
LABELS = st.sampled_from(
    [
        "Action:",
        "**Action:**",
        "**Action**:",
        "Action 1:",
        "ACTION:",
        "Next action:",
        "Final Action:",
    ]
    + ["### Action\n", "Action:\n", "Action:\n```\n", "Action: Action:"]
)
BULLETS = st.sampled_from(["", "- ", "* ", "1. ", "2) ", "> ", "### ", "  "])
BEFORE = st.sampled_from(
    [
        "",
        "Thought: I must go on.\n",
        "**Thought:** I must go on.\n\n",
        "Sure, here it is:\n\n",
        "Thought: So. ",
    ]
)
BEHIND = st.sampled_from(
    [
        "",
        "\n",
        " (to see)",
        " - to see",
        "\nObservation: It is done.\nAction: wait",
        "\nThought: x\nAction: wait",
    ]
)


@st.composite
def marked_up_replies(draw: st.DrawFn) -> tuple[str, str, list[str], str]:
    """Return a reply, its action, the admissible actions, and the think block before the reply."""
    listed = draw(LISTS)
    action = draw(st.sampled_from(listed))
    other_action = draw(st.sampled_from(listed))
    marked_up_action = draw(MARKUP).format(draw(CASES)(action))
    before, label = draw(BEFORE), draw(LABELS)
    if label.startswith("#") and not before.endswith("\n"):
        before += "\n"  # a heading begins its line
    bullet = draw(BULLETS) if not before or before.endswith("\n") else ""
    reply = f"{before}{bullet}{label} {marked_up_action}{draw(BEHIND)}"
    thought = draw(st.sampled_from(["", *THOUGHTS])).replace("inventory", other_action)
    return reply, action, listed, thought


@given(marked_up_replies())
def test_an_action_is_read_back_from_any_markup(case: tuple[str, str, list[str], str]) -> None:
    reply, action, listed, thought = case
    assert parse_action(thought + reply, listed) == action
    written_action = find_action(thought + reply, listed)
    assert written_action is not None
    assert (thought + reply)[
        written_action.start : written_action.end
    ].casefold() == action.casefold()


@given(LISTS, CASES, st.data())
def test_an_action_is_read_back_from_objects_and_bare_text(
    listed: list[str], case: object, data: st.DataObject
) -> None:
    action = data.draw(st.sampled_from(listed))
    cased = case(action)  # type: ignore[operator]
    key = data.draw(st.sampled_from(["action", "Action", "next_action", "final_action"]))
    thing = json.dumps({"thought": f"Not Action: {listed[0]}", key: cased})
    for reply in (thing, f"```json\n{thing}\n```", f"Here:\n{thing}\nDone.", thing[:-1]):
        assert parse_action(reply, listed) == action
    assert parse_action(f"<action>{cased}</action>", listed) == action
    assert parse_action(cased, listed) == action


@given(LISTS, MARKUP, BULLETS, st.sampled_from(THOUGHTS + [""]), st.data())
def test_a_reflection_is_read_back_from_any_markup(
    listed: list[str], markup: str, bullet: str, thought: str, data: st.DataObject
) -> None:
    action = data.draw(st.sampled_from(listed))
    decision = data.draw(st.sampled_from(["KEEP", "REVISE", "Revise", "keep"]))
    colon = data.draw(st.sampled_from([":", ":**", "**:"]))
    star = "**" if "*" in colon else ""
    lines = [f"Reflection{colon} it may fail", f"Decision{colon} {markup.format(decision)}"]
    lines += [f"Final Action{colon} {markup.format(action)}", f"Revise Probability{colon} 0.75"]
    reply = thought + "\n".join(f"{bullet}{star}{line}" for line in lines)
    reflection = parse_reflection(reply, listed)
    assert (reflection.decision, reflection.action) == (decision.upper(), action)
    assert (reflection.text, reflection.probability) == ("it may fail", 0.75)
    written_action = find_final_action(reply, listed)
    assert written_action is not None and reply[written_action.start : written_action.end] == action


@given(st.text(alphabet="Action:lok \n<think>/{}\"'[]*`.", max_size=80), LISTS)
def test_what_is_read_stands_in_the_reply(text: str, listed: list[str]) -> None:
    for admissible in (None, listed):
        written_action = find_action(text, admissible)
        if written_action is not None and written_action.action in text:
            assert 0 <= written_action.start < written_action.end <= len(text)
        assert (
            written_action is None or written_action.action.strip() == written_action.action != ""
        )
