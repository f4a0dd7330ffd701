"""Trajectories of ours in the forms in which others publish theirs: small samples, made here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from comap.trajectory import Trajectory

AGENTGYM_TASK = "Interact with a household to solve a task."


def thought_of(number: int) -> str:
    return f"Step {number} comes next."


def agenttraj(trajectory: Trajectory, number: int) -> dict[str, Any]:
    """AgentTraj-L: item_id, human and gpt by turns, what is learned from has loss."""
    messages: list[tuple[str, bool | None, str]] = [
        ("human", None, AGENTGYM_TASK),
        ("gpt", False, "OK. I'll follow your instructions and try my best to solve the task."),
        ("human", None, f"{trajectory.observation}\nAVAILABLE ACTIONS: look,inventory"),
    ]
    for step in trajectory.steps:
        reply = f"Thought:\n{thought_of(step.t)}\n\nAction:\n{step.action}"
        messages += [("gpt", True, reply), ("human", None, step.observation)]
    turns = [{"from": speaker, "loss": loss, "value": text} for speaker, loss, text in messages]
    return {"conversations": turns, "item_id": f"{kind_of(trajectory)}_{number}"}


def eto(trajectory: Trajectory, number: int) -> dict[str, Any]:
    """ETO: id, the instruction answered by OK, replies of two lines, observations that are marked."""
    messages = [("human", AGENTGYM_TASK), ("gpt", "OK"), ("human", trajectory.observation)]
    for step in trajectory.steps:
        messages.append(("gpt", f"Thought: {thought_of(step.t)}\nAction: {step.action}"))
        messages.append(("human", f"Observation: {step.observation}"))
    turns = [{"from": speaker, "value": text} for speaker, text in messages]
    return {"id": f"{kind_of(trajectory)}_{number}", "conversations": turns}


def word2world(trajectory: Trajectory, number: int) -> dict[str, Any]:
    """Word2World: the world is the assistant; what it alone sees stands in the system's message."""
    system = (
        "# Environment Information (Only visible to Assistant)\n\n=== Toggle States ===\n"
        " - desklamp 1 is off\n\n# User Environment Information (Displayed to User)\n\n"
        f"{trajectory.observation}\nAVAILABLE ACTIONS: look,inventory\n"
    )
    messages = [{"role": "system", "content": system}]
    for step in trajectory.steps:
        mark = " [SUCCESS]" if step.success else ""
        messages.append({"role": "user", "content": step.action})
        messages.append({"role": "assistant", "content": step.observation + mark})
    return {"messages": messages}


def adp(trajectory: Trajectory, number: int) -> dict[str, Any]:
    """The Agent Data Protocol: observations, and messages with an action in ReAct's form."""
    content = [
        _text(AGENTGYM_TASK, "user"),
        {"class_": "message_action", "content": "OK", "description": None},
        _text(trajectory.observation, "user"),
    ]
    for step in trajectory.steps:
        content.append(
            {
                "class_": "message_action",
                "content": f"Action: {step.action}",
                "description": thought_of(step.t),
            }
        )
        content.append(_text(step.observation, "environment"))
    content.append({"class_": "message_action", "content": "<finish> </finish>"})
    return {"schema_version": "1.5.0", "id": f"x_{number}", "content": content, "details": {}}


def _text(text: str, source: str) -> dict[str, Any]:
    return {"class_": "text_observation", "content": text, "name": None, "source": source}


def atif(trajectory: Trajectory, number: int) -> dict[str, Any]:
    """ATIF, which later versions of the protocol write: steps with calls and their results."""
    steps: list[dict[str, Any]] = [
        {"step_id": 1, "source": "user", "message": AGENTGYM_TASK},
        {"step_id": 2, "source": "agent", "message": "OK"},
        {"step_id": 3, "source": "user", "message": trajectory.observation},
    ]
    for step in trajectory.steps:
        verb, _, rest = step.action.partition(" ")
        calls = {"go": {"location": rest.removeprefix("to ")}, "open": {"obj": rest}}
        message = thought_of(step.t)
        record: dict[str, Any] = {"step_id": len(steps) + 1, "source": "agent"}
        if verb in calls:
            call = {"tool_call_id": "call_1", "function_name": verb, "arguments": calls[verb]}
            results = [{"source_call_id": "call_1", "content": step.observation}]
            record |= {"message": message, "tool_calls": [call]}
        else:
            results = [{"content": step.observation}]
            record["message"] = f"Thought: {message}\nAction: {step.action}"
        steps.append(record | {"observation": {"results": results}})
    return {"schema_version": "ATIF-v1.7", "trajectory_id": f"x_{number}", "steps": steps}


def kind_of(trajectory: Trajectory) -> str:
    return {"comap/ALFWorld-v0": "alfworld", "comap/WebShop-v0": "webshop"}[trajectory.env_id]


WRITERS: dict[str, Callable[[Trajectory, int], dict[str, Any]]] = {
    "agenttraj": agenttraj,
    "eto": eto,
    "word2world": word2world,
    "adp": adp,
    "atif": atif,
}
