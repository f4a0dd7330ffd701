"""Data that others published become trajectories: each format, what is refused, and what they are for."""

from __future__ import annotations

import gzip
import json
import tracemalloc
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from comap.agents import ExpertAgent, run_episode
from comap.agents.runner import ADMISSIBLE
from comap.errors import DataNotFound, OptionError
from comap.facts import State
from comap.integrations.published import import_files
from comap.integrations.published.formats import ApiCall, Refused, react
from comap.integrations.published.rows import rows_of
from comap.integrations.published.worlds import ALFWORLD, SCIENCEWORLD, WEBSHOP, action_text, knows
from comap.trajectory import UNOBSERVED, Trajectory, read_trajectories
from comap.worldmodel import RetrievalWorldModel, transitions_of
from kits import published


def played(env_id: str, number: int) -> list[Trajectory]:
    env = gymnasium.make(env_id, split="train")
    tasks = env.get_wrapper_attr("tasks").ids[:number]
    return [run_episode(env, ExpertAgent(), task=task) for task in tasks]


@pytest.fixture(scope="module")
def homes() -> list[Trajectory]:
    return played(ALFWORLD, 3)


@pytest.fixture(scope="module")
def shops() -> list[Trajectory]:
    return played(WEBSHOP, 3)


def imported(
    rows: Sequence[Any], folder: Path, name: str = "rows_train.json", **options: Any
) -> tuple[list[Trajectory], dict[str, Any]]:
    """Import rows from a file, and return the episodes and the report."""
    (folder / name).write_text(json.dumps(rows, indent=1), "utf-8")
    report = import_files([folder / name], folder / "out", **options)
    return list(read_trajectories(folder / "out" / "trajectories.jsonl")), report


def texts_of(trajectory: Trajectory) -> list[tuple[str, str]]:
    return [(step.action, step.observation) for step in trajectory.steps]


@pytest.mark.parametrize("name", published.WRITERS)
def test_episodes_come_back_from_each_form(
    name: str, homes: list[Trajectory], tmp_path: Path
) -> None:
    rows = [published.WRITERS[name](episode, number) for number, episode in enumerate(homes)]
    episodes, report = imported(rows, tmp_path)

    for original, episode in zip(homes, episodes, strict=True):
        assert (episode.env_id, episode.split, episode.goal) == (ALFWORLD, "train", original.goal)
        assert episode.observation == original.observation
        assert texts_of(episode) == texts_of(original)
        assert (episode.facts, [step.facts for step in episode.steps]) == (
            original.facts,
            [step.facts for step in original.steps],
        )
        assert [step.delta for step in episode.steps] == [step.delta for step in original.steps]
        assert published.AGENTGYM_TASK not in episode.observation

        thoughts = [step.notes.get("thought") for step in episode.steps]
        expected = [published.thought_of(step.t) for step in episode.steps]
        assert thoughts == ([None] * len(expected) if name == "word2world" else expected)

    counts = report["environments"][ALFWORLD]
    steps = sum(len(episode.steps) for episode in homes)
    assert (counts["rows"], counts["episodes"], counts["steps"]) == (3, 3, steps)
    assert (counts["read_share"], counts["known_share"]) == (1.0, 1.0)
    assert list(report["environments"]) == [ALFWORLD] and not counts["refused"]


def test_only_word2worlds_mark_tells_an_outcome(homes: list[Trajectory], tmp_path: Path) -> None:
    rows = [published.word2world(homes[0], 0), published.word2world(homes[1], 1)]
    last_message = rows[1]["messages"][-1]
    last_message["content"] = last_message["content"].removesuffix(" [SUCCESS]")
    (solved, unmarked), report = imported(rows, tmp_path)
    assert solved.success and solved.score == 1.0 and solved.has_outcome
    assert "[SUCCESS]" not in solved.steps[-1].observation
    assert not unmarked.has_outcome and not unmarked.steps[-1].terminated
    assert report["environments"][ALFWORLD]["known_outcomes"] == 1

    # What the world model alone is to see is beside the episodes, in none of their texts.
    assert "Toggle States" not in json.dumps([episode.to_json() for episode in (solved, unmarked)])
    lines = (tmp_path / "out" / "instructions.jsonl").read_text("utf-8").splitlines()
    assert len(lines) == 1 and "desklamp 1 is off" in json.loads(lines[0])["text"]
    assert solved.origin["instructions"] == json.loads(lines[0])["sha256"]


def test_published_rewards_are_outcomes(homes: list[Trajectory], tmp_path: Path) -> None:
    row = published.agenttraj(homes[0], 0)
    science = {
        "item_id": "sciworld_4",
        "conversations": [
            {
                "from": "human",
                "value": "Your task is to boil water.\nThis room is called the kitchen.",
            },
            {"from": "gpt", "value": "Action: wait1"},
            {"from": "human", "value": "You decide to wait for 1 iterations."},
        ],
    }
    rows = [
        {**row, "reward": 1.0, "success": 1},
        {**row, "reward": 0, "success": 0},
        {**row, "reward": True},
        {**science, "reward": 40},
        {**science, "reward": 1},
        {**science, "reward": 100},
    ]
    episodes, report = imported(rows, tmp_path)
    outcomes = [(episode.has_outcome, episode.success, episode.score) for episode in episodes]
    assert outcomes == [
        (True, True, 1.0),
        (True, False, 0.0),
        (False, False, 0.0),
        (True, False, 0.4),
        (False, False, 0.0),  # a point of a hundred, or solved? nobody can tell
        (True, True, 1.0),
    ]
    assert episodes[3].goal == "Your task is to boil water."
    assert episodes[3].observation == "This room is called the kitchen."

    # The same id is no reason to leave a row out.
    assert [episode.task for episode in episodes[:3]] == [
        "agenttraj/alfworld_0",
        "agenttraj/alfworld_0 #2",
        "agenttraj/alfworld_0 #3",
    ]
    assert report["environments"][ALFWORLD]["repeated_ids"] == 2
    assert report["environments"][SCIENCEWORLD]["repeated_ids"] == 2


def test_a_last_action_without_an_answer_is_learned_by_policies_alone(
    shops: list[Trajectory], tmp_path: Path
) -> None:
    row = published.agenttraj(shops[0], 6)
    del row["conversations"][-1]
    row["conversations"][2]["value"] = shops[0].observation
    ((episode,), report) = imported([row], tmp_path)
    assert episode.env_id == WEBSHOP and episode.goal == shops[0].goal
    last = episode.steps[-1]
    assert last.action == shops[0].steps[-1].action and last.observation == ""
    assert last.notes[UNOBSERVED] and not last.facts.parsed
    assert len(list(transitions_of(episode))) == len(episode.steps) - 1
    counts = report["environments"][WEBSHOP]
    assert (counts["unobserved"], counts["observations"]) == (1, len(episode.steps) - 1)


def test_lists_of_actions_are_no_observations(homes: list[Trajectory], tmp_path: Path) -> None:
    ((episode,), _) = imported([published.agenttraj(homes[0], 0)], tmp_path)
    assert "AVAILABLE" not in episode.observation
    assert episode.steps[0].notes[ADMISSIBLE] == ["look", "inventory"]
    assert ADMISSIBLE not in episode.steps[1].notes


def test_what_is_not_to_be_learned_is_set_aside(homes: list[Trajectory], tmp_path: Path) -> None:
    row = published.agenttraj(homes[0], 0)
    row["conversations"][3]["loss"] = False
    row["conversations"][5]["value"] = "I do not know."
    ((episode,), report) = imported([row], tmp_path)
    assert episode.steps[0].notes["aside"] and episode.steps[1].notes["aside"]
    assert episode.steps[1].action == "I do not know."
    assert report["environments"][ALFWORLD]["without_action"] == 1


def test_calls_of_the_protocol_get_their_environments_words() -> None:
    quoted = {"item": '"bowl 1"', "appliance": '"fridge 1"'}
    assert action_text(ALFWORLD, ApiCall("cool", quoted)) == "cool bowl 1 with fridge 1"
    put = action_text(ALFWORLD, ApiCall("put", {"item": "cup 1", "target": "shelf 1"}))
    assert put == "put cup 1 in/on shelf 1" and knows(ALFWORLD, put)
    assert action_text(WEBSHOP, ApiCall("click", {"bid": "Buy Now"})) == "click[Buy Now]"
    assert action_text(WEBSHOP, ApiCall("click", {"element": "b1"})) == "click[b1]"
    unknown = action_text(ALFWORLD, ApiCall("report_problem", {"obj": "toilet 1"}))
    assert unknown == 'report_problem(obj="toilet 1")' and not knows(ALFWORLD, unknown)
    with pytest.raises(Refused, match="no argument"):
        action_text(ALFWORLD, ApiCall("take", {"item": "cup 1"}))


def test_replies_are_read_as_agentgym_reads_them() -> None:
    assert react("Thought:\na\nb\n\nAction:\ngo to desk 1</s>")[:2] == ("a\nb", "go to desk 1")
    assert react("Action: look")[:2] == ("", "look")
    assert react("search[red rug]")[:2] == ("", "search[red rug]")
    assert react("I am lost.").action is None and react("Action:").action is None


def test_rows_of_other_worlds_are_counted_with_the_first_place(
    homes: list[Trajectory], tmp_path: Path
) -> None:
    good = published.agenttraj(homes[0], 0)
    rows = [
        good,
        {**good, "item_id": "babyai_1"},
        {**good, "item_id": "babyai_2"},
        {**good, "conversations": None},
        {**good, "conversations": [{"from": "human", "value": "Hello."}]},
        {**good, "conversations": [{"from": "nobody", "value": "Hello."}]},
        {**good, "conversations": good["conversations"][3:]},
        {**good, "env_id": "os:system"},
        {"other": 1},
        17,
    ]
    episodes, report = imported(rows, tmp_path)
    assert len(episodes) == 1
    refused = report["environments"]["unknown"]["refused"]
    assert refused["comap has no environment 'babyai'"] == {
        "rows": 2,
        "first": next(iter(refused.values()))["first"],
    }
    assert refused["comap has no environment 'babyai'"]["first"].startswith(
        "rows_train.json, row 2"
    )
    reasons = "; ".join(refused)
    for part in ("AgentEval", "no reply has an action", "expected human, gpt", "is not here"):
        assert part in reasons
    assert "nothing was observed before" in reasons
    assert refused["not in the form of agenttraj"]["rows"] == 2
    assert report["environments"]["unknown"]["rows"] == 9


@pytest.mark.parametrize(
    ("row", "why"),
    [
        ({"id": "x", "prompt": [], "chosen": [], "rejected": []}, "pair of preferences"),
        ({"meta": {"reward": 1}, "conversations": []}, "worked example"),
        (
            {
                "messages": [
                    {"role": "system", "content": "Tools."},
                    {"role": "user", "content": "a"},
                ]
            },
            "nothing tells its environment",
        ),
    ],
)
def test_forms_that_nobody_can_read_are_refused(row: Any, why: str, tmp_path: Path) -> None:
    with pytest.raises(DataNotFound, match=why):
        imported([row], tmp_path)
    # All or nothing: not even an empty folder is left, nor what was begun.
    assert [path.name for path in tmp_path.iterdir()] == ["rows_train.json"]


def test_word2worlds_tool_rows_are_refused_by_their_name(tmp_path: Path) -> None:
    rows = [
        {"messages": [{"role": "system", "content": "Tools."}, {"role": "user", "content": "a"}]}
    ]
    with pytest.raises(DataNotFound, match="not in public files"):
        imported(rows, tmp_path, "stabletoolbench_train_175183.json")
    with pytest.raises(DataNotFound, match="no environment 'textworld'"):
        imported(rows, tmp_path, "textworld_train_58805.json")


def test_an_unknown_form_is_told_with_what_was_found(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match=r"expected rows of word2world.*row 1.*answer, question"):
        imported([{"question": 1, "answer": 2}], tmp_path)
    with pytest.raises(OptionError, match="something in it"):
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine.txt").write_text("x")
        imported([], tmp_path)


def test_broken_lines_are_told_by_their_numbers(homes: list[Trajectory], tmp_path: Path) -> None:
    line = json.dumps(published.eto(homes[0], 0))
    deep = "[" * 90 + "]" * 90
    lines = [line, "", "{broken", line, f'{{"id": {deep}}}', line[:50]]
    (tmp_path / "a.jsonl").write_text("\n".join(lines), "utf-8")
    report = import_files([tmp_path / "a.jsonl"], tmp_path / "out")
    assert report["environments"][ALFWORLD]["episodes"] == 2
    unknown = report["environments"]["unknown"]
    places = {reason: entry["first"] for reason, entry in unknown["refused"].items()}
    assert unknown["rows"] == 3 and "a.jsonl, row 2, line 3" in places.values()
    assert report["files"][0]["rows"] == 5


@pytest.mark.parametrize("tail", ['{"id": tru}, ROW]', '{"id": "ends', ""])
def test_a_broken_array_is_read_up_to_there(
    tail: str, homes: list[Trajectory], tmp_path: Path
) -> None:
    row = json.dumps(published.eto(homes[0], 0))
    (tmp_path / "a.json").write_text(f"[\n{row},\n{row},\n" + tail.replace("ROW", row), "utf-8")
    report = import_files([tmp_path / "a.json"], tmp_path / "out")
    assert report["environments"][ALFWORLD]["episodes"] == 2
    problem = report["files"][0]["problem"]
    assert problem.startswith("row 3, line 4: ")


def test_other_containers_hold_the_same_rows(homes: list[Trajectory], tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [published.eto(episode, number) for number, episode in enumerate(homes)]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    (tmp_path / "b.json").write_text("\ufeff" + json.dumps(rows), "utf-8")
    (tmp_path / "c.json").write_text(lines, "utf-8")
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "d.parquet")
    files = sorted(tmp_path.iterdir())
    import_files(files, tmp_path / "out")

    episodes = list(read_trajectories(tmp_path / "out" / "trajectories.jsonl"))
    assert len(episodes) == 12
    for number, episode in enumerate(episodes):
        assert texts_of(episode) == texts_of(homes[number % 3])

    # An archive that was cut is told, and what was read before is there.
    whole = files[0].read_bytes()
    (tmp_path / "e.jsonl.gz").write_bytes(whole[: len(whole) * 2 // 3])
    last = list(rows_of(tmp_path / "e.jsonl.gz"))[-1]
    assert last.is_end and "damaged" in last.problem


def test_a_large_array_is_never_whole_in_memory(tmp_path: Path) -> None:
    text = json.dumps({"id": "x", "conversations": [{"from": "human", "value": "y" * 2_000}] * 4})
    with (tmp_path / "large.json").open("w") as file:
        file.write("[" + text)
        for _ in range(2_000):
            file.write(",\n" + text)
        file.write("]")
    size = (tmp_path / "large.json").stat().st_size
    tracemalloc.start()
    number = sum(1 for _ in rows_of(tmp_path / "large.json"))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert number == 2_001 and size > 16_000_000 and peak < size / 2


def test_hostile_texts_are_data(homes: list[Trajectory], tmp_path: Path) -> None:
    row = published.eto(homes[0], 0)
    row["id"] = "../../alfworld\n\x1b[31m" + "x" * 10_000
    row["conversations"][4]["value"] = "Observation: <script>alert(1)</script> \ud800"
    ((episode,), _) = imported([row], tmp_path)
    assert "\n" not in episode.task and len(episode.task) < 140
    assert episode.steps[0].observation.startswith("<script>")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "instructions.jsonl",
        "run.json",
        "summary.json",
        "trajectories.jsonl",
    }


LINE = st.text(st.characters(blacklist_categories=("Cs", "Cc", "Zl", "Zp")), max_size=60).map(
    str.strip
)
WORDS = LINE.filter(lambda text: text and "Action:" not in text and "Thought:" not in text)


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["agenttraj", "eto", "word2world", "adp"]),
    turns=st.lists(st.tuples(WORDS, LINE), min_size=1, max_size=5),
)
def test_texts_of_any_kind_come_back(
    name: str, turns: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    from comap.facts import Delta
    from comap.trajectory import Step

    start = "You are in the middle of a room. Looking quickly around you, you see a bed 1.\n\n"
    steps = [
        Step(number, action, observation, 0, False, False, False, State(), Delta())
        for number, (action, observation) in enumerate(turns, 1)
    ]
    episode = Trajectory(
        ALFWORLD, "t", "train", "g", "a", start + "Your task is to: sleep.", State(), tuple(steps)
    )
    folder = tmp_path_factory.mktemp("any")
    ((imported_episode,), _) = imported([published.WRITERS[name](episode, 0)], folder)

    def without_marks(text: str) -> str:
        # A text that begins or ends as prompts mark observations loses that, and nothing else.
        return text.removeprefix("Observation:").strip()

    assert [action for action, _ in texts_of(imported_episode)] == [action for action, _ in turns]
    for (_, text), (_, original) in zip(texts_of(imported_episode), turns, strict=True):
        assert without_marks(text.partition(" [SUCCESS]")[0]) == without_marks(
            original.partition(" [SUCCESS]")[0]
        )
    for before, after in pairwise(
        [imported_episode.facts, *(step.facts for step in imported_episode.steps)]
    ):
        assert isinstance(before, State) and isinstance(after, State)


def test_a_retrieval_world_model_learns_from_imported_rows(
    homes: list[Trajectory], tmp_path: Path
) -> None:
    rows = [published.word2world(episode, number) for number, episode in enumerate(homes)]
    episodes, _ = imported(rows, tmp_path)
    model = RetrievalWorldModel()
    for episode in episodes:
        model.fit(transitions_of(episode))
    assert len(model) == sum(len(episode.steps) for episode in homes)
    query, observation = next(transitions_of(homes[0]))
    assert model.predict([query])[0].observation == observation
