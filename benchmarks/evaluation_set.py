"""Frozen sets of transitions that world models are scored on: `comap score world-model --set v1`.

A set is drawn once from generated tasks and never changes: its transitions are stored here with the
SHA-256 of their lines. The simulator's texts of ScienceWorld are not ours to store. Its part is drawn
anew on the user's machine, and has to have the same SHA-256.
"""

from __future__ import annotations

import hashlib
import json
import lzma
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import gymnasium

from ..agents import Decision, ExpertAgent, Reply, Request, View, run_episode
from ..envs import Canonicalizer, TextEnv
from ..envs.generated import Draws
from ..envs.panel import evenly
from ..envs.registry import text_env_of
from ..envs.storage import comap_home
from ..errors import CoMapError, DataCorrupt, OptionError, suggest
from ..facts import State
from ..jsonl import replacing_file
from ..trainers.evaluation import is_predictable, transition_from_json, transition_json
from ..trajectory import Trajectory
from ..worldmodel import Transition, transitions_of

SETS = ("v1",)
"""The sets that there are. A new one gets a new name: results name the set that they are on."""

FOLDER = Path(__file__).with_name("sets")
SCIENCEWORLD = "comap/ScienceWorld-v0"

_STEPS = 12  # of an episode: longer histories would not fit small models
_TASKS = 60  # of each environment's test split, spread evenly over it
_FIT_TASKS = 40  # of its train split
_SLOW_TASKS = 30  # of either in ScienceWorld, whose simulator takes seconds to find a solution
_MISTAKEN = "mistaken"  # the note of a step whose action is one
_ERRS = 0.5  # share of the steps of the plays but the expert's that are not the expert's
_ADMISSIBLE = 0.7  # share of these that are admissible actions, where an environment lists them

_QUOTAS = {
    ("any", "end"): 16,
    ("refused", "refused"): 44,
    ("any", "idle"): 20,
    ("expert", "foreseeable"): 36,
    ("half-random", "foreseeable"): 36,
    ("expert", "revealing"): 24,
    ("half-random", "revealing"): 24,
}
"""How many transitions are drawn for an environment, by play and kind; see `Item`.

Drawn as they come, most would change nothing, reveal what nobody can foresee, or end the episode: a
model that always says "nothing happens" would do well, and no model much better.
"""

_OPTIONS: dict[str, dict[str, Any]] = {
    "comap/ALFWorld-v0": {"source": "generated"},
    SCIENCEWORLD: {},
    "comap/WebShop-v0": {"source": "generated"},
    "comap/StableToolBench-v0": {"source": "generated"},
    "comap/SearchQA-v0": {"source": "generated"},
    "comap/Web-v0": {"benchmark": "embedded", "engine": "twin"},
}
"""The environments of a set, and with which options its tasks are played."""


@dataclass(frozen=True, slots=True)
class Item:
    """One transition of a set.

    Attributes:
        id: Its name in results: the environment's name and a number.
        task: The task that it is from.
        seed: The seed of the episode that it is from.
        play: Who acted: ``expert``, ``half-random``, or ``refused``: an expert, half of whose actions
            are mistaken.
        kind: ``end`` (of the episode), ``refused`` (a mistaken action), ``idle`` (another action that
            changes no fact), ``foreseeable`` (the change follows from the texts before and the
            action) or ``revealing`` (it does not).
        transition: The question, and what was observed.
        after: The belief after the observation.
    """

    id: str
    task: str
    seed: int
    play: str
    kind: str
    transition: Transition
    after: State

    @property
    def changes(self) -> bool:
        """Whether a fact changes."""
        return self.after.facts != self.transition.query.state.facts

    def to_json(self) -> dict[str, Any]:
        """Return the transition as plain data, which `from_json` reads."""
        return {
            "id": self.id,
            "task": self.task,
            "seed": self.seed,
            "play": self.play,
            "kind": self.kind,
            **transition_json(self.transition),
            "after": self.after.to_text(),
        }

    @classmethod
    def from_json(cls, row: Any) -> Item:
        """Return the transition that `to_json` described."""
        return cls(
            row["id"],
            row["task"],
            row["seed"],
            row["play"],
            row["kind"],
            transition_from_json(row),
            State.from_text(row["after"]),
        )


@dataclass(frozen=True, slots=True)
class EvaluationSet:
    """A frozen set of transitions.

    Attributes:
        name: Its name.
        sha256: The SHA-256 of the whole set, ScienceWorld's part included: results name it.
        parts: The transitions, by environment.
        missing: Why parts are not there, by environment: without Java there is no ScienceWorld.
        splits: The split of each environment's tasks.
    """

    name: str
    sha256: str
    parts: Mapping[str, tuple[Item, ...]]
    missing: Mapping[str, str]
    splits: Mapping[str, str]


def load_evaluation_set(
    name: str = "v1", *, drawn: bool = False, tell: Callable[[str], object] = lambda line: None
) -> EvaluationSet:
    """Return a frozen set of transitions to score world models on.

    Args:
        name: Which set.
        drawn: Also the part that is not stored, ScienceWorld's: it needs Java, and is drawn once on a
            machine, which takes minutes.
        tell: Called with a line where something takes minutes, or a part is left out.

    Raises:
        OptionError: There is no such set.
        DataCorrupt: The stored transitions are not those of the set.

    Example:
        >>> evaluation_set = load_evaluation_set("v1")
        >>> item = evaluation_set.parts["comap/ALFWorld-v0"][0]
        >>> item.kind, item.transition.query.action, item.changes
        ('revealing', 'go to bed 1', True)
    """
    manifest = manifest_of(name)
    parts: dict[str, tuple[Item, ...]] = {}
    missing: dict[str, str] = {}
    stored = _stored_items(name)
    for env_id, about in manifest["environments"].items():
        version = text_env_of(env_id).canonicalizer.version
        if version != about["facts"]:
            raise OptionError(
                f"expected facts of {env_id} as the set {name} has them ({about['facts']}), found that "
                f"this comap reads others ({version}); score on a newer set"
            )
        if not (about["stored"] or drawn):
            missing[env_id] = "its transitions are not stored: load the set with drawn=True"
            continue
        try:
            items = stored.get(env_id, ())
            if not about["stored"]:
                items = _drawn_here(name, env_id, about["sha256"], tell)
            _check_digest(name, env_id, items, about["sha256"])
            parts[env_id] = items
        except CoMapError as error:
            # Without Java, or with another one than that which the set was drawn with.
            if about["stored"]:
                raise
            missing[env_id] = str(error)
            tell(f"{env_id} is left out: {error}")

    splits = {env_id: about["split"] for env_id, about in manifest["environments"].items()}
    return EvaluationSet(name, manifest["sha256"], parts, missing, splits)


@cache
def manifest_of(name: str) -> dict[str, Any]:
    """Return what is known of a set: how it was drawn, its sizes and SHA-256."""
    if name not in SETS:
        raise OptionError(f"there is no set of transitions {name!r:.40}; {suggest(name, SETS)}")
    manifest: dict[str, Any] = json.loads((FOLDER / f"{name}.json").read_bytes())
    return manifest


def digest(items: Iterable[Item]) -> str:
    """Return the SHA-256 of transitions, each a line of JSON."""
    return hashlib.sha256(b"".join(_line(item) for item in items)).hexdigest()


def _line(item: Item) -> bytes:
    return json.dumps(item.to_json(), sort_keys=True).encode("ascii") + b"\n"


def _check_digest(name: str, env_id: str, items: Sequence[Item], expected: str) -> None:
    actual = digest(items)
    if actual != expected:
        raise DataCorrupt(
            f"expected the transitions of {env_id} in the set {name} (SHA-256 {expected[:16]}), found "
            f"others ({len(items)}, SHA-256 {actual[:16]}); install comap again, or for drawn parts the "
            "versions that docs/world-model-set.md names"
        )


def _stored_items(name: str) -> dict[str, tuple[Item, ...]]:
    """Return the stored transitions of a set, by environment."""
    path = FOLDER / f"{name}.jsonl.xz"
    items: dict[str, list[Item]] = {}
    try:
        with lzma.open(path, "rb") as file:
            for line in file:
                item = Item.from_json(json.loads(line))
                items.setdefault(item.transition.query.env_id, []).append(item)
    except (EOFError, KeyError, OSError, TypeError, ValueError, lzma.LZMAError) as error:
        raise DataCorrupt(
            f"expected the transitions of the set {name}, found something else "
            f"({type(error).__name__}: {error}); install comap again"
        ) from error
    return {env_id: tuple(rows) for env_id, rows in items.items()}


def _drawn_here(
    name: str, env_id: str, expected: str, tell: Callable[[str], object]
) -> tuple[Item, ...]:
    """Return a part that is not stored: from this machine's cache, or drawn now."""
    path = _cached(name, env_id, expected)
    try:
        with lzma.open(path, "rb") as file:
            items = tuple(Item.from_json(json.loads(line)) for line in file)
        if digest(items) == expected:
            return items
    except (EOFError, KeyError, OSError, TypeError, ValueError, lzma.LZMAError):
        pass  # not there yet, or damaged: it is drawn again

    with closing(environment(env_id, test_split(env_id))):
        tell(f"drawing the transitions of {env_id}, once on this machine: some minutes")
    items = draw(name, env_id)
    _cache(name, env_id, items)
    return items


def _cached(name: str, env_id: str, sha256: str) -> Path:
    """Return the file of a part that was drawn on this machine."""
    short_name = env_id.rpartition("/")[2]
    return comap_home() / "world-model-sets" / f"{name}-{short_name}-{sha256[:16]}.jsonl.xz"


def _cache(name: str, env_id: str, items: Sequence[Item]) -> None:
    path = _cached(name, env_id, digest(items))
    with suppress(OSError):  # where nothing can be written it is drawn again the next time
        path.parent.mkdir(parents=True, exist_ok=True)
        write_items(path, items)


def write_items(path: Path, items: Iterable[Item]) -> None:
    """Write transitions as compressed JSON lines; the same ones give the same bytes."""
    lines = b"".join(_line(item) for item in items)
    with replacing_file(path) as file:
        file.write(lzma.compress(lines, preset=9))


def environment(env_id: str, split: str) -> gymnasium.Env[str, str]:
    """Return an environment of a set's tasks."""
    options = dict(_OPTIONS[env_id])
    if env_id == SCIENCEWORLD:
        from ..envs.scienceworld.tasks import SHORT

        options["task_names"] = SHORT  # gold paths of the others take minutes
    env: gymnasium.Env[str, str] = gymnasium.make(env_id, split=split, **options)
    text_env = env.unwrapped
    assert isinstance(text_env, TextEnv)
    text_env.check_engine()
    return env


def _tasks_of(env: gymnasium.Env[str, str], env_id: str, number: int) -> list[str]:
    """Return tasks of an environment's split, spread evenly over it."""
    if env_id == SCIENCEWORLD:
        number = min(number, _SLOW_TASKS)
    return evenly(env.get_wrapper_attr("tasks").ids, number)


def test_split(env_id: str) -> str:
    """Return the split that a set's tasks are from: the hardest test split."""
    return text_env_of(env_id).test_splits[-1]


def draw(name: str, env_id: str) -> tuple[Item, ...]:
    """Return a set's transitions of an environment, drawn from its generated tasks.

    Raises:
        MissingExtra: What plays the environment is not installed.
    """
    split = test_split(env_id)
    pool: dict[tuple[str, str], list[Item]] = {}
    known: set[tuple[str | None, ...]] = set()
    with closing(environment(env_id, split)) as env:
        canonicalizer = env.get_wrapper_attr("canonicalizer")
        tasks = _tasks_of(env, env_id, _TASKS)
        for play, trajectory in plays(name, env, tasks):
            for item in _items_of(play, trajectory, canonicalizer):
                # The plays of a task begin alike: the first that has a transition keeps it.
                query = item.transition.query
                key = (item.task, *(turn.action for turn in query.history), query.action)
                if key in known:
                    continue
                known.add(key)
                group = "any" if item.kind in ("end", "idle") else play
                pool.setdefault((group, item.kind), []).append(item)

    return _named(env_id, _drawn_by_quota(pool, Draws("world models", name, env_id, "quota")))


def _items_of(play: str, trajectory: Trajectory, canonicalizer: Canonicalizer) -> Iterator[Item]:
    """Yield the transitions of an episode, without ids; those whose truth cannot be read are left out."""
    steps = {step.t: step for step in trajectory.steps}
    for transition in transitions_of(trajectory):
        query, observation = transition
        step = steps[len(query.history)]
        after = canonicalizer.update(query.state, query.action, observation)
        if not after.parsed:
            continue

        changes = after.facts != query.state.facts
        if step.notes.get(_MISTAKEN):
            # A mistake that the environment understands all the same is none.
            if changes and not step.invalid_action:
                continue
            kind = "refused"
        elif step.terminated:
            kind = "end"
        elif not changes:
            kind = "idle"
        elif is_predictable(query, observation, canonicalizer) is False:
            kind = "revealing"
        else:
            kind = "foreseeable"
        yield Item("", trajectory.task, 0, play, kind, transition, after)


def _drawn_by_quota(pool: Mapping[tuple[str, str], Sequence[Item]], draws: Draws) -> list[Item]:
    """Return as many transitions of each kind as its quota; what one lacks, the others make up for."""
    total = sum(_QUOTAS.values())
    drawn: list[Item] = []
    rests: list[list[Item]] = []
    for kind, quota in _QUOTAS.items():
        ordered = _by_turns(pool.get(kind, ()), draws)
        drawn += ordered[:quota]
        rests.append(ordered[quota:])

    # Those that change something first, and further ends last.
    for rest in reversed(rests):
        drawn += rest[: total - len(drawn)]
    return drawn


def _by_turns(items: Iterable[Item], draws: Draws) -> list[Item]:
    """Return all transitions in random order such that tasks take turns."""
    by_task: dict[str, list[Item]] = {}
    for item in items:
        by_task.setdefault(item.task, []).append(item)
    stacks = [draws.shuffled(rows) for _, rows in sorted(by_task.items())]
    stacks = draws.shuffled(stacks)

    ordered = []
    while stacks:
        ordered += [stack.pop() for stack in stacks]
        stacks = [stack for stack in stacks if stack]
    return ordered


def _named(env_id: str, items: Iterable[Item]) -> tuple[Item, ...]:
    """Return transitions in a fixed order, with their ids."""
    short_name = env_id.rpartition("/")[2].partition("-v")[0].lower()
    ordered = sorted(
        items,
        key=lambda item: (
            item.task,
            [turn.action or "" for turn in item.transition.query.history],
            item.transition.query.action,
        ),
    )
    return tuple(
        replace(item, id=f"{short_name}-{number:03}") for number, item in enumerate(ordered, 1)
    )


def fit_transitions(name: str, env_id: str) -> list[Transition]:
    """Return what a world model may learn of an environment: transitions of its train split's tasks.

    The reference row ``retrieval`` is fitted on them. They are drawn as the set is, from other tasks.
    """
    transitions: list[Transition] = []
    with closing(environment(env_id, "train")) as env:
        tasks = _tasks_of(env, env_id, _FIT_TASKS)
        for _, trajectory in plays(f"{name} train", env, tasks):
            transitions += transitions_of(trajectory)
    return transitions


def plays(
    name: str, env: gymnasium.Env[str, str], tasks: Sequence[str]
) -> Generator[tuple[str, Trajectory]]:
    """Yield the episodes of the three plays of each task, and who acted."""
    expert = _Limited(ExpertAgent())
    demonstrations = [run_episode(env, expert, task=task, seed=0) for task in tasks]
    actions = {step.action for demonstration in demonstrations for step in demonstration.steps}
    for demonstration in demonstrations:
        yield "expert", demonstration
    for play in ("half-random", "refused"):
        agent = _Limited(_Erring(name, play, sorted(actions)))
        for task in tasks:
            yield play, run_episode(env, agent, task=task, seed=0)


class _Limited:
    """An agent that gives up after so many steps: the environment's own limit would end the episode."""

    asks_world_model = False

    def __init__(self, agent: Any):
        self.name = agent.name
        self._agent = agent

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        if view.step >= _STEPS:
            yield from ()
            return Decision(None)
        decision: Decision = yield from self._agent.decide(view)
        return decision


class _Erring:
    """An expert that now and then does something else: any other action, or a mistaken one.

    Args:
        set_name: Names the draws.
        play: ``half-random`` or ``refused``.
        others: Actions of other tasks' experts.
    """

    def __init__(self, set_name: str, play: str, others: Sequence[str]):
        self.name = play
        self._set_name = set_name
        self._others = others

    def decide(self, view: View) -> Generator[Request, Reply, Decision]:
        yield from ()
        draws = Draws("world models", self._set_name, view.env_id, self.name, view.task, view.step)
        action = view.expert_action()
        if action is not None and not draws.chance(_ERRS):
            return Decision(action)

        if self.name == "refused":
            base = action if action is not None else draws.pick(self._others)
            mistaken = _mistaken(base, draws.pick(self._others), draws)
            return Decision(mistaken, notes={_MISTAKEN: True})
        admissible = view.admissible_actions
        if admissible and draws.chance(_ADMISSIBLE):
            return Decision(draws.pick(admissible))
        return Decision(draws.pick(self._others))


def _mistaken(action: str, other: str, draws: Draws) -> str:
    """Return an action with a mistake such as language models make."""
    words = action.split()
    kind = draws.integer(0, 3)
    if kind == 0 and len(words) > 1:  # the end of another action: another place, another thing
        return " ".join([*words[:-1], *other.split()[-1:]])
    if kind == 1 and any(character.isdigit() for character in action):  # a number that is not there
        return "".join(
            str((int(character) + 7) % 10) if character in "0123456789" else character
            for character in action
        )
    if kind == 2:  # cut short
        return action[: max(1, len(action) * 3 // 5)]
    place = draws.integer(0, max(len(words[0]) - 1, 0)) if words else 0
    return action[:place] + action[place + 1 :]  # a letter is missing


def freeze(name: str) -> dict[str, Any]:
    """Draw a set, write its stored part, and return its manifest."""
    environments: dict[str, Any] = {}
    stored: list[Item] = []
    for env_id in _OPTIONS:
        items = draw(name, env_id)
        is_stored = env_id != SCIENCEWORLD
        if is_stored:
            stored += items
        else:
            _cache(name, env_id, items)
        environments[env_id] = {
            "split": test_split(env_id),
            "stored": is_stored,
            "n": len(items),
            "tasks": len({item.task for item in items}),
            "changes": sum(item.changes for item in items),
            "facts": text_env_of(env_id).canonicalizer.version,
            "sha256": digest(items),
        }
    write_items(FOLDER / f"{name}.jsonl.xz", stored)
    whole = "".join(f"{env_id} {about['sha256']}\n" for env_id, about in environments.items())
    return {
        "set": name,
        "sha256": hashlib.sha256(whole.encode()).hexdigest(),
        "environments": environments,
    }
