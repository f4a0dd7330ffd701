"""The generated catalogue: WebShop's format, the same everywhere, and worth choosing in."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from math import prod
from pathlib import Path

import pytest

from comap.envs.webshop.build import build_catalog
from comap.envs.webshop.catalog import Catalog
from comap.envs.webshop.cleaning import clean
from comap.envs.webshop.generate import (
    HUMAN_FILE,
    INSTRUCTIONS_FILE,
    PRODUCTS_FILE,
    generate_catalog,
)
from comap.envs.webshop.matching import keywords
from comap.envs.webshop.offers import known_groups
from comap.envs.webshop.reward import reward_of
from comap.errors import OptionError

SHARED = Path(__file__).parents[3].parent / "shared" / "data" / "webshop"
FILES = (PRODUCTS_FILE, INSTRUCTIONS_FILE, HUMAN_FILE)
DIGEST = """
import hashlib, sys, tempfile
from pathlib import Path
from comap.envs.webshop.generate import generate_catalog
with tempfile.TemporaryDirectory() as folder:
    generate_catalog(Path(folder), seed=5, products=90)
    for path in sorted(Path(folder).iterdir()):
        print(path.name, hashlib.sha256(path.read_bytes()).hexdigest())
"""


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The files of the usual catalogue, and the catalogue built of them."""
    folder = tmp_path_factory.mktemp("made")
    generate_catalog(folder)
    products, instructions, human = (
        json.loads((folder / name).read_text("utf-8")) for name in FILES
    )
    paths = [folder / name for name in FILES]
    build_catalog(paths[0], folder / "built", paths[1], paths[2], nouns="lexical")
    return products, instructions, human, Catalog.open(folder / "built")


def test_the_usual_catalogue_is_as_large_as_promised(made):
    products, instructions, _, catalog = made
    assert len(products) == len({item["asin"] for item in products}) == len(instructions) == 600
    assert catalog.goals("synthetic") > 3_000 and catalog.goals("human") > 80
    assert len({item["name"] for item in products}) > 590
    kinds = Counter(item["query"] for item in products)
    assert len(kinds) > 40 and min(kinds.values()) > 9
    assert {item["category"] for item in products} == {
        "beauty",
        "electronics",
        "fashion",
        "garden",
        "grocery",
    }
    sizes = [
        prod(len(v) for v in (p["customization_options"] or {"": [0]}).values()) for p in products
    ]
    assert max(sizes) <= 40 and sizes.count(1) > 50


def test_same_bytes_in_any_process():
    found = set()
    for hash_seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", DIGEST]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        found.add(done.stdout)
    assert len(found) == 1 and len(found.pop().splitlines()) == 3


def test_golden_catalogue(made):
    """Guards against other Python versions and against changes that nobody meant."""
    digest = hashlib.sha256(json.dumps(made[:3], sort_keys=True).encode()).hexdigest()
    assert digest == "a804d711bc8d8ebd29db7dc78dde92190709ed3acd9a718573f9a97edfb6ef2a"


def test_shops_have_the_same_ids_for_other_products(tmp_path):
    shops = []
    for seed in (0, 1, -1):
        generate_catalog(tmp_path / str(seed), seed=seed, products=400)
        products = json.loads((tmp_path / str(seed) / PRODUCTS_FILE).read_text("utf-8"))
        shops.append({item["asin"]: item["name"] for item in products})
        assert all(re.fullmatch("B0G[A-Z]{7}", asin) for asin in shops[-1])
    assert shops[0].keys() == shops[1].keys() == shops[2].keys() and len(shops[0]) == 400
    for other in shops[1:]:
        assert sum(shops[0][asin] == name for asin, name in other.items()) < 4


def test_fewer_products_are_the_first_of_more(tmp_path):
    shops = []
    for number in (7, 20):
        generate_catalog(tmp_path / str(number), products=number)
        shops.append(json.loads((tmp_path / str(number) / PRODUCTS_FILE).read_text("utf-8")))
    assert shops[0] == shops[1][:7]


@pytest.mark.parametrize(
    "options", [{"seed": "1"}, {"seed": 1.5}, {"products": 0}, {"products": True}]
)
def test_wrong_numbers_are_refused(tmp_path, options):
    with pytest.raises(OptionError, match="whole number"):
        generate_catalog(tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def shape(value):
    """Return the types in a JSON value, lists by their first element."""
    if isinstance(value, dict):
        return {key: shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [shape(value[0])] if value else []
    return type(value).__name__


def test_the_format_is_webshops(made):
    if not (SHARED / "items_shuffle_1000.json").is_file():
        pytest.skip(f"no WebShop data at {SHARED}")
    theirs = json.loads((SHARED / "items_shuffle_1000.json").read_text("utf-8"))
    products, instructions, human, _ = made
    plain = next(item for item in theirs if item["customization_options"] == "")
    assert shape(next(p for p in products if not p["customization_options"])) == shape(plain)
    notes = json.loads((SHARED / "items_ins_v2_1000.json").read_text("utf-8"))
    asked = next(note for note in notes.values() if "instruction" in note)
    assert shape(next(n for n in instructions.values() if "instruction" in n)) == shape(asked)
    people = json.loads((SHARED / "items_human_ins.json").read_text("utf-8"))
    full = next(p for p in people.values() if p[0]["instruction_options"])
    assert all(shape(mine) == shape(full) for mine in human.values())


def test_nothing_is_taken_from_webshops_data(made):
    """No title, description, bullet or instruction of ours is in the official data."""
    if not (SHARED / "items_shuffle_1000.json").is_file():
        pytest.skip(f"no WebShop data at {SHARED}")
    names = ("items_shuffle_1000.json", "items_ins_v2_1000.json", "items_human_ins.json")
    theirs = "\n".join((SHARED / name).read_text("utf-8").lower() for name in names)
    products, instructions, _, _ = made
    for item in products[::4]:
        bullets = [line for line in item["small_description"] if len(line.split()) > 4]
        for text in (item["name"], item["full_description"], *bullets, item["asin"]):
            assert text.lower() not in theirs, text
    for note in instructions.values():
        assert note.get("instruction", "none of it") not in theirs


def test_attributes_are_told_by_the_pages_and_groups_are_known(made):
    products, instructions, _, _ = made
    for item in products:
        text = " ".join(
            [item["name"], item["full_description"], *item["small_description"]]
        ).lower()
        note = instructions[item["asin"]]
        assert all(name in text for name in note["attributes"]), item
        assert set(note.get("instruction_attributes", ())) <= set(note["attributes"])
        options = item["customization_options"] or {}
        assert {clean(group) for group in options} <= known_groups()
        values = [row["value"] for group in options.values() for row in group]
        assert len(values) == len(set(values))
        assert not any(sign in value for value in values for sign in "[]\"'\n")


def sample(catalog, kind, every):
    return [catalog.goal(kind, index) for index in range(0, catalog.goals(kind), every)]


@pytest.mark.parametrize(("kind", "every"), [("synthetic", 37), ("human", 3)])
def test_goals_can_be_found_and_met(made, kind, every):
    catalog, goals = made[3], sample(made[3], kind, every)
    for goal in goals:
        product = catalog.product(catalog.row(goal.asin))
        assert goal.asin in catalog.search(keywords(goal.text)[0]), goal.text
        offered = {value: group for group, values in product.options for value in values}
        chosen = {offered[value]: value for _, value in goal.options}
        for strict in (False, True):
            reward, parts = reward_of(product, chosen, goal, product, strict)
            assert reward == 1.0, (goal, parts)


def test_the_first_product_found_will_often_not_do(made):
    catalog, goals = made[3], sample(made[3], "synthetic", 11)
    perfect = near = 0
    for goal in goals:
        wanted = catalog.product(catalog.row(goal.asin))
        bought = catalog.product(catalog.search_rows(keywords(goal.text)[0])[0])
        offers = dict(bought.options)
        chosen = {g: v for g, v in goal.options if v in offers.get(g, ())}
        reward = reward_of(bought, chosen, goal, wanted)[0]
        perfect += reward == 1.0
        near += 0.4 < reward < 1.0
    assert 0.1 < perfect / len(goals) < 0.5
    assert near / len(goals) > 0.4
