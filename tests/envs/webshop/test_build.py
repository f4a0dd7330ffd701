"""Catalogues whose files were changed, and too large to be compared: told as such, and by name."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import comap.envs.webshop.build as building
from comap.cli import main
from comap.envs.webshop import Catalog, build_catalog
from comap.envs.webshop.build import elements, items
from comap.envs.webshop.generate import (
    HUMAN_FILE,
    INSTRUCTIONS_FILE,
    PRODUCTS_FILE,
    generate_catalog,
)
from comap.envs.webshop.products import NO_CAP, noun_rule
from comap.errors import DataCorrupt, DataNotFound, MissingExtra, OptionError, TaskNotFound

CASES = json.loads(Path(__file__).with_name("cases.json").read_text("utf-8"))


@pytest.fixture
def write(tmp_path):
    def write(content, name="a.json"):
        path = tmp_path / name
        path.write_text(content if isinstance(content, str) else json.dumps(content), "utf-8")
        return path

    return write


@pytest.fixture
def files(write):
    return {
        "products": write(CASES["products"], "items_shuffle.json"),
        "instructions": write(CASES["instructions"], "items_ins_v2.json"),
        "human_instructions": write(CASES["human"], "items_human_ins.json"),
    }


def build(files, out, **options):
    return Catalog.open(build_catalog(**files, out=out, **{"nouns": "lexical"} | options))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


# Reading JSON piece by piece.


@settings(deadline=None, max_examples=80)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
        lambda part: st.lists(part) | st.dictionaries(st.text(), part),
        max_leaves=12,
    ),
    st.integers(1, 40),
    st.sampled_from([None, 1]),
)
def test_json_is_read_in_pieces_of_any_size(tmp_path_factory, value, chunk, indent):
    path = tmp_path_factory.getbasetemp() / "piece.json"
    before = building._CHUNK
    building._CHUNK = chunk
    try:
        path.write_text(json.dumps([value, value, 12], indent=indent), "utf-8")
        assert list(elements(path)) == [value, value, 12]
        path.write_text(json.dumps({"a": value, "b\n": 1.5}, indent=indent), "utf-8")
        assert list(items(path)) == [("a", value), ("b\n", 1.5)]
    finally:
        building._CHUNK = before


@pytest.mark.parametrize("text", CASES["broken_json_is_told"])
def test_broken_json_is_told(write, text):
    with pytest.raises(DataCorrupt, match=r"expected .* at character \d+ of .*a\.json, found"):
        list(elements(write(text)))


def test_hostile_json_is_told(tmp_path, write):
    with pytest.raises(DataCorrupt):
        list(elements(write("[" * 200_000)))
    path = tmp_path / "b.json"
    path.write_bytes(b'["\xff"]')
    with pytest.raises(DataCorrupt, match="UTF-8"):
        list(elements(path))
    with pytest.raises(DataNotFound):
        list(items(tmp_path / "none.json"))


# Products.


def test_products_are_read_as_webshop_does(files, tmp_path):
    catalog = build(files, tmp_path / "shop")
    assert len(catalog) == 2
    chair, table = catalog.product(0), catalog.product(1)
    assert (chair.price_tag, table.price_tag) == ("$10.0 to $20.0", "$1200.5")
    assert 10 <= chair.price <= 20 and table.price == 1200.5
    assert chair.options == (("color", ("red | blue", "oak")), ("fit", ("wide",)))
    assert (chair.query, chair.bullets) == ("chairs", ("Easy to clean ", ""))
    assert (chair.attributes, table.attributes) == (("easy clean", "solid wood"), ("DUMMY_ATTR",))
    assert (chair.nouns, table.nouns) == (("oak", "chair"), ("caf\u00e9", "table"))
    assert catalog.card(1) == ("B000000001", "Caf\u00e9 Table", "$1200.5")
    assert catalog.row("B000000001") == 1 and catalog.row("B000000002") == 0
    assert catalog.row("B00000000") is catalog.row("nan") is catalog.row("B" * 99) is None
    assert catalog.search("oak wide") == ["B000000002"] and catalog.search("again") == []
    assert catalog.rows_with("queries", "chairs") == [0]
    assert catalog.rows_with("categories", "nowhere") == []


def test_goals_are_frozen_with_the_data(files, tmp_path):
    catalog = build(files, tmp_path / "shop", seed=3)
    assert (catalog.goals("synthetic"), catalog.goals("human")) == (2, 1)
    chair = catalog.product(0)
    assert chair.cap % 10 == 0 and chair.price < chair.cap <= chair.price + 40
    goals = [catalog.goal("synthetic", index) for index in range(2)]
    assert [goal.options for goal in goals] == [
        (("color", "red | blue"), ("fit", "wide")),
        (("color", "oak"), ("fit", "wide")),
    ]
    assert goals[0].text == (
        "Find me chairs with color: red | blue, and fit: wide, "
        f"and price lower than {chair.cap:.2f} dollars"
    )
    assert goals[0].weight == 0.5
    human = catalog.goal("human", 0)
    assert (human.text, human.options, human.cap) == ("i need a table", (("", "large"),), NO_CAP)
    for kind, index in (("synthetic", 2), ("synthetic", -1), ("human", 1), ("other", 0)):
        with pytest.raises(TaskNotFound, match="synthetic/1"):
            catalog.goal(kind, index)


def test_the_seed_decides(files, tmp_path):
    first, second = build(files, tmp_path / "a"), build(files, tmp_path / "b")
    assert contents(first.folder) == contents(second.folder)
    prices = {build(files, tmp_path / f"s{s}", seed=s).product(0).price for s in range(5)}
    assert len(prices) == 5


def test_what_is_given_is_not_drawn(files, tmp_path, write):
    extra_files = {
        "prices": write({"prices": {"B000000002": 11.5}}, "prices.json"),
        "price_caps": write(
            {
                "synthetic": {"B000000002": 70.0},
                "human": [{"goal_index": 0, "price_upper": 990.0}],
            },
            "caps.json",
        ),
        "title_nouns": write({"B000000001": ["t", "t"]}, "nouns.json"),
    }
    catalog = build(files | extra_files, tmp_path / "shop")
    chair, table = catalog.product(0), catalog.product(1)
    assert (chair.price, chair.cap, table.nouns) == (11.5, 70.0, ("t", "t"))
    assert chair.nouns == ("oak", "chair")
    assert catalog.goal("human", 0).text.endswith(", and price lower than 990.00 dollars")
    assert catalog.manifest["nouns"] == "given+lexical-1"
    assert catalog.manifest["sha256"] != build(files, tmp_path / "bare").manifest["sha256"]


@pytest.mark.parametrize(
    "products", CASES["broken_products"].values(), ids=CASES["broken_products"].keys()
)
def test_broken_products_are_told_and_leave_nothing(tmp_path, write, products):
    path = write(products, "products.json")
    with pytest.raises(DataCorrupt, match=r"expected .*found"):
        build_catalog(path, tmp_path / "shop", nouns="lexical")
    assert [entry.name for entry in tmp_path.iterdir()] == ["products.json"]


@pytest.mark.parametrize(("name", "content", "pattern"), CASES["broken_given_files"], ids=str)
def test_broken_given_files_are_told(files, tmp_path, write, name, content, pattern):
    extra_file = write(content, "given.json")
    with pytest.raises(DataCorrupt, match=pattern or r"expected .* (in|of) .*given\.json, found"):
        build(files | {name: extra_file}, tmp_path / "shop")
    with pytest.raises(DataNotFound):
        build(files | {name: tmp_path / "none.json"}, tmp_path / "shop")


# Folders.


def test_only_catalogues_are_replaced(files, tmp_path):
    shop = tmp_path / "shop"
    first = build(files, shop)
    rebuilt = build(files, shop, seed=9)
    assert rebuilt is not first and rebuilt.manifest["seed"] == 9
    assert first.product(0).title == "Oak Chair", "a catalogue that is replaced stays readable"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "letter.txt").write_text("dear")
    for occupied in (tmp_path / "mine", tmp_path / "mine" / "letter.txt"):
        with pytest.raises(OptionError, match="does not exist yet"):
            build(files, occupied)
    assert (tmp_path / "mine" / "letter.txt").read_text() == "dear"


def test_folders_that_are_no_catalogues_are_told(files, tmp_path):
    for missing in (tmp_path / "none", tmp_path, files["products"]):
        with pytest.raises(DataNotFound, match="comap data build webshop"):
            Catalog.open(missing)
    shop = build(files, tmp_path / "shop").folder
    manifest = json.loads((shop / "manifest.json").read_text())
    for number, bad_manifest in enumerate(
        ("no JSON", "[]", json.dumps(manifest | {"format": 99}), '{"format": 1}')
    ):
        broken = tmp_path / f"broken{number}"
        broken.mkdir()
        for name, content in contents(shop).items():
            (broken / name).write_bytes(content)
        (broken / "manifest.json").write_text(bad_manifest)
        with pytest.raises(DataCorrupt, match="build the catalogue again"):
            Catalog.open(broken)


def pickled(content: bytes) -> bytes:
    stream = io.BytesIO()
    np.save(stream, np.array([object()]), allow_pickle=True)
    return stream.getvalue()


DAMAGES = {
    "half": lambda content: content[: len(content) // 2],
    "zeros": lambda content: bytes(len(content)),
    "pickled": pickled,
}


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("products.bin", "half"),
        ("products.bin", "zeros"),
        ("products.npy", "half"),
        ("starts.npy", "half"),
        ("starts.npy", "pickled"),
        ("human.bin", "half"),
    ],
)
def test_damaged_and_missing_files_are_told(files, tmp_path, name, damage):
    shop = build(files, tmp_path / "shop").folder
    (shop / name).write_bytes(DAMAGES[damage]((shop / name).read_bytes()))
    (shop / "manifest.json").touch()
    with pytest.raises(DataCorrupt, match="build the catalogue again"):
        Catalog.open(shop)
    (shop / name).unlink()
    with pytest.raises((DataNotFound, DataCorrupt), match="comap data build webshop"):
        Catalog.open(shop)


# Nouns, and the command.


def test_noun_rules():
    with pytest.raises(OptionError, match="did you mean 'lexical'"):
        noun_rule("lexica")
    try:
        import spacy  # noqa: F401
    except ImportError:
        assert noun_rule("auto")[0] == "lexical-1"
        with pytest.raises(MissingExtra, match=r"\[webshop\]"):
            noun_rule("spacy")
    rule = noun_rule("lexical")[1]
    assert rule([("B0", "The 2-Pack of 10 Red, Red T-Shirts \u2605 caf\u00e9!")]) == [
        ("2-pack", "red", "red", "t-shirts", "caf\u00e9")
    ]


def test_the_command(files, tmp_path, capsys):
    out = tmp_path / "shop"
    assert main(["data", "build", "webshop", str(tmp_path), "--out", str(out), "--seed", "5"]) == 0
    output = capsys.readouterr()
    assert output.out == f"{out}\n" and "reading items_shuffle.json: 100 %" in output.err
    catalog = Catalog.open(out)
    assert (catalog.manifest["seed"], catalog.goals("human")) == (5, 1)
    (tmp_path / "items_shuffle_1000.json").write_text("[]")
    words = ["data", "build", "webshop", str(tmp_path), "--out", str(tmp_path / "b")]
    assert main(words) == 2
    assert "--products FILE" in capsys.readouterr().err
    assert main([*words, "--products", str(files["products"])]) == 0
    assert main(["data", "build", "webshop", str(out), "--out", str(tmp_path / "c")]) == 2
    assert "items_shuffle*.json" in capsys.readouterr().err


def test_golden_catalogue(tmp_path):
    """The same in any process, for any hash seed and Python version."""
    generate_catalog(tmp_path)
    names = (PRODUCTS_FILE, INSTRUCTIONS_FILE, HUMAN_FILE)
    file_contents = [json.loads((tmp_path / name).read_text("utf-8")) for name in names]
    digest = hashlib.sha256(json.dumps(file_contents, sort_keys=True).encode()).hexdigest()
    assert digest == "a804d711bc8d8ebd29db7dc78dde92190709ed3acd9a718573f9a97edfb6ef2a"
