"""Every door tells a model the same: what an environment's briefing says."""

from __future__ import annotations

from typing import Any

import gymnasium as gym
import pytest

from comap.agents.base import View
from comap.agents.prompting import converse
from comap.agents.react import ReActConfig
from comap.integrations.adapter import Wording, adapt
from comap.integrations.mcp import EpisodeTools
from comap.integrations.sessions import Offered, Session, Sessions
from comap.integrations.trl import environment_factory

SHOP = "comap/WebShop-v0"
GENERATED = {"source": "generated"}


def instructions_of(env_id: str = SHOP) -> str:
    env: Any = gym.make(env_id, **GENERATED).unwrapped
    return str(env.briefing.instructions)


def test_trls_tool_says_what_an_action_looks_like() -> None:
    utils = pytest.importorskip("transformers.utils")
    environment = environment_factory(SHOP, **GENERATED)()
    schema = utils.get_json_schema(environment.act)["function"]
    assert instructions_of().splitlines()[0] in schema["description"]
    assert "click[" in schema["description"]
    assert schema["parameters"]["required"] == ["action"]
    assert schema["return"]["type"] == "string"


def test_trls_observations_list_the_actions() -> None:
    with_actions, bare = (
        environment_factory(SHOP, show_actions=shows, **GENERATED)() for shows in (True, False)
    )
    task = {"task": with_actions.env.unwrapped.tasks.ids[0]}
    assert "Available actions: search[<your query>]" in with_actions.reset(**task)
    assert "Available actions" not in bare.reset(**task)


def test_an_mcp_tool_and_a_session_say_so_too() -> None:
    offered = Offered([SHOP], GENERATED)
    tools = EpisodeTools(offered)
    described = {tool["name"]: tool["description"] for tool in tools.listed()}
    assert instructions_of() in described["act"]
    tools.close()

    sessions = Sessions(offered, limit=1)
    _, session = sessions.create()
    assert isinstance(session, Session) and session.instructions == instructions_of()
    sessions.close_all()


def test_openenv_has_them_in_its_metadata_and_state() -> None:
    pytest.importorskip("openenv")
    from comap.integrations.openenv import WebShopEnvironment

    env = WebShopEnvironment(Offered([SHOP], GENERATED, ["split"]))
    assert instructions_of() in env.get_metadata().description
    assert env.state.instructions == instructions_of()
    env.close()


def lake(**words: Any) -> Any:
    moves = ["left", "down", "right", "up"]
    wording = Wording(
        observe=lambda cell: f"cell {cell}", act=moves.index, legal=lambda state: moves, **words
    )
    return adapt(gym.make("FrozenLake-v1", is_slippery=False), {}, wording)


def first_view(env: Any) -> View:
    from comap.trajectory import Turn

    observation, info = env.reset(seed=0)
    return View(
        env_id=env.env_id,
        task=info["task"],
        goal=info["goal"],
        history=(Turn(None, observation),),
        facts=info["facts"],
        admissible_actions=info["admissible_actions"],
        briefing=env.briefing,
    )


def test_an_adapted_environment_has_words_of_its_own() -> None:
    env = lake(instructions="Say a direction.", example=["cell 0", "Action: down", "cell 4"])
    system, *rest = converse(first_view(env), ReActConfig())
    assert system.content.startswith("Say a direction.")
    assert [message.role for message in rest][:3] == ["user", "assistant", "user"]
    assert env.briefing.shown_transitions()[0] == ("cell 0", "down", "cell 4")


def test_without_words_the_actions_are_listed() -> None:
    messages = converse(first_view(lake()), ReActConfig())
    assert messages[-1].content.endswith("What you can do now:\nleft\ndown\nright\nup")


def test_words_that_are_no_texts_are_refused() -> None:
    from comap.errors import OptionError

    for words in ({"example": "cell 0"}, {"instructions": 3}):
        with pytest.raises(OptionError, match="instructions=TEXT"):
            lake(**words)
