from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from comap.agents import AgentConfig
from comap.agents.base import View
from comap.agents.prompting import converse
from comap.benchmarks.small_data import policy_rows, side_steps, world_model_rows
from comap.benchmarks.small_results import Bench, Cell, collect, evaluate, score_world_models
from comap.benchmarks.small_training import SmallConfig, agent_settings, train_part
from comap.envs.alfworld.generate import generate
from comap.errors import DataCorrupt, DataNotFound, OptionError
from comap.trainers.demonstrations import demonstrations, read_demonstrations
from comap.trajectory import Turn
from comap.worldmodel.language import LanguageWorldModel

GAMES = {"train": 6, "valid_seen": 2, "valid_unseen": 1}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> SmallConfig:
    """A few generated games in the official layout, and their walkthroughs as demonstrations."""
    folder = tmp_path_factory.mktemp("small")
    lines = []
    for split, number in GAMES.items():
        for index in range(number):
            made = generate(split, index)
            game = f"json_2.1.1/{split}/task-{index}/trial/game.tw-pddl"
            content = {
                "pddl_domain": "(define (domain alfred))",
                "grammar": f"Your task is to: {made.problem.task}",
                "pddl_problem": made.pddl,
                "solvable": True,
                "walkthrough": made.problem.walkthrough,
            }
            path = folder / "data" / game
            path.parent.mkdir(parents=True)
            path.write_text(json.dumps(content))
            if split == "train":
                commands = [None, *made.problem.walkthrough]
                lines.append(
                    json.dumps({"game": game, "steps": [{"command": c} for c in commands]})
                )
    demos = folder / "demos.jsonl.xz"
    demos.write_bytes(lzma.compress("\n".join(lines).encode()))
    return SmallConfig(
        data_dir=str(folder / "data"),
        demos=str(demos),
        out=str(folder / "out"),
        parameters=200_000,
        vocabulary=500,
        policy_tokens=3000,
        history_tokens=3000,
        world_model_tokens=3000,
        side_games=3,
    )


def test_rows_are_what_agents_and_world_models_ask(config: SmallConfig) -> None:
    bench = Bench(config)
    plans = list(read_demonstrations(Path(config.demos)))
    (shown, *_) = demonstrations(bench.env("train", max_episode_steps=200), plans[:1])
    assert shown.success and [step.action for step in shown.steps] == list(plans[0][1])
    for kind in ("belief", "history"):
        settings = AgentConfig(**agent_settings(kind, config.history_turns))
        rows = list(policy_rows([shown], settings))
        assert [row.answer for row in rows] == [f"Action: {action}" for action in plans[0][1]]
        first = View(
            shown.env_id,
            shown.task,
            shown.goal,
            (Turn(None, shown.observation),),
            shown.facts,
            None,
            0,
            lambda: None,
        )
        assert rows[0].messages == converse(first, settings)
    model = LanguageWorldModel(bench_counter(), prompts="brief", state_text="belief")
    rows = list(world_model_rows([shown], model))
    assert [row.answer for row in rows] == [step.observation for step in shown.steps]
    assert all(
        step.observation not in row.messages[-1].content
        for row, step in zip(rows, shown.steps, strict=True)
    ), "what follows must not be in the question"


def bench_counter() -> Any:
    class Counter:
        name = "counter"

        def count_tokens(self, text: str) -> int:
            return len(text) // 4

    return Counter()


def test_side_steps_repeat_themselves_and_leave_the_plan(config: SmallConfig) -> None:
    env = Bench(config).env("train", expert="explore", max_episode_steps=24)
    tasks = env.unwrapped.tasks.ids[:2]  # type: ignore[attr-defined]
    first, again, other = (
        [[s.action for s in t.steps] for t in side_steps(env, tasks, seed)] for seed in (0, 0, 1)
    )
    assert first == again != other


def test_train_evaluate_collect(config: SmallConfig) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    bench = Bench(config)
    cell = Cell("comap", "belief", "scored", "language", (("p_source", "verbalizer"),))
    with pytest.raises(DataNotFound, match="run the stage 'train'"):
        evaluate(bench, cell, 0)
    for part in ("belief", "world-model"):
        folder = train_part(part, 0, config)
        assert folder == train_part(part, 0, config), "a second time nothing is done"
    found = evaluate(bench, cell, 0)
    assert found["success"]["all"]["n"] == 3 and not found["errors"]
    assert found["success"]["valid_unseen"]["n"] == 1 and len(found["won"]) == 3
    again = evaluate(Bench(config), cell, 0)
    assert json.loads(json.dumps(found)) == again, "a cell that is there is not played again"
    scores = score_world_models(bench, [0])["scores"]
    assert scores["null"]["n"] == scores["retrieval"]["n"] == scores["language-0"]["n"] > 0
    result = collect(bench, [0])
    (row,) = [row for row in result["cells"] if row["agent"] == "comap"]
    assert row["all"]["n"] == 3 and row["seeds"] == [0] and row["decoding"] == "scored"
    assert result["training"]["belief-0"]["trained_tokens"] >= 3000
    assert config.out not in json.dumps(result), "no path of a machine"


@pytest.mark.parametrize(
    ("text", "error"), [("{}", DataCorrupt), ("[", DataCorrupt), (None, DataNotFound)]
)
def test_bad_demonstrations_are_told(tmp_path: Path, text: str | None, error: type) -> None:
    path = tmp_path / "demos.jsonl"
    if text is not None:
        path.write_text(text)
    with pytest.raises(error, match=r"demos\.jsonl"):
        list(read_demonstrations(path))


def test_an_unknown_part_is_told(config: SmallConfig) -> None:
    with pytest.raises(OptionError, match="belief, history, world-model"):
        train_part("critic", 0, config)
