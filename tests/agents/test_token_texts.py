"""Texts of tokens on record: what a model tells of its tokens, and files with and without them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from comap.agents.calls import call_of
from comap.facts import Delta, State
from comap.lm import Completion, Generate, Message, Score, Scores, TokenTexts
from comap.trajectory import Call, Step, Trajectory, read_trajectories, write_trajectories

ASKED = Generate((Message("user", "Hello."),))


def one_call(call: Call) -> Trajectory:
    step = Step(1, "look", "", 0.0, False, False, False, State(), Delta(), calls=(call,))
    return Trajectory("id", "task", "dev", "", "me", "", State(), (step,), review=(call,))


def test_texts_come_back_and_are_absent_where_nothing_is_known(tmp_path: Path) -> None:
    known = Call("generate", "draft", "a b", logprobs=(-1.0, -2.0), tokens=("a", " b"))
    unknown = Call("generate", "draft", "a b")
    file = tmp_path / "some.jsonl"
    write_trajectories(file, [one_call(known), one_call(unknown)])
    assert [t.steps[0].calls[0] for t in read_trajectories(file)] == [known, unknown]
    first, second = map(json.loads, file.read_text().splitlines())
    assert first["steps"][0]["calls"][0]["tokens"] == first["review"][0]["tokens"] == ["a", " b"]
    calls = [*second["steps"][0]["calls"], *second["review"]]
    assert all("tokens" not in call for call in calls), "versions before read this too"


def test_only_keeping_tokens_keeps_their_texts() -> None:
    said = Completion("a b", (1, 2), (-1.0, -2.0), tokens=("a", " b"))
    assert call_of(ASKED, said, "tokens").tokens == ("a", " b")
    assert call_of(ASKED, said, "prompts").tokens is None
    scored = Score(ASKED.messages, ("left", "right"))
    assert call_of(scored, Scores(((-1.0,), (-2.0,))), "tokens").tokens == ("left", "right")


def test_a_model_that_can_is_asked_for_them() -> None:
    torch = pytest.importorskip("torch")
    assert torch
    from comap.lm import HFLanguageModel
    from comap.lm.shipped import model_folder

    lm = HFLanguageModel(model_folder() / "agent", device="cpu")
    assert isinstance(lm, TokenTexts)
    said = lm.generate([ASKED])[0]
    assert isinstance(said, Completion) and said.tokens is None and said.token_ids is not None
    call = call_of(ASKED, said, "tokens", lm)
    assert call.tokens is not None and len(call.tokens) == len(said.token_ids)
    assert "".join(call.tokens).startswith(said.text)
    ids = lm._chat.tokenizer("ü€😀 a", add_special_tokens=False)["input_ids"]
    texts = lm.token_texts(ids)
    assert "".join(texts) == "ü€😀 a" and len(texts) == len(ids) > 5
    assert "" in texts, "a token inside a character has no text of its own"
    assert len(lm.token_texts([*ids[:1], *ids])) == len(ids) + 1, "half a character breaks nothing"
