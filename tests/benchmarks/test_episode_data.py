"""What a report's page holds of an episode: changes of beliefs, how well they were foreseen, calls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from comap.benchmarks.episodes import episode_record, script_json
from comap.benchmarks.report import Episode, Pack
from comap.envs.conformance.transcripts import load
from comap.facts import Delta, apply, fact_to_text
from comap.trajectory import Call

KIT = load(f"{Path(__file__).with_name('report_kit.py')}:KIT")
START, OPENED, FILLED = KIT.START, KIT.OPENED, KIT.FILLED
compared, foreseen = KIT.compared, KIT.foreseen
state, step, trajectory = KIT.state, KIT.step, KIT.trajectory


def folded(data: dict[str, Any], side: dict[str, Any]) -> list[set[str]]:
    facts = set(side["facts"])
    beliefs = [set(facts)]
    for record in side["steps"]:
        facts = facts - set(record.get("removed", ())) | set(record.get("added", ()))
        beliefs.append(set(facts))
    return [{data["facts"][fact] for fact in belief} for belief in beliefs]


def test_folding_the_changes_gives_the_beliefs() -> None:
    episode = compared()
    data = episode_record(episode)
    assert episode.imagined is not None
    for name, side in (("real", episode.real), ("imagined", episode.imagined)):
        expected = [side.facts, *(step.facts for step in side.steps)]
        assert folded(data, data[name]) == [
            {fact_to_text(fact) for fact in belief.facts} for belief in expected
        ]


def test_delta_f1_of_each_step() -> None:
    episodes = [compared(), foreseen(), Episode("", compared().real, None)]
    found = [episode_record(episode) for episode in episodes]
    assert [one["delta_f1"] for one in found] == [
        [0.8, 1.0, None],
        [0.8, None],
        [None, None, None],
    ]
    assert found[0]["deltas"] == [[2, 1, 0], [0, 0, 0], None], "foreseen, missed, made up"
    assert found[2]["imagined"] is None


def test_delta_f1_does_not_count_drift() -> None:
    """The imagined belief lacks the pen since step 1; step 2 is nevertheless foreseen exactly."""
    away = Delta(frozenset({("closed", "safe 1")}), frozenset({("open", "safe 1")}))
    real = trajectory(step(1, START, FILLED), step(2, FILLED, apply(FILLED, away)))
    imagined = trajectory(step(1, START, OPENED), step(2, OPENED, apply(OPENED, away)))
    assert episode_record(Episode("", real, imagined))["delta_f1"] == [0.8, 1.0]


def long_episode(i: int) -> Episode:
    steps, before = [], START
    for t in range(1, 51):
        after = state(*before.facts - {("at", "agent", str(t - 1))}, ("at", "agent", str(t)))
        steps.append(step(t, before, after, observation=f"Episode {i}: you arrive at place {t}."))
        before = after
    return Episode(f"episode {i}", trajectory(*steps), trajectory(*steps))


def test_two_hundred_episodes_stay_a_moderate_file() -> None:
    pack = Pack(long_episode(i) for i in range(200))
    assert (
        len(pack) == 200 and sum(map(len, pack.parts())) + len(script_json(pack.index())) < 600_000
    )


def thoughtful() -> Episode:
    prompt = (("system", "You are a robot."), ("user", "You see a safe."))
    calls = (
        Call(
            "generate", "draft", "Action: open safe", 40, 6, prompt, "Thought: it", finish="length"
        ),
        Call("imagine", "world model", "It opens.", 30, 3, prompt, adapter="wm"),
        Call("score", "reflect: confidence", " open safe", 60, 2),
    )
    notes = {"gate": True, "p": 0.7, "predicted_next_state": "It opens.", "tried": [1, {"a": None}]}
    first = step(1, START, OPENED, calls=calls, notes=notes)
    many = step(2, OPENED, FILLED, calls=calls[2:] * 150)
    real = trajectory(first, many, review=calls[:1], settings={"decoding": "free", "tau_p": 0.5})
    return Episode("thoughtful", real, None)


def test_what_was_asked_and_noted_is_in_the_data() -> None:
    data = episode = episode_record(thoughtful())
    first, second = episode["real"]["steps"]

    def named(pairs: list[list[int]]) -> dict[str, str]:
        return {data["texts"][name]: data["texts"][value] for name, value in pairs}

    def said(call: dict[str, Any], name: str) -> str:
        text: str = data["texts"][call[name]]
        return text

    notes = named(first["notes"])
    assert notes["gate"] == "true" and notes["p"] == "0.7"
    assert notes["predicted_next_state"] == "It opens." and json.loads(notes["tried"])[0] == 1
    draft, imagined, scored = first["calls"]
    assert said(draft, "text") == "Action: open safe" and said(draft, "prefix") == "Thought: it"
    assert draft["tokens"] == [40, 6] and said(draft, "finish") == "length"
    assert [data["texts"][part] for part in draft["messages"][0]] == ["system", "You are a robot."]
    assert draft["messages"] == imagined["messages"], "and they are stored once"
    assert said(imagined, "kind") == "imagine" and said(imagined, "adapter") == "wm"
    assert "messages" not in scored and "prefix" not in scored
    assert len(second["calls"]) + second["calls_left_out"] == 150 and "notes" not in second
    assert len(episode["real"]["review"]) == 1 and named(episode["settings"])["tau_p"] == "0.5"


def test_prompts_that_grow_from_step_to_step_are_stored_once() -> None:
    def talk(t: int) -> tuple[tuple[str, str], ...]:
        return tuple(
            (role, f"{role} {n} " * 200) for n in range(t) for role in ("user", "assistant")
        )

    steps = [
        step(t, START, START, calls=(Call("generate", "draft", f"say {t}", messages=talk(t)),))
        for t in range(1, 31)
    ]
    block = script_json(episode_record(Episode("long", trajectory(*steps), None)))
    assert len(block) < 30 * 2 * 200 * 14 * 1.5
