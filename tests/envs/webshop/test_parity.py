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
    options = goal["goal_options"]
    return (
        tuple(options.items())
        if isinstance(options, dict)
        else tuple(("", value) for value in options)
    )


def server_state(env):
    """Return where the shopper stands in upstream's terms."""
    session, asin = env.session, env.catalog.asin
    return {
        "page": PAGES.get(session.page, "item_sub_page"),
        "page_no": session.page_no or None,
        "keywords": session.query,
        "asin": None if session.row is None else asin(session.row),
        "selected_options": dict(session.options),
        "opened": sorted(map(asin, session.opened)),
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
            context = (session["id"], step["action"])
            assert observation == step["observation"], context
            assert (reward, terminated) == (step["reward"], step["done"]), context
            clickables = bare.available_actions()["clickables"]
            assert clickables == step["available_actions"]["clickables"], context
            assert server_state(bare) == step["state"], context
            assert not info["invalid_action"] and "error" not in info, context
            if "reward_info" in step["state"] or "reward_info" in step:
                parts = info["reward_parts"]
                reward_info = step.get("reward_info") or step["state"]["reward_info"]
                assert {name: parts[name] for name in reward_info} == reward_info, context


def test_recorded_goals(catalog, shared):
    order = json.loads(shared.file("goal_order.json").read_text())
    caps = json.loads(shared.file("price_caps.json").read_text())["synthetic"]
    for kind in ("synthetic", "human"):
        assert list(legacy_order(catalog.goals(kind))) == order[kind]
    for row in shared.rows("dev/rewards.jsonl"):
        record = row["goal"]
        goal = catalog.goal(record["goal_kind"], record["enum_index"])
        assert (goal.asin, goal.text) == (record["asin"], record["instruction_text"])
        assert (list(goal.attributes), goal.options) == (record["attributes"], options_of(record))
        assert (goal.cap, goal.weight) == (record["price_upper"], record["weight"])
        if goal.kind == "synthetic":
            assert goal.cap == caps[goal.asin]


def test_recorded_rewards(catalog, shared):
    rows = list(shared.rows("dev/rewards.jsonl"))
    assert len(rows) == 2000
    reward_keys = (
        *("r_type", "r_att", "r_option", "r_price", "n_att_matched", "n_option_matched"),
        *("w_att", "w_option", "w_price", "title_score", "query_match", "category_match"),
    )
    for row in rows:
        recorded_goal = row["goal"]
        goal = catalog.goal(recorded_goal["goal_kind"], recorded_goal["enum_index"])
        bought = catalog.product(catalog.row(row["purchased_asin"]))
        goal_product = catalog.product(catalog.row(goal.asin))
        assert bought.price == row["purchased_price"]
        bought = replace(bought, nouns=tuple(row["purchased_nouns"]))
        goal_product = replace(goal_product, nouns=tuple(row["goal_nouns"]))
        reward, parts = reward_of(bought, row["options"], goal, goal_product)
        assert reward == row["reward"], row["id"]
        assert {name: parts.get(name) for name in reward_keys} == {
            name: row[name] for name in reward_keys
        }
