"""Task folders for Harbor, which TRL, SkyRL, prime-rl and NeMo Gym play too: a folder for each task.

The environment is a container beside the agent's, which serves one episode by MCP and records it. The
verifier is a third one, which gets the record alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from importlib.metadata import packages_distributions
from typing import Any, Literal

from .. import __version__
from ..envs.generated import is_generated
from ..errors import DISTRIBUTION, CoMapError, DataNotFound
from .mcp import EpisodeTools
from .sessions import Offered, text_env_class

_SCIENCEWORLD = "comap/ScienceWorld-v0"
_MOST_STEPS = 1_000  # of an expert's plan
_LONGEST_LINE = 200  # of the goal, in the description


@dataclass(frozen=True, slots=True)
class HarborTask:
    """A task of an environment, as its folder tells it.

    Attributes:
        name: Name of the folder: environment, split, and the task's place in it.
        task: The task's id.
        split: Its split.
        goal: The task in words.
        plan: The expert's calls of tools, with their arguments; None where there is no expert, or its
            plan does not succeed.
    """

    name: str
    task: str
    split: str
    goal: str
    plan: tuple[tuple[str, Mapping[str, Any]], ...] | None


def harbor_task(offered: Offered, task: str) -> HarborTask:
    """Return a task of the first environment that is offered, with the expert's plan.

    Args:
        offered: The environment, with the options that the task's server will have.
        task: The task's id.

    Raises:
        DataNotFound: The task is of official data, which no image has.
        TaskNotFound: There is no such task.

    Example:
        >>> from comap.integrations import Offered
        >>> offered = Offered(["comap/ALFWorld-v0"], {"source": "generated", "split": "valid_seen"})
        >>> task = harbor_task(offered, "generated/valid_seen/normal/0-000002")
        >>> task.name, len(task.plan) > 2
        ('alfworld-valid-seen-00002', True)
    """
    env_id = offered.env_ids[0]
    if text_env_class(env_id).generated_options and not is_generated(task):
        raise DataNotFound(
            f"expected a generated task, found {task!r:.120} of official data, which an image does not "
            "have and may not be given; add what has generated tasks (--env-option source=generated)"
        )

    tools = EpisodeTools(offered, task=task)
    with closing(tools):
        message = tools.call("observe", {}).message
        if message is None:
            tools.session.env.reset(options={"task": task})  # says what is wrong with it
        assert message is not None
        panel = tools.session.env.get_wrapper_attr("tasks")
        place = panel.ids.index(task)
        words = f"{_base_name(env_id)}-{panel.split}-{place:05d}"
        return HarborTask(
            name=re.sub("[^a-z0-9]+", "-", words.lower()).strip("-"),
            task=task,
            split=str(message["split"]),
            goal=str(message["goal"] or message["observation"]),
            plan=_plan_of(tools),
        )


def _base_name(env_id: str) -> str:
    """Return the name of an environment without namespace and version."""
    name = env_id.rpartition(":")[2].rpartition("/")[2]
    return re.sub(r"-v\d+$", "", name)


def _plan_of(tools: EpisodeTools) -> tuple[tuple[str, Mapping[str, Any]], ...] | None:
    """Play the expert to the end; return its calls, or None where it does not succeed."""
    inner: Any = tools.session.env.unwrapped
    plan: list[tuple[str, Mapping[str, Any]]] = []
    while len(plan) < _MOST_STEPS:
        try:
            action = inner.expert_action()
        except CoMapError:  # the environment has no expert
            return None
        if action is None:
            return None

        call = tools.call_of(action)
        message = tools.call(*call).message
        plan.append(call)
        if message is None:
            return None
        if message["done"]:
            return tuple(plan) if message["success"] else None
    return None


def substitutions(
    task: HarborTask, offered: Offered, reward: Literal["score", "success"], module: str = ""
) -> dict[str, str]:
    """Return what stands for the placeholders of the scaffold: texts in the syntax of each file.

    Args:
        task: The task.
        offered: The environment and its options.
        reward: Which of the record's numbers the reward is.
        module: The module that registers an environment of one's own.
    """
    env_id = offered.env_ids[0]
    words = ["--env", f"{module}:{env_id}" if module else env_id, "--task", task.task]
    for name, value in offered.options.items():
        words += [
            "--env-option",
            f"{name}={value if isinstance(value, str) else json.dumps(value)}",
        ]

    extra = ",scienceworld" if env_id == _SCIENCEWORLD else ""
    requirements = [f"{DISTRIBUTION}[mcp,serve{extra}]=={__version__}"]
    if module:
        requirements += packages_distributions().get(module, [module])[:1]

    first_line = (one_line(task.goal) or task.name)[:_LONGEST_LINE]
    return {
        "name": task.name,
        "package": toml_text(f"comap/{task.name}"),
        "description": toml_text(first_line),
        "base": toml_text(_base_name(env_id).lower()),
        "env": toml_text(env_id),
        "task": toml_text(task.task),
        "split": toml_text(task.split),
        "reward": toml_text(reward),
        "version": toml_text(__version__),
        "goal": quotation(task.goal),
        "command": compose_list(words),
        "requires": " ".join(f'"{requirement}"' for requirement in requirements),
        "plan": json.dumps(task.plan, indent=1),
    }


def clean(text: str) -> str:
    """Return a text without what no file of text may have: control characters, halves of characters."""
    whole = text.encode("utf-8", "replace").decode()
    return re.sub(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u2028\u2029\ufeff]", " ", whole)


def one_line(text: str) -> str:
    return " ".join(clean(text).split())


def quotation(text: str) -> str:
    """Return a text as a quotation of Markdown, which no fence or heading in it can end.

    Example:
        >>> print(quotation("two" + chr(10) + "lines"))
        > two
        > lines
    """
    lines = clean(text).replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return "\n".join(f"> {line}".rstrip() for line in lines)


def toml_text(text: str) -> str:
    """Return a text as a basic string of TOML, on one line; it is JSON's, without its pairs of escapes."""
    return json.dumps(clean(text), ensure_ascii=False)


def compose_list(words: Sequence[str]) -> str:
    """Return words as a list in YAML, in which Compose substitutes no variable."""
    escaped = [clean(word).replace("$", "$$") for word in words]
    return json.dumps(escaped, ensure_ascii=False)
