"""Unlimited ALFWorld games from a seed: the generated tasks.

Splits and scenes. The scene numbers of the three splits are disjoint (train 1001 to 1430,
valid_seen 2001 to 2430, valid_unseen 3001 to 3430, none of them official). A scene's room, that is
its receptacles and what stands together, depends on the scene and on the difficulty's room size
only, never on the seed. A ``valid_seen`` scene is the room of the ``train`` scene a thousand below,
with things placed anew. The rooms of ``valid_unseen`` differ from every room of the other two in
what stands together, at any seed.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import json
import operator
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ...errors import EngineError, MissingExtra, OptionError, TaskNotFound, install_command, suggest
from ..generated import Draws
from ..panel import Panel
from .engine import NativeEngine
from .expert import plan
from .game import Game, Problem, read_problem
from .goal import HELP, Goal, load_table
from .rooms import Difficulty, Layout, Target, Thing, choose_target, furnish, layout

_PREDICATE_OF_PROPERTY = {
    "pickupable": "pickupable",
    "container": "isReceptacleObject",
    "cleanable": "cleanable",
    "heatable": "heatable",
    "coolable": "coolable",
    "sliceable": "sliceable",
    "toggleable": "toggleable",
}
_TREATMENTS = {
    "clean": ("cleanable", "isClean"),
    "hot": ("heatable", "isHot"),
    "cool": ("coolable", "isCool"),
}
"""For each state of a goal, the predicates for a thing that can be so and for one that is."""


def write_problem(name: str, room: Layout, start: str, things: list[Thing], target: Target) -> str:
    """Return a game as the PDDL problem that upstream's domain is played with."""
    facts = "\n".join(f"({fact})" for fact in _facts(room, start, things))
    objects = "\n".join(f"{name} - {kind}" for name, kind in _objects(room, things))
    return (
        f"(define (problem {name})\n(:domain alfred)\n(:objects\n{objects}\n)\n"
        f"(:init\n{facts}\n)\n(:goal (and {_goal(target)} ))\n)\n"
    )


def _objects(room: Layout, things: list[Thing]) -> Iterator[tuple[str, str]]:
    """Yield the name and the type of everything in a game."""
    # The domain names some types as constants; a problem must have them, with things or without.
    constants = load_table("generator")["constants"]
    yield "agent1", "agent"

    for kind in sorted({*constants["otype"], *(f"{thing.kind}Type" for thing in things)}):
        yield kind, "otype"
    for kind in sorted({*constants["rtype"], *(f"{kind}Type" for kind in room.by_kind)}):
        yield kind, "rtype"

    for thing in things:
        yield thing.id, "object"
    for receptacle in room.receptacles:
        yield receptacle.id, "receptacle"
    for location in dict.fromkeys([*(r.location for r in room.receptacles), *room.free]):
        yield location, "location"


def _facts(room: Layout, start: str, things: list[Thing]) -> Iterator[str]:
    """Yield the facts of a game at its start."""
    table = load_table("statistics")
    yield from (f"receptacleType {r.id} {r.kind}Type" for r in room.receptacles)
    yield from (f"objectType {thing.id} {thing.kind}Type" for thing in things)

    present = {thing.kind for thing in things}

    # Of the table of what fits where only what this game has things for.
    for place in sorted(room.by_kind):
        for kind in table["can_contain"].get(place, ()):
            if kind in present:
                yield f"canContain {place}Type {kind}Type"

    for name, predicate in _PREDICATE_OF_PROPERTY.items():
        kinds = set(table["properties"][name])
        yield from (f"{predicate} {thing.id}" for thing in things if thing.kind in kinds)
    yield from (f"openable {r.id}" for r in room.receptacles if r.kind in table["openable"])

    yield f"atLocation agent1 {start}"
    yield from (f"isCool {thing.id}" for thing in things if thing.cold)
    for thing in things:
        yield from (f"inReceptacle {thing.id} {receptacle.id}" for receptacle in thing.places)
    yield from (f"inReceptacleObject {thing.id} {thing.inside}" for thing in things if thing.inside)
    yield from (f"receptacleAtLocation {r.id} {r.location}" for r in room.receptacles)
    yield from (f"objectAtLocation {thing.id} {thing.location}" for thing in things)


def _goal(target: Target) -> str:
    """Return the goal as the official files word it, by the family's template."""
    goal = Goal(target.family, "", "")  # what follows from the family alone
    template = "place"
    able = ""
    treated = ""
    if goal.lamp:
        template = "look"
    elif goal.count == 2:
        template = "two"
    elif goal.state is not None:
        template = "treat"
        able, treated = _TREATMENTS[goal.state]

    text: str = load_table("generator")["goals"][template]
    return text.format(thing=target.thing, target=target.place, able=able, treated=treated)


SPLITS = ("train", "valid_seen", "valid_unseen")
_TASK = re.compile(r"generated/([a-z_]+)/([a-z0-9.-]+)/(\d{1,18})-(\d{6,12})", re.ASCII)
_ATTEMPTS = 200


def family_of(task: str) -> str:
    """Return the family of a generated game by its id, whose last number gives it; else nothing."""
    match = _TASK.fullmatch(task)
    if match is None:
        return ""

    try:
        families = Difficulty.of(match[2]).families
    except OptionError:
        return ""
    # `generate` gives families their turns by the index.
    return families[int(match[4]) % len(families)]


@dataclass(frozen=True)
class GeneratedGame:
    """A generated game.

    Attributes:
        task: Its id, such as ``"generated/train/normal/0-000017"``.
        split: Its split.
        difficulty: Its difficulty's name.
        scene: Its scene's number.
        target: Its goal, with types spelled as in the official files.
        pddl: The PDDL problem.
        problem: The same, read; with the task sentence and a walkthrough.

    Example:
        >>> game = generate("valid_unseen", 17)
        >>> game.task, game.problem.goal.family
        ('generated/valid_unseen/normal/0-000017', 'pick_two_obj_and_place')
    """

    task: str
    split: str
    difficulty: str
    scene: int
    target: Target
    pddl: str
    problem: Problem

    @property
    def folder(self) -> str:
        """Where the official layout would have it: ``<split>/<task folder>/<trial folder>``."""
        target = self.target
        folder = f"{target.family}-{target.thing}-None-{target.place}-{self.scene}"
        return f"{self.split}/{folder}/{_trial(self.task)}"


def generate(
    split: str, index: int, seed: int = 0, difficulty: str | Difficulty = "normal"
) -> GeneratedGame:
    """Return one game. The same arguments give the same game on every machine.

    Args:
        split: ``"train"``, ``"valid_seen"`` or ``"valid_unseen"``.
        index: Which game of the split, from 0; there is no last one. Families take turns.
        seed: Other seeds give other games in the same rooms.
        difficulty: ``"easy"``, ``"normal"``, ``"hard"``, the code of any other, or a `Difficulty`.

    Raises:
        OptionError: An argument has no such value, or no room fits the difficulty.

    Example:
        >>> generate("train", 0) == generate("train", 0, seed=0, difficulty="normal")
        True
        >>> generate("train", 0, difficulty="easy").problem.goal.family
        'pick_and_place_simple'
    """
    level = difficulty if isinstance(difficulty, Difficulty) else Difficulty.of(difficulty)
    task = _task(split, level, seed, index)
    family = level.families[index % len(level.families)]

    # A room that is drawn may not suit the family; the draws of one game go on until one does.
    draws = Draws("game", task)
    for _ in range(_ATTEMPTS):
        game = _draw(task, split, family, level, draws)
        if game is not None:
            return game

    raise OptionError(
        f"expected a difficulty that leaves room for {family!r}, found {level.name!r}; allow more "
        "receptacles or things"
    )


def _draw(
    task: str, split: str, family: str, level: Difficulty, draws: Draws
) -> GeneratedGame | None:
    """Draw one game; None if the room drawn has no such goal or the game cannot be won."""
    table = load_table("generator")
    kind = draws.weighted(_rooms_with(family))
    number = draws.integer(*table["layouts"][split])
    room, _ = layout(kind, number, level.receptacles)
    target = choose_target(room, family, level, draws)
    if target is None:
        return None

    things = furnish(room, target, level, draws)
    pddl = write_problem(f"plan_{_trial(task)}", room, draws.pick(room.free), things, target)

    # Read as official games are, so that what is played is what `write_game` writes.
    facts, goal = read_problem(pddl)
    problem = Problem(
        facts=facts,
        goal=goal,
        task=goal.sentence(),
        walkthrough=(),
        help=HELP,
        source=pddl.encode(),
    )
    walkthrough = _solve(problem)
    if walkthrough is None:
        return None

    problem = dataclasses.replace(problem, walkthrough=walkthrough)
    scene = table["first_scene"][split] + table["room_offset"][kind] + number
    return GeneratedGame(task, split, level.name, scene, target, pddl, problem)


def _solve(problem: Problem) -> tuple[str, ...] | None:
    """Return commands that were played and won; None if there are none or the game starts won."""
    engine = NativeEngine(Game(problem))
    commands = plan(engine)
    if not commands:
        return None

    # Played, not only planned: an error of the planner must not become a game that cannot be won.
    for command in commands:
        engine.act(command)
    return tuple(commands) if engine.won() else None


@functools.cache
def _rooms_with(family: str) -> dict[str, int]:
    """Return how often official games of a family are in each kind of room."""
    counts = {}
    for room, table in load_table("statistics")["rooms"].items():
        counts[room] = sum(
            games for goal_family, _, _, games in table["goals"] if goal_family == family
        )
    return counts


def _task(split: str, level: Difficulty, seed: int, index: int) -> str:
    """Return a game's id.

    Raises:
        OptionError: There is no such split, or a number is out of range.
    """
    if split not in SPLITS:
        raise OptionError(f"there is no split {split!r}; {suggest(str(split), SPLITS)}")

    seed = operator.index(seed)
    index = operator.index(index)

    # As many digits as the pattern of ids reads.
    for name, number, limit in (("seed", seed, 10**18), ("index", index, 10**12)):
        if not 0 <= number < limit:
            raise OptionError(
                f"expected {name} from 0 to below 10**{len(str(limit)) - 1}, found {number}"
            )

    return f"generated/{split}/{level.name}/{seed}-{index:06d}"


def _trial(task: str) -> str:
    """Return the name of a game's folder: the end of its id, without what folders dislike."""
    return "trial_" + re.sub(r"[/.-]", "_", task.split("/", 2)[2])


def parse_task(task: str) -> tuple[str, str, int, int]:
    """Return split, difficulty, seed and index of a generated task."""
    match = _TASK.fullmatch(task) if isinstance(task, str) else None
    if match is not None:
        split = match[1]
        difficulty = match[2]
        seed = int(match[3])
        index = int(match[4])
        try:
            # Of several spellings of one game ("00", a code for a preset), one is its id.
            if _task(split, Difficulty.of(difficulty), seed, index) == task:
                return split, difficulty, seed, index
        except OptionError as error:
            raise TaskNotFound(f"there is no generated task {task[:100]!r}: {error}") from None

    raise TaskNotFound(
        "expected generated/<split>/<difficulty>/<seed>-<index of six digits>, such as "
        f"'generated/train/normal/0-000017', found {str(task)[:100]!r}"
    )


def panel(
    split: str, seed: int = 0, difficulty: str | Difficulty = "normal", size: int | None = None
) -> Panel:
    """Return the panel of a split: its first games, as many as the official split has."""
    level = difficulty if isinstance(difficulty, Difficulty) else Difficulty.of(difficulty)
    first = _task(split, level, seed, 0)
    if size is None:
        size = load_table("generator")["sizes"][split]
    if not 0 < size <= 10**6:
        raise OptionError(f"expected size from 1 to 1000000, found {size}")

    stem = first.removesuffix("000000")
    return Panel.of((f"{stem}{index:06d}" for index in range(size)), split, SPLITS)


def write_game(game: GeneratedGame, directory: Path) -> Path:
    """Write a game as ``game.tw-pddl`` in the official layout, for the TextWorld engine.

    Domain and grammar are those of the installed alfworld package, which is not imported.

    Args:
        game: The game.
        directory: Where to make ``json_2.1.1/<split>/<task folder>/<trial folder>/``.

    Returns:
        The file.

    Raises:
        MissingExtra: alfworld is not installed.

    Example:
        >>> write_game(generate("train", 0), Path("data")).name  # doctest: +SKIP
        'game.tw-pddl'
    """
    # Upstream's grammar has a place holder for the task's sentence.
    domain, grammar = _upstream_texts()
    content = {
        "pddl_domain": domain,
        "grammar": grammar.replace("UNKNOWN GOAL.", game.problem.task),
        "pddl_problem": game.pddl,
        "solvable": True,
        "walkthrough": list(game.problem.walkthrough),
    }

    path = directory / "json_2.1.1" / game.folder / "game.tw-pddl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
    return path


def _upstream_texts() -> tuple[str, str]:
    """Return upstream's PDDL domain and its grammar."""
    # Found, not imported: to import it writes to ~/.cache and sets an environment variable.
    spec = importlib.util.find_spec("alfworld")
    if spec is None or not spec.submodule_search_locations:
        raise MissingExtra.of("alfworld", "writing games for the TextWorld engine")

    folder = Path(spec.submodule_search_locations[0]) / "data"
    domain = (folder / "alfred.pddl").read_text(encoding="utf-8")
    grammar = (folder / "alfred.twl2").read_text(encoding="utf-8")
    if "UNKNOWN GOAL." not in grammar:
        raise EngineError(
            f"expected 'UNKNOWN GOAL.' in {folder / 'alfred.twl2'}, found another grammar; "
            f"run: {install_command('alfworld')}"
        )
    return domain, grammar
