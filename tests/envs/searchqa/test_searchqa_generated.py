"""The generated encyclopedia: its questions need searching, and experts that search answer them."""

from __future__ import annotations

import hashlib
from collections import Counter

import gymnasium as gym
import pytest

from comap.envs.panel import evenly
from comap.envs.searchqa.generated import (
    chains,
    generate_encyclopedia,
    generated_questions,
    lexicon,
    told_by,
    unravel,
)
from comap.envs.searchqa.protocol import contains_answer


def test_articles_say_what_is_true_and_only_there() -> None:
    book = generate_encyclopedia()
    for article in list(book.articles.values())[::8]:
        for relation, value in article.facts.items():
            assert told_by(article.text, article.title, relation) == value
        for relation, relation_words in lexicon()["relations"].items():
            if relation_words["of"] != article.kind:
                assert told_by(article.text, article.title, relation) is None


def test_questions_need_searching() -> None:
    """No answer stands in its question; each hop's answer stands in the passage of that hop."""
    book, questions = generate_encyclopedia(), generated_questions()
    assert (
        len(questions) == 3000 and len({question.text for question in questions.values()}) == 3000
    )
    assert Counter(len(question.hops) for question in questions.values()) == {
        1: 1000,
        2: 1000,
        3: 1000,
    }
    for question in questions.values():
        assert not contains_answer(question.text, question.golden)
        first, *later = question.titles
        assert question.titles == tuple(hop.title for hop in question.hops)
        assert len(set(question.titles)) == len(question.hops)
        for hop in question.hops:
            assert contains_answer(book.articles[hop.title].text, [hop.answer])
        assert [hop.answer for hop in question.hops] == [*later, question.golden[0]]
        assert first in question.text and all(title not in question.text for title in later)
        start, chain = unravel(question.text) or ("", ())
        assert start == first and len(chain) == len(question.hops) and chain in chains()[len(chain)]


def test_splits_share_no_beginning() -> None:
    questions = generated_questions().values()
    starts = {
        split: {question.titles[0] for question in questions if question.split == split}
        for split in ("train", "dev", "test")
    }
    assert not (starts["train"] & starts["test"] or starts["train"] & starts["dev"])
    shares = Counter(question.split for question in questions)
    assert 0.7 < shares["train"] / 3000 < 0.9 and min(shares.values()) > 200


@pytest.mark.parametrize(
    "options", [{"expert": "plan"}, {"expert": "explore", "style": "verl", "actions": "react"}]
)
def test_experts_answer_by_searching_hop_by_hop(options: dict[str, str]) -> None:
    env = gym.make("comap/SearchQA-v0", split="all", source="generated", **options)
    bare = env.unwrapped
    tasks = evenly(bare.tasks.ids, 60)
    wins = fully_shown = searches = 0
    for task in tasks:
        env.reset(options={"task": task})
        texts, over = "", False
        while not over:
            observation, reward, terminated, truncated, info = env.step(bare.expert_action())
            texts += observation.replace("\\", "")
            over = terminated or truncated
            searches += not over
        wins += info["success"] and terminated and reward == 1.0
        fully_shown += all(f'"{title}' in texts for title in bare.wanted.titles)
    assert (
        wins / len(tasks) >= 0.95
        and fully_shown / len(tasks) >= 0.95
        and searches / len(tasks) > 1.5
    )
    assert bare.expert_action() is None


def test_golden_questions() -> None:
    """The same in any process, for any hash seed and Python version."""
    text = repr(list(generated_questions().items()))
    digest = hashlib.sha256(text.encode()).hexdigest()
    assert digest == "206d3cda945cc30952af40cba9633aed4d28124e4232bfad3bc3ab80d31f8e4d"
