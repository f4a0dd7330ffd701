"""How published texts name comap's environments, word their goals, and write their actions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from ...envs.registry import canonical_action, class_of
from .formats import AVAILABLE, ApiCall, Reading, Refused, generic_call

ALFWORLD = "comap/ALFWorld-v0"
SCIENCEWORLD = "comap/ScienceWorld-v0"
WEBSHOP = "comap/WebShop-v0"

_OBSERVATION = re.compile(r"\s*Observation:[ \t]*\n?")
_TASK = re.compile(r"Your task is to:[ \t]*(.+)", re.IGNORECASE)
_ROOM = "This room is called"
_DESCRIPTION = "Task Description:\n"
_POINTS = 100  # ScienceWorld's points of a solved task; AgentGym gives them as rewards

_OTHER_WORLDS = frozenset(
    ("babyai", "bird", "lmrlgym_maze", "lmrlgym_wordle", "maze", "sqlgym", "textcraft", "textworld")
    + (
        "tool_academia",
        "tool_movie",
        "tool_sheet",
        "tool_todo",
        "tool_weather",
        "webarena",
        "wordle",
    )
    + ("academia", "movie", "sheet", "todo", "weather")
)
_FORM_UNKNOWN = frozenset(("searchqa", "stabletoolbench"))


class Start(NamedTuple):
    """How an episode begins: its goal, the first observation, and the actions that it lists."""

    goal: str
    observation: str
    admissible: tuple[str, ...] | None


class Outcome(NamedTuple):
    """How an episode ended; None of what nobody recorded."""

    success: bool | None
    score: float
    reward: float | None


def cleaned(text: str) -> tuple[str, tuple[str, ...] | None]:
    """Return an observation without the marks of prompts, and the actions that it listed.

    Example:
        >>> cleaned("Observation: On the desk 1, you see a pen 1.")
        ('On the desk 1, you see a pen 1.', None)
    """
    mark = _OBSERVATION.match(text)
    rest = text[mark.end() :] if mark else text
    observation, listed, actions = rest.partition(AVAILABLE)
    if not listed:
        return rest.strip("\n "), None
    return observation.strip("\n "), tuple(filter(None, map(str.strip, actions.split(","))))


def _stated(text: str, admissible: tuple[str, ...] | None) -> Start:
    """Return the start of an episode whose first observation states the task."""
    goal = _TASK.search(text)
    if goal is None:
        raise Refused("the first observation has no 'Your task is to:'")
    return Start(goal[1].strip(), text, admissible)


def _described(text: str, admissible: tuple[str, ...] | None) -> Start:
    """Return the start of an experiment: the task's description, then a room, where it is shown."""
    description, room, rest = text.removeprefix(_DESCRIPTION).partition(_ROOM)
    goal = description.strip()
    if not goal:
        raise Refused("no description of the task before the first room")
    return Start(goal, room + rest if room else goal, admissible)


def _instructed(text: str, admissible: tuple[str, ...] | None) -> Start:
    """Return the start of a purchase: the instruction stands on the page."""
    parts = [part.strip() for part in text.split("[SEP]")]
    if "Instruction:" not in parts[:-1]:
        raise Refused("the first page has no instruction")
    return Start(parts[parts.index("Instruction:") + 1], text, admissible)


@dataclass(frozen=True, slots=True)
class World:
    """What published texts of an environment look like.

    Attributes:
        names: Its names in ids and names of files.
        marks: What its instructions or first observations have, and no other's.
        start: Takes the first observation apart.
        calls: The words of calls, by their functions: each argument's name may have alternatives.
        actions: The canonical actions that it knows.
        points: The reward of a solved task.
    """

    names: tuple[str, ...]
    marks: re.Pattern[str]
    start: Callable[[str, tuple[str, ...] | None], Start]
    actions: re.Pattern[str]
    calls: Mapping[str, str] = field(default_factory=dict)
    points: float = 1.0


_TREATED = "{item} with {appliance}"
WORLDS: Mapping[str, World] = {
    ALFWORLD: World(
        ("alfworld",),
        re.compile(r"Looking quickly around you, you see|Interact with a household"),
        _stated,
        re.compile(
            r"look|inventory|help|(?:go to|open|close|examine|use) .+|take .+ from .+"
            r"|put .+ in/on .+|(?:clean|heat|cool|slice) .+ with .+"
        ),
        # Of AgentTuning's functions in the protocol, as its api.py lists them.
        calls={
            "go": "go to {location}",
            "take": "take {item} from {source}",
            "put": "put {item} in/on {target}",
            "open": "open {obj}",
            "close": "close {obj}",
            "use": "use {obj}",
            "examine": "examine {obj}",
            "heat": f"heat {_TREATED}",
            "cool": f"cool {_TREATED}",
            "clean": f"clean {_TREATED}",
            "inventory": "inventory",
            "look": "look",
        },
    ),
    SCIENCEWORLD: World(
        ("sciworld", "scienceworld"),
        re.compile(r"agent for science world|scientific experiment|This room is called"),
        _described,
        re.compile(
            r"look around|inventory|task|wait1?|\d+|(?:look at|look in|go to|teleport to|open|close|read"
            r"|activate|deactivate|disconnect|eat|flush|mix|pick up|put down|focus on|use) .+"
            r"|(?:move|connect) .+ to .+|(?:pour|dunk) .+ into .+"
        ),
        points=_POINTS,
    ),
    WEBSHOP: World(
        ("webshop",),
        re.compile(r"Instruction: \[SEP\]|You are web shopping"),
        _instructed,
        re.compile(r"(?:search|click)\[.+\]"),
        calls={"search": "search[{keywords}]", "click": "click[{bid|element|item}]"},
    ),
}
"""The environments whose published form is known, by their ids."""

_ID_BY_NAME = {name: env_id for env_id, world in WORLDS.items() for name in world.names}


def env_of(reading: Reading, file_name: str, only: str | None) -> str:
    """Return the environment's id of a row: by its own word, its id, its texts, or its file's name.

    Args:
        reading: The row.
        file_name: The name of its file.
        only: The environment that rows which do not tell are of; rows of others are refused.

    Raises:
        Refused: It is of another environment, or does not tell.
    """
    # A row's own word is the name of an environment that is here, never of a module to import.
    env_id = reading.env_id
    if env_id and class_of(env_id.replace(":", "")) is None:
        raise Refused("it names an environment that is not here")
    env_id = env_id or _by_name(reading.id) or _by_texts(reading) or _by_name(file_name)
    if not env_id and only is None:
        raise Refused("nothing tells its environment; name it by --env")
    if env_id and only is not None and env_id != only:
        raise Refused(f"of {env_id!r:.60}, not of the --env")
    return env_id or str(only)


def _by_name(text: str) -> str:
    """Return the environment that an id or a file's name begins with; empty where it is none.

    Raises:
        Refused: It is an environment that comap does not have, or whose form is not public.
    """
    name = re.split(r"[_-]?\d|_train|_test|_valid|_sft|\.json", text.lower(), maxsplit=1)[0]
    if name in _OTHER_WORLDS:
        raise Refused(f"comap has no environment {name!r}")
    if name in _FORM_UNKNOWN:
        raise Refused(f"the form of {name!r} rows is not in public files: it is not read")
    return _ID_BY_NAME.get(name, "")


def _by_texts(reading: Reading) -> str:
    """Return the environment whose marks the texts have; empty where they are of none, or of several."""
    told = f"{reading.instructions[:20_000]}\n{reading.observation[:20_000]}"
    env_ids = [env_id for env_id, world in WORLDS.items() if world.marks.search(told)]
    return env_ids[0] if len(env_ids) == 1 else ""


def start_of(env_id: str, reading: Reading) -> Start:
    """Return how an episode begins."""
    observation, admissible = cleaned(reading.observation)
    world = WORLDS.get(env_id)
    if reading.goal:
        return Start(reading.goal, observation, admissible)
    if world is not None:
        return world.start(observation, admissible)

    # An environment of one's own: the usual words of a goal, or none.
    goal = _TASK.search(observation)
    return Start(goal[1].strip() if goal else "", observation, admissible)


def action_text(env_id: str, action: str | ApiCall) -> str:
    """Return an action in its environment's words; a call that has none as a call.

    Example:
        >>> action_text(ALFWORLD, ApiCall("take", {"item": '"mug 1"', "source": '"desk 1"'}))
        'take mug 1 from desk 1'
    """
    if isinstance(action, str):
        return action
    world = WORLDS.get(env_id)
    form = world.calls.get(action.function) if world is not None else None
    if form is None:
        return generic_call(action)

    def value_of(match: re.Match[str]) -> str:
        for name in match[1].split("|"):
            if name in action.arguments:
                return _unquoted(action.arguments[name])
        raise Refused(f"the call {action.function!r:.40} has no argument {match[1]!r}")

    return re.sub(r"\{([\w|]+)\}", value_of, form)


def _unquoted(value: object) -> str:
    """Return an argument as text on one line: some are JSON within JSON."""
    text = value if isinstance(value, str) else json.dumps(value)
    if len(text) > 1 and text[0] == text[-1] == '"':
        try:
            text = str(json.loads(text))
        except ValueError:
            text = text[1:-1]
    return " ".join(text.split())


def knows(env_id: str, action: str) -> bool:
    """Return whether an environment's grammar has an action of this form."""
    world = WORLDS.get(env_id)
    return world is not None and bool(world.actions.fullmatch(canonical_action(env_id, action)))


def outcome_of(env_id: str, reading: Reading) -> Outcome:
    """Return how an episode ended, as far as its row says it; nothing is made up.

    The score is the published reward: of ScienceWorld, whose points AgentGym gives, the hundredth.
    """
    world = WORLDS.get(env_id)
    points = 1.0 if world is None else world.points
    reward = reading.reward

    success = reading.success
    if success is None and reward is not None and world is not None:
        # Word2World's own programs read 1 and 100 as solved; a single point of 100 is told from it by
        # nothing, so that 1 says nothing here.
        is_ambiguous = points > 1 and reward == 1
        success = None if is_ambiguous else reward >= points
    if success is None:
        return Outcome(None, 0.0, reward)

    score = reading.score
    if success:
        score = 1.0
    elif score is None:
        score = (reward or 0.0) / points
    return Outcome(success, min(max(score, 0.0), 1.0), reward)
