"""What is noise on the pages of a shop."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.benchmarks.paw_noise_parts import find_noise
from comap.facts import Delta, State
from comap.lm.tiny import tokenizer_of
from comap.trainers.paw.noise_spans import listed_codes, listing_spans
from comap.trainers.paw.rows import Serializer
from comap.trainers.paw.token_texts import token_texts
from comap.trajectory import Call, Step, Trajectory

TOKENIZER = tokenizer_of(["You see a mug and a pen on the desk"] * 2, 400)
_SHOP = (
    "Instruction: [SEP] find me a rug [SEP] Back to Search [SEP] Page 2 (Total results: 12) [SEP] "
    "< Prev [SEP] Next > [SEP] B07XYZ1234 [SEP] It's a 'Rug' [SEP] $5.00 to $7.00 [SEP] "
    "0123456789 [SEP] Mat [SEP] $9.10"
)
_QUOTED = " [SEP] ".join(f"'{part}'" for part in _SHOP.split(" [SEP] ")[2:])


@pytest.mark.parametrize("page", [_SHOP, _QUOTED])
def test_codes_titles_and_prices_of_new_products_are_noise(page: str) -> None:
    def said(known: set[str]) -> list[str]:
        return [page[start:end] for start, end in listing_spans(known, page)]

    first = ["B07XYZ1234", "It's a 'Rug'", "$5.00 to $7.00"]
    second = ["0123456789", "Mat", "$9.10"]
    assert said(set()) == first + second and said({"B07XYZ1234"}) == second
    assert said({"B07XYZ1234", "0123456789"}) == []
    assert listed_codes(page) == {"B07XYZ1234", "0123456789"}


@pytest.mark.parametrize(
    "page",
    [
        "",
        "'Back to Search' [SEP] 'B07XYZ1234' [SEP] 'Mug'",  # an item: nothing is listed
        "'Page 1 (Total results: 0)' [SEP] 'Next >'",
        "'Page 1 (Total results: 1)' [SEP] 'b07xyz1234' [SEP] 'Mug' [SEP] '$5.00'",
        "'Page 1 (Total results: 1)' [SEP] 'B07XYZ'",  # cut off
        "Page 1 (Total results: 1)\n[button] B07XYZ1234 [button_]",
    ],
)
def test_a_page_without_codes_lists_nothing(page: str) -> None:
    assert listing_spans(set(), page) == [] and listed_codes(page) == set()


def test_a_list_that_was_cut_off_is_noise_as_far_as_it_goes() -> None:
    for size, said in ((len(_QUOTED) - 2, "$9.1"), (_QUOTED.index("Mat") + 2, "Ma")):
        page = _QUOTED[:size]
        start, end = listing_spans({"B07XYZ1234"}, page)[-1]
        assert page[start:end] == said


@settings(max_examples=50, deadline=None)
@given(st.lists(st.text(alphabet="AB1 '[SEP]", max_size=12), max_size=8), st.booleans())
def test_spans_of_lists_are_in_order_and_in_the_text(parts: list[str], listed: bool) -> None:
    page = " [SEP] ".join(
        ["Page 1 (Total results: 9)", *(["B07XYZ1234"] if listed else []), *parts]
    )
    spans = listing_spans(set(), page)
    assert all(0 <= start <= end <= len(page) for start, end in spans)
    assert all(one[1] <= two[0] for one, two in pairwise(spans))
    assert not listed or page[slice(*spans[0])] == "B07XYZ1234"


def test_in_webshop_only_pages_of_results_count() -> None:
    pages = (
        "Page 1 (Total results: 2) [SEP] B07XYZ1234 [SEP] a mug",
        "Back to Search [SEP] MODEL of a mug",
        "Page 1 (Total results: 0) [SEP] nothing",
    )
    call = Call("generate", "draft", "x", messages=(("user", "go"),), token_ids=(9,))
    steps = tuple(
        Step(t, "x", page, 0.0, False, False, False, State(), Delta(), calls=(call,))
        for t, page in enumerate(pages, 1)
    )
    for env_id, rows in (("comap/WebShop-v0", [0]), ("comap/Other-v0", [0, 1])):
        episode = Trajectory(env_id, "task", "train", "", "react", "shop", State(), steps)
        found = find_noise(episode, Serializer(TOKENIZER), TOKENIZER, "codes")
        assert [one.row.t for one in found] == rows
    texts = token_texts(TOKENIZER, found[0].row.observation_ids) or ()
    said = "".join(t for t, flag in zip(texts, found[0].noisy, strict=True) if flag)
    assert "B07XYZ1234" in said and "mug" not in said


def test_listed_products_are_noise_once_an_episode() -> None:
    def page(number: int, *products: str) -> str:
        head = (
            f"Instruction: [SEP] a mug [SEP] Back to Search [SEP] Page {number} (Total results: 3)"
        )
        return " [SEP] ".join([head, "Next >", *products])

    mug, cup = "B07XYZ1234 [SEP] a mug [SEP] $5.00", "B07XYZ1235 [SEP] a cup [SEP] $6.00"
    pages = (page(1, mug), "Back to Search [SEP] a mug", page(1, mug), page(1, mug, cup))
    call = Call("generate", "draft", "x", messages=(("user", "go"),), token_ids=(9,))
    steps = tuple(
        Step(t, "x", text, 0.0, False, False, False, State(), Delta(), calls=(call,))
        for t, text in enumerate(pages, 1)
    )
    episode = Trajectory("comap/WebShop-v0", "task", "train", "", "react", "shop", State(), steps)
    found = find_noise(episode, Serializer(TOKENIZER), TOKENIZER, "listings")
    assert [one.row.t for one in found] == [0, 3]
    said = []
    for one in found:
        texts = token_texts(TOKENIZER, one.row.observation_ids) or ()
        said.append("".join(t for t, flag in zip(texts, one.noisy, strict=True) if flag))
    assert "B07XYZ1234" in said[0] and "5.00" in said[0] and "Page" not in said[0]
    assert "B07XYZ1235" in said[1] and "mug" not in said[1]
    codes = find_noise(episode, Serializer(TOKENIZER), TOKENIZER, "codes")
    assert [one.row.t for one in codes] == [0, 2, 3]  # METHODS.md 2.9 knows no first time
