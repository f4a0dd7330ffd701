"""Products, the goals made from them, and the reward of a purchase."""

from __future__ import annotations

import hashlib
import json
import random
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from rapidfuzz import fuzz, process
from rapidfuzz.utils import default_process

from ...errors import DataCorrupt, DataNotFound, MissingExtra, OptionError, needs_extra, suggest
from .analyzer import table

# What upstream fills in where a record has no price or no attributes.
_NO_PRICE = (100.0,)
_NO_ATTRIBUTES = ("DUMMY_ATTR",)


@dataclass(frozen=True, slots=True)
class Product:
    """One product, as pages, goals and rewards see it.

    Attributes:
        asin: Its number, at most ten characters.
        title: Its name.
        price_tag: Its price as it is shown, ``$9.99`` or ``$5.0 to $7.5``.
        description: Text of the page *Description*.
        bullets: Lines of the page *Features*.
        options: Option groups, each a name and its values, in the order of the page.
        attributes: What it is known for; the reward looks at them.
        query: What it was found by when the data were gathered; the reward looks at it.
        category: One of a few broad kinds.
        product_category: The path of categories, separated by ``\u203a``.
        nouns: The nouns of the title, with repeats; the reward looks at them.
        price: What it costs when it is bought, in dollars: one number, also for a range.
        instruction: The synthetic instruction's beginning, or None.
        wanted: The attributes that the instruction asks for.
        cap: The highest price of synthetic goals, or 1,000,000 for none.
    """

    asin: str
    title: str
    price_tag: str
    description: str
    bullets: tuple[str, ...]
    options: tuple[tuple[str, tuple[str, ...]], ...]
    attributes: tuple[str, ...]
    query: str
    category: str
    product_category: str
    nouns: tuple[str, ...] = ()
    price: float = 100.0
    instruction: str | None = None
    wanted: tuple[str, ...] = ()
    cap: float = 1_000_000.0

    def to_json(self) -> str:
        """Return the product as a line of JSON."""
        # In ASCII: a lone surrogate in a title that was scraped cannot be written otherwise.
        return json.dumps([getattr(self, name) for name in _FIELDS], ensure_ascii=True)

    @classmethod
    def from_json(cls, text: str) -> Product:
        """Return the product that `to_json` wrote."""
        parts = json.loads(text)
        for index in _LISTS:
            parts[index] = tuple(parts[index])
        parts[_OPTIONS] = tuple([(name, tuple(values)) for name, values in parts[_OPTIONS]])
        return cls(*parts)


_FIELDS = tuple(Product.__dataclass_fields__)
_OPTIONS = _FIELDS.index("options")
_LISTS = tuple(_FIELDS.index(name) for name in ("bullets", "attributes", "nouns", "wanted"))


def read_product(
    record: Mapping[str, Any], notes: Mapping[str, Any]
) -> tuple[Product, list[float]]:
    """Return a product from WebShop's records, and the one or two prices that it may have."""
    if not isinstance(notes, Mapping):
        raise DataCorrupt(
            f"expected attributes of product {record.get('asin')!r:.40}, found {notes!r:.80}; "
            "get items_ins_v2.json again"
        )
    # For messages, which name the product.
    notes = {"asin": record.get("asin"), **notes}
    prices, tag = _prices(record)

    bullets = record.get("small_description")
    lines = bullets if isinstance(bullets, list) else [bullets]
    if not all(line is None or isinstance(line, str) for line in lines):
        raise _wrong(record, "small_description", "a text or a list of texts")

    product = Product(
        asin=_text(record, "asin"),
        title=_text(record, "name"),
        price_tag=tag,
        description=_text(record, "full_description"),
        bullets=tuple(line or "" for line in lines),
        options=_options(record),
        attributes=_texts(notes, "attributes") if "attributes" in notes else _NO_ATTRIBUTES,
        query=_text(record, "query").lower().strip(),
        category=_text(record, "category"),
        product_category=_text(record, "product_category"),
        instruction=_text(notes, "instruction") if notes.get("instruction") is not None else None,
        wanted=_texts(notes, "instruction_attributes"),
    )
    return product, prices


def search_text(product: Product) -> str:
    """Return the text of a product that upstream's index has: of its bullets only the first."""
    options = ", and ".join(f"{name}: {', '.join(values)}" for name, values in product.options)
    first = product.bullets[0] if product.bullets else ""
    return f"{product.title} {product.description} {first} {options}".lower()


def _prices(record: Mapping[str, Any]) -> tuple[list[float], str]:
    """Return the one or two prices of a product, and its price tag."""
    # "$1,299.00" is one amount, "$9.99$19.99" a range.
    amounts = [re.sub(r"[^\d.]", "", part) for part in _text(record, "pricing").split("$")[1:]]
    try:
        prices = [float(amount) for amount in amounts if amount.strip(".")] or list(_NO_PRICE)
    except ValueError as error:
        raise _wrong(record, "pricing", "amounts in dollars") from error

    tag = f"${prices[0]}" if len(prices) == 1 else f"${prices[0]} to ${prices[1]}"
    return prices[:2], tag


def _options(record: Mapping[str, Any]) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the option groups; a name that comes twice keeps its place and its last values."""
    groups = record.get("customization_options") or {}
    if not isinstance(groups, dict):
        raise _wrong(record, "customization_options", "option groups by name")

    options: dict[str, tuple[str, ...]] = {}
    for name, contents in groups.items():
        if contents is None:
            continue
        try:
            # Upstream's spelling: its pages have the options in their addresses, where "/" divides.
            values = [content["value"] for content in contents]
            options[name.lower()] = tuple(v.strip().replace("/", " | ").lower() for v in values)
        except (TypeError, KeyError, AttributeError) as error:
            raise _wrong(record, "customization_options", "lists of values") from error
    return tuple(options.items())


def _text(record: Mapping[str, Any], key: str) -> str:
    """Return a field that is a text, or empty where it is missing."""
    value = record.get(key)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise _wrong(record, key, "text")
    return value


def _texts(record: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return a field that is a list of texts, or empty where it is missing."""
    values = record.get(key) or []
    if not isinstance(values, list) or not all(isinstance(value, str) for value in values):
        raise _wrong(record, key, "a list of texts")
    return tuple(values)


def _wrong(record: Mapping[str, Any], key: str, expected: str) -> DataCorrupt:
    return DataCorrupt(
        f"expected {expected} as {key!r} of product {record.get('asin')!r:.40}, found "
        f"{record.get(key)!r:.80}; get WebShop's file again"
    )


NOUN_RULES = ("auto", "spacy", "lexical")
"""``"auto"`` is spaCy where it and its model are installed, and the lexical rule otherwise."""

NounRule = Callable[[Sequence[tuple[str, str]]], list[tuple[str, ...]]]
"""Maps pairs of ASIN and title to the nouns of each title, lower case, in order, with repeats."""

_MODEL = "en_core_web_sm"
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")


def noun_rule(
    name: str, fixed_nouns: Mapping[str, Sequence[str]] | None = None
) -> tuple[str, NounRule]:
    """Return a rule's full name, for fingerprints, and the rule; `fixed_nouns` go before it."""
    if name not in NOUN_RULES:
        raise OptionError(f"there is no noun rule {name!r}; {suggest(str(name), NOUN_RULES)}")
    full_name, rule = ("lexical-1", _lexical) if name == "lexical" else _spacy(name)
    if fixed_nouns is None:
        return full_name, rule

    def fixed_first(titles: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
        rest = [pair for pair in titles if pair[0] not in fixed_nouns]
        nouns = dict(zip((asin for asin, _ in rest), rule(rest), strict=True))
        nouns |= {asin: tuple(fixed_nouns[asin]) for asin, _ in titles if asin in fixed_nouns}
        return [nouns[asin] for asin, _ in titles]

    return f"given+{full_name}", fixed_first


def _lexical(titles: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
    """Return all words of each title but short ones, function words, and those without a letter."""
    function_words = table("function_words")
    nouns = []
    for _, title in titles:
        words = _WORD.findall(title.lower())
        nouns.append(
            tuple(
                word
                for word in words
                if len(word) > 1 and word not in function_words and any(map(str.isalpha, word))
            )
        )
    return nouns


def _spacy(name: str) -> tuple[str, NounRule]:
    """Return WebShop's own rule; the lexical one for ``"auto"`` where it cannot be had."""
    try:
        with needs_extra("webshop", "the noun rule 'spacy'"):
            import spacy
        tagger: Any = spacy.load(_MODEL, disable=["parser", "ner"])
    except (MissingExtra, OSError) as error:
        if name == "auto":
            return "lexical-1", _lexical
        if isinstance(error, MissingExtra):
            raise
        raise DataNotFound(
            f"expected spaCy's model {_MODEL}, found none; run: python -m spacy download {_MODEL}"
        ) from error

    def tagged(titles: Sequence[tuple[str, str]]) -> list[tuple[str, ...]]:
        nouns = []
        for text in tagger.pipe(title for _, title in titles):
            tokens = [token for token in text if token.pos_ in ("NOUN", "PROPN")]
            nouns.append(tuple(token.text.lower() for token in tokens))
        return nouns

    return f"spacy-{spacy.__version__}-{_MODEL}-{tagger.meta['version']}", tagged


NO_CAP = 1_000_000.0
# The multiples of ten that upstream chooses caps from.
_CAPS = tuple(10.0 * number for number in range(1, 100))
_LEGACY_SEED = 233


@dataclass(frozen=True, slots=True)
class Goal:
    """One task.

    Attributes:
        kind: ``"synthetic"`` or ``"human"``.
        index: Its place in the order of the catalogue, before WebShop's shuffle.
        asin: The product that it was made from.
        text: The instruction.
        attributes: The attributes that are asked for.
        options: The option values that are asked for, each with its group; the group is empty in
            human goals, which do not name it.
        cap: The highest price, or `NO_CAP`.
        weight: WebShop's weight of the goal in random draws.
    """

    kind: str
    index: int
    asin: str
    text: str
    attributes: tuple[str, ...]
    options: tuple[tuple[str, str], ...]
    cap: float
    weight: float = 1.0


def synthetic_goal(product: Product, index: int, number: int, weight: float) -> Goal:
    """Return the goal of this number of a product: goals are all combinations of its options."""
    # The last group by name counts fastest, as in upstream's product of all values.
    reversed_options: list[tuple[str, str]] = []
    for name, values in sorted(product.options, reverse=True):
        number, index_of_value = divmod(number, len(values))
        reversed_options.append((name, values[index_of_value]))
    options = tuple(reversed(reversed_options))

    text = str(product.instruction)
    if options:
        text += " with " + ", and ".join(f"{name}: {value}" for name, value in options)
    return Goal(
        kind="synthetic",
        index=index,
        asin=product.asin,
        text=text + price_clause(product.cap),
        attributes=product.wanted,
        options=options,
        cap=product.cap,
        weight=weight,
    )


def price_clause(cap: float) -> str:
    """Return the end of an instruction that states a price cap; empty where there is none."""
    return f", and price lower than {cap:.2f} dollars" if cap < NO_CAP else ""


def draw_price(prices: Sequence[float], seed: int, asin: str) -> float:
    """Return what a product costs when it is bought: drawn once where its tag shows a range."""
    if len(prices) == 1:
        return prices[0]
    return random.Random(f"{seed} price {asin}").uniform(*prices)


def draw_cap(price: float, seed: int, whose: str) -> float:
    """Return a price cap: the larger of two of the next four multiples of ten above the price."""
    near = [cap for cap in _CAPS if cap > price][:4]
    if len(near) < 2:
        return NO_CAP
    return max(random.Random(f"{seed} cap {whose}").sample(near, 2))


@lru_cache(maxsize=4)
def legacy_order(count: int) -> tuple[int, ...]:
    """Return WebShop's shuffle of so many goals: at each place, the index before the shuffle."""
    order = list(range(count))
    random.Random(_LEGACY_SEED).shuffle(order)  # as random.seed(233) and random.shuffle do
    return tuple(order)


def split_of_asin(asin: str) -> str:
    """Return the split of all goals of a product: 80 % train, 10 % valid, 10 % test."""
    # Of 256 values of a byte 205 are 80 %, 25 and 26 the rest.
    byte = hashlib.sha256(asin.encode("utf-8", "surrogatepass")).digest()[0]
    if byte < 205:
        return "train"
    return "valid" if byte < 230 else "test"


_ALIKE = 85.5  # WebShop rounds a score, half to even, and wants more than 85
_FAIR_TITLE = 0.2
_POOR_TITLE = 0.1
_ALIKE_CATEGORIES = 2


def reward_of(
    bought: Product, chosen: Mapping[str, str], goal: Goal, wanted: Product, strict: bool = False
) -> tuple[float, dict[str, Any]]:
    """Return the reward of a purchase, 0 to 1, and its parts.

    ``reward = r_type * (n_att_matched + n_option_matched + r_price) / (goal's attributes + options +
    1)``. The parts are ``r_type`` (whether it is the right kind of thing), ``r_att``, ``r_option``
    (with its weight absent where the goal has no options), ``r_price``, the weights ``w_*`` of these,
    ``n_att_matched``, ``n_option_matched``, ``query_match``, ``category_match``, ``title_score``.

    Args:
        bought: The product that is bought.
        chosen: The options that are selected, by group.
        goal: What was asked for.
        wanted: The goal's product.
        strict: Whether an option counts only where its value is the goal's, in the goal's group
            (in any group where the goal names none); otherwise WebShop's lenient matching decides.

    Example:
        >>> tea = Product("B0", "Tea", "$9.0", "", (), (("size", ("s", "m")),), ("green",), "tea",
        ...               "grocery", "Food", nouns=("tea",), price=9.0)
        >>> goal = Goal("synthetic", 0, "B0", "", ("green",), (("size", "m"),), 20.0)
        >>> reward_of(tea, {"size": "m"}, goal, tea)[0], reward_of(tea, {}, goal, tea)[1]["r_option"]
        (1.0, 0.0)
    """
    parts = _type_parts(bought, wanted)
    attributes_met = sum(_has(bought, attribute) for attribute in goal.attributes)
    if strict:
        options_met = _exact_options(chosen, goal.options)
    else:
        options_met = _lenient_options(chosen, goal.options)
    price_met = bought.price <= goal.cap

    attribute_count = len(goal.attributes)
    option_count = len(goal.options)
    total_count = attribute_count + option_count + 1
    parts |= {
        "r_att": attributes_met / attribute_count,
        "r_price": price_met,
        "n_att_matched": attributes_met,
        "n_option_matched": options_met,
        "w_att": attribute_count / total_count,
        "w_price": 1 / total_count,
    }
    if option_count:
        parts["r_option"] = options_met / option_count
        parts["w_option"] = option_count / total_count

    reward: float = (attributes_met + options_met + price_met) / total_count * parts["r_type"]
    return reward, parts


def _type_parts(bought: Product, wanted: Product) -> dict[str, Any]:
    """Return ``r_type``, whether this is the right kind of thing, and what it follows from."""
    query_match = bought.query == wanted.query
    shared_categories = _categories(bought) & _categories(wanted)
    category_match = len(shared_categories) >= _ALIKE_CATEGORIES

    # Upstream counts the wanted title's nouns with repeats, those that are shared without.
    title_score = _FAIR_TITLE
    if wanted.nouns:
        title_score = len(set(bought.nouns) & set(wanted.nouns)) / len(wanted.nouns)

    # A poor title overrides whatever else matches.
    if title_score == 0:
        r_type = 0.0
    elif title_score < _POOR_TITLE:
        r_type = 0.1
    elif query_match or category_match or title_score > _FAIR_TITLE:
        r_type = 1.0
    else:
        r_type = 0.5
    return {
        "r_type": r_type,
        "query_match": query_match,
        "category_match": category_match,
        "title_score": title_score,
    }


def _categories(product: Product) -> set[str]:
    """Return the categories on the path to a product."""
    return {part.strip() for part in product.product_category.split("\u203a")}


def _has(bought: Product, attribute: str) -> bool:
    """Return whether a product has an attribute: nearly among its own, or in its texts."""
    texts = (bought.title, " ".join(bought.bullets), bought.description)
    return _alike(attribute, bought.attributes) or any(attribute in text.lower() for text in texts)


def _exact_options(chosen: Mapping[str, str], goal_options: Sequence[tuple[str, str]]) -> int:
    """Return how many options are selected in their groups; in any where the goal names none."""
    match_count = 0
    for name, value in goal_options:
        match_count += chosen.get(name) == value if name else value in chosen.values()
    return match_count


def _lenient_options(chosen: Mapping[str, str], goal_options: Sequence[tuple[str, str]]) -> int:
    """Return how many options are selected as WebShop counts: any value will do that looks alike."""
    values = [_color(value) or value for value in chosen.values()]

    # In upstream's synthetic goals an option is a tuple of name and value; its comparison takes the
    # text of the tuple, brackets and all, unless a part of it is the name of a color.
    texts = []
    for name, value in goal_options:
        if name:
            color = next((part for part in (name, value) if part in table("colors")), "")
            texts.append(color or str((name, value)))
        else:
            texts.append(_color(value) or value)
    return sum(_alike(text, values) for text in texts)


def _color(value: str) -> str:
    """Return the first color name, in the order of the list, that stands anywhere in a value."""
    return next(filter(value.__contains__, table("colors")), "")


def _alike(text: str, others: Sequence[str]) -> bool:
    """Return whether a text and any of others share (nearly) all words of the shorter one."""
    match = process.extractOne(
        _plain(text), map(_plain, others), scorer=fuzz.token_set_ratio, score_cutoff=_ALIKE
    )
    return match is not None


_LATIN_1 = dict.fromkeys(range(128, 256))


@lru_cache(maxsize=20_000)
def _plain(text: str) -> str:
    """Return letters and digits in lower case; characters 128 to 255 are dropped, as thefuzz does."""
    return default_process(text if text.isascii() else text.translate(_LATIN_1))
