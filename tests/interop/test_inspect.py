"""Inspect evaluates our environments by name, with its tools and with our agents, and reads our runs.

Replies are scripted, by Inspect's own scripted provider; everything else is Inspect's.
"""

# installs: comap[inspect]

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("inspect_ai", reason="make interop DOORS=inspect installs it")

from inspect_ai import eval as evaluate
from inspect_ai.log import read_eval_log
from inspect_ai.model import ModelOutput, ModelUsage, get_model

TASK_OPTIONS = {"source": "generated", "tasks": 2, "max_steps": 3}
EXPECTED = "You are not carrying anything."


def scripted(outputs: Iterable[ModelOutput]) -> Any:
    """Return a model that says these; its tokens are given, or Inspect would download a tokenizer."""

    def counted() -> Iterable[ModelOutput]:
        for output in outputs:
            output.usage = ModelUsage(input_tokens=7, output_tokens=3, total_tokens=10)
            yield output

    return get_model("mockllm/model", custom_outputs=counted())


def tool_call(**arguments: str) -> ModelOutput:
    return ModelOutput.for_tool_call("mockllm/model", "act", arguments)


def text_reply(text: str) -> ModelOutput:
    return ModelOutput.from_content("mockllm/model", text)


def ran(task: str, model: Any, place: Path, options: dict[str, Any], **eval_options: Any) -> Any:
    settings = {"display": "none", "log_dir": str(place), "max_samples": 1, **eval_options}
    (log,) = evaluate(task, model=model, task_args=options, **settings)
    assert log.status == "success", log.error
    return log


def test_the_tasks_are_found_by_name(tmp_path: Path) -> None:
    log = ran("comap/alfworld", scripted([tool_call(action="look")] * 12), tmp_path, TASK_OPTIONS)
    assert log.eval.task == "comap/alfworld"
    assert log.eval.metadata["generated_tasks"] == log.eval.metadata["tasks"] == 2
    assert log.eval.metadata["split"] == "valid_unseen"


def test_a_model_acts_by_a_tool_and_facts_are_kept(tmp_path: Path) -> None:
    """Epochs are seeds; a refused action counts, and the episode ends at its limit of steps."""
    actions = ["inventory", "go to nowhere 1", "look"]
    model = scripted([tool_call(action=action) for action in actions] * 4)
    log = ran("comap/alfworld", model, tmp_path, TASK_OPTIONS, epochs=2)
    assert len(log.samples) == 4
    assert {(sample.epoch, sample.metadata["seed"]) for sample in log.samples} == {(1, 0), (2, 1)}
    for sample in log.samples:
        outcome = sample.metadata["outcome"]
        assert (outcome["steps"], outcome["invalid_actions"], outcome["is_over"]) == (3, 1, True)
        assert outcome["facts"] and outcome == sample.scores["outcome"].metadata
        assert sample.metadata["goal"]
        assert sample.metadata["generated"] is True
        assert EXPECTED in sample.messages[2].text
        assert sample.messages[-1].text.endswith("The task is over.")
    (success, score) = log.results.scores
    assert (success.name, score.name) == ("success", "score")
    assert success.metrics["mean"].value == 0.0


def test_an_expert_s_actions_win(tmp_path: Path) -> None:
    import gymnasium

    import comap  # noqa: F401
    from comap.agents import ExpertAgent, run_episode

    env = gymnasium.make("comap/ALFWorld-v0", source="generated", split="valid_unseen")
    task = env.get_wrapper_attr("tasks").ids[0]
    episode = run_episode(env, ExpertAgent(), task=task, seed=0)
    model = scripted(tool_call(action=step.action) for step in episode.steps)
    options = {"source": "generated", "tasks": 1}
    (sample,) = ran("comap/alfworld", model, tmp_path, options).samples
    assert sample.id == task
    assert sample.scores["outcome"].value == {"success": 1.0, "score": 1.0}


def test_what_a_model_expects_is_scored(tmp_path: Path) -> None:
    """Nothing changes and nothing is expected to: 1. A door that opens is not there: 0."""
    outputs = [
        tool_call(action="inventory", expected=EXPECTED),
        tool_call(action="inventory", expected="You open the fridge 1. The fridge 1 is open."),
        tool_call(action="look", expected=EXPECTED),
    ]
    options = {**TASK_OPTIONS, "tasks": 1, "predict": True}
    log = ran("comap/alfworld", scripted(outputs), tmp_path, options)
    mean_delta_f1 = log.samples[0].metadata["outcome"]["delta_f1"]
    assert mean_delta_f1 == pytest.approx(2 / 3) == log.samples[0].scores["foresight"].value


def test_a_model_that_stops_is_reminded_three_times(tmp_path: Path) -> None:
    model = scripted([text_reply("I give up.")] * 9)
    (sample,) = ran("comap/alfworld", model, tmp_path, {**TASK_OPTIONS, "tasks": 1}).samples
    assert sample.metadata["outcome"]["steps"] == 0
    assert sum("is not over" in message.text for message in sample.messages) == 3


def test_our_agents_ask_inspect_s_model(tmp_path: Path) -> None:
    from comap.integrations.inspect_tasks import comap_agent

    model = scripted([text_reply("Thought: I see.\nAction: inventory")] * 6)
    options = {**TASK_OPTIONS, "tasks": 1}
    log = ran("comap/alfworld", model, tmp_path, options, solver=comap_agent("react"))
    (sample,) = log.samples
    assert sample.metadata["outcome"]["steps"] == 3 and sample.metadata["agent"] == "react"
    assert sample.metadata["outcome"]["invalid_actions"] == 0
    assert sample.model_usage["mockllm/model"].total_tokens == 30
    assert "> inventory" in sample.messages[2].text


def test_a_second_call_after_the_end_is_told_so_and_loses_nothing(tmp_path: Path) -> None:
    """Two calls in one message, of which the first ends the episode."""
    output = tool_call(action="inventory")
    (call,) = output.message.tool_calls
    output.message.tool_calls.append(replace(call, id="second"))
    options = {**TASK_OPTIONS, "tasks": 1, "max_steps": 1}
    (sample,) = ran("comap/alfworld", scripted([output]), tmp_path, options).samples
    assert sample.metadata["outcome"]["steps"] == 1 and sample.error is None
    assert sample.messages[-1].text == "The task is over."


def test_trials_and_the_oracle_are_told(tmp_path: Path) -> None:
    """Reflexion tries again, and the last trial counts; an agent that imagines says what it asked."""
    from comap.integrations.inspect_tasks import comap_agent

    model = scripted([text_reply("Thought: I see.\nAction: inventory")] * 40)
    options = {**TASK_OPTIONS, "tasks": 1}
    agent = comap_agent("reflexion", trials=2)
    (sample,) = ran("comap/alfworld", model, tmp_path, options, solver=agent).samples
    assert sample.metadata["trials"] == 2 and sample.metadata["outcome"]["steps"] == 3
    assert "world_model" not in sample.metadata

    model = scripted([text_reply("Thought: I see.\nAction: inventory")] * 40)
    agent = comap_agent("redraft")
    (sample,) = ran("comap/alfworld", model, tmp_path, options, solver=agent).samples
    assert "not a result to report" in sample.metadata["world_model"]


def test_agents_that_need_more_than_text_are_a_recorded_failure(tmp_path: Path) -> None:
    from comap.integrations.inspect_tasks import comap_agent

    solver = comap_agent("react", decoding="masked")
    settings = {"display": "none", "log_dir": str(tmp_path), "fail_on_error": False}
    (log,) = evaluate(
        "comap/alfworld", model=scripted([]), solver=solver, task_args=TASK_OPTIONS, **settings
    )
    for sample in log.samples:
        assert "decoding" in sample.error.message


@pytest.mark.parametrize("name", ["webshop", "stabletoolbench", "searchqa", "web"])
def test_the_other_environments(name: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"tasks": 1, "max_steps": 2}
    if name != "web":
        options["source"] = "generated"
    log = ran(f"comap/{name}", scripted([tool_call(action="look")] * 3), tmp_path, options)
    assert log.samples[0].metadata["outcome"]["steps"] == 2
    (sample,) = log.samples
    (tool,) = next(event.tools for event in sample.events if event.event == "model")
    text = sample.attachments[tool.description.removeprefix("attachment://")]
    assert tool.name == "act" and len(text) > 100, "it says what actions look like"


def test_an_option_that_an_environment_lacks_is_named(tmp_path: Path) -> None:
    from comap.errors import OptionError
    from comap.integrations.inspect_tasks import web

    with pytest.raises(OptionError, match="has no option 'source'; leave -T source out"):
        web(source="generated")


def test_a_run_becomes_a_log(tmp_path: Path) -> None:
    comap = [sys.executable, "-m", "comap"]
    run = ["run", "--agent", "expert", "-n", "3", "--env-option", "source=generated"]
    subprocess.run([*comap, *run, "--out", "run"], check=True, cwd=tmp_path)
    export = ["export", "run", "--to", "inspect", "--out", "run.eval"]
    subprocess.run([*comap, *export], check=True, cwd=tmp_path)
    log = read_eval_log(str(tmp_path / "run.eval"))
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert log.status == "success" and len(log.samples) == 3
    assert log.results.scores[0].metrics["mean"].value == summary["success"]["value"]
    assert log.eval.metadata["comap"]["tasks"]["generated"] == 3
    assert str(tmp_path) not in (tmp_path / "run.eval").read_bytes().decode("latin-1")
    for sample in log.samples:
        assert sample.scores["outcome"].metadata["facts"] and sample.messages[-1].role == "user"
    listed = subprocess.run(
        [Path(sys.executable).with_name("inspect"), "log", "list", "--log-dir", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "run.eval" in listed.stdout


def test_a_log_holds_whatever_was_said_and_is_whole(tmp_path: Path) -> None:
    """Half a surrogate pair is replaced; nothing but the log is left in its folder."""
    import gymnasium

    from comap.agents import RandomAgent, run_episode
    from comap.integrations.inspect_logs import write_log

    env = gymnasium.make("comap/ALFWorld-v0", source="generated", max_episode_steps=2)
    episode = run_episode(env, RandomAgent(), seed=0)
    (step, *others) = episode.steps
    hostile = replace(
        episode, steps=(replace(step, observation="a \ud800"), *others), error="\ud800"
    )
    write_log([hostile], tmp_path / "run.eval")
    (sample,) = read_eval_log(str(tmp_path / "run.eval")).samples
    assert sample.messages[3].text == "a \ufffd"
    assert [path.name for path in tmp_path.iterdir()] == ["run.eval"]


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    from comap.errors import OptionError
    from comap.integrations.inspect_logs import write_log

    with pytest.raises(OptionError, match=r"ends in \.eval or \.json"):
        write_log([], tmp_path / "run.txt")
    with pytest.raises(OptionError, match="at least one episode"):
        write_log([], tmp_path / "run.eval")
