"""WKM against scripted replies, and its knowledge base."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from comap.agents import ExpertAgent, run_episode
from comap.agents.wkm import Knowledge, KnowledgeBase, WKMAgent, WKMConfig, mixed_verbs
from comap.errors import DataCorrupt, MissingExtra, OptionError
from comap.lm.encoder import TransformerEncoder
from kits.scripted import converse_with, view
from kits.tiny_encoder import write_tiny_encoder

ACTIONS = ("go to desk 1", "go to safe 1", "open safe 1", "look")
BASE = (
    Knowledge("At the safe, which is closed.", "go to safe 1", "open safe 1"),
    Knowledge("At the safe, which is closed.", "go to safe 2", "open safe 2"),
    Knowledge("At the desk, with a pen on it.", "go to desk 1", "take pen 1 from desk 1"),
    Knowledge("At the desk, with a pen on it.", "open safe 1", "look"),
)


def agent(*entries: Knowledge, **options: Any) -> WKMAgent:
    return WKMAgent(WKMConfig(**options), KnowledgeBase(entries))


def test_first_step_by_step() -> None:
    memory: dict[str, Any] = {}
    talk = converse_with(
        agent(*BASE, gamma=0.5, knowledge_adapter="knows", adapter="acts"),
        view(("go to safe 1", "The safe 1 is closed."), actions=ACTIONS, memory=memory),
        [
            "When a safe is closed, you should open it.",
            "The agent is at the safe, which is closed.",
            "Thought: Further.",
            [0.3, 0.1, 0.1],
            " safe 1",
        ],
    )
    assert talk.purposes == ["task knowledge", "state knowledge", "thought", "verb", "action"]
    task, state, thought, verb, action = talk.requests
    assert task.adapter == state.adapter == "knows" and thought.adapter == "acts"
    assert task.sampling.temperature == 0.0 and state.sampling.max_new_tokens == 128
    # task knowledge is in the agent's prompt, state knowledge is not
    assert "you should open it" in thought.messages[0].content
    assert not any("which is closed" in m.content for m in thought.messages)
    assert verb.messages == thought.messages == action.messages
    assert verb.words == (" go", " open", " look")
    assert verb.prefix == "Thought: Further.\nAction:"
    assert action.prefix == "Thought: Further.\nAction: open"
    notes = talk.decision.notes
    # after "go": open twice, take once; take is not admissible, so P_know(open) = 1
    assert notes["known_verbs"] == {"open": 0.666667, "take": 0.333333}
    assert notes["agent_verbs"] == {"go": 0.6, "open": 0.2, "look": 0.2}
    assert notes["mixed_verbs"] == {"go": 0.3, "open": 0.6, "look": 0.1}
    assert (notes["gamma"], notes["verb"], notes["neighbours"]) == (0.5, "open", 4)
    assert talk.decision.action == "open safe 1"
    assert memory["replies"] == {1: "Thought: Further.\nAction: open safe 1"}
    assert memory["task_knowledge"].startswith("When")


def test_masked_and_scored_actions_begin_with_the_verb() -> None:
    masked = converse_with(
        agent(decoding="masked"), view(actions=ACTIONS), ["k", "s", "t", [1, 0, 0], "go to safe 1"]
    )
    assert masked.requests[-1].choices == (" go to desk 1", " go to safe 1")
    assert masked.requests[-1].prefix == "t\nAction:"
    assert masked.decision.action == "go to safe 1"
    scored = converse_with(
        agent(decoding="scored", temperature=0.0, prompts="brief", state_knowledge="belief"),
        view(actions=ACTIONS),
        ["k", [1, 0, 0], [-2.0, -1.0]],
    )
    assert scored.purposes == ["task knowledge", "verb", "action"]
    assert scored.decision.action == "go to safe 1"
    assert scored.decision.notes["state_knowledge"].startswith("goal:")


@pytest.mark.parametrize(
    ("text", "action"),
    [
        (" safe 1", "open safe 1"),
        ("safe 1", "open safe 1"),  # a server that took off the blank
        (" safe 1\nObservation: It is open.", "open safe 1"),
        ("Action: open safe 1", "open safe 1"),
        ("Action: close safe 1", "open Action: close safe 1"),
        ("[safe]", "open[safe]"),
        ("", "open"),
    ],
)
def test_completing_an_action(text: str, action: str) -> None:
    talk = converse_with(agent(), view(actions=ACTIONS), ["k", "s", "t", [0, 1, 0], text])
    assert talk.decision.action == action


def test_mixing() -> None:
    assert mixed_verbs({"a": 0.25, "b": 0.75}, {}, 0.7) == {"a": 0.25, "b": 0.75}
    assert mixed_verbs({"a": 0.0, "b": 0.0}, {"b": 3.0}, 0.7) == {"a": 0.0, "b": 1.0}
    assert mixed_verbs({"a": 0.0, "b": 0.0}, {"c": 1.0}, 0.7) == {"a": 0.5, "b": 0.5}
    assert mixed_verbs({"a": 1.0, "b": 3.0}, {"a": 1.0}, 0.5) == {"a": 0.625, "b": 0.375}
    assert mixed_verbs({}, {"a": 1.0}, 0.5) == {}


def test_retrieval() -> None:
    base = KnowledgeBase(BASE)
    assert base.retrieve("a pen on the desk", 2) == [BASE[2], BASE[3]]
    assert base.retrieve("the safe is closed", 1) == [BASE[0]]  # the older of equals
    assert base.retrieve("", 3000) == list(BASE)  # a small base returns all
    assert base.retrieve("unknown words", 2) == list(BASE[:2])
    assert base.retrieve("x", 0) == [] and KnowledgeBase().retrieve("x", 5) == []
    base.add(Knowledge("unknown words", "", "wait"))
    assert base.retrieve("unknown words", 1)[0].action == "wait" and len(base) == 5


TEXT = st.text(st.characters(codec="utf-8") | st.just("\ud800"), max_size=20)


@given(st.lists(st.builds(Knowledge, TEXT, TEXT, TEXT), max_size=6), TEXT)
def test_saved_and_read(tmp_path_factory: Any, entries: list[Knowledge], text: str) -> None:
    path = tmp_path_factory.mktemp("base") / "knowledge.jsonl"
    base = KnowledgeBase(entries)
    base.save(path)
    loaded = KnowledgeBase.load(path)
    assert list(loaded) == entries == list(WKMAgent(knowledge=path).knowledge)
    assert loaded.retrieve(text, 3) == base.retrieve(text, 3)


def test_knowledge_from_episodes() -> None:
    env = gym.make("comap/ALFWorld-v0", source="generated")
    episodes = [run_episode(env, ExpertAgent(), seed=seed) for seed in (0, 1)]
    base = KnowledgeBase.from_trajectories(episodes)
    steps = [step for episode in episodes for step in episode.steps]
    assert [entry.action for entry in base] == [step.action for step in steps]
    entries = list(base)
    assert entries[0].previous_action == "" and entries[1].previous_action == entries[0].action
    assert entries[0].knowledge.startswith("goal:")


STATES = ("a pen on the desk", "the safe is closed", "nothing", "a pen in the desk", "at the sink")


@pytest.fixture
def encoder(tmp_path: Path) -> str:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    return str(write_tiny_encoder(tmp_path / "e5-tiny"))


@pytest.fixture
def encoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The texts that encoders encoded."""
    texts: list[str] = []
    encode = TransformerEncoder.encode

    def noted(self: TransformerEncoder, batch: list[str], side: Any) -> Any:
        texts.extend(batch)
        return encode(self, batch, side)

    monkeypatch.setattr(TransformerEncoder, "encode", noted)
    return texts


def filled(encoder: str, *states: str) -> KnowledgeBase:
    entries = (Knowledge(text, "look", f"do {n}") for n, text in enumerate(states))
    return KnowledgeBase(entries, encoder)


def test_retrieval_by_embeddings(encoder: str) -> None:
    """The order of the cosines of mean last hidden states, computed here; equal texts by age."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(encoder), AutoModel.from_pretrained(encoder)

    def vector(text: str) -> Any:
        with torch.no_grad():
            tokens = tokenizer(f"query: {text}", return_tensors="pt")
            return model.eval()(**tokens).last_hidden_state[0].mean(0).numpy()

    def cosine(vector_a: Any, vector_b: Any) -> float:
        return float(vector_a @ vector_b / np.linalg.norm(vector_a) / np.linalg.norm(vector_b))

    base = filled(encoder, *STATES, STATES[0])
    base.retrieve("", 1)
    base.add(Knowledge("a late one", "look", "do 6"))
    texts = [entry.knowledge for entry in base]
    for query in ("the pen is on a desk", "the safe", STATES[0]):
        actions = [entry.action for entry in base.retrieve(query, 7)]
        scores = [round(cosine(vector(query), vector(text)), 6) for text in texts]
        assert actions == [f"do {n}" for n in sorted(range(7), key=lambda n: (-scores[n], n))]
        assert [entry.action for entry in base.retrieve(query, 2)] == actions[:2]
    assert [entry.action for entry in base.retrieve(STATES[0], 2)] == ["do 0", "do 5"]


def test_each_text_is_encoded_once_and_its_vector_saved(
    encoder: str, encoded: list[str], tmp_path: Path
) -> None:
    path = tmp_path / "base" / "knowledge.jsonl"
    base = filled(encoder, *STATES, STATES[0])
    base.save(path)
    assert encoded == list(STATES)
    base.add(Knowledge("new", "look", "wait"))
    expected = base.retrieve("the safe", 3)
    base.save(path)
    assert encoded[len(STATES) :] == ["new", "the safe"]
    encoded.clear()
    loaded = WKMAgent(WKMConfig(encoder=encoder), path).knowledge
    assert loaded.retrieve("the safe", 3) == expected and list(loaded) == list(base)
    assert encoded == [STATES[0], "the safe"]  # the first is compared with its vector
    (vectors,) = set(path.parent.iterdir()) - {path}
    vectors.unlink()
    assert KnowledgeBase.load(path, encoder).retrieve("the safe", 3) == expected
    assert vectors.is_file()
    KnowledgeBase(BASE).save(path)  # bags of words: the vectors go
    assert [file.name for file in path.parent.iterdir()] == [path.name]


def test_another_encoder_is_refused(encoder: str, tmp_path: Path) -> None:
    path = tmp_path / "base" / "knowledge.jsonl"
    filled(encoder, *STATES).save(path)
    other_encoder = str(write_tiny_encoder(tmp_path / "other", seed=1))
    for wrong_encoder in (other_encoder, None):
        with pytest.raises(OptionError, match="e5-tiny"):
            WKMAgent(WKMConfig(encoder=wrong_encoder), path)
        with pytest.raises(OptionError, match="e5-tiny"):
            WKMAgent(WKMConfig(encoder=wrong_encoder), KnowledgeBase.load(path, encoder))
    write_tiny_encoder(Path(encoder), seed=1)  # the same name, other weights
    with pytest.raises(OptionError, match="as it was"):
        KnowledgeBase.load(path, encoder)


def test_vectors_of_other_texts_and_broken_ones_are_refused(encoder: str, tmp_path: Path) -> None:
    path = tmp_path / "base" / "knowledge.jsonl"
    filled(encoder, *STATES).save(path)
    (vectors,) = set(path.parent.iterdir()) - {path}
    whole = vectors.read_bytes()
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    with pytest.raises(DataCorrupt, match="other texts"):
        KnowledgeBase.load(path, encoder)
    for broken in (whole[:-100], b"", b"what is this"):
        vectors.write_bytes(broken)
        with pytest.raises(DataCorrupt, match="remove that file"):
            KnowledgeBase.load(path, encoder)


def test_without_the_extra(encoder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "knowledge.jsonl"
    KnowledgeBase(BASE).save(path)
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert len(WKMAgent(knowledge=path).knowledge) == len(BASE)
    with pytest.raises(MissingExtra, match=r"\[dense\]"):
        WKMAgent(WKMConfig(encoder=encoder), path)
