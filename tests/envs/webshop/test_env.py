"""`WebShopEnv`: tasks and splits, strict and legacy rules, what is shown and told."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium as gym
import pytest

from comap.envs import restore, snapshot
from comap.envs.webshop import WebShopEnv, build_catalog
from comap.envs.webshop.generate import embedded_catalog
from comap.envs.webshop.products import Goal, reward_of
from comap.errors import DataNotFound, NoEpisode

ID = "comap/WebShop-v0"
TWINS = [
    {
        "asin": f"B00000000{number}",
        "name": f"Lamp {'bright ' * number}",
        "customization_options": {
            "Base": [{"value": "Red"}, {"value": "50/60 Watt"}, {"value": 'caf\u00e9 "x"'}],
            "Shade": [{"value": "red"}, {"value": "blue"}, {"value": "Features"}],
        },
    }
    for number in range(8)
]


@pytest.fixture(scope="module")
def lamps(tmp_path_factory) -> Path:
    """A shop of lamps whose option groups share a value."""
    folder = tmp_path_factory.mktemp("lamps")
    (folder / "p.json").write_text(json.dumps(TWINS))
    note = {"instruction": "Find me a lamp", "instruction_attributes": ["bright"], "attributes": []}
    (folder / "i.json").write_text(json.dumps({"B000000003": note}))
    return build_catalog(folder / "p.json", folder / "shop", folder / "i.json", nouns="lexical")


def at_item(**options):
    env = WebShopEnv(split="all", **options)
    env.reset(options={"task": "synthetic/0"})
    env.step("search[lamp]")
    env.step("click[b000000003]")
    return env


# Tasks and splits.


@pytest.mark.parametrize("kind", ["synthetic", "human"])
@pytest.mark.parametrize("source", ["official", "generated"])
def test_no_product_is_in_two_splits(request, source, kind):
    source_options = {"source": "generated"}
    if source == "official":
        source_options = {"data_dir": request.getfixturevalue("official")}
    products, counts = {}, {}
    for split in ("train", "valid", "test"):
        env = WebShopEnv(split=split, goals=kind, goals_per_product=None, **source_options)
        counts[split] = len(env.tasks)
        goals = [env._tasks.goal(task) for task in env.tasks]
        products[split] = {goal.asin for goal in goals}
        assert all(env._tasks.split_of(goal) == split for goal in goals)
    whole_env = WebShopEnv(split="all", goals=kind, goals_per_product=None, **source_options)
    assert sum(counts.values()) == len(whole_env.tasks) == whole_env.catalog.goals(kind)
    for first_split, second_split in (("train", "valid"), ("train", "test"), ("valid", "test")):
        assert not products[first_split] & products[second_split]
    assert counts["train"] > 4 * counts["test"] or kind == "human"
    if source == "generated":
        assert min(counts.values()) > 0


def test_legacy_splits_are_webshops_and_leak(official, shared):
    splits = {}
    for split in ("legacy-test", "legacy-eval", "legacy-train", "legacy-train-500"):
        env = WebShopEnv(data_dir=official, split=split)
        splits[split] = {int(task.partition("/")[2]) for task in env.tasks}
    sizes = {split: len(indices) for split, indices in splits.items()}
    assert sizes == {
        "legacy-test": 500,
        "legacy-eval": 1000,
        "legacy-train": 5410,
        "legacy-train-500": 6410,
    }
    order = json.loads(shared.file("goal_order.json").read_text())["synthetic"]
    assert splits["legacy-test"] == set(order[:500])
    asins = {
        split: {env.catalog.goal("synthetic", index).asin for index in indices}
        for split, indices in splits.items()
    }
    shared_products = asins["legacy-test"] & asins["legacy-train-500"]
    assert (len(asins["legacy-test"]), len(shared_products)) == (146, 127), "as the docstring says"
    _, info = env.reset(options={"task": f"synthetic/{order[3]}"})
    assert info["split"] == "legacy-test"


# Where data are.


def test_catalogues_are_found(official, tmp_path, monkeypatch):
    monkeypatch.setenv("COMAP_HOME", str(tmp_path))
    with pytest.raises(DataNotFound, match="comap data build webshop"):
        WebShopEnv(source="official")
    with pytest.raises(DataNotFound, match="comap data build webshop"):
        WebShopEnv(data_dir=tmp_path / "none")
    (tmp_path / "webshop").symlink_to(official)
    assert len(WebShopEnv().catalog) == 1000
    assert len(WebShopEnv(source="generated").catalog) < 1000


def test_without_a_home_the_generated_catalogue_is_made_anew(tmp_path, monkeypatch):
    expected, home = embedded_catalog().manifest, tmp_path / "home"
    home.write_text("a file, not a folder")
    monkeypatch.setenv("COMAP_HOME", str(home))
    embedded_catalog.cache_clear()
    try:
        assert embedded_catalog().manifest == expected
        assert not str(embedded_catalog().folder).startswith(str(tmp_path))
    finally:
        embedded_catalog.cache_clear()


# Rules.


def test_search_needs_the_search_page(lamps):
    env = at_item(data_dir=lamps)
    page = env.history()[-1].observation
    observation, reward, terminated, _, info = env.step(" SEARCH [ lamp\n].")
    assert (observation, reward, terminated) == (page, 0.0, False)
    assert info["invalid_action"]
    env = at_item(data_dir=lamps, legacy=True)
    observation, *_, info = env.step("search[lamp]")
    assert "Page 1 (Total results: 8)" in observation and not info["invalid_action"]


def test_pages_of_results_end(official):
    env = WebShopEnv(data_dir=official)
    env.reset(seed=0)
    env.step("search[men's t-shirt]")
    for page in range(2, 6):
        observation, *_, info = env.step("click[next >]")
        assert f"Page {page} (" in observation
    assert "Next >" not in observation and "click[next >]" not in info["admissible_actions"]
    same_page, *_, info = env.step("click[next >]")
    assert same_page == observation and info["invalid_action"]
    env = WebShopEnv(data_dir=official, legacy=True)
    env.reset(seed=0)
    env.step("search[men's t-shirt]")
    for _ in range(7):
        observation, *_, info = env.step("click[next >]")
    assert "Page 8 (Total results: 50) [SEP] < Prev [SEP] Next >" in observation


def test_nothing_follows_a_purchase(lamps):
    env = at_item(data_dir=lamps)
    *_, terminated, _, info = env.step("click[buy now]")
    assert terminated and "reward_parts" in info and info["admissible_actions"] == ()
    with pytest.raises(NoEpisode):
        env.step("search[lamp]")
    assert env.expert_action() is None
    env = at_item(data_dir=lamps, legacy=True)
    first = env.step("click[buy now]")
    assert env.step("click[buy now]")[0] == first[0]
    observation, reward, terminated, *_ = env.step("search[lamp]")
    assert "Page 1" in observation and not terminated and reward == 0.0


def test_shared_values_can_be_told_apart(lamps):
    env = at_item(data_dir=lamps)
    assert set(env.admissible_actions[6:]) == {
        "click[red]",
        "click[50 | 60 watt]",
        'click[caf\u00e9 "x"]',
        "click[blue]",
        "click[shade: features]",
        "click[base: red]",
    }
    env.step("click[red]")
    assert env.session.options == {"shade": "red"}
    env.step("click[Base:  RED]")
    assert env.session.options == {"shade": "red", "base": "red"}
    env.step("click[features]")
    assert env.session.page == "features"
    env.step("click[< prev]")
    env.step("click[shade: features]")
    assert env.session.options == {"shade": "features", "base": "red"}


def test_what_is_selected_is_shown(lamps):
    env = at_item(data_dir=lamps)
    env.step("click[blue]")
    observation, *_ = env.step('click[caf\u00e9 "x"]')
    assert (
        'features [SEP] Selected base: caf\u00e9 "x" [SEP] Selected shade: blue [SEP] Lamp bright'
        in observation
    )
    rich = at_item(data_dir=lamps, observation_mode="text_rich")
    rich.step("click[blue]")
    observation, *_ = rich.step('click[caf\u00e9 "x"]')
    assert observation.startswith(
        'You have clicked blue.\nYou have clicked caf\u00e9 "x".\nInstruction:\n'
    )
    assert '\n  [clicked button] caf\u00e9 "x" [clicked button_]\n' in observation
    assert "\n  [button] red [button_]\n" in observation


# Rewards.


def test_strict_options():
    lamp = embedded_catalog().product(0)
    goal_options = (("color", "red"), ("size", "8"))
    goal = Goal("synthetic", 0, lamp.asin, "", lamp.wanted or ("x",), goal_options, 1e6)

    def matched(options, strict, goal=goal):
        return reward_of(lamp, options, goal, lamp, strict)[1]["n_option_matched"]

    for options, lenient, strict in (
        ({"color": "red", "size": "8"}, 2, 2),
        ({"color": "cherry red", "size": "8 wide"}, 1, 0),
        ({"color": "8", "size": "red"}, 2, 0),
        ({}, 0, 0),
    ):
        assert (matched(options, False), matched(options, True)) == (lenient, strict), options
    human = Goal("human", 0, lamp.asin, "", ("x",), (("", "red"),), 1e6)
    assert matched({"shade": "red"}, True, human) == 1
    assert matched({"shade": "dark red"}, True, human) == 0
    assert matched({"shade": "cherry red"}, False, human) == 1


def test_reward_parts_are_in_info_after_a_purchase_only(official):
    env = gym.make(ID, data_dir=official, strict_options=True, max_episode_steps=40)
    env.reset(seed=4)
    terminated = False
    while not terminated:
        _, reward, terminated, _, info = env.step(env.unwrapped.expert_action())
        assert bool(info["reward_parts"]) == terminated
    parts = info["reward_parts"]
    assert reward == info["score"] == 1.0 and info["success"]
    moment = snapshot(env)
    env.reset(seed=5)
    assert restore(env, moment)[1]["reward_parts"] == parts
    assert (
        env.unwrapped.goal_reached(info["facts"]) and env.unwrapped.score_of(info["facts"]) == 1.0
    )
