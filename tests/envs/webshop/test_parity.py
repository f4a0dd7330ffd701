"""What the original answered, to the byte: pages, what can be clicked on, and rewards."""

from __future__ import annotations

import json
from dataclasses import replace

import gymnasium as gym
import pytest

from comap.envs.webshop import reward_of
from comap.envs.webshop.products import legacy_order

ID = "comap/WebShop-v0"
PAGES = {"search": "index", "results": "results", "item": "item_page", "done": "done"}


def options_of(goal):
    told = goal["goal_options"]
    return tuple(told.items()) if isinstance(told, dict) else tuple(("", value) for value in told)


def server_state(env):
    """Return where the shopper stands in upstream's terms."""
    here, asin = env.session, env.catalog.asin
    return {
        "page": PAGES.get(here.page, "item_sub_page"),
        "page_no": here.page_no or None,
        "keywords": here.query,
        "asin": None if here.row is None else asin(here.row),
        "selected_options": dict(here.options),
        "opened": sorted(map(asin, here.opened)),
    }


@pytest.mark.parametrize("mode", ["text", "text_rich"])
def test_recorded_sessions(official, shared, mode):
    envs = {}
    sessions = list(shared.rows(f"dev/transcripts_{mode}.jsonl"))
    assert len(sessions) == 60
    for session in sessions:
        attrs, goal = session["show_attrs"], session["goal"]
        if attrs not in envs:
            options = {"observation_mode": mode, "legacy": True, "show_attrs": attrs}
            envs[attrs] = gym.make(ID, data_dir=official, max_episode_steps=100, **options)
        env = envs[attrs]
        bare = env.unwrapped
        task = f"{goal['goal_kind']}/{goal['enum_index']}"
        observation, info = env.reset(options={"task": task})
        assert observation == session["reset"]["observation"]
        assert bare.available_actions() == session["reset"]["available_actions"]
        assert info["goal"] == goal["instruction_text"]
        for step in session["steps"]:
            observation, reward, terminated, _, info = env.step(step["action"])
            where = (session["id"], step["action"])
            assert observation == step["observation"], where
            assert (reward, terminated) == (step["reward"], step["done"]), where
            told = bare.available_actions()["clickables"]
            assert told == step["available_actions"]["clickables"], where
            assert server_state(bare) == step["state"], where
            assert not info["invalid_action"] and "error" not in info, where
            if "reward_info" in step["state"] or "reward_info" in step:
                parts = info["reward_parts"]
                told = step.get("reward_info") or step["state"]["reward_info"]
                assert {name: parts[name] for name in told} == told, where


def test_recorded_goals(catalog, shared):
    order = json.loads(shared.file("goal_order.json").read_text())
    caps = json.loads(shared.file("price_caps.json").read_text())["synthetic"]
    for kind in ("synthetic", "human"):
        assert list(legacy_order(catalog.goals(kind))) == order[kind]
    for row in shared.rows("dev/rewards.jsonl"):
        told = row["goal"]
        goal = catalog.goal(told["goal_kind"], told["enum_index"])
        assert (goal.asin, goal.text) == (told["asin"], told["instruction_text"])
        assert (list(goal.attributes), goal.options) == (told["attributes"], options_of(told))
        assert (goal.cap, goal.weight) == (told["price_upper"], told["weight"])
        if goal.kind == "synthetic":
            assert goal.cap == caps[goal.asin]


def test_recorded_rewards(catalog, shared):
    rows = list(shared.rows("dev/rewards.jsonl"))
    assert len(rows) == 2000
    known = (
        *("r_type", "r_att", "r_option", "r_price", "n_att_matched", "n_option_matched"),
        *("w_att", "w_option", "w_price", "title_score", "query_match", "category_match"),
    )
    for row in rows:
        told = row["goal"]
        goal = catalog.goal(told["goal_kind"], told["enum_index"])
        bought = catalog.product(catalog.row(row["purchased_asin"]))
        wanted = catalog.product(catalog.row(goal.asin))
        assert bought.price == row["purchased_price"]
        bought = replace(bought, nouns=tuple(row["purchased_nouns"]))
        wanted = replace(wanted, nouns=tuple(row["goal_nouns"]))
        reward, parts = reward_of(bought, row["options"], goal, wanted)
        assert reward == row["reward"], row["id"]
        assert {name: parts.get(name) for name in known} == {name: row[name] for name in known}
