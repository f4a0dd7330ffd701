"""Gather the facts that the ALFWorld task generator draws from, from the official training games.

Only numbers and type names are kept: which receptacles rooms have and which stand together, how
often each kind of thing occurs and where, which goals are set. Only the training split is read, so
that nothing of the validation games gets into generated ones. The same games give the same bytes.

    python -m comap.benchmarks.gather_alfworld_statistics \
        --data-dir DIR --out envs/alfworld/data/statistics.json

``DIR`` holds ``json_2.1.1/train``. The shape of the output is told in `Statistics`
(``comap.envs.alfworld.rooms``).
"""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import DataNotFound

__all__ = ["gather", "main"]

ROOMS = {0: "kitchen", 2: "livingroom", 3: "bedroom", 4: "bathroom"}
"""Rooms by the hundreds of ALFRED's scene numbers."""

PROPERTIES = {
    "pickupable": "pickupable",
    "cleanable": "cleanable",
    "heatable": "heatable",
    "coolable": "coolable",
    "sliceable": "sliceable",
    "toggleable": "toggleable",
    "isReceptacleObject": "container",
}
_FACT = re.compile(r"\(([^\s()]+) ([^\s()]+)(?: ([^\s()]+))?\)")
_Facts: TypeAlias = defaultdict[str, list[tuple[str, str]]]


class _Room:
    """What is counted for one of the four rooms."""

    def __init__(self) -> None:
        self.games = 0
        self.scenes: dict[int, Counter[str]] = {}
        self.together: Counter[tuple[str, ...]] = Counter()
        self.objects: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.places: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.goals: Counter[tuple[str, str, str]] = Counter()

    def add(self, task: str, scene: int, game: _Game) -> None:
        self.games += 1
        family, thing, _, target, _ = task.split("-")
        self.goals[family, thing, target] += 1
        self.scenes[scene] = Counter(game.receptacles.values())
        for group in game.groups():
            self.together[group] += 1
        for kind, number in Counter(game.objects.values()).items():
            self.objects[kind][number] += 1
        for name, kind in game.objects.items():
            for place in game.where.get(name) or [""]:
                self.places[kind][game.receptacles.get(place, "")] += 1

    def to_json(self) -> dict[str, Any]:
        counts: defaultdict[str, Counter[int]] = defaultdict(Counter)
        for kind in {kind for scene in self.scenes.values() for kind in scene}:
            counts[kind].update(scene[kind] for scene in self.scenes.values())
        return {
            "games": self.games,
            "scenes": len(self.scenes),
            "receptacles": {kind: _numbers(counts[kind]) for kind in sorted(counts)},
            "together": [[list(group), n] for group, n in sorted(self.together.items())],
            "objects": {kind: _numbers(self.objects[kind]) for kind in sorted(self.objects)},
            "places": {kind: _numbers(self.places[kind]) for kind in sorted(self.places)},
            "goals": [[*goal, n] for goal, n in sorted(self.goals.items())],
        }


class _Game:
    """The parts of one game that are counted."""

    def __init__(self, problem: str):
        start, end = problem.index("(:init"), problem.index("(:goal")
        self.facts: _Facts = defaultdict(list)
        for predicate, first, second in _FACT.findall(problem[start:end]):
            self.facts[predicate].append((first, second))
        self.receptacles = self._types("receptacleType")
        self.objects = self._types("objectType")
        self.location = dict(self.facts["receptacleAtLocation"])
        self.object_location = dict(self.facts["objectAtLocation"])
        self.where: defaultdict[str, list[str]] = defaultdict(list)
        for name, place in self.facts["inReceptacle"]:
            if place in self.receptacles and place not in self.where[name]:
                self.where[name].append(place)

    def _types(self, predicate: str) -> dict[str, str]:
        return {name: kind.removesuffix("Type") for name, kind in self.facts[predicate]}

    def groups(self) -> list[tuple[str, ...]]:
        """Return the kinds of the receptacles at each location."""
        at: defaultdict[str, list[str]] = defaultdict(list)
        for name, location in self.location.items():
            at[location].append(self.receptacles[name])
        return [tuple(sorted(kinds)) for kinds in at.values()]


class _Census:
    """What is counted over all rooms."""

    def __init__(self) -> None:
        self.rooms = {name: _Room() for name in ROOMS.values()}
        self.seen: Counter[str] = Counter()
        self.having: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self.openable: Counter[str] = Counter()
        self.fits: defaultdict[str, set[str]] = defaultdict(set)
        self.cold: Counter[str] = Counter()
        self.inside: Counter[tuple[str, str]] = Counter()
        self.beside: Counter[tuple[str, str]] = Counter()
        self.several: Counter[tuple[str, tuple[str, ...]]] = Counter()
        self.load: defaultdict[str, Counter[int]] = defaultdict(Counter)
        self.astray: Counter[bool] = Counter()
        self.loose: Counter[bool] = Counter()

    def add(self, game: _Game) -> None:
        kinds = game.objects
        self.seen.update(kinds.values())
        for predicate, name in PROPERTIES.items():
            self.having[name].update(kinds[o] for o, _ in game.facts[predicate] if o in kinds)
        self.openable.update(game.receptacles[r] for r, _ in game.facts["openable"])
        for place, thing in game.facts["canContain"]:
            self.fits[place.removesuffix("Type")].add(thing.removesuffix("Type"))
        self.cold.update(kinds[o] for o, _ in game.facts["isCool"] if o in kinds)
        self._places(game)
        self._containers(game)

    def _containers(self, game: _Game) -> None:
        """Count how often things are beside a container, and inside it."""
        kinds, inside = game.objects, set(game.facts["inReceptacleObject"])
        containers = {name for name, _ in game.facts["isReceptacleObject"] if name in kinds}
        content: defaultdict[str, list[str]] = defaultdict(list)
        for name, places in game.where.items():
            if name in kinds:
                content[places[0]].append(name)
        for names in content.values():
            for outer in containers.intersection(names):
                for inner in names:
                    if inner != outer:
                        pair = kinds[inner], kinds[outer]
                        self.beside[pair] += 1
                        self.inside[pair] += (inner, outer) in inside

    def _places(self, game: _Game) -> None:
        load: Counter[str] = Counter()
        for name, kind in game.objects.items():
            places, at = game.where.get(name, []), game.object_location.get(name)
            load.update(places)
            if not places:
                self.loose[at in game.location.values()] += 1
            elif len(places) == 1:
                self.astray[at != game.location[places[0]]] += 1
            else:
                self.several[kind, tuple(sorted(game.receptacles[r] for r in places))] += 1
        for name, kind in game.receptacles.items():
            self.load[kind][load[name]] += 1

    def to_json(self) -> dict[str, Any]:
        return {
            "source": "ALFWorld json_2.1.2_tw-pddl, train split: counts only",
            "games": sum(room.games for room in self.rooms.values()),
            "openable": sorted(self.openable),
            "can_contain": {kind: sorted(self.fits[kind]) for kind in sorted(self.fits)},
            "capacity": {kind: _high(self.load[kind]) for kind in sorted(self.load)},
            "properties": {
                name: sorted(k for k, n in having.items() if 2 * n > self.seen[k])
                for name, having in sorted(self.having.items())
            },
            "seen": dict(sorted(self.seen.items())),
            "cold": dict(sorted(self.cold.items())),
            "inside": [
                [*pair, n, self.beside[pair]] for pair, n in sorted(self.inside.items()) if n
            ],
            "several": [[kind, list(at), n] for (kind, at), n in sorted(self.several.items())],
            "astray": [self.astray[True], sum(self.astray.values())],
            "loose_at_receptacle": [self.loose[True], sum(self.loose.values())],
            "rooms": {name: room.to_json() for name, room in self.rooms.items()},
        }


def gather(games: Iterable[Path]) -> dict[str, Any]:
    """Return the statistics of these ``game.tw-pddl`` files.

    Example:
        >>> gather([])["games"]
        0
    """
    census = _Census()
    for path in games:
        task = path.parent.parent.name
        scene = int(task.rpartition("-")[2])
        game = _Game(json.loads(path.read_bytes())["pddl_problem"])
        census.add(game)
        census.rooms[ROOMS[scene // 100]].add(task, scene, game)
    return census.to_json()


def _numbers(counter: Counter[Any]) -> dict[str, int]:
    return {str(key): counter[key] for key in sorted(counter)}


def _high(counter: Counter[int]) -> int:
    """Return the 99th percentile, at least 1."""
    left = 0.99 * sum(counter.values())
    for number in sorted(counter):
        left -= counter[number]
        if left <= 0:
            return max(1, number)
    return 1


def main(argv: Sequence[str] | None = None) -> None:
    """Read the games, write the statistics.

    Example:
        >>> main(["--help"])
        Traceback (most recent call last):
        SystemExit: 0
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data-dir", type=Path, required=True, help="holds json_2.1.1/train")
    parser.add_argument("--out", type=Path, required=True, help="the JSON file to write")
    options = parser.parse_args(argv)
    games = sorted((options.data_dir / "json_2.1.1" / "train").glob("*/*/game.tw-pddl"))
    if not games:
        raise DataNotFound(
            f"expected games below {options.data_dir}/json_2.1.1/train, found none; "
            "run: comap data get alfworld"
        )
    text = json.dumps(gather(games), separators=(",", ":"), sort_keys=False)
    options.out.write_text(text.replace('],["', '],\n["') + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
