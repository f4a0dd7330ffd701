"""The whole prompts of agents and world models, one page an environment: what a model really reads."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import gymnasium

import comap  # noqa: F401  (registers the environments)
from comap.agents.base import View, estimate_tokens
from comap.agents.comap import CoMapAgent, CoMapConfig
from comap.agents.paw import PaWConfig, tagged_prompt
from comap.agents.prompting import Draft, converse
from comap.agents.react import ReActConfig
from comap.envs import TextEnv
from comap.envs.registry import env_class
from comap.errors import MissingExtra
from comap.integrations.adapter import Wording, adapt
from comap.lm import Message
from comap.trajectory import Turn
from comap.worldmodel import Query
from comap.worldmodel.language import LanguageWorldModel

__all__ = ["prompt_pages"]

_IDS = {
    "alfworld": "comap/ALFWorld-v0",
    "scienceworld": "comap/ScienceWorld-v0",
    "webshop": "comap/WebShop-v0",
    "stabletoolbench": "comap/StableToolBench-v0",
    "searchqa": "comap/SearchQA-v0",
    "web": "comap/Web-v0",
}
_MAX_LENGTH = 8192  # tokens of prompt and reply: nothing is cut here
_STEPS = 1  # that the expert has taken before the moment that is shown

_HEAD = """\
# Prompts in {name}

What a language model reads in {env}, whole, with the default settings, after the expert's first
step in {task}. A step that an agent took itself stands there with its thought.
[What models are told](../guides/prompts.md) says where each part comes from, and how to replace it.

- [ReAct](#react), which is also the draft of CoMap and most other agents
- [CoMap's reflection](#comaps-reflection)
- [PaW](#paw), whose replies are in tags
- [World model](#world-model)
"""

_OWN_INSTRUCTIONS = """\
You cross a frozen lake, a grid of four by four cells, numbered from 0 (top left) to 15 (bottom right, the
goal). An action is one word: left, down, right or up. Four of the cells are holes: whoever steps on one has
lost."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment of an episode: what an agent sees, what the expert does, and what follows."""

    view: View
    action: str
    following: str


class _CountsTokens:
    """Stands for a language model where only its count of tokens is asked for."""

    name = "none"

    def count_tokens(self, text: str) -> int:
        return estimate_tokens(text)


def prompt_pages() -> Iterator[tuple[str, str]]:
    """Yield the place and the Markdown of each page of prompts.

    The page of an environment that cannot run here stays as it is: ScienceWorld needs Java.
    """
    for name, env_id in _IDS.items():
        with closing(_environment(env_id)) as env:
            try:
                moment = _moment(env)
            except MissingExtra:
                continue
            yield f"prompts/{name}.md", _page(env_id, moment)
    with closing(_own_environment()) as env:
        yield "prompts/own.md", _page("an environment of your own", _moment(env))


def _environment(env_id: str) -> gymnasium.Env[str, str]:
    options = env_class(env_id).generated_options
    env: gymnasium.Env[str, str] = gymnasium.make(env_id, split="train", **options)
    return env


def _own_environment() -> gymnasium.Env[str, str]:
    """Return an environment of others as a user adapts it, with its own words for models."""
    moves = ["left", "down", "right", "up"]
    words = Wording(
        goal="Reach cell 15.",
        observe=lambda cell: f"You stand on cell {cell}.",
        act=moves.index,
        legal=lambda state: moves,
        expert=lambda state: "down",
        instructions=_OWN_INSTRUCTIONS,
        example=[
            "You stand on cell 0.\nReach cell 15.",
            "Thought: The goal is below me and to the right.\nAction: down",
            "You stand on cell 4.",
            "Thought: Cell 5 may be a hole. I go on downwards.\nAction: down",
        ],
    )
    table = {r"cell \d+": ["-at(agent, *)", "at(agent, {0})"]}
    return adapt(gymnasium.make("FrozenLake-v1", is_slippery=False), table, words)


def _moment(env: gymnasium.Env[str, str]) -> Moment:
    """Return the moment after some steps of the expert on the first task."""
    inner: Any = env.unwrapped
    assert isinstance(inner, TextEnv)
    observation, info = env.reset(options={"task": inner.tasks.ids[0]})
    turns = [Turn(None, observation)]
    for _ in range(_STEPS):
        action = inner.expert_action() or ""
        observation, _, _, _, info = env.step(action)
        turns.append(Turn(action, observation))

    view = View(
        env_id=inner.env_id,
        task=info["task"],
        goal=info["goal"],
        history=tuple(turns),
        facts=info["facts"],
        admissible_actions=info["admissible_actions"],
        step=info["step"],
        briefing=inner.briefing,
    )
    action = inner.expert_action() or ""
    following, *_ = env.step(action)
    return Moment(view, action, following)


def _page(env: str, moment: Moment) -> str:
    view = moment.view
    ours = "/" in env
    task = "a generated training task" if ours else "its task"
    name = env.rpartition("/")[2].partition("-v")[0]
    draft = f"Thought: This comes next.\nAction: {moment.action}"

    react = converse(view, ReActConfig(max_length=_MAX_LENGTH))
    agent = CoMapAgent(CoMapConfig(max_length=_MAX_LENGTH))
    reflection = agent.question(
        view, {}, Draft(draft, moment.action, True, "free"), moment.following
    )
    tagged = tagged_prompt(view, PaWConfig(max_length=_MAX_LENGTH))
    stub: Any = _CountsTokens()
    world_model = LanguageWorldModel(stub, max_length=_MAX_LENGTH)
    query = Query(
        view.env_id,
        view.goal,
        view.history,
        view.facts,
        moment.action,
        view.admissible_actions,
        view.briefing,
    )

    parts = [
        _HEAD.format(name=name, env=f"`{env}`" if ours else env, task=task),
        "## ReAct\n",
        _messages(react),
        "## CoMap's reflection\n\nThe same conversation as ReAct's; its last message is this:\n",
        _messages(reflection[-1:]),
        "## PaW\n",
        _messages(tagged),
        "## World model\n",
        _messages(world_model.prompt(query)),
    ]
    return "\n".join(parts)


def _messages(messages: Iterable[Message]) -> str:
    """Return messages as Markdown: the role, and the text as it is."""
    parts = []
    for role, content in messages:
        fence = "````" if "```" in content else "```"
        parts.append(f"*{role}*\n\n{fence}text\n{content}\n{fence}\n")
    return "\n".join(parts)
