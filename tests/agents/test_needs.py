"""Whether a language model can do what an agent asks is known before any episode."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import gymnasium as gym
import pytest

from comap.agents import AGENTS, Decision, RandomAgent, View, create_agent, run_episodes
from comap.agents.needs import check_needs, needs_of
from comap.agents.refinement import RefinementHead
from comap.agents.run import Run, run_to
from comap.errors import LanguageModelError, OptionError
from comap.lm import (
    CAPABILITIES,
    Completion,
    Encode,
    Encoding,
    Generate,
    Score,
    Scores,
    Usage,
    WordProbabilities,
    Words,
)
from comap.lm.openai import OpenAILanguageModel

ASKING = sorted(set(AGENTS) - {"random", "expert"})
SMALL: dict[str, dict[str, Any]] = {
    "rap": {"rollouts": 2, "depth": 2, "candidates": 3},
    "webevolver": {"start_step": 1},
}


def short() -> gym.Env[str, str]:
    return gym.make(
        "comap/ALFWorld-v0", split="valid_seen", source="generated", max_episode_steps=2
    )


def named(agent: Any) -> set[str]:
    """All capabilities that an agent names, alternatives among them."""
    return {name for need in needs_of(agent) for name in need.split("|")}


TASKS: tuple[str, ...] = short().unwrapped.tasks.ids[:2]  # type: ignore[attr-defined]


class Noting:
    """Answers everything, and notes which capabilities that took."""

    name = "noting"

    def __init__(self, capabilities: frozenset[str] = CAPABILITIES, adapters: Any = ()) -> None:
        self.usage, self.capabilities = Usage(), capabilities
        self.used: set[str] = set()
        self.calls, self._adapters = 0, adapters

    def _note(self, kind: str, requests: Sequence[Any]) -> None:
        self.calls += 1
        self.used |= {kind} | ({"prefix"} if any(r.prefix for r in requests) else set())

    def generate(self, requests: Sequence[Generate]) -> list[Completion | LanguageModelError]:
        self._note("generate", requests)
        if any(request.choices for request in requests):
            self.used.add("choices")
        finish = "length"  # so that a reflection is gone on with
        return [
            Completion(r.choices[0] if r.choices else f"Thought: {i}\nAction: look", finish=finish)
            for i, r in enumerate(requests)
        ]

    def score(self, requests: Sequence[Score]) -> list[Scores | LanguageModelError]:
        self._note("score", requests)
        return [Scores(tuple((-1.0,) for _ in r.completions)) for r in requests]

    def words(self, requests: Sequence[Words]) -> list[WordProbabilities | LanguageModelError]:
        self._note("words", requests)
        return [WordProbabilities((0.5,) * len(r.words)) for r in requests]

    def encode(self, requests: Sequence[Encode]) -> list[Encoding | LanguageModelError]:
        self._note("encode", requests)
        return [Encoding((0.5, 0.5)) for _ in requests]

    def count_tokens(self, text: str) -> int:
        return len(text) // 4

    def config(self) -> dict[str, Any]:
        return {"kind": "noting", "adapters": list(self._adapters)}


@pytest.mark.parametrize("decoding", ["free", "masked", "scored"])
@pytest.mark.parametrize("name", ASKING)
def test_what_agents_ask_is_what_they_need(name: str, decoding: str) -> None:
    if name == "paw" and decoding != "free":
        return  # refused: tests/test_paw_agent.py
    agent = create_agent(name, decoding=decoding, **SMALL.get(name, {}))
    lm = Noting()
    played = run_episodes(short, agent, TASKS, lm=lm)
    assert not any(t.error for t in played) and lm.calls
    assert lm.used <= named(agent), "it asked what it did not say"
    unused = [need for need in needs_of(agent) if lm.used.isdisjoint(need.split("|"))]
    assert all(need == "generate" or "prefix" in need for need in unused), "and no more"


COMAP: list[tuple[dict[str, Any], set[str]]] = [
    ({}, {"score", "prefix"}),
    ({"head": RefinementHead.zeros(2)}, {"score", "prefix", "encode"}),
    ({"p_source": "verbal", "head": RefinementHead.zeros(2)}, {"score", "prefix"}),
    ({"p_source": "verbalizer", "q_source": "proxy"}, {"words", "prefix"}),
    ({"p_source": "verbal", "q_source": "proxy", "final_tokens": 0}, set()),
    ({"q_source": "min_token", "decoding": "masked"}, {"score", "prefix", "choices"}),
]


@pytest.mark.parametrize(("options", "more"), COMAP, ids=[str(sorted(more)) for _, more in COMAP])
def test_comap_needs_what_its_gate_reads(options: dict[str, Any], more: set[str]) -> None:
    agent = create_agent("comap", **options)
    assert named(agent) - {"tokens"} == {"generate"} | more
    lm = Noting()
    assert not any(t.error for t in run_episodes(short, agent, TASKS, lm=lm))
    assert lm.used <= named(agent)


@pytest.mark.parametrize(
    ("name", "options", "told"),
    [
        ("react", {"decoding": "masked"}, "keep a reply to given choices; .* set decoding='free'"),
        ("react", {"decoding": "scored"}, "score given texts; .* set decoding='free'"),
        ("comap", {}, "score given texts .* set q_source='proxy'"),
        ("comap", {"decoding": "scored"}, "set decoding='free' and q_source='proxy'"),
        ("comap", {"q_source": "proxy", "head": RefinementHead.zeros(2)}, "p_source='verbal'"),
        ("rap", {}, "next-word probabilities; .* set evaluation_weight=0"),
        ("wkm", {}, "next-word probabilities; .*Hugging Face"),
    ],
)
def test_nothing_is_played_where_the_model_cannot(
    name: str, options: dict[str, Any], told: str, tmp_path: Path
) -> None:
    agent, lm = create_agent(name, **options), Noting(frozenset({"generate", "prefix"}))
    made: list[Any] = []

    def make_env() -> gym.Env[str, str]:
        made.append(short())
        env: gym.Env[str, str] = made[-1]
        return env

    with pytest.raises(OptionError, match=f"the agent '{name}' needs .*{told}"):
        run_episodes(make_env, agent, TASKS, lm=lm)
    assert lm.calls == 0 and made == []
    with pytest.raises(OptionError, match="'noting' cannot"):
        run_to(tmp_path, Run(make_env=short, agent=agent, tasks=TASKS, lm=lm))
    assert not (tmp_path / "run.json").exists() and lm.calls == 0


def test_what_vllm_could_do_is_told() -> None:
    lm = OpenAILanguageModel("m", "http://127.0.0.1:1/v1")
    with pytest.raises(OptionError, match=r"if the server is vLLM .*choices_mode=vllm"):
        check_needs(create_agent("react", decoding="masked"), lm)
    with pytest.raises(OptionError) as found:
        check_needs(create_agent("react", decoding="scored"), lm)
    assert "vLLM" not in str(found.value), "it cannot score either"
    vllm = OpenAILanguageModel("m", "http://127.0.0.1:1/v1", choices_mode="vllm")
    check_needs(create_agent("react", decoding="masked"), vllm)


def test_adapters_that_are_not_there() -> None:
    agent = create_agent("react", adapter="actr")
    for adapters, told in ((["actor", "wm"], "did you mean 'actor'"), ([], "known: none")):
        with pytest.raises(OptionError, match=f"has no adapter 'actr'; {told}"):
            run_episodes(short, agent, TASKS, lm=Noting(adapters=adapters))
    check_needs(agent, Noting(adapters=["actr"]))


def test_agents_of_ones_own() -> None:
    class Own:
        name = "own"

        def needs(self) -> frozenset[str]:
            return frozenset({"encode"})

        def decide(self, view: View) -> Generator[Any, Any, Decision]:
            yield from ()
            return Decision("look")

    with pytest.raises(OptionError, match="hidden states; 'noting' cannot; use a model"):
        run_episodes(short, Own(), TASKS, lm=Noting(frozenset({"generate"})))
    assert not any(t.error for t in run_episodes(short, Own(), TASKS))
    assert needs_of(RandomAgent()) == frozenset()
