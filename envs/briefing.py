"""What a language model is told of an environment: `Briefing`, and `ReplyForm` for replies in tags."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Literal, NamedTuple

from ..errors import OptionError
from ..lm.prompts import load_template, messages_in, replacement

STYLE = "briefing"
"""The folder in an environment's ``prompts`` that has its briefing."""

_ROLE_OF_RULES = "system"

GENERAL_INSTRUCTIONS = (
    "You solve a task in a world that you know only by text. You are told what you perceive, and you "
    "answer with one action. The world answers what happened."
)
"""The instructions of an environment that brings none."""


class ExampleTransition(NamedTuple):
    """A real transition that shows a world model the form of an observation.

    Attributes:
        before: What was seen last.
        action: The action.
        after: What the environment answered.
    """

    before: str
    action: str
    after: str


@dataclass(frozen=True, slots=True)
class Briefing:
    """What a language model is told of an environment, through whatever door it comes.

    Agents put it into their prompts, world models into theirs; the descriptions of tools (TRL, MCP) and
    the prompts of other stacks (verifiers, OpenEnv, AgentGym) have the same text.

    Attributes:
        instructions: What an action looks like: all forms and verbs, what a refusal looks like, and when
            the task is done. It says nothing of thoughts or tags, which are the agent's affair.
        example: A worked example as pairs of role and text: the first observation of a training task
            (``user``), a reply with a thought and an action (``assistant``), and so on.
        observation_form: The form of an observation, for world models.
        transitions: Real transitions of training tasks, for world models.
        variants: What options of the environment changed in it: suffixes of its files.

    Example:
        >>> Briefing("Say left or right.").told()
        'Say left or right.'
    """

    instructions: str = ""
    example: tuple[tuple[str, str], ...] = ()
    observation_form: str = ""
    transitions: tuple[ExampleTransition, ...] = ()
    variants: tuple[str, ...] = ()

    def shown_transitions(self) -> tuple[ExampleTransition, ...]:
        """Return real transitions for world models; without ones of their own, those of the example."""
        if self.transitions:
            return self.transitions

        # The example alternates: observation, reply, observation, ...
        texts = [text for _, text in self.example]
        transitions = []
        for before, reply, after in zip(texts[::2], texts[1::2], texts[2::2], strict=False):
            # A reply in ReAct's form states the action last; any other is the action.
            action = reply.rpartition("Action:")[2].strip()
            transitions.append(ExampleTransition(before, action, after))
        return tuple(transitions)

    def told(self) -> str:
        """Return the instructions; general ones where there are none."""
        return self.instructions or GENERAL_INSTRUCTIONS

    @property
    def sha256(self) -> str:
        """A digest of all of it, for records."""
        texts = [self.instructions, self.example, self.observation_form, self.transitions]
        return hashlib.sha256(json.dumps(texts).encode()).hexdigest()

    @classmethod
    def of_package(cls, package: str, *variants: str) -> Briefing:
        """Return the briefing in the files of an environment's package.

        Args:
            package: Such as ``comap.envs.webshop``, whose folder ``prompts/briefing`` has the files.
            *variants: Suffixes: a file with one of them (``instructions_react.txt``) is read in place of
                the one without.
        """
        parts = {name: _packaged_messages(package, name, variants) for name in _FILES}
        return cls(variants=variants).with_parts(parts)

    def replaced(self, env_id: str, folder: str | None) -> Briefing:
        """Return the briefing with what a user's folder of prompts says of an environment.

        Args:
            env_id: Its id; the folder's files are in ``envs/NAME/briefing``, with the name in lower case.
            folder: The user's folder; None for none.
        """
        if folder is None:
            return self

        # A variant's own file comes before the one that all variants share.
        parts = {}
        for name in _FILES:
            for file in _file_names(name, self.variants):
                path = Path(folder) / replacement(f"comap.envs.{env_name(env_id)}", STYLE, file)
                if name not in parts and path.is_file():
                    parts[name] = messages_in(path.read_text("utf-8"))
        return self.with_parts(parts)

    def with_parts(self, parts: Mapping[str, Sequence[tuple[str, str]]]) -> Briefing:
        """Return the briefing with the messages of some of its files in place of its own."""
        briefing = self
        if rules := parts.get("instructions"):
            briefing = replace(briefing, instructions=_rules(rules))

        if example := parts.get("example"):
            briefing = replace(briefing, example=tuple(example))

        if lines := parts.get("transitions"):
            transitions = _transitions([line for line in lines if line[0] != _ROLE_OF_RULES])
            briefing = replace(briefing, observation_form=_rules(lines), transitions=transitions)
        return briefing


_FILES = ("instructions", "example", "transitions")
_ACTION = "\n> "  # before an action, in what was seen before it


def _file_names(name: str, variants: Sequence[str]) -> tuple[str, ...]:
    """Return the names that a file of a briefing may have, those of variants first."""
    return (*(f"{name}_{variant}" for variant in variants), name)


@lru_cache(maxsize=128)
def _packaged_messages(
    package: str, name: str, variants: tuple[str, ...]
) -> tuple[tuple[str, str], ...]:
    """Return the messages of one file of a packaged briefing; none where there is no such file."""
    prompts = files(package) / "prompts" / STYLE
    for file in _file_names(name, variants):
        if (prompts / f"{file}.txt").is_file():
            return load_template(package, STYLE, file)
    return ()


def _rules(messages: Sequence[tuple[str, str]]) -> str:
    """Return the texts of the messages that state rules."""
    return "\n\n".join(text for role, text in messages if role == _ROLE_OF_RULES)


def _transitions(messages: Sequence[tuple[str, str]]) -> tuple[ExampleTransition, ...]:
    """Return transitions from pairs of what was seen, with the action in its last line, and the answer."""
    transitions = []
    for (_, question), (_, after) in zip(messages[::2], messages[1::2], strict=True):
        # The action may stand in the first line, if nothing was seen before it.
        before, marker, action = f"\n{question}".rpartition(_ACTION)
        if not marker:
            raise OptionError(
                "expected a last line '> ACTION' in each [user] part of transitions.txt, found "
                f"{question!r:.120}; add it"
            )
        transitions.append(ExampleTransition(before.strip("\n"), action.strip(), after))
    return tuple(transitions)


def env_name(env_id: str) -> str:
    """Return an environment's name without its namespace and version, in lower case.

    Example:
        >>> env_name("comap/WebShop-v0")
        'webshop'
    """
    name = env_id.rpartition("/")[2].lower()
    stem, dash, version = name.rpartition("-v")
    return stem if dash and version.isdigit() else name


@dataclass(frozen=True, slots=True)
class ReplyForm:
    """How prompts and replies in tags are made for an environment (PaW, Figures 7 to 9).

    Attributes:
        prompts: The name of the templates: ``NAME.txt``, and ``NAME_first.txt`` for the first step.
        kind: ``act`` (``<think>`` and ``<action>``) or ``search`` (``<search>`` or ``<answer>``, whose
            tags are the action itself, and whose history has what searches found).
        tail: Of a reply without tags the environment gets so many of its last characters.
        most_characters: A prompt with a history of more characters becomes one without; None for no
            such limit.
        tells_goal: Whether the templates have the task; without it, it stands in the first observation.
    """

    prompts: str = "any"
    kind: Literal["act", "search"] = "act"
    tail: int = 30
    most_characters: int | None = None
    tells_goal: bool = True
